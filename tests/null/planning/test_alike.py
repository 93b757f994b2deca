"""Ranks that a fault leaves equal are simulated once: the same step as rank by rank, and far fewer ranks."""

from __future__ import annotations

from typing import Any

import pytest

from sim.lower.step import lower
from sim.planning.disturbed import beside
from sim.planning.disturbed.alike import Placed, stand_ins
from sim.planning.disturbed.faults import faults
from sim.planning.disturbed.places import PlacedPricer, placed
from sim.setting.bind import Setting, bind
from sim.setting.pricer import pricer_for
from sim.steady.detail import STEPS
from topologies.load import load_topology

BASE: dict[str, Any] = {"model": "gpt2-124m", "seq_len": 512, "framework": "pytorch", "batch": {"global": 96, "micro": 4}}
SPLITS: list[dict[str, int]] = [
    {"dp_shard": 24, "zero": 3},
    {"dp_replicate": 24},
    {"dp_shard": 8, "dp_replicate": 3, "zero": 3},
    {"dp_shard": 4, "dp_replicate": 6, "zero": 3},
    {"pp": 3, "dp_replicate": 8},
    {"pp": 2, "dp_shard": 12},
]
EDITS = [
    "",
    "slow=r3:0.5",
    "slow=n1:0.5",
    "fail=nic:n1/nic1",
    "fail=nvswitch:n2/1",
    "fail=spine:0",
    "oversubscription=8",
    "ranks_per_node=8",
]


def _steps(jobs: Any, counts: list[int]) -> list[float]:
    return [pace.step for pace in beside.paces(jobs, counts)]


def _settings(split: dict[str, int], edit: str, on: str = "3x dgx-h100") -> Setting:
    return bind(BASE | {"parallel": split}, on, (edit,) if edit else ())


def _stand_ins(setting: Setting) -> list[int]:
    program = lower(setting.plan, setting.network, setting.framework, setting.topology.kind, STEPS)
    ranks = tuple(range(setting.plan.world))
    return stand_ins([Placed(program, PlacedPricer(pricer_for(setting), ranks, setting.topology), ranks)], setting.topology)[0]


def one_by_one(placed: list[Placed], _: object) -> list[list[int]]:
    """Nothing is folded."""
    return [list(range(one.program.world)) for one in placed]


PAIRS: list[tuple[list[dict[str, int]], str, tuple[str, ...]]] = [
    ([{"dp_replicate": 12}, {"dp_replicate": 12}], "spread", ("nic.rate=10 Gbit/s",)),
    ([{"dp_replicate": 12}, {"dp_shard": 12, "zero": 3}], "spread", ("nic.rate=10 Gbit/s", "oversubscription=4")),
    ([{"dp_replicate": 8}, {"dp_shard": 16, "zero": 3}], "compact", ("nic.rate=10 Gbit/s",)),
    ([{"dp_replicate": 12}, {"dp_replicate": 12}], "spread", ("nic.rate=10 Gbit/s", "slow=r17:0.5")),
    ([{"dp_replicate": 6}, {"dp_replicate": 12}], "compact", ("nic.rate=10 Gbit/s", "rails=1")),
]


@pytest.mark.no_cover
@pytest.mark.parametrize(("splits", "how", "edits"), PAIRS)
def test_jobs_together_as_rank_by_rank(
    splits: list[dict[str, int]], how: str, edits: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = load_topology("3x dgx-h100", edits)
    settings = [
        bind(BASE | {"parallel": split, "batch": {"global": 2 * next(iter(split.values())), "micro": 2}}, machine) for split in splits
    ]
    places = placed([s.plan.world for s in settings], machine, how)
    found = _steps(list(zip(settings, places, strict=True)), [4, 4])
    monkeypatch.setattr(beside, "stand_ins", one_by_one)
    assert found == pytest.approx(_steps(list(zip(settings, places, strict=True)), [4, 4]), rel=1e-9)


@pytest.mark.no_cover
@pytest.mark.parametrize("split", SPLITS, ids=lambda split: "-".join(f"{k}{v}" for k, v in split.items()))
def test_together_as_rank_by_rank(split: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    edits = EDITS[SPLITS.index(split) % 4 :: 4]
    found = [_steps([(s, tuple(range(24)))], [3])[0] for s in (_settings(split, edit) for edit in edits)]
    monkeypatch.setattr(beside, "stand_ins", one_by_one)
    each = [_steps([(s, tuple(range(24)))], [3])[0] for s in (_settings(split, edit) for edit in edits)]
    assert found == pytest.approx(each, rel=1e-9)


@pytest.mark.no_cover
@pytest.mark.parametrize(("edit", "simulated"), [("", 8), ("slow=r3:0.5", 16), ("fail=nic:n1/nic1", 16)])
def test_pipelines_stand_for_those_on_equal_nodes(edit: str, simulated: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both stages of a replica on one node: who sends to whom, and over what, tells ranks apart, and nothing else."""
    split = {"pp": 2, "dp_replicate": 12, "placement": "tp,cp,pp,dp"}
    plan = {"model": "gpt2-124m", "seq_len": 64, "batch": {"global": 24, "micro": 1}, "parallel": split}
    setting = bind(plan, "3x dgx-h100", (edit,) if edit else ())
    ranks = tuple(range(24))
    assert len(set(_stand_ins(setting))) == simulated
    found = _steps([(setting, ranks)], [2])
    monkeypatch.setattr(beside, "stand_ins", one_by_one)
    assert found == pytest.approx(_steps([(setting, ranks)], [2]), rel=1e-9)


def test_a_broken_node_stays_apart() -> None:
    whole, slow, nic = (set(_stand_ins(_settings(SPLITS[0], edit))) for edit in ("", "slow=r3:0.5", "fail=nic:n1/nic1"))
    assert whole == set(range(8)) and slow == set(range(16)) and nic == set(range(16))
    found = _stand_ins(_settings(SPLITS[0], "slow=r11:0.5"))
    assert found[11] == 11 and found[19] == 3 and found[16] == 0  # nodes 0 and 2 are alike


def test_few_ranks_are_not_worth_it() -> None:
    setting = bind(BASE | {"parallel": {"dp_shard": 16}, "batch": {"global": 16, "micro": 1}}, "2x dgx-h100")
    assert _stand_ins(setting) == list(range(16))


@pytest.mark.no_cover
@pytest.mark.parametrize("how", ["spread", "compact"])
@pytest.mark.parametrize("edits", [("oversubscription=4",), ("oversubscription=4", "slow=r9:0.5"), ("spines=1",)])
def test_groups_that_meet_on_a_cable_are_told_apart(how: str, edits: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor parallel groups over two nodes: shards of their first halves and of their second meet on the spines' cables, and are simulated beside
    each other for all the others, as long as rank by rank."""
    machine = load_topology("8x dgx-h100:4", ("rails=1", "pod=4", "nic.rate=10 Gbit/s", *edits))
    plan = {
        "model": {"base": "gpt2-124m", "layers": 1},
        "seq_len": 64,
        "batch": {"global": 4, "micro": 1},
        "parallel": {"tp": 4, "dp_shard": 4},
    }
    settings = [bind(plan, machine)] * 2
    pairs = list(zip(settings, placed([16, 16], machine, how), strict=True))
    real, counts = beside.stand_ins, list[int]()

    def counted(*args: Any) -> list[list[int]]:
        found = real(*args)
        counts.extend(len(set(mine)) for mine in found)
        return found

    monkeypatch.setattr(beside, "stand_ins", counted)
    found = _steps(pairs, [4, 4])
    assert sum(counts) < 32 or "slow" in edits[-1]
    monkeypatch.setattr(beside, "stand_ins", one_by_one)
    assert found == pytest.approx(_steps(pairs, [4, 4]), rel=1e-9)


@pytest.mark.no_cover
def test_flows_that_share_a_cable_are_all_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas of two nodes each, two below one leaf: they meet on its cables, and must be seen to; those below other leaves are as they are."""
    setting = bind(BASE | {"parallel": {"dp_shard": 16, "dp_replicate": 2, "zero": 3}, "batch": {"global": 96, "micro": 3}}, "32x dgx-h100",
                   ("ranks_per_node=1", "rails=1", "pod=2", "spines=1"))  # fmt: skip
    assert len(set(_stand_ins(setting))) == 2
    found = _steps([(setting, tuple(range(32)))], [3])
    monkeypatch.setattr(beside, "stand_ins", one_by_one)
    assert found == pytest.approx(_steps([(setting, tuple(range(32)))], [3]), rel=1e-9)


@pytest.mark.no_cover
def test_a_fault_costs_the_same_share_of_a_large_cluster_as_its_slowest_gpu_says() -> None:
    plan = {
        "model": "gpt2-1.5b",
        "seq_len": 1024,
        "framework": "pytorch",
        "batch": {"global": 256, "micro": 4},
        "parallel": {"dp_replicate": 64},
    }
    found = faults(plan, "8x dgx-h100", ("slow=r50:0.5",))
    assert 1.5 < found.rows[0].slowdown <= 2.0
