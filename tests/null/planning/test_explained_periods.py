"""What is said of steps that stand for others: of local updates whose loaders' pace lies between their two kinds of steps (as those do, one after the
other), and of many micro-batches."""

from __future__ import annotations

import pytest

import sim.steady.detail
from sim.cost.price import Pricer
from sim.engine.run import simulate
from sim.files.planfile import load_plan
from sim.planning.explain import studied
from sim.planning.explain.explanation import explain
from sim.planning.explain.scaled import COLLECTIVES, COMPUTE, INPUT, KINDS, Scaled
from sim.planning.explain.studied import Studied
from sim.predict import predict_setting
from sim.setting.bind import Setting, bind
from sim.setting.pricer import pricer_for
from sim.setting.program import program_for
from sim.timeline.metrics import step_times

LITTLE = 1.001


def mean(setting: Setting, pricer: Pricer) -> float:
    """Seconds of a step over whole periods, but the first and the last."""
    trace = simulate(program_for(setting, 60), pricer, setting.places, False, condensed=True)
    times = step_times(trace)[-26:-2]
    return sum(times) / len(times)


@pytest.mark.parametrize(
    ("every", "more", "bound"),
    [
        (6, (), "data-bound"),
        (3, ("data.preprocess=5 ms",), "memory-bound"),
        (8, ("data.prefetch=1", "data.preprocess=4.7 ms"), "memory-bound"),
    ],
    ids=["loaders never rest", "no plain step waits", "the store is full"],
)
def test_what_binds_steps_with_loaders_between_their_two_kinds(every: int, more: tuple[str, ...], bound: str) -> None:
    tree = {
        "model": {"base": "gpt2-124m", "layers": 2},
        "seq_len": 512,
        "batch": {"global": 16, "micro": 4},
        "parallel": {"dp_replicate": 4},
        "data": {"source": "disk", "workers": 2, "sample": "64 KiB", "preprocess": "6 ms"},
        "update": {"mode": "local", "every": every},
    }
    setting = bind(load_plan(tree, more), "h100-pcie-x8")
    found, pricer = explain(setting, tries=0), pricer_for(setting)
    step = mean(setting, pricer)
    assert found.verdict.startswith(bound)
    assert found.step_time_s == pytest.approx(step, rel=1e-3)
    assert sum(seconds for _, seconds in found.path) == pytest.approx(found.step_time_s)
    by_name = {one.resource: one for one in found.sensitivities}
    for kind in (INPUT, COLLECTIVES, COMPUTE):
        one = by_name[kind]
        assert one.elasticity == pytest.approx((mean(setting, Scaled(pricer, kind, LITTLE)) / step - 1) / (LITTLE - 1), abs=0.008)
        assert one.ten_percent == pytest.approx(mean(setting, Scaled(pricer, kind, 1.1)) / step - 1, abs=0.007)
        assert one.infinitely_fast == pytest.approx(mean(setting, Scaled(pricer, kind, 1e6)), rel=0.01)


@pytest.mark.parametrize(
    "tree",
    [
        {"update": {"mode": "local", "every": 2}},
        {"update": {"mode": "local", "every": 3}, "data": {"source": "disk", "workers": 2, "sample": "64 KiB", "preprocess": "5 ms"}},
        {"update": {"mode": "async"}},
        {"output": {"log_every": 1, "checkpoint_every": 10}},
    ],
    ids=["local", "in store", "async", "output"],
)
def test_a_predictions_critical_path_is_of_a_mean_step_as_an_explanations_is(tree: dict[str, object]) -> None:
    """That of the one step that is reported has no averaging on it, or another length."""
    gpt = {
        "model": {"base": "gpt2-124m", "layers": 2},
        "seq_len": 512,
        "batch": {"global": 16, "micro": 4},
        "parallel": {"dp_replicate": 4},
    }
    setting = bind(load_plan(gpt | tree), "h100-pcie-x8")
    found, said = predict_setting(setting), explain(setting, tries=0)
    assert sum(seconds for _, seconds in found.critical_path) == pytest.approx(found.step_time_s, rel=1e-6)
    path = dict(said.path)
    assert all(seconds == pytest.approx(path[name], rel=1e-2) for name, seconds in found.critical_path[:3])
    assert ("comm.ps" in path) == ("update" in tree)


@pytest.mark.no_cover
def test_many_micro_batches_are_told_by_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline of 36 micro-batches, each round of which lengthens the step by the same: what its path and its resources say is what they say of all."""
    model = {"base": "llama3-8b", "layers": 4, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 4096, "vocab": 50304}
    plan = {"model": model, "seq_len": 4096, "batch": {"global": 72, "micro": 1}, "parallel": {"dp_shard": 2, "zero": 1, "tp": 2, "pp": 4}}
    setting = bind(load_plan(plan | {"framework": "megatron-core", "output": {"log_every": 1, "checkpoint_every": 2}}), "2x dgx-h100")
    monkeypatch.setattr(sim.steady.detail, "OPS_QUICK", 1000)
    few = Studied(setting)
    assert sorted(weight for weight, _ in few.parts)[0] < -20, "most rounds are left out"
    monkeypatch.setattr(studied, "told_by", lambda setting: ())
    whole = Studied(setting)
    assert few.step == pytest.approx(whole.step, rel=1e-6) and few.output > 0
    assert dict(few.path()) == pytest.approx(dict(whole.path()), rel=1e-4, abs=1e-4 * whole.step)
    for kind in KINDS:
        one, other = few.of_kind(kind), whole.of_kind(kind)
        assert one.infinitely_fast == pytest.approx(other.infinitely_fast, rel=1e-3)
        assert (one.ten_percent, one.elasticity) == pytest.approx((other.ten_percent, other.elasticity), abs=1e-3)
