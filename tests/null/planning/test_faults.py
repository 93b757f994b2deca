"""Faults: none makes a step faster, a slow GPU costs its own factor where compute decides, a flapping part lies between."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim.steady.detail
from sim.files.planfile import load_plan
from sim.planning.disturbed import faults as module
from sim.planning.disturbed.faults import faults, usual
from sim.predict import predict
from topologies.errors import BadInput
from topologies.load import load_topology

PLAN = load_plan({"model": "gpt2-124m", "seq_len": 1024, "batch": {"global": 64, "micro": 8}, "parallel": {"dp_replicate": 8}})
WIDE = "2x dgx-h100"
EDITS = ("ranks_per_node=4",)


@pytest.mark.no_cover
def test_no_usual_fault_makes_the_step_faster() -> None:
    found = faults(PLAN, WIDE, edits=EDITS)
    assert [row.fault for row in found.rows] == list(usual(load_topology(WIDE, EDITS), 8))
    assert all(row.slowdown >= 1 - 1e-9 for row in found.rows)
    assert all(row.step_time_s == pytest.approx(found.step_time_s * row.slowdown) for row in found.rows)
    assert str(found).count("\n") == len(found.rows) + 1


@pytest.mark.no_cover
def test_a_flapping_nic_is_the_mean_by_time() -> None:
    nics = ("fail=nic:n0/nic0", "flap=nic:n0/nic0:0.25", "flap=nic:n0/nic0:0", "flap=nic:n0/nic0:1")
    down, half, never, always = faults(PLAN, WIDE, nics, edits=(*EDITS, "nic.rate=5 Gbit/s")).rows
    assert down.slowdown > 1.01  # the network decides here, so that losing a NIC is seen
    assert 1 / half.slowdown == pytest.approx(0.75 + 0.25 / down.slowdown)
    assert never.slowdown == pytest.approx(1.0)
    assert always.slowdown == pytest.approx(down.slowdown)


@pytest.mark.no_cover
@pytest.mark.parametrize("machine", ["aws-p4d", "gcp-a2", "dgx-h100"])
def test_a_nic_is_full_once_however_many_gpus_share_it(machine: str) -> None:
    """Two GPUs of a p4d share each NIC, all eight of an a2 the only one; a GPU whose NIC is down takes another's. The step is what `predict` says."""
    plan = load_plan(PLAN, ("parallel.dp_replicate=16", "batch.global=128"))
    on, slow = f"2x {machine}", ("nic.rate=5 Gbit/s",)
    fault = "slow=r0:0.9" if machine == "gcp-a2" else "fail=nic:n0/nic0"
    found = faults(plan, on, fault, edits=slow)
    assert found.step_time_s == pytest.approx(predict(plan, on, edits=slow).step_time_s, rel=1e-6)
    assert found.rows[0].step_time_s == pytest.approx(predict(plan, on, edits=(*slow, fault)).step_time_s, rel=1e-6)


@pytest.mark.no_cover
@pytest.mark.parametrize("machine", ["aws-p4d", "gcp-a2", "dgx-h100"])
def test_uplinks_carry_what_nics_send_however_many_gpus_share_one(machine: str) -> None:
    """Half of the rate above the leaves is a network at half of its rate, nearly: not a quarter with two GPUs to a NIC, a sixteenth with eight."""
    plan = load_plan(PLAN, ("parallel.dp_replicate=16", "batch.global=128"))
    slow, on = ("nic.rate=5 Gbit/s", "pod=1"), f"2x {machine}"
    whole, half = (predict(plan, on, edits=(*slow, f"oversubscription={times}")).step_time_s for times in (1, 2))
    assert 1.5 * whole < half < 2.1 * whole
    assert faults(plan, on, "slow=r0:0.9", edits=(*slow, "oversubscription=2")).step_time_s == pytest.approx(half, rel=1e-6)


@pytest.mark.parametrize(
    ("machine", "found"),
    [
        ("dgx-h100", {"slow=r0:0.8", "fail=nvswitch:n0/1"}),
        ("dgx1-v100", {"slow=r0:0.8", "fail=link:n0/gpu0-n0/gpu1"}),
        ("l40s-x8", {"slow=r0:0.8"}),
        ("cpu-host", {"slow=r0:0.8"}),
    ],
)
def test_usual_faults_are_of_parts_that_are_there(machine: str, found: set[str]) -> None:
    def tried(on: str, *edits: str) -> set[str]:
        topology = load_topology(on, edits)
        return set(usual(topology, topology.gpus))

    assert tried(machine) == found
    nodes = tried(f"2x {machine}") - found
    assert {"flap=nic:n0/nic0:0.1"} <= nodes <= {"flap=nic:n0/nic0:0.1", "fail=nic:n0/nic0"}, (
        "two nodes are below the same leaves, and send nothing over a spine"
    )
    assert "fail=spine:0" in tried(f"4x {machine}", "pod=2")


def test_no_step_is_made_while_the_only_nic_of_a_node_is_down() -> None:
    """It was left out of the usual faults, and refused as a machine whose ranks do not reach each other."""
    plan, on = load_plan(PLAN, ("parallel.dp_replicate=16", "batch.global=128")), "2x gcp-a2"
    assert faults(plan, on).rows[-1].fault == "flap=nic:n0/nic0:0.1"
    down, spine = faults(plan, on, ("flap=nic:n0/nic0:0.1", "flap=spine:0:0.5"), edits=("pod=1", "spines=1")).rows
    assert (down.slowdown, spine.slowdown) == pytest.approx((1 / 0.9, 2.0))
    assert "flap=nic:n0/nic0:0.1" not in usual(load_topology(on), 8), "a plan on one node sends nothing over it"
    for fault in ("fail=nic:n0/nic0", "flap=nic:n0/nic0:1"):
        with pytest.raises(BadInput, match="gpu0 reaches no NIC"):
            faults(plan, on, ("flap=nic:n0/nic0:0.1", fault))


@pytest.mark.no_cover
def test_a_mesh_without_one_of_its_cables_is_no_faster() -> None:
    plan = load_plan(PLAN, ("batch.micro=1", "batch.global=8", "precision=fp16"))
    found = faults(plan, "dgx1-v100", ("fail=link:n0/gpu0-n0/gpu1", "fail=link:gpu0-gpu3"))
    assert all(row.slowdown >= 1.0 - 1e-9 for row in found.rows)


@settings(max_examples=4, deadline=None)
@given(st.sampled_from([0.5, 0.8, 0.9, 1.0]))
def test_a_slow_gpu_costs_its_own_factor_where_compute_decides(speed: float) -> None:
    plan = load_plan(
        {
            "model": "gpt2-124m",
            "seq_len": 1024,
            "compile": True,
            "batch": {"global": 2 * 64, "micro": 64},
            "parallel": {"dp_replicate": 2},
        }
    )
    row = faults(plan, "dgx-h100", (f"slow=r1:{speed}",)).rows[0]
    assert row.slowdown == pytest.approx(1 / speed, rel=0.03)


@pytest.mark.no_cover
def test_one_fault_may_be_given_alone() -> None:
    assert faults(PLAN, WIDE, "slow=r0:0.8", edits=EDITS) == faults(PLAN, WIDE, ("slow=r0:0.8",), edits=EDITS)


@pytest.mark.parametrize("fault", ["nonsense", "flap=nic:n0/nic0", "flap=nic:n0/nic0:1.5", "fail=nic:n9/nic0", "slow=r99:0.8", "rails=4"])
def test_what_cannot_fail_is_refused(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: no fault before it is simulated first, whose figures would be lost."""
    monkeypatch.setattr(module, "predict_setting", None)
    with pytest.raises(BadInput):
        faults(PLAN, WIDE, ("slow=r0:0.8", fault), edits=EDITS)


@pytest.mark.no_cover
def test_a_fault_is_seen_wherever_it_is() -> None:
    near, far = faults(PLAN, WIDE, ("fail=nic:n0/nic0", "fail=nic:n1/nic0"), edits=(*EDITS, "nic.rate=5 Gbit/s")).rows
    assert near.slowdown > 1.01 and far.slowdown > 1.01
    thin = ("ranks_per_node=2", "rails=1", "pod=2", "spines=2", "nic.rate=5 Gbit/s", "link.spine.rate=5 Gbit/s")
    spine = faults(PLAN, "4x dgx-h100", ("fail=spine:0",), edits=thin).rows[0]
    assert spine.slowdown > 1.01


def test_local_updates_take_what_predict_says() -> None:
    plan = load_plan(PLAN, ("update.mode=local", "update.every=4"))
    assert faults(plan, "dgx-h100", ("slow=r0:1",)).step_time_s == pytest.approx(predict(plan, "dgx-h100").step_time_s, rel=1e-6)


MODEL = {"family": "decoder", "layers": 12, "hidden": 1216, "heads": 16, "vocab": 8000}


def test_steps_are_counted_when_launches_have_lost_their_lead() -> None:
    """Until then they are shorter: of six steps the third to fifth are."""
    plan = load_plan({"model": MODEL, "seq_len": 1024, "parallel": {"dp_replicate": 4}})
    alone = predict(plan, "dgx-h100")
    assert alone.program is not None and alone.program.steps > 3
    assert faults(plan, "dgx-h100", ("slow=r0:1",)).step_time_s == pytest.approx(alone.step_time_s, rel=1e-6)


@pytest.mark.no_cover
@pytest.mark.parametrize("every", [2, 3, 10])
def test_the_step_after_an_averaging_one_is_no_other(every: int) -> None:
    """While ranks average, their threads prepare the next step, which is shorter for it."""
    plan = load_plan(
        {
            "model": MODEL,
            "seq_len": 128,
            "framework": "megatron-core",
            "batch": {"global": 12, "micro": 1},
            "parallel": {"dp_replicate": 3},
            "data": {"preprocess": "5 ms"},
            "update": {"mode": "local", "every": every},
        }
    )
    found = faults(plan, "rtx-4090-x4", ("slow=r0:1",))
    assert found.step_time_s == pytest.approx(predict(plan, "rtx-4090-x4").step_time_s, rel=1e-4)


@pytest.mark.no_cover
def test_many_micro_batches_are_told_by_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of a pipeline's micro-batches are alike on a broken machine, too; where they are not, all are simulated."""
    model = {"base": "llama3-8b", "layers": 4, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 4096, "vocab": 50304}
    plan = {"model": model, "framework": "megatron-core", "seq_len": 4096, "batch": {"global": 72, "micro": 1}}
    plan |= {"parallel": {"dp_shard": 2, "zero": 1, "tp": 2, "pp": 4, "placement": "tp,dp,cp,pp"}, "output": {"log_every": 1}}
    tried = ("slow=r15:0.8", "fail=nvswitch:n0/1")
    whole = faults(plan, "2x dgx-h100", tried)
    monkeypatch.setattr(sim.steady.detail, "OPS_QUICK", 1000)
    few = faults(plan, "2x dgx-h100", tried)
    assert few.step_time_s == pytest.approx(whole.step_time_s, rel=1e-4)
    slowdowns = [(one.fault, one.slowdown) for one in few.rows]
    assert slowdowns == [(one.fault, pytest.approx(one.slowdown, rel=1e-4)) for one in whole.rows]
    assert max(slowdown for _, slowdown in slowdowns) > 1.1
