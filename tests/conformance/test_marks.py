"""`marked` opens ranges that torch.profiler records, around forward and backward of each part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from executor.marks import marked, op_name
from sim.imported.kineto import read_trace
from topologies.errors import BadInput


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.mlp = nn.LayerNorm(8), nn.ModuleDict({"c_fc": nn.Linear(8, 16), "c_proj": nn.Linear(16, 8)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp["c_proj"](torch.relu(self.mlp["c_fc"](self.ln_1(x))))


def test_names_of_well_known_models() -> None:
    known = {
        "model.layers.3.self_attn.q_proj": "L3.attn.qkv",
        "model.layers.3.self_attn.o_proj": "L3.attn.proj",
        "transformer.h.0.mlp.c_fc": "L0.mlp.up",
        "transformer.h.0.mlp.c_proj": "L0.mlp.down",
        "transformer.h.0.attn.c_proj": "L0.attn.proj",
        "layers.11.feed_forward.w2": "L11.mlp.down",
        "model.embed_tokens": "embed.tokens",
        "lm_head": "head.logits",
        "model.norm": "head.norm",
        "model.layers.3": "",
        "model.visual.blocks.3.attn.qkv": "V3.attn.qkv",
        "vision_tower.vision_model.encoder.layers.11.mlp.fc1": "V11.mlp.up",
        "model.language_model.layers.3.self_attn.q_proj": "L3.attn.qkv",
        "model.visual.merger.norm": "",
        "multi_modal_projector.norm": "",
        "something.else": "",
    }
    assert {name: op_name(name) for name in known} == known


def test_ranges_are_recorded_and_hooks_removed() -> None:
    model = nn.Sequential()
    model.add_module("h", nn.ModuleList([_Layer()]))
    layer = model.h[0]
    with profile(activities=[ProfilerActivity.CPU]) as session, marked(model):
        layer(torch.ones(2, 8, requires_grad=True)).sum().backward()
    found = [event.name for event in session.events() if event.name.startswith("op:")]
    assert sorted(found) == sorted(f"op:{phase}/L0.{part}" for phase in ("fwd", "bwd") for part in ("norm1", "mlp.up", "mlp.down"))
    assert not layer.ln_1._forward_pre_hooks
    assert not layer.ln_1._backward_hooks


class _Line:
    """Ranges as they open and close, in place of the profiler's. A range that closes is the one that opened last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.found = list[str](), list[tuple[str, ...]]()
        monkeypatch.setattr("executor.marks._open", self._begin)
        monkeypatch.setattr("executor.marks._close", self._end)

    def _begin(self, name: str) -> str:
        self.open.append(name.removeprefix("op:"))
        self.found.append(tuple(self.open))
        return self.open[-1]

    def _end(self, mark: str) -> None:
        assert self.open.pop() == mark


class _Scale(torch.autograd.Function):
    """A node of one's own."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *given: torch.Tensor) -> torch.Tensor:
        return 2 * given[0]


class _Outer(nn.Module):
    """Modules in a module, one of them twice, views in between, and what was computed before the call without being given to it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.beside = nn.Linear(8, 8), torch.zeros(())

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.inner(_Scale.apply(self.inner(x).transpose(0, 1)).transpose(0, 1)) + self.beside}


def _named(module: str) -> str:
    return module


def test_an_output_may_be_changed_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    line, model = _Line(monkeypatch), nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8))
    with marked(model, _named):
        for given in (torch.ones(2, 8), torch.ones(2, 3, 8)):  # of three dimensions the output is a view, and its node is made anew
            found = model(given)  # needs no gradient
            found += 1
            torch.tanh_(found).sum().backward()
    assert not line.open
    for name in ("0", "1", "2"):
        assert {("fwd/" + name,), ("bwd/" + name,)} <= set(line.found)
    assert model[0].weight.grad is not None and not model[0]._forward_hooks


def test_ranges_of_modules_in_modules_stand_inside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    line, model, before = _Line(monkeypatch), _Outer(), nn.Linear(8, 8)
    model.add_module("before", before)
    with marked(model, lambda module: module or "outer"):
        model.beside = before(torch.ones(8)).sum()
        model(torch.ones(8, 8))["y"].sum().backward()
    assert [one for one in line.found if one[0].startswith("fwd")] == [("fwd/before",), ("fwd/outer",), *[("fwd/outer", "fwd/inner")] * 2]
    backward = [one for one in line.found if one[0].startswith("bwd")]
    assert {one[-1] for one in backward} == {"bwd/outer", "bwd/inner", "bwd/before"} and all(len(one) == 1 for one in backward)
    assert backward.count(("bwd/inner",)) == 2, "each call has its own"
    assert sum(one == ("bwd/outer",) for one in backward) == 2, "its sum, and the node of one's own behind a view"


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_layer_that_runs_again_in_its_backward_is_marked_again(reentrant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    line, layer, given = _Line(monkeypatch), _Layer(), torch.ones(2, 8, requires_grad=True)
    with marked(layer, lambda module: module if module in ("ln_1", "mlp.c_fc", "mlp.c_proj") else ""):
        checkpoint(layer, given, use_reentrant=reentrant).sum().backward()
    assert not line.open
    for name in ("ln_1", "mlp.c_fc", "mlp.c_proj"):
        assert sum(one[-1] == f"fwd/{name}" for one in line.found) >= 1 + (name != "mlp.c_proj")
        assert sum(one[-1] == f"bwd/{name}" for one in line.found) == 1


def test_a_range_ends_where_checkpointing_breaks_a_layer_off(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("h", nn.ModuleList([_Layer()]))
    with profile(activities=[ProfilerActivity.CPU]) as session, marked(model):
        checkpoint(model.h[0], torch.ones(2, 8, requires_grad=True), use_reentrant=False).sum().backward()
        with torch.profiler.record_function("later"):
            torch.ones(1)
    session.export_chrome_trace(str(tmp_path / "trace.json"))
    found = json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"]
    begins, ends = ({one["name"]: one["ts"] + share * one["dur"] for one in found if one["ph"] == "X"} for share in (0, 1))
    assert ends["op:bwd/L0.mlp.down"] <= begins["later"], "it is run again inside of its backward, whose range took the end of the other"


def test_a_loop_on_a_cpu_is_read_by_classes_and_marked_ops(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("h", nn.ModuleList([_Layer()]))
    layer, update = model.h[0], torch.optim.AdamW(model.parameters())
    with profile(activities=[ProfilerActivity.CPU]) as session, marked(model):
        for number in range(2):
            with torch.profiler.record_function(f"step {number}"):
                layer(torch.ones(2, 8, requires_grad=True)).sum().backward()
                update.step()
    session.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = read_trace(tmp_path / "trace.json")
    assert trace.steps == 2
    classes = {(span.id, span.cls) for span in trace.spans if span.step == 1}
    assert {("fwd/L0.mlp.up", "gemm"), ("bwd/L0.mlp.up", "gemm"), ("fwd/L0.norm1", "norm"), ("bwd/L0.norm1", "norm")} <= classes
    assert "optimizer" in {cls for _, cls in classes}


def test_a_model_in_which_nothing_has_a_known_name_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(BadInput, match=r"no module of Sequential has a name that is known .*'0' has none.*: give name="), marked(model):
        pass
    with marked(model, lambda module: "L0.mlp.up" if module else ""):
        assert model[0]._forward_pre_hooks
