"""Tensor and sequence parallelism: collectives of one layer as in the Megatron papers."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from sim.engine.run import simulate
from sim.model.parts import Part
from sim.program import Program, held_beside
from sim.work import HostWork, MemoryBound
from tests.null.lower.tiny import QUIET, Constant, linear, messages, network, norm, program, show, traffic

SIZE = 1024
LAYER: tuple[Part, ...] = (
    norm(),
    linear("qkv", seam="tp.gather", seam_bytes=SIZE),
    linear("proj", seam="tp.reduce", seam_bytes=SIZE),
    linear("up", seam="tp.gather", seam_bytes=SIZE),
    linear("down", seam="tp.reduce", seam_bytes=SIZE),
)
DTENSOR = QUIET.but(tensor_parallel={"style": "dtensor"})


def test_four_all_reduces_a_layer() -> None:
    """Shoeybi et al. 2019, figure 4: two in forward, two in backward."""
    p = program({"parallel": {"tp": 2, "sequence_parallel": False}}, network(1, LAYER))
    assert messages(p) == [("all_reduce", "tp", SIZE)] * 4
    assert show(p.segments["fwd"])[:6] == [
        "compute: fwd/L0.norm",
        "compute: fwd/L0.qkv",
        "compute: fwd/L0.proj",
        "compute: fwd/L0.proj.all_reduce",
        "compute: fwd/L0.up",
        "compute: fwd/L0.down",
    ]


def test_the_gradients_sum_travels_beside_the_weights_gradient() -> None:
    p = program({"parallel": {"tp": 2, "sequence_parallel": False}}, network(1, LAYER[1:3]))
    ops = show(p.segments["bwd"])
    assert ops[ops.index("compute: bwd/L0.qkv.all_reduce.in.record") :] == [
        "compute: bwd/L0.qkv.all_reduce.in.record",
        "comm.tp: bwd/L0.qkv.all_reduce.in.wait",
        "comm.tp: bwd/L0.qkv.all_reduce",
        "compute: wgrad/L0.qkv",
        "comm.tp: bwd/L0.qkv.all_reduce.out.record",
        "compute: bwd/L0.qkv.all_reduce.out.wait",
    ]


def test_without_overlap_each_linear_sums_its_own_gradient_after_both_products() -> None:
    """A gate and an up that are two linears hand back two gradients; DTensor adds them before it sums."""
    both = linear("up", seam="tp.gather", seam_bytes=SIZE)
    both = replace(both, backward=both.backward * 2)
    net = network(1, (norm(), both, linear("down", seam="tp.reduce", seam_bytes=SIZE)))
    plan = {"parallel": {"tp": 2, "sequence_parallel": False}}
    sync = program(plan, net, QUIET.but(tensor_parallel={"style": "sync"}))
    assert messages(sync) == [("all_reduce", "tp", SIZE)] * 3
    assert show(sync.segments["bwd"])[-5:-1] == [
        "compute: bwd/L0.up",
        "compute: wgrad/L0.up",
        "compute: bwd/L0.up.all_reduce",
        "compute: bwd/L0.up.all_reduce1",
    ]
    assert messages(program(plan, net, DTENSOR)) == [("all_reduce", "tp", SIZE)] * 2


def test_sequence_parallelism_splits_all_reduces_and_gathers_again_for_the_weights() -> None:
    """Korthikanti et al. 2022, section 4.2.2: the same volume as tensor parallelism, but for the input gathered again."""
    net = network(1, LAYER)
    split = program({"parallel": {"tp": 4}}, net)
    kept = program({"parallel": {"tp": 4}}, net, DTENSOR)
    whole = program({"parallel": {"tp": 4, "sequence_parallel": False}}, net)
    norms = 2 * 3 / 4 * 16 * 4  # both norm tensors, fp32
    assert traffic(split, "tp") - norms == pytest.approx(traffic(whole, "tp") * 10 / 8)
    dtensor_norms = norms  # the same bytes in two messages
    assert traffic(kept, "tp") - dtensor_norms == pytest.approx(traffic(whole, "tp"))
    assert [m for m in messages(split) if m[2] == SIZE] == [
        *[("all_gather", "tp", SIZE), ("reduce_scatter", "tp", SIZE)] * 2,  # forward
        *[("all_gather", "tp", SIZE), ("all_gather", "tp", SIZE), ("reduce_scatter", "tp", SIZE)] * 2,  # backward
    ]
    assert [m for m in messages(kept) if m[2] == SIZE] == [("all_gather", "tp", SIZE), ("reduce_scatter", "tp", SIZE)] * 4


def test_norms_gradients_in_one_message_or_each_by_itself() -> None:
    net = network(1, LAYER)
    assert messages(program({"parallel": {"tp": 2}}, net))[-1] == ("all_reduce", "tp", 16 * 4)
    assert messages(program({"parallel": {"tp": 2}}, net, DTENSOR))[-2:] == [("all_reduce", "tp", 8 * 4)] * 2
    three = DTENSOR.but(optimizer={"implementation": "foreach"})
    assert messages(program({"parallel": {"tp": 2}}, net, three))[-6:] == [("all_reduce", "tp", 8 * 4)] * 6, "AdamW reads a gradient thrice"


def test_an_input_gathered_for_all_that_reads_it_has_its_whole_gradient_on_each_rank() -> None:
    """tp.spread: gathered, and nothing is summed; tp.copy: only the gradient of what all ranks have is."""
    down, up = linear("down", seam="tp.spread", seam_bytes=SIZE), linear("up", seam="tp.copy", seam_bytes=SIZE // 4)
    for split in (True, False):
        p = program({"parallel": {"tp": 2, "sequence_parallel": split}}, network(1, (down, up)), DTENSOR)
        assert messages(p) == [("all_gather", "tp", SIZE)] * split + [("all_reduce", "tp", SIZE // 4)]
        names = ("bwd/L0.up", "wgrad/L0.up", "bwd/L0.up.all_reduce", "wgrad/L0.down")
        backward = show(p.segments["bwd"])
        assert [op for op in backward if "L0" in op] == [f"compute: {name}" for name in names]


def test_frozen_parameters_have_no_gradient_to_sum() -> None:
    frozen = network(1, (replace(norm(), frozen=True, wgrad=()), *LAYER[1:]))
    for framework in (QUIET, DTENSOR):
        assert [size for _, _, size in messages(program({"parallel": {"tp": 2}}, frozen, framework)) if size != SIZE] == []


def test_fsdp_sums_partial_gradients_before_it_scatters_them() -> None:
    p = program({"parallel": {"tp": 2, "dp_shard": 2, "zero": 3}}, network(1, LAYER[:3]), DTENSOR)
    last = messages(p)[-3:]
    assert last[:2] == [("all_reduce", "tp", 32)] * 2 and last[2][:2] == ("reduce_scatter", "fsdp")


def test_a_vocabulary_parallel_loss_sums_three_numbers_a_row() -> None:
    from tests.null.lower.tiny import loss

    p = program({"parallel": {"tp": 2}}, network(1, (replace(loss(), seam="tp.loss", seam_bytes=12 * 64),)))
    assert messages(p) == [("all_reduce", "tp", 4 * 64)] * 3


def test_overlap_cuts_gemms_and_keeps_the_bytes() -> None:
    net = network(1, LAYER)
    plain, beside = (program({"parallel": {"tp": 4, "tp_overlap": on}}, net) for on in (False, True))
    assert traffic(plain, "tp") == pytest.approx(traffic(beside, "tp"))
    qkv = next(op for op in beside.segments["fwd"] if op.id == "fwd/L0.qkv")
    assert (qkv.works[0].m, qkv.works[0].repeat) == (2, 4)  # type: ignore[union-attr]
    assert sum(w.flops for op in plain.segments["fwd"] for w in op.works) == sum(w.flops for op in beside.segments["fwd"] for w in op.works)

    def seconds(p: object) -> float:
        return max(span.end for span in simulate(p, Constant()).spans)  # type: ignore[arg-type]

    assert seconds(beside) < seconds(plain)


def test_overlapped_messages_hold_few_sms_and_the_heads_are_nccls() -> None:
    """Rings go by copy engines; the sum beside qkv's weights, a short product, takes most (NVIDIA's userbuffers tables)."""
    qkv, head = linear("attn.qkv", seam="tp.gather", seam_bytes=SIZE), linear("head.logits", seam="tp.gather", seam_bytes=SIZE)
    net = network(1, (norm(), qkv, linear("attn.proj", seam="tp.reduce", seam_bytes=SIZE), head))
    p = program({"parallel": {"tp": 4, "tp_overlap": True}}, net)
    held = {op.id.replace("L0.", ""): held_beside(op) for call in ("fwd", "bwd") for op in p.segments[call] if op.kind == "compute"}
    assert [held[f"{name}"] for name in ("fwd/attn.qkv", "fwd/attn.proj", "bwd/attn.proj", "bwd/attn.qkv", "wgrad/attn.qkv")] == [
        0,
        16,
        0,
        4,
        24,
    ]
    assert held["bwd/head.logits"] is None and held["fwd/norm"] is None


def test_kernels_beside_copy_engines_keep_their_speed() -> None:
    from sim.cost.overlap import slowdown
    from topologies.devices import gpu

    h100 = gpu("h100-sxm")
    assert slowdown(h100, 0) == 1.0 < slowdown(h100, 16) < slowdown(h100)


def test_few_processors_lose_a_quarter_to_channels_at_most() -> None:
    """With as many as NCCL has channels compute lost 19 %, with one more it ran at a 25th."""
    from sim.cost.overlap import slowdown
    from topologies.devices import gpu

    factors = [slowdown(replace(gpu("a100-sxm-80gb"), sms=sms)) for sms in range(1, 200)]
    assert max(factors) == pytest.approx(4 / 3) and factors[107] == 108 / 84
    assert all(fewer >= more for fewer, more in pairwise(factors[95:])), "from 96 on all channels fit"
    assert slowdown(gpu("a30")) == pytest.approx(4 / 3)


@pytest.mark.parametrize(("dtype", "share"), [("bf16", 1.0), ("fp8", 0.5), ("rowfp8", 1.0), ("fp32", 1.0)])
def test_what_low_precision_gathers_is_quantised_first(dtype: str, share: float) -> None:
    part = linear("up", seam="tp.gather", seam_bytes=SIZE)
    part = replace(
        part, **{what: tuple(replace(work, dtype=dtype) for work in getattr(part, what)) for what in ("forward", "backward", "wgrad")}
    )
    gathered = [size for name, _, size in messages(program({"parallel": {"tp": 2}}, network(1, (norm(), part)))) if name == "all_gather"]
    assert gathered == [SIZE * share] * len(gathered) != []


def _spent(p: Program) -> Counter[str]:
    """Units of host work in one step, by kind."""
    works = [work for call, op in p.ops(0) if call.step == 1 and op.kind == "host" for work in op.works]
    return Counter({what: sum(w.count for w in works if isinstance(w, HostWork) and w.what == what) for what in {w.what for w in works}})  # type: ignore[union-attr]


@pytest.mark.parametrize("split", [False, True])
def test_eager_dtensor_dispatches_each_linear_and_each_split_norm_twice(split: bool) -> None:
    eager = DTENSOR.but(host="python")
    plan = {"parallel": {"tp": 2, "sequence_parallel": split}}
    spent = _spent(program(plan, network(3, LAYER), framework=eager))
    assert spent["dtensor_linear"] == 3 * 4 * 2, "four linears of three layers, forward and backward"
    assert spent["dtensor_norm"] == (3 * 2 if split else 0)
    assert spent["dtensor_adam"] == 3 * 6, "every parameter of the update"


def test_eager_dtensor_dispatches_what_no_rank_splits_too_but_not_routed_experts() -> None:
    eager, plan = DTENSOR.but(host="python"), {"parallel": {"tp": 2}}
    bottleneck, expert = linear("down", matrices=((8, 8), (8, 8))), linear("experts", matrices=((8, 8),), expert=True)
    assert _spent(program(plan, network(1, (*LAYER, bottleneck, expert)), framework=eager))["dtensor_linear"] == (4 + 2) * 2


@pytest.mark.parametrize(("micro", "compiled", "copies"), [(1, False, 4), (2, False, 8), (1, True, 3), (2, True, 7)])
def test_dtensor_copies_what_travels_of_several_sequences(micro: int, compiled: bool, copies: int) -> None:
    """Two linears gather and two scatter, each way. A scatter's message is made of pieces, a gathered one goes into several sequences; the kernel that
    adds two gradients may do it where kernels are compiled."""
    up = replace(LAYER[3], backward=(*LAYER[3].backward, MemoryBound("add", 16, 8, "fp32")))
    net, plan = network(1, (*LAYER[:3], up, LAYER[4])), {"parallel": {"tp": 2}, "batch": {"micro": micro}}
    found = [
        op for call, op in program(plan, net, framework=DTENSOR.but(compile=compiled)).ops(0) if call.step == 1 and op.id.endswith(".copy")
    ]
    assert len(found) == copies and {(work.read, work.written) for op in found for work in op.works} == {(SIZE, SIZE)}  # type: ignore[union-attr]
    early = DTENSOR.but(compile=compiled, tensor_parallel={"copies_one": True})
    assert sum(op.id.endswith(".copy") for call, op in program(plan, net, framework=early).ops(0) if call.step == 1) == (
        7 if compiled else 8
    )
    assert not any(op.id.endswith("r.copy") for _, op in program(plan, net).ops(0)), "Megatron's sequences are the first dimension"


@pytest.mark.parametrize("other", [{"compile": True}, {"tensor_parallel": {"style": "megatron"}}])
def test_compiled_blocks_and_megatrons_linears_dispatch_no_dtensor(other: dict[str, Any]) -> None:
    framework = DTENSOR.but(host="python", **other)
    spent = _spent(program({"parallel": {"tp": 2}}, network(1, LAYER), framework=framework))
    assert not spent["dtensor_linear"] and not spent["dtensor_norm"]
