"""The table of predicted against measured on this machine: its plans, and what it says of rows. No timing here."""

from __future__ import annotations

import pytest

from executor.repeats import means
from executor.validation.here import Row, here, how_to_run, plans, summary
from executor.validation.here_plans import INPUTS, KINDS
from sim.files.planfile import load_plan
from sim.framework.chosen import framework_of
from sim.lower.checks.verify import verify
from sim.lower.step import lower
from sim.setting.bind import network_of
from topologies.errors import UnknownName

PLANS = plans()


def test_every_kind_and_twelve_input_paths() -> None:
    kinds = {kind for kind, _ in KINDS.values()}
    assert {
        "DDP",
        "gradient accumulation",
        "ZeRO-1",
        "FSDP2",
        "HSDP",
        "TP",
        "TP with SP",
        "FSDP2 x TP",
        "FSDP2 x PP",
        "local updates",
    } <= kinds
    assert len(INPUTS) >= 12 and len(PLANS) >= 36
    assert {plan.world for _, plan in PLANS.values()} <= {1, 2, 4}


def test_what_torch_does_not_train_is_played() -> None:
    played = {name for name, (_, plan) in PLANS.items() if how_to_run(plan) == "play"}
    assert played == {"zero-1", "ring", "summed-on-host", "parameter-server"}


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_becomes_a_lawful_program(name: str) -> None:
    plan = PLANS[name][1]
    habits = framework_of(plan)
    verify(lower(plan, network_of(plan, habits), habits, "cpu", 2))


def test_what_happens_every_few_steps_is_in_every_mean() -> None:
    plan = load_plan({"model": "gpt2-124m", "output": {"log_every": 4, "checkpoint_every": 6, "item_every": 5, "print_every": 7}})
    assert plan.period == 4 * 3 * 5 * 7 and load_plan({"model": "gpt2-124m"}).period == 1
    assert means([1.0, 3.0, 5.0, 7.0, 9.0], 2) == [2.0, 6.0]


def _row(name: str, predicted: float, measured: float, bound: str = "compute") -> Row:
    error = predicted / measured - 1.0
    return Row(
        plan=name, kind="", ranks=1, how="stock", predicted=predicted, measured=measured, error=error,
        predicted_bound="compute", measured_bound=bound,
    )  # fmt: skip


def test_near_medians_need_no_order() -> None:
    found = summary(
        [_row("a", 1.0, 1.0), _row("b", 0.9, 1.1), _row("c", 2.0, 4.0, "data"), Row(plan="d", kind="", ranks=1, how="stock", failed="x")]
    )
    assert (found.plans, found.failed, found.pairs, found.ranked, found.bounds, found.named) == (3, 1, 2, 2, 3, 2)
    assert found.mean_error == pytest.approx((0.0 + 2 / 11 + 0.5) / 3)


def test_unknown_names_are_refused(tmp_path: object) -> None:
    with pytest.raises(UnknownName, match="fsdp-four"):
        here(["fsdp-fuor"], tmp_path)  # type: ignore[arg-type]
