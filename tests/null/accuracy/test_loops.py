"""How published loops over pictures run: waits for the device, updates after several steps."""

from __future__ import annotations

import msgspec
import pytest

from sim.accuracy.plans import case_of
from sim.accuracy.published import published_rows
from sim.accuracy.rows import Row
from sim.accuracy.steady import step_seconds
from sim.accuracy.training import predict_case
from sim.plan import Output


def row(row_id: str) -> Row:
    return next(row for row in published_rows() if row.row_id == row_id)


@pytest.mark.parametrize(
    ("row_id", "batch", "turns"),
    [
        ("nv-dle-0001", 2048, 8),  # ResNet-50, one GPU, 256 images: optimizer_batch_size 2048
        ("nv-dle-0003", 2048, 1),  # eight
        ("nv-dle-0013", 1024, 8),  # ResNeXt101, 128 images
        ("nv-dle-0037", 512, 1),  # MXNet
        ("nv-dle-0432", 64, 1),  # SSD
    ],
)
def test_one_gpu_gathers_gradients_over_several_steps(row_id: str, batch: int, turns: int) -> None:
    case = case_of(row(row_id))
    assert (case.plan.global_batch, case.turns) == (batch, turns)


def test_the_row_s_step_is_one_of_them() -> None:
    case = case_of(row("nv-dle-0001"))
    found = predict_case(case)
    assert found.seconds == pytest.approx(step_seconds(case.plan, case.topology)[0] / 8)
    assert found.interval is not None and found.interval.low < found.seconds < found.interval.high
    every = msgspec.structs.replace(case.plan, batch=msgspec.structs.replace(case.plan.batch, global_=256))
    assert found.seconds < 0.99 * step_seconds(every, case.topology)[0]  # seven updates of eight are saved


@pytest.mark.parametrize(
    ("row_id", "waits"),
    [
        ("nv-dle-0003", Output(sync_every=1, log_every=1)),
        ("nv-dle-0432", Output(sync_every=1)),
        ("nv-dle-0041", Output()),
        ("nv-dle-0457", Output()),
        ("dlperf-v1-0060", Output()),
    ],
)
def test_nvidia_s_loops_in_pytorch_wait_for_each_step(row_id: str, waits: Output) -> None:
    assert case_of(row(row_id)).plan.output == waits
