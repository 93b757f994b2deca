"""Experts, latent attention, adapters, hybrids, and models that are no decoders: the laws that each must keep."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from sim.framework.framework import Framework, load_framework
from sim.model import Network, Part, Shape, describe, load_model
from sim.model.language.xl import zipf
from sim.model.specs.decoder import Decoder
from sim.model.specs.lora import Lora
from sim.model.specs.spec import Encoder, Mlp, Vit, spec_of
from sim.predict import predict
from sim.setting.bind import bind
from sim.work import Attention, Conv, Gemm, GroupedGemm, MemoryBound
from topologies.errors import BadInput, Refused, UnknownName

PLAIN = Framework(name="plain", source="test")


def part(network: Network, block: str, name: str) -> Part:
    found = dict(network.blocks)[block]
    return next(part for part in found.parts if part.name == name)


def products(network: Network) -> float:
    kinds = (Gemm, GroupedGemm, Conv, Attention)
    return sum(w.flops for _, b in network.blocks for p in b.parts for w in p.forward if isinstance(w, kinds))


def test_experts_split_over_ep_and_exchange_tokens() -> None:
    whole = describe(load_model("mixtral-8x7b"), Shape(micro=1, seq=1024), PLAIN)
    split = describe(load_model("mixtral-8x7b"), Shape(micro=1, seq=1024, ep=4), PLAIN)
    assert part(whole, "L0", "moe.up").params == 4 * part(split, "L0", "moe.up").params
    assert part(whole, "L0", "moe.up").seam == ""
    assert (part(split, "L0", "moe.up").seam, part(split, "L0", "moe.down").seam) == ("ep.dispatch", "ep.combine")
    assert part(split, "L0", "moe.up").seam_bytes == 1024 * 2 * 4096 * 2  # tokens x top-k x hidden x bf16
    rows = [work.m for work in part(split, "L0", "moe.up").forward if isinstance(work, GroupedGemm)]
    assert rows == [1024 * 2]  # as many arrive as leave


def test_capacity_pads_the_rows() -> None:
    shape = Shape(micro=1, seq=1024, capacity=1.25)
    works = part(describe(load_model("mixtral-8x7b"), shape, PLAIN), "L0", "moe.up").forward
    assert [work.m for work in works if isinstance(work, GroupedGemm)] == [2560]


def test_what_goes_beyond_capacity_does_not_travel() -> None:
    """Drop-and-pad: experts x capacity rows are sorted, sent and multiplied."""

    def moved(capacity: float) -> tuple[int, int]:
        setting = bind({"model": {"base": "mixtral-8x7b", "layers": 2}, "framework": "megatron-core", "seq_len": 2048,
                        "parallel": {"dp_shard": 8, "ep": 8, "capacity": capacity}}, "dgx-h200")  # fmt: skip
        (layer,) = {id(block): block for name, block in setting.network.blocks if block.kind == "layer"}.values()
        named = {part.name: part for part in layer.parts}
        return named["moe.up"].seam_bytes, sum(work.written for work in named["moe.permute"].forward if isinstance(work, MemoryBound))

    whole = moved(1.0)
    assert moved(0.0) == whole and min(whole) > 0
    assert moved(0.5) == tuple(size // 2 for size in whole) and moved(2.0) == tuple(size * 2 for size in whole)


def test_deepseek_starts_dense_and_attends_with_two_head_sizes() -> None:
    network = describe(load_model("deepseek-v3"), Shape(micro=1, seq=1024), PLAIN)
    blocks = dict(network.blocks)
    assert blocks["L2"] is blocks["L0"] and blocks["L3"] is blocks["L60"] and blocks["L3"] is not blocks["L0"]
    core = part(network, "L3", "attn.core").forward[0]
    assert isinstance(core, Attention)
    assert (core.d, core.dv, core.heads, core.kv_heads) == (192, 128, 128, 128)


@pytest.mark.parametrize("cp", [2, 4, 8])
@pytest.mark.parametrize("window", [1, 100, 4096])
def test_ranks_that_share_the_queries_of_a_window_compute_its_pairs_together(cp: int, window: int) -> None:
    """Also where a rank has fewer queries than the window has keys: each rank's are an even share of the sequence's."""
    whole, part = (Attention(1, 8, 2, q, 8192, 128, window=window) for q in (8192, 8192 // cp))
    assert whole.pairs == sum(min(query + 1, window) for query in range(8192))
    assert part.pairs * cp == pytest.approx(whole.pairs)


def test_gpt_oss_alternates_windows() -> None:
    network = describe(load_model("gpt-oss-20b"), Shape(micro=1, seq=1024), PLAIN)
    windows = [next(w.window for p in block.parts for w in p.forward if isinstance(w, Attention)) for _, block in network.blocks[1:5]]
    assert windows == [128, 0, 128, 0]


def test_lora_leaves_the_base_without_weight_gradients() -> None:
    spec = load_model("llama2-7b")
    assert isinstance(spec, Decoder)
    tuned = describe(replace(spec, lora=Lora(rank=16)), Shape(micro=1, seq=1024), PLAIN)
    base = describe(spec, Shape(micro=1, seq=1024), PLAIN)
    assert not any(p.wgrad for _, block in tuned.blocks for p in block.parts if p.frozen)
    assert tuned.parameters - base.parameters == 32 * (16 * (4096 + 3 * 4096) + 16 * (4096 + 4096))
    assert tuned.flops_per_sample == pytest.approx(base.flops_per_sample * 2 / 3, rel=0.02)  # attention still 2 of 2


def test_each_linear_has_an_adapter_of_its_own() -> None:
    """PEFT prints 13,631,488 trainable parameters for Llama 3 8B with rank 16 on q, k, v and o; where these are one linear (Megatron), one is
    enough."""
    spec = load_model("llama3-8b")
    assert isinstance(spec, Decoder)

    def trained(fused: bool) -> int:
        framework = PLAIN.but(linears={"fused_projections": fused})
        tuned, base = (describe(one, Shape(micro=1, seq=1024), framework) for one in (replace(spec, lora=Lora(rank=16)), spec))
        found = sum(p.params for _, block in tuned.blocks for p in block.parts if not p.frozen)
        assert tuned.parameters == base.parameters + found
        return found

    assert trained(fused=False) == 13_631_488
    assert trained(fused=True) == 32 * 16 * (4096 + 6144 + 4096 + 4096)


def test_a_base_in_four_bits_is_unpacked_for_each_product() -> None:
    """4.127 bits a weight (Dettmers et al. 2023, section 3); embedding, head and norms stay in 16."""
    spec = load_model("llama3-8b")
    assert isinstance(spec, Decoder)
    wide, packed = (describe(replace(spec, lora=Lora(rank=16, base=base)), Shape(micro=1, seq=1024), PLAIN) for base in ("", "nf4"))  # type: ignore[arg-type]
    assert packed.stored_apart and not wide.stored_apart
    assert (packed.parameters, packed.flops_per_sample) == (wide.parameters, wide.flops_per_sample)
    linears = 0
    for (_, one), (_, other) in zip(wide.blocks, packed.blocks, strict=True):
        for before, after in zip(one.parts, other.parts, strict=True):
            if not after.stored:
                assert before == after
                continue
            linears += after.params
            assert after.stored == pytest.approx(4.127 / 8, rel=1e-3) and after.frozen
            assert bool(after.backward) != after.detached
            for kernels, there in ((after.forward, before.forward), (after.backward, before.backward))[: 2 - after.detached]:
                unpack, *rest = kernels
                assert isinstance(unpack, MemoryBound) and tuple(rest) == there
                assert (unpack.read, unpack.written) == (pytest.approx(after.stored * after.params, abs=1), 2 * after.params)
    assert linears == 32 * 4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336)


@pytest.mark.no_cover
def test_a_base_in_four_bits_takes_less_memory_and_more_time() -> None:
    """QLoRA's figure 6: Llama 65B on one GPU of 48 GB; Llama 2 7B lies in 3.9 GB."""
    plan = {"task": "lora", "seq_len": 512, "framework": "pytorch", "batch": {"global": 1, "micro": 1}, "memory": {"recompute": "full"}}
    one, four = (predict(plan | {"model": {"base": "llama2-7b", "lora": {"base": base}}}, "dgx-a100") for base in ("", "nf4"))
    assert four.memory.parameters == pytest.approx(3.89e9, rel=0.01) and four.memory.parameters < 0.32 * one.memory.parameters
    assert four.step_time_s > one.step_time_s
    assert predict(plan | {"model": {"base": "llama-65b", "lora": {"base": "nf4"}}}, "aws-g6e").fits


def test_autocast_casts_and_keeps_no_weights_in_four_bits() -> None:
    """They unpack to 16 bits for each product (bitsandbytes, MatMul4Bit); autocast keeps copies of the head and of the adapters alone."""
    plan = {"task": "lora", "seq_len": 512, "framework": "pytorch-amp", "batch": {"global": 1, "micro": 1}}
    spec = load_model("llama2-7b")
    assert isinstance(spec, Decoder)
    found = predict(plan | {"model": {"base": "llama2-7b", "lora": {"base": "nf4"}}}, "dgx-a100")
    network = describe(replace(spec, lora=Lora(base="nf4")), Shape(micro=1, seq=512), load_framework("pytorch-amp"))
    parts = [part for _, block in network.blocks for part in block.parts]
    assert found.memory.gathered == 2 * sum(part.params for part in parts if part.cls == "gemm" and not part.stored)
    packed = [part for part in parts if part.stored]
    assert packed and not [
        work for part in packed for work in part.forward if isinstance(work, MemoryBound) and work.read == 4 * part.params
    ]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"parallel": {"dp_shard": 8, "zero": 3}}, "zero = 3: weights packed in four bits are supported only whole on each rank"),
        ({"precision": "fp8", "framework": "megatron-bridge"}, "unpacked to 16 bits, not to fp8"),
        ({"model": {"base": "mixtral-8x7b", "lora": {"base": "nf4"}}}, "experts in one tensor are none"),
    ],
)
def test_what_is_not_packed_in_four_bits(more: dict[str, Any], words: str) -> None:
    plan = {"model": {"base": "llama3-8b", "lora": {"base": "nf4"}}, "task": "lora", "seq_len": 1024, "batch": {"micro": 1}}
    with pytest.raises(Refused, match=words):
        predict(plan | more, "dgx-h100")


def test_no_remedy_shards_what_is_packed_in_four_bits() -> None:
    plan = {"model": {"base": "llama3-70b", "lora": {"base": "nf4"}}, "task": "lora", "framework": "pytorch", "batch": {"micro": 1}}
    short = predict(plan | {"seq_len": 1024}, "rtx-4090-x4").does_not_fit
    assert short is not None and "zero = 3" not in str(short)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v2-lite", "nemotron3-nano", "qwen3-next-80b-a3b"])
def test_adapters_of_attention_leave_experts_and_mixers_still(name: str) -> None:
    """Only adapters have gradients, and only where there is attention; products of the base keep no inputs, and gradients pass through, but for what
    comes before the first adapter."""
    spec = load_model(name)
    assert isinstance(spec, Decoder)
    tuned, base = (describe(one, Shape(micro=1, seq=1024), PLAIN) for one in (replace(spec, lora=Lora(rank=8)), spec))
    trained = {p.name for _, block in tuned.blocks for p in block.parts if p.tensors and not p.frozen}
    assert trained and all(one.startswith("attn.") and one.endswith(".lora") for one in trained)
    assert not any(p.wgrad for _, block in tuned.blocks for p in block.parts if p.frozen)
    assert base.parameters < tuned.parameters < 1.01 * base.parameters
    assert 0.6 < tuned.flops_per_sample / base.flops_per_sample < 0.75
    kept = [sum(p.saved for _, block in network.blocks for p in block.parts) for network in (tuned, base)]
    assert kept[0] < kept[1]
    backward = [{(p.name, p.backward) for _, b in n.blocks for p in b.parts if p.cls == "moe" and not p.detached} for n in (tuned, base)]
    assert backward[0] == backward[1] and bool(backward[0]) == (spec.moe is not None)


@pytest.mark.parametrize(("precision", "ep"), [("bf16", 1), ("bf16", 2), ("fp8", 1), ("mxfp8", 2)])
def test_frozen_products_keep_no_inputs_whatever_is_around_them(precision: str, ep: int) -> None:
    """Rows sorted by expert before them, or cast: experts need their inputs for their weights' gradients alone."""
    spec = load_model("deepseek-v2-lite")
    assert isinstance(spec, Decoder)
    shape = Shape(micro=1, seq=256, precision=precision, ep=ep)
    layer = describe(replace(spec, lora=Lora()), shape, load_framework("megatron-bridge")).blocks[2][1]
    frozen = {part.name: part.saved for part in layer.parts if part.frozen and part.cls in ("gemm", "moe")}
    assert {"moe.up", "moe.down", "attn.kv_up"} <= set(frozen)
    assert [name for name, kept in frozen.items() if kept] == ["moe.router"], "its scores stay"


def test_hybrid_follows_its_pattern() -> None:
    network = describe(load_model("nemotron3-nano"), Shape(micro=1, seq=1024), PLAIN)
    assert len({id(block) for _, block in network.blocks}) == 5  # embed, M, E, *, head
    assert [p.name for p in dict(network.blocks)["L0"].parts] == [
        "norm1", "mamba.in_proj", "mamba.conv", "mamba.scan", "mamba.norm", "mamba.out_proj", "residual",
    ]  # fmt: skip


def test_sliding_context_parallel_splits_the_work() -> None:
    one = describe(load_model("llama3-8b"), Shape(micro=1, seq=8192), PLAIN)
    four = describe(load_model("llama3-8b"), Shape(micro=1, seq=8192, cp=4), PLAIN)
    assert products(one) == pytest.approx(4 * products(four), rel=1e-9)
    assert part(four, "L0", "attn.core").seam_bytes == 8192 * 2 * 8 * 128 * 2  # all keys and values in bf16


@pytest.mark.parametrize(
    "name", ["resnet50", "bert-large", "vit-b16", "t5-base", "transformer-big", "gnmt", "transformer-xl-base", "ssd300"]
)
def test_work_grows_with_the_batch(name: str) -> None:
    def run(micro: int) -> float:
        return products(describe(load_model(name), Shape(micro=micro, seq=128), PLAIN))

    assert run(64) == pytest.approx(2 * run(32), rel=0.02)  # small clusters round, and the relative positions of XL have no batch
    network = describe(load_model(name), Shape(micro=1, seq=128), PLAIN)
    assert network.flops_per_sample == pytest.approx(3 * run(1), rel=1e-9)
    batch = describe(load_model(name), Shape(micro=32, seq=128), PLAIN)
    assert batch.flops_per_sample == pytest.approx(3 * run(32) / 32, rel=1e-4), "each sample's share, positions of XL once a batch"


def test_what_the_layers_of_a_decoder_give_back_to_the_encoder_is_summed() -> None:
    """By a kernel each, over the encoder's result, and by what a compiler makes of them in one of its own."""
    for compiled, sums in ((False, 1), (True, 0)):
        network = describe(load_model("transformer-big"), Shape(micro=2, seq=128, precision="fp16"), PLAIN.but(compile=compiled))
        read = part(network, "D1", "cross.kv")
        assert [w.read for w in read.backward if getattr(w, "what", "") == "add"] == [2 * 2 * 128 * 1024 * 2] * sums


def test_autocast_leaves_convolutions_in_16_bits() -> None:
    network = describe(load_model("resnet50"), Shape(micro=2, seq=1, precision="fp16"), PLAIN.but(precision={"autocast": True}))
    conv = next(p for p in dict(network.blocks)["S0.0"].parts if p.name == "conv1")
    assert [type(w).__name__ for w in conv.forward] == ["MemoryBound", "Conv"]
    assert conv.saved == 2 * 64 * 56 * 56 * 2


def test_mlp_by_hand() -> None:
    network = describe(Mlp(name="m", widths=(8, 16, 4)), Shape(micro=32, seq=1), PLAIN)
    assert network.parameters == 8 * 16 + 16 + 16 * 4 + 4
    assert network.flops_per_sample == 3 * 2 * (8 * 16 + 16 * 4)
    assert network.blocks[0][1].parts[0].forward == (Gemm(32, 16, 8),)


def test_zipf_covers_all_words() -> None:
    assert zipf(0, 100, 1000) + zipf(100, 1000, 1000) == pytest.approx(1.0)
    assert zipf(0, 19997, 267735) > 0.75


def test_what_is_not_described_is_refused() -> None:
    with pytest.raises(Refused, match="data or pipeline parallelism only"):
        describe(load_model("resnet50"), Shape(micro=1, seq=1, tp=2), PLAIN)
    with pytest.raises(BadInput, match="is more than positions = 512"):
        describe(load_model("bert-base"), Shape(micro=1, seq=1024), PLAIN)
    with pytest.raises(UnknownName, match="precision"):
        describe(load_model("gpt2-124m"), Shape(micro=1, seq=64, precision="bf61"), PLAIN)
    with pytest.raises(BadInput, match="ep = 3 does not divide experts = 8"):
        describe(load_model("mixtral-8x7b"), Shape(micro=1, seq=64, ep=3), PLAIN)
    with pytest.raises(BadInput, match=r"heads = 7 does not divide hidden = 64"):
        Decoder(name="bad", layers=1, hidden=64, heads=7, vocab=8)
    with pytest.raises(BadInput, match=r"heads = 7 does not divide hidden = 64\. Use heads = 2 or 4 or 8"):
        Vit(name="bad", layers=1, hidden=64, heads=7)
    with pytest.raises(BadInput, match="heads = 3 does not divide hidden = 64"):
        Encoder(name="bad", layers=1, hidden=64, heads=3)
    with pytest.raises(BadInput, match="pre_norms = false needs post_norms = true"):
        Decoder(name="bad", layers=1, hidden=64, heads=4, vocab=8, pre_norms=False)
    with pytest.raises(BadInput, match="at least 2 of them"):
        spec_of({"family": "mlp", "widths": [8]}, "[model]")


@pytest.mark.parametrize(
    ("precision", "machine"), [("fp8", "dgx-a100"), ("fp4", "dgx-h100"), ("mxfp8", "dgx-h100"), ("mxfp8", "l40s-x8"), ("bf16", "dgx1-v100")]
)
def test_a_precision_without_units_names_field_value_and_remedy(precision: str, machine: str) -> None:
    with pytest.raises(Refused, match=rf'precision = "{precision}": .* has no units for {precision}\. Allowed on it: .*another GPU'):
        bind({"model": "llama3.2-1b", "precision": precision}, machine)


def test_the_loss_is_compiled_where_the_framework_compiles_it() -> None:
    """64 rows of logits in bf16: fused, a 16-bit copy is kept; by torch's own operators log_softmax in fp32 is, and backward needs two more such
    tensors, of a vocabulary split by DTensor three."""
    model, shape = load_model("llama3-8b"), Shape(micro=1, seq=64)
    n = 64 * 128256

    def head(how: Framework, tp: int = 1) -> Part:
        return part(describe(model, replace(shape, tp=tp), how), "head", "head.loss")

    whole = PLAIN.but(compile=True)
    layers = whole.but(loss={"compiled": False})
    assert (head(whole).saved, head(whole).working) == (2 * n + 8 * 64, 2 * n)
    assert (head(layers).saved, head(layers).working) == (4 * n + 8 * 64, 8 * n)
    split = head(layers.but(tensor_parallel={"style": "dtensor"}), tp=8)
    assert (split.saved, split.working) == (4 * n // 8 + 8 * 64, 12 * n // 8)
    assert len(head(layers).forward) > len(head(whole).forward) == 1
