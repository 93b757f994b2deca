"""A profile of a GPU as spans, from events written by hand as torch.profiler writes them: threads, launches, copies. No GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from executor.players.communication import MESSAGES, Group, message_group, way
from executor.profiles.classes import GRADIENTS
from executor.profiles.collect import named_parts, profiled, spans_of
from executor.profiles.event import Event
from executor.training.models.build import model_for
from executor.training.parallelize import recompute
from sim.files.planfile import load_plan
from sim.framework.chosen import framework_of
from sim.setting.bind import model_of

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
    copied = spans["Memcpy DtoH (Device -> Pinned)"]
    assert spans["all_reduce"].start == pytest.approx(copied.end) and spans["all_reduce"].seconds == pytest.approx(5e-6), (
        "not the copy again"
    )


def test_what_fsdp2_copies_its_addresses_with_is_no_communication() -> None:
    """A gather's result is handed out by one kernel, for which torch copies addresses and sizes to the device; NCCL needs no copy."""
    events = [
        *_step(),
        _cpu("aten::split_with_sizes_copy", 31, 4),
        *_launched("Memcpy HtoD (Pinned -> Device) addresses", 32, 77, 1, 8, cat="gpu_memcpy"),
        *_launched("split_with_sizes_copy_out_contiguous_no_cast_kernel", 34, 78, 2, 9),
        _cpu("autograd::engine::evaluate_function: RegisterPostBackwardFunctionBackward", 62, 6, tid=ENGINE),
        _cpu("aten::copy_", 63, 3, tid=ENGINE),
        *_launched("Memcpy DtoD (Device -> Device) of a group of one", 64, 95, 3, 10, tid=ENGINE, cat="gpu_memcpy"),
    ]
    spans = {span.name: span for span in spans_of(events, 0, "comm.fsdp")}
    for name in ("HtoD (Pinned -> Device) addresses", "DtoD (Device -> Device) of a group of one"):
        assert (spans[f"Memcpy {name}"].kind, spans[f"Memcpy {name}"].cls) == ("compute", GRADIENTS)
    assert spans["split_with_sizes_copy_out_contiguous_no_cast_kernel"].cls == GRADIENTS


def test_each_sum_begins_where_its_own_copy_has_come() -> None:
    """Two buckets: the second copy is launched before gloo has begun with either, and ends while it is still at the first."""
    gloo, events = 300, _step()
    for number, launch, end in ((8, 62, 70), (9, 64, 90)):
        events += [
            _cpu("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", launch, 1, tid=ENGINE),
            _cpu("aten::copy_", launch, 1, tid=ENGINE),
            *_launched("Memcpy DtoH (Device -> Pinned)", launch + 0.5, end - 5, 5, number, tid=ENGINE, cat="gpu_memcpy"),
        ]
    sums = [
        _cpu("gloo:all_reduce", 65, 10, tid=gloo, cat="user_annotation"),
        _cpu("gloo:all_reduce", 66, 30, tid=gloo + 1, cat="user_annotation"),
    ]
    events.append(_cpu("gloo:all_reduce", 97, 4, tid=STREAM, cat="gpu_user_annotation"))  # what gloo's range has launched: the copy back
    found = [span for span in spans_of([*events, *sums], 0, "comm.dp") if span.name == "all_reduce"]
    assert [(round(span.start * 1e6), round(span.end * 1e6)) for span in found] == [(70, 75), (90, 96)]
    found = [span for span in spans_of([*events, *sums[:1]], 0, "comm.dp") if span.name == "all_reduce"]
    assert [round(span.start * 1e6) for span in found] == [65], "which copy is whose is not known: as it was"


def test_launching_is_no_work_of_the_device() -> None:
    spans = spans_of(_step(), 0)
    assert {span.lane for span in spans if span.kind == "host"} == {"host", "autograd"}
    assert sum(span.seconds for span in spans if span.cls == "gemm") == pytest.approx(22e-6), "kernels once, their launches not"
    assert {span.step for span in spans} == {0, 1}


def test_where_the_profiler_sees_no_device_launches_are_not_taken_for_kernels() -> None:
    """Without CUPTI torch profiles the host alone and only logs it; read as a CPU's, launches of 5 us were the products themselves."""
    seen = [event for event in _step() if event.cat in ("cpu_op", "user_annotation")]
    assert {span.kind for span in spans_of(seen, 0, cuda=True)} == {"host"}
    assert "compute" in {span.kind for span in spans_of(seen, 0)}


def test_a_small_kernel_is_told_to_a_hundredth_of_a_microsecond() -> None:
    """Microseconds since 1970 are told to a quarter of one: what lasts two could read an eighth more or less."""
    events: list[Event] = []
    x = torch.ones(8)
    with profiled(False, events), torch.profiler.record_function("step:0"):
        for _ in range(50):
            torch.add(x, x)
    lasted = {round(event.dur, 3) for event in events if event.name == "aten::add"}
    told = [span.seconds * 1e6 for span in spans_of(events, 0) if span.name == "aten::add"]
    assert len(told) == 50 and all(min(abs(one - dur) for dur in lasted) < 0.01 for one in told)


def test_messages_of_both_directions_are_apart() -> None:
    one: dict[tuple[str, str], Group] = {(MESSAGES, "pp"): ("all", (0, 1))}  # type: ignore[dict-item]
    both: dict[tuple[str, str], Group] = one | {(way(0, 1), "pp"): ("up", (0, 1)), (way(1, 0), "pp"): ("down", (1, 0))}  # type: ignore[dict-item]
    assert [message_group(both, "pp", 0, 1), message_group(both, "pp", 1, 0)] == ["up", "down"]
    assert [message_group(one, "pp", 0, 1), message_group(one, "pp", 1, 0)] == ["all", "all"], "gloo knows a message by its tag"


def test_a_thread_that_waits_for_a_message_runs_no_python() -> None:
    """gloo's messages are begun and awaited by the training thread, in whose name the profiler records them (torch 2.13)."""
    events = [
        _cpu("step:0", 0, 5000, cat="user_annotation"),
        _cpu("aten::linear", 100, 900),
        _cpu("c10d::recv_", 1050, 10),
        _cpu("gloo:recv", 1060, 2900, cat="user_annotation"),
        _cpu("aten::linear", 4000, 900),
        _cpu("gloo:send", 4920, 30, cat="user_annotation"),
    ]
    spans = spans_of(events, 1, "comm.pp")
    sent = {span.name: span for span in spans if span.cls == "comm.pp"}
    assert {name: (span.kind, round(span.seconds * 1e6), span.step) for name, span in sent.items()} == {
        "recv": ("recv", 2900, 0),
        "send": ("send", 30, 0),
    }
    assert sum(span.seconds for span in spans if span.cls == "host") == pytest.approx(200e-6, rel=0.01), (
        "before the first op, and at the end"
    )


def test_a_layer_that_is_run_again_has_its_parts_and_ends() -> None:
    """Its forward in backward breaks off once nothing is lacking: ranges that stayed open made backward of all that came later."""
    torch.manual_seed(0)
    tree = {"family": "decoder", "name": "two", "layers": 2, "hidden": 32, "heads": 2, "vocab": 64}
    plan = load_plan({"model": tree, "seq_len": 16, "memory": {"recompute": "full"}})
    model, ids, events = model_for(model_of(plan), framework_of(plan), 16), torch.ones(1, 16, dtype=torch.int64), list[Event]()
    recompute(model, plan)
    with named_parts(model), profiled(False, events):
        for number in range(2):
            with torch.profiler.record_function(f"step:{number}"):
                model(ids).sum().backward()
    spans = [span for span in spans_of(events, 0) if span.step == 1]
    linears = [span.id.partition("#")[0].partition("/s1/")[2] for span in spans if span.name == "aten::linear"]
    parts = [f"L{layer}.{part}" for layer in (0, 1) for part in ("attn.qkv", "attn.proj", "mlp.up", "mlp.down")]
    assert sorted(set(linears)) == sorted([*(f"{way}/{part}" for way in ("fwd", "bwd") for part in parts), "fwd/head.logits"])


def test_autograds_thread_numbers_what_it_runs_again_by_itself() -> None:
    """Sequence numbers are counted by thread: what bears the same one as the training thread's linear is not that linear."""
    events = [
        _cpu("step:0", 0, 100, cat="user_annotation"),
        _cpu("part:L0.mlp.up", 10, 20, cat="user_annotation"),
        _cpu("aten::linear", 11, 10, **{"Sequence number": 5}),
        _cpu("autograd::engine::evaluate_function: MulBackward0", 40, 20, tid=ENGINE, **{"Sequence number": 9}),
        _cpu("part:L1.attn.core", 41, 8, tid=ENGINE, cat="user_annotation"),
        _cpu("aten::scaled_dot_product_attention", 42, 6, tid=ENGINE, **{"Sequence number": 5}),
        _cpu("autograd::engine::evaluate_function: AddmmBackward0", 62, 10, tid=ENGINE, **{"Sequence number": 5}),
        _cpu("aten::mm", 63, 5, tid=ENGINE),
    ]
    spans = {span.name: span.id for span in spans_of(events, 0, cuda=True)}
    assert "/bwd/L1.attn.core" in spans["aten::scaled_dot_product_attention"] and "/bwd/L0.mlp.up" in spans["aten::mm"]
