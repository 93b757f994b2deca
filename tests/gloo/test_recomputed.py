"""What torch's checkpoint costs the host: which tensors it is called with, and how the probe tells regions from tensors."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch import nn

from executor.probes import recomputed as probe
from executor.probes.bench import Bench
from executor.probes.beyond import apart, beyond
from executor.training.models.build import loss_of, model_for
from executor.training.parallelize import recompute
from sim.files.planfile import load_plan
from sim.setting.bind import bind, model_of
from sim.setting.program import program_for
from sim.work import HostWork
from tests.gloo.gpu_standin import alone

GPT = {"norm": "layernorm", "activation": "gelu", "bias": True, "position": "learned", "dropout": 0.0}


@pytest.mark.parametrize("dialect", [GPT, {}], ids=["gpt", "llama"])
def test_the_program_counts_the_tensors_that_torch_calls_its_hooks_with(dialect: dict[str, object]) -> None:
    """By layer. Fused attention on a GPU keeps two for its dropout that a CPU's does not, whose RMS norms in turn are made of several operators."""
    called = [_called(layers, dialect) for layers in (2, 6)]
    counted = [_counted(layers, dialect) for layers in (2, 6)]
    assert (counted[1] - counted[0]) / 4 == pytest.approx((called[1] - called[0]) / 4, rel=0.15)


def _plan(layers: int, dialect: dict[str, object]) -> dict[str, object]:
    model = {"family": "decoder", "name": "small", "layers": layers, "hidden": 32, "heads": 2, "vocab": 64, **dialect}
    return {"model": model, "seq_len": 8, "batch": {"micro": 1}, "memory": {"recompute": "full"}}


def _counted(layers: int, dialect: dict[str, object]) -> float:
    program = program_for(bind(load_plan(_plan(layers, dialect)), "dgx-h100"), 1)
    return sum(
        w.count for _, op in program.ops(0) if op.id.startswith("fwd/") for w in op.works if isinstance(w, HostWork) and w.what == "packed"
    )


def _called(layers: int, dialect: dict[str, object]) -> int:
    """Tensors that autograd keeps of the layers that run again, as their forward hands them to the hooks of torch's checkpoint."""
    plan = load_plan(_plan(layers, dialect))
    spec, setting, calls = model_of(plan), bind(plan, "dgx-h100"), itertools.count()
    model = model_for(spec, setting.framework, 8)
    recompute(model, plan)
    counted = {name: _Counted(layer, calls) for name, layer in model.named_children() if type(layer).__name__ == "CheckpointWrapper"}
    assert len(counted) == layers
    for name, layer in counted.items():
        setattr(model, name, layer)
    ids = torch.zeros(1, 8, dtype=torch.long)
    loss_of(spec, model(ids), ids)
    return next(calls)


class _Counted(nn.Module):
    """The layer inside a checkpoint, run under hooks that count."""

    def __init__(self, wrapped: nn.Module, calls: itertools.count[int]) -> None:
        super().__init__()
        self.layer, self.calls = wrapped._checkpoint_wrapped_module, calls

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        def pack(tensor: torch.Tensor) -> torch.Tensor:
            next(self.calls)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            return self.layer(*inputs)  # type: ignore[no-any-return, operator]


class _Slow(nn.Module):
    """Takes so many seconds of the bench's clock each way."""

    def __init__(self, clock: list[float], seconds: float) -> None:
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock[0] += self.seconds
        return x * 1.0


def test_a_wrapper_is_what_a_block_takes_beyond_a_bare_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, clock = Bench(alone(tmp_path), quick=True), [0.0]
    monkeypatch.setattr(bench, "_clock", lambda: clock[0])
    slow, bare = ((lambda blocks, s=s: apart(bench, [_Slow(clock, s) for _ in range(blocks)])) for s in (5.0, 2.0))
    assert beyond(bench, slow, bare, torch.ones(4, requires_grad=True)) == pytest.approx(3.0)


def test_regions_are_told_from_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A region takes 20 seconds each way, a tensor 3 in each hook, what runs again 7."""
    bench, kept = Bench(alone(tmp_path), quick=True), {1: 5, 4: 65}
    monkeypatch.setattr(bench, "times", lambda calls, least=5: [7.0])
    monkeypatch.setattr(probe, "_kept", lambda region, x: kept[len(region)])
    monkeypatch.setattr(
        probe, "beyond", lambda bench, again, bare, x: 2 * 20.0 + 3 * 3.0 * kept[len(again(1)[1]._checkpoint_wrapped_module)] + 7.0
    )
    probe.recomputed(bench)
    assert {row.name: row.median for _, row in bench.found} == pytest.approx({"packed": 3.0, "checkpointed": 20.0})


def test_all_of_a_region_runs_again(tmp_path: Path) -> None:
    """The probe takes off a whole forward: its regions end with an operator that keeps what it returns."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    bench, ran = Bench(alone(tmp_path), quick=True), list[str]()
    region = probe._region(2, bench)
    for name, module in region.named_modules():
        module.register_forward_pre_hook(lambda module, inputs, name=name: ran.append(name))
    checkpoint_wrapper(region)(torch.ones(1, 8, 64, requires_grad=True)).sum().backward()
    leaves = [name for name, module in region.named_modules() if not list(module.children())]
    assert sorted(name for name in ran if name in leaves) == sorted(2 * leaves)
