"""CLIP and SigLIP by hand: published FLOPs, two towers of different streams, what a batch's loss gathers and sums, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from sim.framework.framework import Framework
from sim.lower.checks.verify import verify
from sim.lower.step import lower
from sim.model import Block, Network, Part, Shape, describe, load_model
from sim.model.readers.huggingface import from_config
from sim.model.specs.clip import Clip
from sim.model.stages import layout
from sim.plan import Plan
from sim.predict import predict
from sim.sections import Batch, Parallel
from sim.setting.bind import bind
from sim.work import Attention, Gemm
from topologies.errors import BadInput, Refused

PLAIN = Framework(name="plain", source="test")
AMP = PLAIN.but(precision={"autocast": True})
SMALL: dict[str, Any] = {"base": "clip-vit-b-32", "layers": 2, "text_layers": 2}


def of(name: str = "clip-vit-b-32", framework: Framework = PLAIN, **shape: int) -> Network:
    return describe(load_model(name), Shape(**{"micro": 4, "seq": 1, **shape}), framework)


def part(network: Network, block: str, name: str) -> Part:
    return next(p for p in dict(network.blocks)[block].parts if p.name == name)


@pytest.mark.parametrize(
    ("name", "giga"),
    [
        ("clip-vit-b-32", 14.78),
        ("clip-vit-b-16", 41.09),
        ("clip-vit-l-14", 175.33),
        ("clip-vit-h-14", 381.68),
        ("clip-vit-g-14", 581.15),
        ("clip-vit-bigg-14", 1065.36),
        ("siglip-vit-b-16", 46.44),
        ("siglip-so400m-14", 233.54),
    ],
)
def test_published_flops(name: str, giga: float) -> None:
    """open_clip's docs/model_profile.csv, forward of a pair."""
    assert of(name).forward_flops_per_sample / 1e9 == pytest.approx(giga, abs=0.006)


def test_pictures_and_texts_have_towers_of_their_own() -> None:
    network = of()
    assert [name for name, _ in network.blocks] == ["embed", *(f"L{i}" for i in range(12)), "target", *(f"D{i}" for i in range(12)), "head"]
    seen, said = (next(w for w in part(network, name, "attn.core").forward if isinstance(w, Attention)) for name in ("L0", "D0"))
    assert (seen.q, seen.heads, said.q, said.heads) == (50, 12, 77, 8)
    assert (network.sample_unit, network.sample_bytes) == ("pairs", 12 * 224**2 + 8 * 77)


def test_autocast_widens_the_stream_of_texts_alone() -> None:
    blocks: dict[str, Block] = dict(of(framework=AMP).blocks)
    assert blocks["L0"].saved_input == 4 * 50 * 768 * 2
    assert blocks["D0"].saved_input == 4 * 77 * 512 * 4
    assert [p.name for p in blocks["L0"].parts][:3] == ["attn.wide", "attn.norm", "attn.narrow"]
    assert blocks["D0"].parts[0].name == "attn.norm"


def test_each_rank_compares_its_samples_with_all() -> None:
    alone, among = of(), of(dp=8)
    assert [p.name for p in dict(alone.blocks)["head"].parts][-3:] == ["compare", "loss.pictures", "loss.texts"]
    gather, compare = part(among, "head", "gather"), part(among, "head", "compare")
    assert (gather.seam, gather.seam_bytes) == ("dp.features", 8 * 4 * 512 * 2)
    assert [(w.m, w.n, w.k) for w in compare.forward if isinstance(w, Gemm)] == [(4, 32, 512)] * 2
    assert [(w.m, w.n, w.k) for w in compare.backward if isinstance(w, Gemm)] == [(4, 512, 32), (32, 512, 4)] * 2
    assert among.parameters == alone.parameters and among.flops_per_sample == alone.flops_per_sample


@pytest.mark.parametrize("parallel", [{"dp_replicate": 4}, {"dp_shard": 4, "zero": 3}, {"dp_replicate": 2, "dp_shard": 2, "zero": 2}])
def test_features_are_gathered_and_their_gradients_summed(parallel: dict[str, int]) -> None:
    setting = bind({"model": SMALL, "batch": {"global": 64, "micro": 16}, "parallel": parallel}, "dgx-h100")
    program = lower(setting.plan, setting.network, setting.framework, "cuda", steps=1)
    found = [(op.id, op.name, op.bytes, op.group) for _, op in program.ops(0) if op.cls == "comm.features"]
    size = 64 * 512 * 2
    assert found == [
        ("fwd/head.gather.pictures.all_gather", "all_gather", size, "dp"),
        ("fwd/head.gather.texts.all_gather", "all_gather", size, "dp"),
        ("bwd/head.gather.pictures.reduce_scatter", "reduce_scatter", size, "dp"),
        ("bwd/head.gather.texts.reduce_scatter", "reduce_scatter", size, "dp"),
    ]
    verify(program)
    assert predict(setting.plan, "dgx-h100").breakdown.exposed_comm_s > 0


def test_a_learned_query_reads_the_patches() -> None:
    core = next(w for w in part(of("siglip-vit-b-16"), "target", "pool.core").forward if isinstance(w, Attention))
    assert (core.q, core.kv, core.heads) == (1, 196, 12)


@pytest.mark.parametrize(("ranks", "turns"), [(2, [(1,)]), (3, [(1, -1)]), (4, [(1, -1), (1,)]), (8, [(1, -1)] * 3 + [(1,)])])
def test_texts_go_round_both_ways(ranks: int, turns: list[tuple[int, ...]]) -> None:
    """open_clip's SigLipLoss: a rank's pictures meet each other rank's texts once, and gradients go back the way that these came."""
    plan = {"model": SMALL | {"base": "siglip-vit-b-16"}, "batch": {"global": 16 * ranks, "micro": 16}, "parallel": {"dp_replicate": ranks}}
    setting = bind(plan, "dgx-h100")
    program = lower(setting.plan, setting.network, setting.framework, "cuda", steps=1)
    verify(program)
    ops = [op for _, op in program.ops(0)]
    sent = {way: [op.peer for op in ops if op.kind == "send" and op.id.startswith(f"{way}/head.others")] for way in ("fwd", "bwd")}
    assert sent["fwd"] == [peer for turn in turns for peer in turn]
    assert sent["bwd"] == [-peer for turn in reversed(turns) for peer in turn]
    assert {op.bytes for op in ops if op.kind == "send"} == {16 * 768 * 2}
    compared = [op for op in ops if op.kind == "compute" and op.id.startswith("fwd/head.others")]
    assert sum(isinstance(w, Gemm) for op in compared for w in op.works) == ranks - 1
    assert sum(op.alloc for op in compared) == (ranks - 1) * (2 * 16 * 16 + 2 * 16 * 768) * 2


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("machine", "parallel"),
    [
        ("2x dgx-a100", {"dp_replicate": 16}),
        ("3x dgx-h100", {"dp_replicate": 20}),
        ("2x dgx-h100", {"dp_replicate": 2, "dp_shard": 8, "zero": 3}),
    ],
)
def test_equal_ranks_of_a_ring_are_simulated_once(machine: str, parallel: dict[str, int]) -> None:
    ranks = parallel.get("dp_shard", 1) * parallel["dp_replicate"]
    plan = {"model": SMALL | {"base": "siglip-vit-b-16"}, "batch": {"global": 64 * ranks, "micro": 64}, "parallel": parallel}
    assert predict(plan, machine).step_time_s == pytest.approx(predict(plan, machine, fold=False).step_time_s, rel=1e-9)


def test_configs_of_hugging_face_are_read() -> None:
    """openai/clip-vit-large-patch14 and google/siglip-so400m-patch14-384 as far as they differ from their classes' defaults."""
    large = {
        "model_type": "clip", "projection_dim": 768,
        "text_config": {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12},
        "vision_config": {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14},
    }  # fmt: skip
    tower = {"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16, "num_hidden_layers": 27}
    so400m = {"model_type": "siglip", "text_config": tower, "vision_config": {**tower, "image_size": 384, "patch_size": 14}}
    for tree, name in ((large, "clip-vit-l-14"), ({"model_type": "clip"}, "clip-vit-b-32"), ({"model_type": "siglip"}, "siglip-vit-b-16")):
        read = describe(from_config(tree, "config.json"), Shape(micro=1, seq=1), PLAIN)
        assert read.parameters == of(name).parameters and read.forward_flops_per_sample == of(name).forward_flops_per_sample
    larger = describe(from_config(so400m, "config.json"), Shape(micro=1, seq=1), PLAIN)
    assert larger.parameters - of("siglip-so400m-14").parameters == (27**2 - 16**2 + 64 - 16) * 1152
    with pytest.raises(Refused, match="hidden_act of vision_config is gelu and of text_config quick_gelu"):
        from_config({"model_type": "clip", "vision_config": {"hidden_act": "gelu"}}, "config.json")
    with pytest.raises(Refused, match="features of pictures have 768 columns and of texts 512"):
        from_config({"model_type": "siglip", "text_config": {"hidden_size": 512, "num_attention_heads": 8}}, "config.json")


def test_what_cannot_be_is_said() -> None:
    plan = {"model": SMALL, "batch": {"global": 64, "micro": 16}, "parallel": {"dp_replicate": 2}}
    with pytest.raises(Refused, match=r"compares all samples of a batch, which 2 micro-batches would part .* Set batch\.micro = 32"):
        predict(plan, "dgx-h100")
    with pytest.raises(Refused, match=r'update\.mode = "local" lets each train alone\. Set update\.mode = "sync"'):
        predict({**plan, "batch": {"global": 32, "micro": 16}, "update": {"mode": "local", "every": 4}}, "dgx-h100")
    with pytest.raises(Refused, match=r"each has as many as the others .* Leave noise\.imbalance out"):
        predict({**plan, "batch": {"global": 32, "micro": 16}, "noise": {"imbalance": "r1: 1.5x"}}, "dgx-h100")
    with pytest.raises(Refused, match="a pair of towers is split by data parallelism only; set tp = cp = ep = 1"):
        of(tp=2)
    with pytest.raises(Refused, match="no pipeline can cut it"):
        layout(of(), Plan(model="clip-vit-b-32", batch=Batch(micro=4), parallel=Parallel(pp=2)))
    with pytest.raises(BadInput, match="image = 8 holds no patch of 16 x 16 pixels"):
        Clip(layers=1, hidden=64, heads=4, image=8, patch=16, text_layers=1, text_hidden=64, text_heads=4, width=32)
