"""Wan 2.1 by hand: its tokens and FLOPs, what is fp32, what ranks that share a video exchange, what stages hand on, and what is refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sim.files.planfile import load_plan
from sim.framework.framework import Framework
from sim.model import Block, Network, Part, Shape, describe, load_model
from sim.model.specs.spec import Wan
from sim.model.stages import layout
from sim.plan import Plan
from sim.planning.explain.neighbours import neighbours
from sim.planning.sweeps.auto import auto_space
from sim.predict import predict
from sim.sections import Batch, Parallel
from sim.work import Attention, Gemm, MemoryBound
from topologies.errors import BadInput, Refused

PLAIN = Framework(name="plain", source="test")
SMALL, LARGE = load_model("wan2.1-t2v-1.3b"), load_model("wan2.1-t2v-14b")
TOKENS, TEXT, H, FFN = 21 * 30 * 52, 512, 1536, 8960
"""Patches of 81 frames of 480 x 832 pixels, the text's tokens, and the widths of the small one."""


def of(framework: Framework = PLAIN, spec: object = SMALL, **shape: object) -> Network:
    return describe(spec, Shape(**{"micro": 1, "seq": 1, **shape}), framework)  # type: ignore[arg-type]


def part(block: Block, name: str) -> Part:
    return next(p for p in block.parts if p.name == name)


def layer(framework: Framework = PLAIN, **shape: object) -> Block:
    return dict(of(framework, **shape).blocks)["L0"]


def test_tokens_are_patches_of_all_frames() -> None:
    assert isinstance(SMALL, Wan) and isinstance(LARGE, Wan)
    assert (SMALL.tokens, LARGE.tokens) == (TOKENS, 21 * 45 * 80) == (32_760, 75_600)
    network = of()
    assert (network.sample_unit, network.seq, network.sample_bytes) == ("videos", 1, 4 * (16 * 21 * 60 * 104 + 512 * 4096))
    assert replace(SMALL, frames=1, height=1024, width=1024).tokens == 64 * 64  # a picture


def test_forward_flops_by_hand() -> None:
    """Products of every layer, two FLOPs a multiply-add; attention among all patches, and of all patches to the text."""
    own, cross = 4 * TOKENS**2 * H, 4 * TOKENS * TEXT * H
    products = 2 * TOKENS * (6 * H * H + 2 * H * FFN) + 2 * TEXT * 2 * H * H
    ends = 2 * TOKENS * 64 * H * 2 + 2 * TEXT * (4096 * H + H * H) + 2 * (256 * H + 7 * H * H)
    assert of().forward_flops_per_sample == pytest.approx(30 * (own + cross + products) + ends, rel=1e-12)


def test_norms_and_gates_are_fp32_between_casts() -> None:
    n = TOKENS * H
    assert [part(layer(), name).forward[0].bytes for name in ("attn.wide", "attn.norm", "attn.narrow")] == [6 * n, 8 * n, 6 * n]
    assert [part(layer(), name).saved for name in ("attn.residual", "mlp.residual", "mlp.modulate")] == [2 * n, 4 * n, 4 * n]
    amp = layer(PLAIN.but(precision={"autocast": True}))
    assert amp.saved_input == layer().saved_input == 2 * n  # the stream keeps 16 bits under autocast too
    assert [len(part(layer(), name).tensors) for name in ("attn.qkv", "cross.kv")] == [6, 4]  # linears of their own, as diffusers has them
    full = [p.name for p in layer(precision="fp32").parts]
    assert not any(name.endswith((".wide", ".narrow")) for name in full)


def test_a_compiler_joins_what_is_elementwise() -> None:
    def moved(block: Block) -> float:
        return sum(w.bytes for p in block.parts for w in (*p.forward, *p.backward) if isinstance(w, MemoryBound))

    assert moved(layer(PLAIN.but(compile=True))) < 0.5 * moved(layer())
    turned = part(layer(PLAIN.but(attention={"fused_rope": True})), "attn.rope")
    assert [(w.read, w.written) for w in turned.forward if isinstance(w, MemoryBound)] == [(4 * TOKENS * H,) * 2]


def test_ranks_share_the_patches_and_not_the_text() -> None:
    found = layer(cp=4)
    rows, heads = TOKENS // 4, 12
    up, keys = part(found, "mlp.up").forward[0], part(found, "cross.kv").forward[0]
    assert isinstance(up, Gemm) and isinstance(keys, Gemm) and (up.m, keys.m) == (rows, TEXT)
    own, cross = (next(w for w in part(found, name).forward if isinstance(w, Attention)) for name in ("attn.core", "cross.core"))
    assert ((own.q, own.kv), (cross.q, cross.kv)) == ((rows, TOKENS), (rows, TEXT))
    assert [p.name for p in found.parts if p.seam] == ["attn.core"]
    assert part(found, "attn.core").seam_bytes == 2 * TOKENS * H * 2
    swapped = part(layer(cp=4, ulysses=4), "attn.core")
    work = next(w for w in swapped.forward if isinstance(w, Attention))
    assert (work.q, work.kv, work.heads) == (TOKENS, TOKENS, heads // 4)
    assert swapped.seam_heads == (rows * H * 2,) * 3


def test_patches_that_do_not_divide_are_padded() -> None:
    up = part(layer(cp=16), "mlp.up").forward[0]
    assert isinstance(up, Gemm) and up.m == -(-TOKENS // 16) == 2048
    assert of(cp=16).parameters == of().parameters and of(cp=16).flops_per_sample == of().flops_per_sample


def test_text_and_time_travel_with_the_stream() -> None:
    network = of(micro=2)
    stages = layout(network, Plan(model="wan2.1-t2v-1.3b", batch=Batch(micro=2), parallel=Parallel(pp=2)))
    assert [len(stage) for stage in stages] == [16, 16]
    first = stages[1][0][1]
    assert (first.saved_input, first.beside) == (2 * TOKENS * H * 2, 2 * (TEXT + 7) * H * 2)


@pytest.mark.parametrize("kind", ["p2p", "all_gather", "all_to_all"])
def test_sharing_a_video_takes_its_ranks_work_apart(kind: str) -> None:
    plan = {"model": {"base": "wan2.1-t2v-1.3b", "layers": 2}, "batch": {"global": 8, "micro": 1}, "parallel": {"dp_shard": 2, "cp": 4, "cp_kind": kind, "zero": 3}}  # fmt: skip
    alone = predict({**plan, "batch": {"global": 2, "micro": 1}}, "dgx-h100")
    whole = predict({**plan, "batch": {"global": 8, "micro": 1}, "parallel": {"dp_shard": 8, "zero": 3}}, "dgx-h100")
    assert 0.24 < alone.step_time_s / whole.step_time_s < 0.30
    assert alone.peak_memory_bytes < 0.5 * whole.peak_memory_bytes
    assert alone.breakdown.exposed_comm_s > 0


def test_long_videos_suggest_ranks_that_share_one() -> None:
    plan = load_plan({"model": "wan2.1-t2v-1.3b", "batch": {"global": 8}, "parallel": {"dp_shard": 8}})
    assert ("parallel.dp_shard=4", "parallel.cp=2") in [changes for changes, _ in neighbours(plan)]
    assert "cp" in auto_space(load_plan({"model": "wan2.1-t2v-14b"}), "dgx-h100", 8)


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(
        Refused, match=r"wan2\.1-t2v-1\.3b: a video's transformer is split by data, context or pipeline parallelism only; set tp = ep = 1"
    ):
        of(tp=2)
    with pytest.raises(BadInput, match=r"cp \(all_to_all\) = 8 does not divide attention heads = 12"):
        of(cp=8, ulysses=8)
    with pytest.raises(BadInput, match=r"height = 488 does not make whole patches\. Use a multiple of 16"):
        Wan(layers=1, hidden=64, heads=4, ffn=64, height=488)
    with pytest.raises(BadInput, match=r"frames = 80 must be one more than a multiple of 4\. Use frames = 77 or 81"):
        Wan(layers=1, hidden=64, heads=4, ffn=64, frames=80)
