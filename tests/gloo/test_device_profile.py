"""A profile of a GPU as spans, from events written by hand as torch.profiler writes them: threads, launches, copies. No GPU."""

from __future__ import annotations

from typing import Any

import pytest

from executor.players.communication import MESSAGES, Group, message_group, way
from executor.profiles.collect import spans_of
from executor.profiles.event import Event

MAIN, ENGINE, STREAM = 100, 200, 7


def _cpu(name: str, ts: float, dur: float, tid: int = MAIN, cat: str = "cpu_op", **args: Any) -> Event:
    return Event(name, cat, ts, dur, tid, args)


def _launched(name: str, launch: float, ts: float, dur: float, number: int, tid: int = MAIN, cat: str = "kernel") -> list[Event]:
    return [
        Event("cudaLaunchKernel", "cuda_runtime", launch, 1.0, tid, {"correlation": number}),
        Event(name, cat, ts, dur, STREAM, {"correlation": number, "stream": STREAM}),
    ]


def _step() -> list[Event]:
    """Two steps of a linear layer; the device is late, so that what it runs of the first step lies inside the second on the clock."""
    return [
        _cpu("step:0", 0, 100, cat="user_annotation"),
        _cpu("step:0", 60, 100, tid=STREAM, cat="gpu_user_annotation"),
        _cpu("step:1", 100, 100, cat="user_annotation"),
        _cpu("aten::to", 1, 5),
        *_launched("Memcpy HtoD (Pinned -> Device)", 2, 61, 4, 1, cat="gpu_memcpy"),
        _cpu("part:L0.mlp.up", 10, 20, cat="user_annotation"),
        _cpu("aten::linear", 11, 10, **{"Sequence number": 5}),
        *_launched("sm90_xmma_bf16", 12, 66, 10, 2),
        _cpu("autograd::engine::evaluate_function: AddmmBackward0", 40, 20, tid=ENGINE, **{"Sequence number": 5}),
        _cpu("aten::mm", 41, 5, tid=ENGINE),
        *_launched("sm90_xmma_wgrad", 42, 80, 12, 3, tid=ENGINE),
        _cpu("Optimizer.step#AdamW.step", 70, 20, cat="user_annotation"),
        _cpu("aten::_foreach_add_", 72, 5),
        *_launched("multi_tensor_apply_kernel", 73, 110, 8, 4),
        _cpu("output", 92, 6, cat="user_annotation"),
        *_launched("Memcpy DtoH (Device -> Pageable)", 93, 120, 2, 5, cat="gpu_memcpy"),
        _cpu("aten::clone", 150, 4),
        *_launched("Memcpy DtoD (Device -> Device)", 151, 160, 3, 6, cat="gpu_memcpy"),
        *_launched("ncclDevKernel_AllReduce_Sum_bf16", 152, 170, 9, 7),
    ]


def test_kernels_belong_to_the_op_that_launched_them_on_whatever_thread() -> None:
    spans = {span.name: span for span in spans_of(_step(), 0, "comm.dp")}
    forward, backward = spans["sm90_xmma_bf16"], spans["sm90_xmma_wgrad"]
    assert (forward.kind, forward.cls, forward.step) == ("compute", "gemm", 0) and "/fwd/L0.mlp.up" in forward.id
    assert (backward.kind, backward.cls, backward.step) == ("compute", "gemm", 0) and "/bwd/L0.mlp.up" in backward.id
    update = spans["multi_tensor_apply_kernel"]
    assert (update.cls, update.step) == ("optimizer", 0), "launched in step 0, though the device comes to it in step 1"


def test_copies_and_messages() -> None:
    spans = {span.name: span for span in spans_of(_step(), 0, "comm.dp")}
    assert [(spans[f"Memcpy {way}"].kind, spans[f"Memcpy {way}"].cls) for way in
            ("HtoD (Pinned -> Device)", "DtoH (Device -> Pageable)", "DtoD (Device -> Device)")] == [
        ("copy", "data"), ("copy", "output"), ("compute", "elementwise"),
    ]  # fmt: skip
    nccl = spans["ncclDevKernel_AllReduce_Sum_bf16"]
    assert (nccl.kind, nccl.cls, nccl.lane, nccl.step) == ("collective", "comm.dp", "comm", 1)


def test_gradients_that_gloo_sums_on_the_host_are_no_batch_and_no_output() -> None:
    """Ranks that share a GPU: DDP's hook copies a bucket to the host inside backward, gloo's own thread copies the sum back."""
    gloo = 300
    events = [
        *_step(),
        _cpu("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 62, 6, tid=ENGINE),
        _cpu("aten::copy_", 63, 3, tid=ENGINE),
        *_launched("Memcpy DtoH (Device -> Pinned)", 64, 86, 5, 8, tid=ENGINE, cat="gpu_memcpy"),
        _cpu("gloo:all_reduce", 66, 30, tid=gloo, cat="user_annotation"),
        *_launched("Memcpy HtoD (Pinned -> Device) back", 95, 97, 5, 9, tid=gloo, cat="gpu_memcpy"),
    ]
    spans = {span.name: span for span in spans_of(events, 0, "comm.dp")}
    for name in ("Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device) back"):
        assert (spans[name].kind, spans[name].cls) == ("copy", "comm.dp")
    assert spans["Memcpy HtoD (Pinned -> Device)"].cls == "data" and spans["all_reduce"].cls == "comm.dp"


def test_launching_is_no_work_of_the_device() -> None:
    spans = spans_of(_step(), 0)
    assert {span.lane for span in spans if span.kind == "host"} == {"host", "autograd"}
    assert sum(span.seconds for span in spans if span.cls == "gemm") == pytest.approx(22e-6), "kernels once, their launches not"
    assert {span.step for span in spans} == {0, 1}


def test_messages_of_both_directions_are_apart() -> None:
    one: dict[tuple[str, str], Group] = {(MESSAGES, "pp"): ("all", (0, 1))}  # type: ignore[dict-item]
    both: dict[tuple[str, str], Group] = one | {(way(0, 1), "pp"): ("up", (0, 1)), (way(1, 0), "pp"): ("down", (1, 0))}  # type: ignore[dict-item]
    assert [message_group(both, "pp", 0, 1), message_group(both, "pp", 1, 0)] == ["up", "down"]
    assert [message_group(one, "pp", 0, 1), message_group(one, "pp", 1, 0)] == ["all", "all"], "gloo knows a message by its tag"
