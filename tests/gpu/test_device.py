"""What only a GPU can show: events, streams, profiles and memory as the table of GPU plans needs them. Skipped without one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from executor.device_times import DeviceTimer
from executor.kernels.backward import _alone
from executor.nvml import Meter
from executor.play import run_play
from executor.players.events import Cuda
from executor.probes.rest import Rest
from executor.ranks.environment import sharing
from executor.ranks.world import set_precision
from executor.stock import run_stock
from sim.files.planfile import load_plan
from sim.predict import predict

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

PLAN = {
    "model": {"family": "decoder", "name": "two-layers", "layers": 2, "hidden": 256, "heads": 4, "vocab": 1024},
    "seq_len": 128, "batch": {"micro": 4},
}  # fmt: skip


@pytest.fixture
def cuda() -> Cuda:
    return Cuda(torch.device("cuda", 0))


def test_a_small_kernel_is_shorter_than_its_launch(cuda: Cuda) -> None:
    x = torch.ones(64, device=cuda.device)
    found = sorted(DeviceTimer(cuda).times([lambda: torch.add(x, x)], budget=0.02))
    assert 0.5e-6 < found[len(found) // 2] < 2e-5


def test_products_grow_with_their_work(cuda: Cuda) -> None:
    sizes = [torch.ones(n, n, device=cuda.device, dtype=torch.bfloat16) for n in (1024, 4096)]
    small, large = (sorted(DeviceTimer(cuda).times([lambda a=a: a @ a], budget=0.02))[2] for a in sizes)  # type: ignore[misc]
    assert large > 8 * small


def test_the_hold_holds(cuda: Cuda) -> None:
    cuda.hold(int(3e7))
    event = cuda.event()
    event.record()
    assert not cuda.passed(event)
    cuda.synchronize()
    assert cuda.passed(event)


def test_products_behind_rests_are_all_as_long(cuda: Cuda) -> None:
    """Each behind the other they would draw more than the board may, and the later ones take longer."""
    a = torch.randn(8192, 8192, device=cuda.device, dtype=torch.bfloat16)
    found = DeviceTimer(cuda, hold=Rest(cuda).hold).times([lambda: a @ a], budget=0.5, least=10)
    assert sorted(found)[len(found) // 2] < 1.03 * min(found)


def test_the_driver_tells_what_a_board_draws(cuda: Cuda) -> None:
    try:
        meter = Meter(0)
    except LookupError as error:
        pytest.skip(str(error))
    looks = []
    for _ in range(60):
        cuda.hold(int(3e7))
        cuda.synchronize()
        looks.append((time.perf_counter(), meter.joules()))
    assert 0.02 < meter.share(looks) < 0.6, "it only waits"


def test_precision_is_the_plans(cuda: Cuda) -> None:
    torch.manual_seed(0)
    a = torch.randn(512, 512, device=cuda.device)
    exact = a.double() @ a.double()
    set_precision(False)
    error = float((a @ a - exact).abs().max())
    set_precision(True)
    rough = float((a @ a - exact).abs().max())
    set_precision(False)
    assert error < 1e-2
    assert rough > 4 * error or cuda.generation() < 8


def test_an_operators_backward_is_its_node(cuda: Cuda) -> None:
    """What `executor.kernels.backward` takes for granted of attention and of the fused norm: no hand-over to autograd's thread."""
    q, k, v = (torch.randn(2, 4, 128, 64, device=cuda.device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    x, w = (
        torch.randn(64, 512, device=cuda.device, dtype=torch.bfloat16, requires_grad=True),
        torch.ones(512, device=cuda.device, dtype=torch.bfloat16),
    )
    for out, inputs in ((F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v)), (F.rms_norm(x, (512,), w), (x,))):
        grad = torch.randn_like(out)
        with torch.no_grad():
            call = _alone(out, inputs, grad)
            assert call is not None, out.grad_fn
            wanted = torch.autograd.grad(out, inputs, grad, retain_graph=True)
            assert all(torch.allclose(one, other, atol=0.1) for one, other in zip(call(), wanted, strict=False))  # type: ignore[call-overload]


@pytest.mark.timeout(280)
def test_a_program_is_played_and_trained(tmp_path: Path) -> None:
    plan = load_plan(PLAN)
    predicted = predict(plan, "this-machine", fold=False)
    assert predicted.program is not None and predicted.trace is not None and predicted.program.device == "cuda"
    played = run_play(predicted.program, {}, tmp_path / "play", 4)
    assert {span.id for span in played.trace.spans} == {span.id for span in predicted.trace.spans}
    stock = run_stock(plan, tmp_path / "stock", 4)
    assert 1 << 20 < stock.memory < 4 << 30
    gemms = [span for span in stock.trace.spans if span.cls == "gemm" and span.kind == "compute"]
    assert any("/fwd/" in span.id for span in gemms) and any("/bwd/" in span.id for span in gemms)
    assert any(span.cls == "optimizer" and span.kind == "compute" for span in stock.trace.spans)


@pytest.mark.timeout(280)
def test_two_ranks_on_one_gpu(tmp_path: Path) -> None:
    plan = load_plan(PLAN | {"batch": {"micro": 2}, "parallel": {"dp_replicate": 2}})
    with sharing():
        found = run_stock(plan, tmp_path, 3)
    assert len(found.by_rank) == 2 and found.memory < 4 << 30
    assert found.losses[-1] < found.losses[0]
    copied = [span for span in found.trace.spans if span.kind == "copy" and span.cls == "comm.dp"]
    assert {"HtoD", "DtoH"} <= {way for span in copied for way in ("HtoD", "DtoH") if way in span.name}, "gloo sums on the host"


@pytest.mark.timeout(280)
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_played_sum_of_two_gpus_does_not_pass_through_the_host(tmp_path: Path) -> None:
    predicted = predict(load_plan("nccl-two-gpus"), "this-machine", fold=False)
    assert predicted.program is not None
    played = run_play(predicted.program, {}, tmp_path, 4)
    sums = [span for span in played.trace.spans if span.name == "all_reduce" and span.step == 1]
    assert sums and min(span.bytes / span.seconds for span in sums) > 3e9, "gloo's take milliseconds for the 4 MB"
