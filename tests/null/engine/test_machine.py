"""What ranks of one machine share: equal to every rank simulated by itself, and loaders at their steady state."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.predict import predict

RANKS, MICRO = 8, 16
CORES = 112.0
"""Of a DGX H100."""
DISK = 40e9
"""Bytes per second that its disks read."""


def _predicted(data: dict[str, Any], fold: bool = True, on: str = "dgx-h100") -> float:
    model = {"family": "mlp", "name": "small", "widths": [64, 64]}
    plan = {"model": model, "batch": {"micro": MICRO}, "parallel": {"dp_replicate": RANKS}, "data": {"source": "disk", **data}}
    return predict(plan, on, fold=fold).step_time_s


@pytest.mark.no_cover
@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([1, 2, 5, 40]),
    st.sampled_from(["1 KB", "10 MB"]),
    st.sampled_from(["0.1 ms", "20 ms"]),
    st.sampled_from(["dgx-h100", "a100-pcie-x8"]),
)
def test_ranks_that_are_not_simulated_take_their_share_of_the_machine(workers: int, sample: str, work: str, on: str) -> None:
    data = {"workers": workers, "sample": sample, "preprocess": work}
    assert _predicted(data, True, on) == pytest.approx(_predicted(data, False, on), rel=1e-9)


def test_more_workers_than_cores_bring_nothing() -> None:
    work = 20e-3 * MICRO
    times = {workers: _predicted({"workers": workers, "sample": "1 KB", "preprocess": "20 ms"}) for workers in (2, 7, 14, 28, 100)}
    for workers, step in times.items():
        assert step == pytest.approx(max(work / workers, work * RANKS / CORES), rel=0.01), workers


def test_the_disk_is_shared_by_all_ranks_of_the_machine() -> None:
    step = _predicted({"workers": 16, "sample": "50 MB", "preprocess": "0.01 ms"})
    assert step == pytest.approx(RANKS * MICRO * 50e6 / DISK, rel=0.01)


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_whoever_prepares_samples_shares_the_cores(workers: int) -> None:
    """Two cores for eight ranks, whose training threads prepare them, or loader processes."""
    data = {"source": "disk", "workers": workers, "sample": "1 KB", "preprocess": "10 ms"}
    plan = {"model": {"family": "mlp", "name": "small", "widths": [64, 64]}, "batch": {"micro": MICRO}, "parallel": {"dp_replicate": RANKS}}
    step = predict(plan | {"data": data}, "dgx-h100", edits=("cpu.cores=1",)).step_time_s
    assert step == pytest.approx(RANKS * MICRO * 10e-3 / 2, rel=0.01)


@pytest.mark.parametrize("preprocess", ["200 ms", "400 ms"])
def test_kernels_of_a_cpu_share_its_cores_with_loaders_in_short_too(preprocess: str) -> None:
    """Eight ranks on four cores: their kernels and one loader each want all of them. (Kernels were not counted, and nobody shared.)"""
    plan = {
        "model": "gpt2-124m",
        "seq_len": 64,
        "task": "forward",
        "precision": "fp32",
        "batch": {"global": RANKS, "micro": 1},
        "parallel": {"dp_replicate": RANKS},
        "data": {"source": "memory", "workers": 1, "preprocess": preprocess},
    }
    whole, short = (predict(plan, "cpu-host", edits=("cpu.cores=4",), detail=detail).step_time_s for detail in (True, False))
    assert short == pytest.approx(whole, rel=1e-6)


def test_launching_threads_take_turns_on_too_few_cores() -> None:
    plan: dict[str, Any] = {"model": "gpt2-124m", "seq_len": 128, "batch": {"micro": 1}, "parallel": {"dp_replicate": RANKS}}
    usual, enough, few = (predict(plan, "dgx-h100", edits=(f"cpu.cores={each}",)).step_time_s for each in (56, 4, 1))
    assert usual == enough, "a core for each"
    assert few == pytest.approx(4 * usual, rel=1e-3)
    data = {"source": "disk", "workers": 2, "sample": "1 KB", "preprocess": "8 ms"}
    both = predict(plan | {"data": data}, "dgx-h100", edits=("cpu.cores=4",)).step_time_s
    assert both == pytest.approx(usual + 8e-3, rel=0.01), "eight cores do the work of eight threads and of their loaders"


def test_stages_that_read_nothing_take_nothing_from_the_disk() -> None:
    """Of four stages the first and the last read, two ranks each: eight micro-batches of a sample."""
    plan = {
        "model": {"base": "gpt2-124m", "layers": 4}, "seq_len": 128, "batch": {"global": 16, "micro": 1}, "parallel": {"pp": 4, "dp_replicate": 2},
        "data": {"source": "disk", "workers": 8, "sample": "200 MB"},
    }  # fmt: skip
    step = predict(plan, "dgx-h100", edits=("disk.read=2 GB/s",)).step_time_s
    assert step == pytest.approx(4 * 8 * 200e6 / 2e9, rel=0.01)


SMALL = {"family": "decoder", "name": "small", "layers": 2, "hidden": 1024, "heads": 16, "vocab": 8000}
AXES: list[dict[str, Any]] = [
    {"dp_replicate": 2, "dp_shard": 4, "zero": 3},
    {"tp": 4, "dp_replicate": 2},
    {"tp": 2, "pp": 2, "dp_shard": 2, "zero": 1},
]


@pytest.mark.no_cover
@pytest.mark.parametrize("on", ["a100-pcie-x8", "dgx1-v100", "dgx-h100", "2x dgx-a100"])
@pytest.mark.parametrize("parallel", AXES, ids=["hsdp", "tp", "3d"])
def test_whatever_joins_the_devices_folding_changes_nothing(on: str, parallel: dict[str, Any]) -> None:
    axis = next(iter(set(parallel) & {"dp_replicate", "dp_shard"}))
    split = parallel | ({axis: parallel[axis] * 2} if on.startswith("2x") else {})
    copies = split.get("dp_replicate", 1) * split.get("dp_shard", 1)
    plan = {"model": SMALL, "seq_len": 2048, "precision": "fp16", "batch": {"micro": 1, "global": 4 * copies}, "parallel": split}
    assert predict(plan, on).step_time_s == pytest.approx(predict(plan, on, fold=False).step_time_s, rel=1e-9)


@pytest.mark.no_cover
@pytest.mark.parametrize("on", ["h100-pcie-x8", "aws-g5"])
def test_a_plan_on_one_node_takes_as_long_where_more_nodes_stand_beside_it(on: str) -> None:
    model = {"base": "gpt2-124m", "layers": 4}
    split = {"pp": 2, "cp": 2, "dp_shard": 2, "zero": 1, "cp_kind": "all_gather"}
    plan = {"model": model, "seq_len": 1024, "batch": {"global": 8}, "parallel": split}
    alone = predict(plan, on).step_time_s
    assert predict(plan, f"2x {on}").step_time_s == pytest.approx(alone, rel=1e-9)
    assert predict(plan, f"2x {on}", fold=False).step_time_s == pytest.approx(alone, rel=1e-9)


def test_ranks_whose_experts_are_averaged_with_another_rank_are_not_equal() -> None:
    """Rank 0 alone writes the checkpoint. Experts are averaged between 0 and 2 and between 1 and 3: 3 is not 2."""
    plan = {
        "model": {"base": "olmoe-1b-7b", "layers": 2},
        "parallel": {"dp_replicate": 4, "ep": 2},
        "output": {"checkpoint_every": 1, "checkpoint_mode": "full"},
    }
    assert predict(plan, "dgx-h100").step_time_s == pytest.approx(predict(plan, "dgx-h100", fold=False).step_time_s, rel=1e-9)


def test_activations_that_all_ranks_offload_share_the_sockets_memory() -> None:
    plan = {
        "model": SMALL,
        "seq_len": 2048,
        "batch": {"micro": 1},
        "parallel": {"dp_shard": 8, "zero": 3},
        "memory": {"offload": "activations"},
    }
    slow = ("cpu.bandwidth=120 GB/s",)  # two GPUs' PCIe links fill it
    folded, whole, alone = (
        predict(plan, "dgx-h100", edits=slow, fold=True),
        predict(plan, "dgx-h100", edits=slow, fold=False),
        predict(plan | {"parallel": {}}, "dgx-h100", edits=slow),
    )
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
    assert folded.step_time_s > 1.2 * alone.step_time_s, "four GPUs share one socket's memory"
