"""How published loops over pictures run: waits for the device, updates after several steps."""

from __future__ import annotations

import msgspec
import pytest

from sim.accuracy.published import published_rows
from sim.accuracy.row import Row
from sim.accuracy.rows.plans import case_of
from sim.accuracy.steady import step_seconds
from sim.accuracy.training import predict_case
from sim.sections import Output


def row(row_id: str) -> Row:
    return next(row for row in published_rows() if row.row_id == row_id)


@pytest.mark.no_cover
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


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("row_id", "waits"),
    [
        ("nv-dle-0003", Output(sync_every=1, log_every=1)),
        ("nv-dle-0432", Output(sync_every=1)),
        ("nv-dle-0041", Output()),
        ("nv-dle-0457", Output()),
        ("dlperf-v1-0060", Output()),
        ("nv-dle-0129", Output(item_every=1)),  # SQuAD
        ("nv-dle-0134", Output()),  # BERT's pretraining
        ("nv-dle-0360", Output()),  # Transformer-XL on one GPU
        ("nv-dle-0366", Output(log_every=1)),  # and on eight, which log together
    ],
)
def test_nvidia_s_loops_in_pytorch_wait_for_each_step(row_id: str, waits: Output) -> None:
    assert case_of(row(row_id)).plan.output == waits


NOTES = "heading path: FP32 & Use `torch.utils.data.DataLoader` > ResNet50 v1.5 batch_size = 128, worker=48"


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("gpus", "notes", "workers"),
    [
        (1, NOTES, 48),
        (8, NOTES, 6),  # imagenet/main.py shares a node's processes out
        (32, NOTES, 6),
        (8, NOTES.replace("48", "4"), 1),
        (8, "DataLoader", 1),
        (8, NOTES.replace("torch.utils.data.DataLoader", "DALI"), 4),
    ],
)
def test_loader_processes_of_torch_are_the_node_s(gpus: int, notes: str, workers: int) -> None:
    found = case_of(
        msgspec.structs.replace(row("dlperf-v1-0060"), framework="PyTorch", gpus=gpus, nodes=max(1, gpus // 8), dp=gpus, notes=notes)
    )
    data = found.plan.data
    assert data.workers == workers and (data.preprocess > 0) == ("DataLoader" in notes)


def test_a_loader_process_too_few_is_what_a_step_takes() -> None:
    """128 photographs by one process in 6.9 ms each, where six keep the device busy."""
    few, many = (
        step_seconds(case.plan, case.topology)[0]
        for count in (8, 48)
        for case in [case_of(msgspec.structs.replace(row("dlperf-v1-0063"), framework="PyTorch", notes=NOTES.replace("48", str(count))))]
    )
    assert few == pytest.approx(128 * 6.9e-3, rel=0.02) and many < 0.45 * few
