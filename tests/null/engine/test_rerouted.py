"""Ranks on a fabric of which a part has failed are folded, too: as long as rank by rank, and far fewer ranks."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import asdict

from sim.engine.fold import representatives
from sim.engine.run import simulate
from sim.lower.step import lower
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.timeline import metrics

MODEL: dict[str, Any] = {"layers": 2, "hidden": 4096, "heads": 32, "vocab": 32000, "ffn": 8192}
DEEP = MODEL | {"layers": 4}
EXPERTS = MODEL | {"moe": {"experts": 16, "top_k": 4, "ffn": 2048}}
THIRD = ("pod=4", "rails=1", "nic.rate=100 Gbit/s")
TIERS = ("pod=2", "block=2")


def _both(on: str, edits: tuple[str, ...], split: dict[str, Any], model: dict[str, Any]) -> tuple[int, list[list[float]], list[Any]]:
    """Simulated ranks; seconds of the steps, and where the last goes, folded and not."""
    data = split.get("dp_shard", 1) * split.get("dp_replicate", 1)
    batch = {"global": 2 * data * split.get("pp", 1), "micro": 1}
    plan = {"model": model, "seq_len": 2048, "framework": "megatron-core", "parallel": split, "batch": batch}
    setting = bind(plan, on, edits)
    program, pricer = lower(setting.plan, setting.network, setting.framework, "cuda", 3), pricer_for(setting)
    traces = [simulate(program, pricer, fold and setting.places, detail=False) for fold in (True, False)]
    ranks = len(set(representatives(program, setting.places)))
    return ranks, [metrics.step_times(trace) for trace in traces], [asdict(metrics.breakdown(trace)) for trace in traces]


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("edits", "split", "model", "simulated"),
    [
        (("fail=spine:0",), {"dp_shard": 64, "zero": 3}, MODEL, 1),  # below the spines
        (("pod=2", "fail=spine:0"), {"dp_shard": 8, "dp_replicate": 8, "zero": 3}, MODEL, 1),
        ((*THIRD, "fail=spine:0"), {"dp_shard": 8, "dp_replicate": 8, "zero": 3}, MODEL, 2),
        (("pod=2", "fail=spine:0"), {"tp": 4, "pp": 2, "dp_shard": 8, "zero": 1}, MODEL, 8),
        ((*THIRD, "fail=link:net/leaf0.0-net/spine1"), {"tp": 8, "pp": 4, "dp_shard": 2, "zero": 1}, DEEP, 8),
        (("pod=2", "fail=link:net/leaf0.0-net/spine1"), {"tp": 8, "pp": 4, "dp_shard": 2, "zero": 1}, DEEP, 24),
        (("pod=2", "fail=spine:0"), {"dp_shard": 64, "ep": 16, "zero": 1}, EXPERTS, 24),
        ((*TIERS, "fail=spine:0.0"), {"tp": 4, "pp": 2, "dp_shard": 8, "zero": 1}, MODEL, 16),
        ((*TIERS, "core_oversubscription=2", "fail=spine:0.0"), {"cp": 4, "dp_shard": 16, "zero": 1}, MODEL, 1),
        (("pod=4", "oversubscription=2", "fail=spine:0"), {"tp": 8, "pp": 4, "dp_shard": 2, "zero": 1}, DEEP, 4),
        ((*THIRD, "fail=spine:0", "fail=nic:n0/nic0"), {"dp_shard": 8, "dp_replicate": 8, "zero": 3}, MODEL, 14),
        ((*THIRD, "fail=spine:0", "slow=n1:0.7"), {"dp_shard": 8, "dp_replicate": 8, "zero": 3}, MODEL, 4),
    ],
    ids=str,
)
def test_folded_equals_unfolded(edits: tuple[str, ...], split: dict[str, Any], model: dict[str, Any], simulated: int) -> None:
    ranks, (folded, whole), (some, every) = _both("8x dgx-h100", edits, split, model)
    assert ranks == simulated
    assert folded == pytest.approx(whole, rel=1e-9)
    assert some == pytest.approx(every, abs=1e-9 * whole[-1])


@pytest.mark.no_cover
def test_flows_that_take_a_spine_together_are_slower_than_before() -> None:
    """What went over the failed spine shares the uplinks of the next, and the fold sees it."""
    split = {"tp": 8, "pp": 4, "dp_shard": 2, "zero": 1}
    (_, (whole, _), _), (_, (failed, _), _) = (
        _both("8x dgx-h100", (*THIRD, *edit), split, DEEP) for edit in ((), ("fail=spine:0", "fail=spine:1"))
    )
    assert failed[-1] > 1.001 * whole[-1]


@pytest.mark.no_cover
def test_groups_whose_ranks_stand_for_each_others_are_told_apart() -> None:
    """Of two replicas' sums one leaves by a cable that others share now and comes back by its own, the other the other way round: on whose links only
    one of them was seen, the message beside the other was 2 % too fast."""
    split = {"tp": 2, "pp": 2, "dp_replicate": 4, "dp_shard": 4, "zero": 1, "placement": "dp,pp,tp,cp"}
    edits = ("rails=2", "pod=4", "nic.rate=50 Gbit/s", "fail=spine:1")
    ranks, (folded, whole), _ = _both("8x dgx-h100", edits, split, MODEL)
    assert ranks < 64
    assert folded == pytest.approx(whole, rel=1e-9)
