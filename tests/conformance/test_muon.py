"""The predicted kernels of Muon against what torch.optim.Muon calls."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from executor.recording.capture import Input, capture  # noqa: E402
from executor.training.models.build import Model  # noqa: E402
from executor.training.optimizers import optimizer_of  # noqa: E402
from sim.files.planfile import load_plan  # noqa: E402
from sim.framework.chosen import framework_of  # noqa: E402
from sim.lower.optimizer.muon import newton_schulz  # noqa: E402
from sim.model import Shape, describe  # noqa: E402
from sim.setting.bind import model_of  # noqa: E402
from sim.work import Gemm, MemoryBound  # noqa: E402


class Calls(TorchDispatchMode):
    """Operators by name, with the elements of what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor):
            self.seen[func.overloadpacket.__name__, found.numel()] += 1
        return found


@pytest.mark.parametrize("shape", [(96, 32), (32, 96), (48, 48)])
def test_kernels_of_one_matrix(shape: tuple[int, int]) -> None:
    weight = nn.Parameter(torch.randn(shape))
    weight.grad = torch.randn(shape)
    optimizer = torch.optim.Muon([weight])
    optimizer.step()  # makes the momentum
    with Calls() as calls:
        optimizer.step()
    size, square = weight.numel(), min(shape) ** 2
    works = newton_schulz(shape)
    gemms = Counter(work.m * work.n for work in works if isinstance(work, Gemm))
    called: Counter[int] = Counter()
    for (name, elements), count in calls.seen.items():
        if name in ("mm", "addmm"):
            called[elements] += count
    assert called == gemms == (Counter({square: 15}) if size == square else Counter({square: 10, size: 5}))
    assert calls.seen["lerp_", size] == calls.seen["lerp", size] == 1, "the momentum, and the look-ahead"
    assert calls.seen["_to_copy", size] == 1 and calls.seen["div_", size] == 1 and calls.seen["linalg_vector_norm", 1] == 1
    assert calls.seen["mul_", size] == 1 and calls.seen["add_", size] == 1, "decay and update"
    copies = Counter(work.read // 2 for work in works if isinstance(work, MemoryBound) and work.what == "copy")
    assert sum(copies.values()) == 10, "what each addmm adds to is copied into its result"


MODEL = {"family": "decoder", "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "vocab": 64, "ffn": 96}


@pytest.mark.parametrize("model", [MODEL, MODEL | {"tied": True, "position": "learned"}, {"family": "mlp", "widths": [16, 48, 32]}])
def test_stock_training_gives_muon_the_matrices_that_are_predicted(model: dict[str, Any]) -> None:
    plan = load_plan({"model": model, "seq_len": 16, "precision": "fp32", "optimizer": {"name": "muon"}})
    habits = framework_of(plan)
    spec = model_of(plan)
    real = optimizer_of("muon", habits, Model(spec, habits, 16, 1))
    mine = next(part for part in real._parts if isinstance(part, torch.optim.Muon))  # type: ignore[attr-defined]
    given = Counter(tuple(p.shape) for group in mine.param_groups for p in group["params"])
    network = describe(spec, Shape(micro=1, seq=16 if model["family"] == "decoder" else 1), habits)
    assert given == Counter(matrix for _, block in network.blocks for part in block.parts for matrix in part.matrices)
    others = next((part for part in real._parts if isinstance(part, torch.optim.AdamW)), None)  # type: ignore[attr-defined]
    rest = sum(p.numel() for group in others.param_groups for p in group["params"]) if others else 0
    assert rest + sum(a * b * n for (a, b), n in given.items()) == network.parameters


class Words(nn.Module):
    """Two layers between a table and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 32), nn.Linear(32, 50)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 96), nn.GELU(), nn.Linear(96, 32)) for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x)
        logits: torch.Tensor = self.head(x)
        return logits.sum()


def test_a_captured_module_says_which_of_its_parameters_are_matrices() -> None:
    found = capture(Words, (Input((8, 16), "int64"),))
    network = describe(found, Shape(micro=8, seq=16, precision="fp32"), framework_of(load_plan({"model": MODEL})))
    assert network.parameters == 2 * 50 * 32 + 50 + 2 * (64 + 2 * 32 * 96 + 96 + 32)
    matrices = Counter(m for _, block in network.blocks for part in block.parts for m in part.matrices)
    assert matrices == Counter({(96, 32): 2, (32, 96): 2})
