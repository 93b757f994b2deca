"""Edits that a job cannot feel are named, and only those: the collective is as fast as without them."""

from __future__ import annotations

import pytest

from sim.cost.collective.table import collective_table
from sim.files.planfile import load_plan
from sim.predict import predict
from topologies.load import load_topology
from topologies.unfelt import unfelt

CASES = {
    (
        "4x dgx-h100",
        "oversubscription=4",
    ): "all 4 nodes hang on the same leaf switches, of 32 nodes each, below the spines; pod=2 puts them on two",
    ("4x dgx-h100", "link.spine.rate=1 GB/s"): "below the spines",
    ("4x dgx-h100", "fail=spine:0"): "below the spines",
    ("dgx-h100", "oversubscription=2"): "the one node, below the spines",
    ("40x dgx-h100", "core_oversubscription=2"): "no core switch is between the 40 nodes",
    ("dgx-h100", "nic.rate=1 Gbit/s"): "the ranks are all on one node, and send nothing over its NICs",
    ("dgx-h100", "link.net.latency=1 ms"): "over its NICs",
    ("dgx-h100", "rails=1"): "over its NICs",
    ("dgx-h100", "fail=nic:nic3"): "over its NICs",
    ("dgx-h100", "without=nic"): "over its NICs",
    ("cpu-host", "nic.rate=1 Gbit/s"): "over its NICs",
    ("dgx-h100", "cpu.clock=1 GHz"): "cpu.flops and cpu.bandwidth are what a CPU computes at",
    ("dgx-h100", "without=p2p"): "over NVLink, which stays; without=nvlink takes it away",
}


@pytest.mark.parametrize(("on", "edit"), CASES)
def test_an_edit_that_is_not_felt_is_named_and_changes_nothing(on: str, edit: str) -> None:
    machine = load_topology(on, (edit,))
    (said,) = unfelt(machine, machine.gpus)
    assert (said.startswith(f"{edit} has no effect: ") and said.endswith(CASES[on, edit])) or CASES[on, edit] in said
    for name in ("all_reduce", "all_to_all") if machine.kind == "cuda" else ():
        assert collective_table(name, "64 MiB", machine)["rows"] == collective_table(name, "64 MiB", on)["rows"]


@pytest.mark.parametrize(
    ("on", "edits"),
    [
        ("4x dgx-h100", ("pod=1", "oversubscription=4")),
        ("64x dgx-h100", ("oversubscription=4",)),
        ("mlperf-l40s", ("without=p2p",)),
        ("2x dgx-h100", ("nic.rate=100 Gbit/s",)),
        ("dgx-h100", ("link.nvlink.rate=100 GB/s",)),
    ],
)
def test_an_edit_that_is_felt_is_not_named(on: str, edits: tuple[str, ...]) -> None:
    machine = load_topology(on, edits)
    assert unfelt(machine, machine.gpus) == []
    assert collective_table("all_to_all", "1 GiB", machine)["rows"] != collective_table("all_to_all", "1 GiB", on)["rows"]


def test_a_plan_on_a_part_of_the_machine_is_told() -> None:
    """64 nodes have spines between them; eight ranks feel none of it."""
    machine = load_topology("64x dgx-h100", ("oversubscription=4",))
    found = predict({"model": "gpt2-124m", "parallel": {"dp_replicate": 8}, "batch": {"micro": 4}}, machine)
    assert "oversubscription=4 has no effect: the one node, below the spines" in found.warnings


def test_more_ranks_than_cores_are_told() -> None:
    plan = {"model": "gpt2-124m", "parallel": {"dp_replicate": 8}, "batch": {"micro": 4}}
    said = "8 ranks of a node share its 2 CPU cores: their host threads take turns"
    assert said in predict(plan, load_topology("dgx-h100", ("cpu.cores=1",))).warnings
    assert not predict(plan, load_topology("dgx-h100", ("cpu.cores=4",))).warnings


@pytest.mark.parametrize(("ranks", "longer"), [(1, 1.0), (2, 1.0), (8, 4.0)])
def test_only_ranks_that_train_take_turns(ranks: int, longer: float) -> None:
    """Two cores and eight GPUs: a plan that the host holds back takes longer where it has more ranks than cores."""
    plan = {"model": "gpt2-124m", "seq_len": 256, "parallel": {"dp_replicate": ranks}, "batch": {"micro": 1}}
    many, few = (predict(plan, load_topology("dgx-h100", (f"cpu.cores={cores}",))).step_time_s for cores in (32, 1))
    assert few / many == pytest.approx(longer, rel=0.01)


@pytest.mark.parametrize(
    ("edit", "sets", "felt"),
    [
        ("disk.read=1 MB/s", (), False),
        ("store.read=1 MB/s", ("data.source=disk", "data.sample=1 MiB"), False),
        ("disk.read=1 MB/s", ("data.source=disk", "data.sample=1 MiB"), True),
        ("disk.write=1 MB/s", ("data.source=disk", "data.sample=1 MiB"), False),
        ("disk.latency=90 ms", ("data.source=disk", "data.sample=1 MiB"), True),
        ("store.stream=1 MB/s", ("data.source=object-store", "data.sample=1 MiB"), True),
        ("store.write=1 MB/s", ("output.checkpoint_every=4", "output.checkpoint_to=store"), True),
        ("store.total_write=1 MB/s", ("output.checkpoint_every=4",), False),
        ("disk.write=1 MB/s", ("output.checkpoint_every=4",), True),
        ("store.read=1 MB/s", ("output.checkpoint_every=4", "output.checkpoint_to=store"), False),
    ],
)
def test_a_disk_that_nothing_is_read_from_is_named(edit: str, sets: tuple[str, ...], felt: bool) -> None:
    plan = load_plan({"model": {"base": "gpt2-124m", "layers": 2}, "parallel": {"dp_replicate": 8}, "batch": {"micro": 4}}, sets)
    found, whole = predict(plan, load_topology("dgx-h100", (edit,))), predict(plan, "dgx-h100")
    assert any(f"{edit} has no effect: " in text for text in found.warnings) is not felt
    assert (found.step_time_s > 1.01 * whole.step_time_s) is felt
