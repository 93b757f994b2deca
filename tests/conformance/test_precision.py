"""Automatic mixed precision in stock training: what is cast, and what becomes of a gradient that overflows."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from executor.training.models.build import loss_of, model_for  # noqa: E402
from executor.training.precision import Mixed  # noqa: E402
from sim.files.planfile import load_plan  # noqa: E402
from sim.framework.chosen import framework_of  # noqa: E402
from sim.plan import Plan  # noqa: E402
from sim.setting.bind import model_of  # noqa: E402
from tests.conformance.plans import GPT  # noqa: E402


def _amp(precision: str) -> Plan:
    return load_plan({"model": GPT, "seq_len": 16, "precision": precision, "framework": "pytorch-amp", "batch": {"micro": 2}})


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_products_run_in_16_bits_and_the_rest_does_not(precision: str) -> None:
    plan = _amp(precision)
    habits, spec = framework_of(plan), model_of(plan)
    model, mixed = model_for(spec, habits, 16), Mixed(plan, habits, "cpu")
    seen: dict[str, Any] = {}
    for name in ("L0.qkv.each.0", "L0.norm1", "L0"):
        model.get_submodule(name).register_forward_hook(lambda _m, _i, out, name=name: seen.update({name: out.dtype}))
    ids = torch.arange(32).view(2, 16)
    with mixed.casts():
        loss = loss_of(spec, model(ids), ids)
    half = torch.bfloat16 if precision == "bf16" else torch.float16
    assert seen == {"L0.qkv.each.0": half, "L0.norm1": torch.float32, "L0": torch.float32}
    assert loss.dtype == torch.float32
    mixed.scaled(loss).backward()
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}


def test_a_step_whose_gradients_overflow_is_left_out() -> None:
    plan = _amp("fp16")
    mixed = Mixed(plan, framework_of(plan), "cpu")
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for factor, moved in ((float("inf"), False), (1.0, True)):
        optimizer.zero_grad()
        mixed.scaled((weight * factor).sum()).backward()
        mixed.unscale(optimizer)
        assert torch.isfinite(weight.grad).all() == moved  # type: ignore[arg-type]
        mixed.step(optimizer)
        assert bool((weight != 1).any()) == moved
    assert weight.tolist() == pytest.approx([0.9] * 3)


def test_without_autocast_nothing_is_scaled_or_cast() -> None:
    plan = load_plan({"model": GPT, "seq_len": 16, "precision": "bf16", "batch": {"micro": 2}})
    mixed = Mixed(plan, framework_of(plan), "cpu")
    one = torch.ones(4, 4)
    with mixed.casts():
        assert (one @ one).dtype == torch.float32
    assert mixed.scaled(one) is one
