"""What frameworks write out that others fuse: norms in parts, random numbers, biases, Transformer-XL's attention and adaptive softmax."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from sim.framework.framework import load_framework
from sim.model.layers.attention import core
from sim.model.layers.elementwise import residual
from sim.model.layers.ends import embedding, logits, loss
from sim.model.layers.heads import Heads
from sim.model.layers.linear import linear
from sim.model.layers.norm import norm
from sim.model.load import load_model
from sim.model.network import describe
from sim.model.parts import Network, Part, Shape
from sim.model.share import Share, share_of
from sim.model.specs.spec import TransformerXl
from sim.work import Gemm, MemoryBound, Work

ROWS, WIDTH = 4 * 128, 256
HEADS = Heads(4, 4, 64, 64)
SCORES = 4 * 4 * 128 * 128


def share(name: str, precision: str = "fp32", **changes: object) -> Share:
    framework = load_framework(name).but(**changes)
    return share_of(Shape(micro=4, seq=128, precision=precision), framework, "math")


def passes(works: tuple[Work, ...], elements: int, e: int) -> float:
    """Values moved for each element."""
    return sum(w.bytes for w in works if isinstance(w, MemoryBound)) / elements / e


@pytest.mark.parametrize(
    ("framework", "changes", "forward", "backward"),
    [
        ("pytorch-apex-jit", {}, 4, 4.03125),  # one kernel with the residual's add; sums of partial sums
        ("pytorch-apex-ddp", {}, 2, 5),  # the weights' gradients read both again
        ("pytorch-transformer-xl", {}, 3, 7),  # so do the sums over a row
        ("megatron-lm", {}, 2, 3.03125),
        ("tf2-horovod", {}, 6, 8),
        ("tf1-horovod", {"compile": True}, 6, 8),  # ended at each sum: add and mean, variance, scaling; row sums, gradient, column sums
        ("tf1-horovod", {}, 15, 41),  # an operator each
    ],
)
def test_layer_norm_in_one_kernel_or_in_parts(framework: str, changes: dict[str, bool], forward: float, backward: float) -> None:
    part = norm(share(framework, **changes), "norm", ROWS, WIDTH, "layernorm")
    assert (passes(part.forward, ROWS * WIDTH, 4), passes(part.backward, ROWS * WIDTH, 4)) == pytest.approx((forward, backward), rel=0.02)


def test_random_numbers_pass_memory_where_the_compiler_does_not_make_them() -> None:
    apart = residual(share("tf2-horovod"), "join", ROWS, WIDTH, dropout=True)
    within = residual(share("tf2-horovod", elementwise={"random_apart": False}), "join", ROWS, WIDTH, dropout=True)
    assert passes(apart.forward, ROWS * WIDTH, 4) == 2 and passes(apart.backward, ROWS * WIDTH, 4) == 1, "written, read; read"
    assert not within.forward and not within.backward
    assert not residual(share("tf2-horovod"), "join", ROWS, WIDTH, dropout=False).forward


@pytest.mark.parametrize(("dropped", "saved", "forward", "backward"), [(False, 2, 4, 6), (True, 5, 7, 7)])
@pytest.mark.parametrize("name", ["pytorch", "pytorch-native-amp"])
def test_torch_compile_makes_one_kernel_of_what_stands_between_written_out_products(
    name: str, dropped: bool, saved: int, forward: float, backward: float
) -> None:
    """Bytes for each score, as torch 2.13's partitioner shows them: probabilities in 16 bits alone are kept, also under autocast, whose eager softmax
    writes fp32; with dropout what is left of them and a mask too."""
    part = written_out(name, dropped, compile=True)
    softmax = [[w for w in works if isinstance(w, MemoryBound) and w.what != "transpose"] for works in (part.forward, part.backward)]
    assert [[w.what for w in works] for works in softmax] == [["softmax"], ["softmax"]]
    assert [works[0].bytes / SCORES for works in softmax] == [forward, backward]
    inputs = 3 * ROWS * WIDTH * 2
    assert (part.saved - inputs) / SCORES == saved
    assert part.saved <= written_out(name, dropped).saved


def test_xla_ends_a_kernel_at_each_sum_of_written_out_attention() -> None:
    part = written_out("tf2-horovod", True)
    assert [w.what for w in part.forward if isinstance(w, MemoryBound) and w.what != "transpose"] == ["softmax", "dropout", "cast"]


def written_out(name: str, dropped: bool, **changes: object) -> Part:
    return core(share(name, "bf16" if name == "pytorch" else "fp16", **changes), HEADS, causal=True, dropout=dropped)


@pytest.mark.parametrize(("compiled", "columns"), [(False, 50257), (True, 50264)])
def test_compilers_fill_rows_up_to_sixteen_bytes(compiled: bool, columns: int) -> None:
    part = linear(share("pytorch", "bf16", compile=compiled), "head", WIDTH, 50257)
    (fwd,), (dgrad,), (wgrad,) = ([w for w in works if isinstance(w, Gemm)] for works in (part.forward, part.backward, part.wgrad))
    assert (fwd.n, dgrad.k, wgrad.m) == (columns,) * 3
    assert part.tensors == (50257 * WIDTH,), "what is trained and kept is not filled up"


def test_a_bias_is_a_kernel_of_its_own_unless_another_takes_it() -> None:
    def kernels(name: str, fused: bool = False, **changes: object) -> Counter[str]:
        found = linear(share(name, **changes), "fc", WIDTH, WIDTH, bias=True, fused_bias=fused)
        return Counter(w.what for w in found.forward if isinstance(w, MemoryBound))

    assert kernels("pytorch-apex-ddp") == Counter({"add": 1})
    assert not kernels("pytorch-apex-ddp", fused=True), "the kernel after it adds it"
    assert not kernels("pytorch-apex-ddp", compile=True)
    assert not kernels("pytorch")


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_the_gradients_of_a_norms_weights(kind: str) -> None:
    """PyTorch's kernels read input and gradient once more for them, a compiler's and TransformerEngine's leave partial sums."""

    def read(name: str, **changes: object) -> float:
        return sum(w.read for w in norm(share(name, **changes), "norm", ROWS, WIDTH, kind).backward if isinstance(w, MemoryBound))

    e = share("pytorch").e
    assert read("pytorch") == 4 * e * ROWS * WIDTH
    for partial in (read("megatron-core"), read("pytorch", compile=True)):
        assert partial <= 3.2 * e * ROWS * WIDTH


def test_torchtitans_norms_are_torchs_own() -> None:
    """One kernel since torch 2.9, operators before, or a compiler's kernel; none of them writes an 8-bit operand or finds its largest value."""

    def kernels(name: str, **changes: object) -> int:
        return len(norm(share(name, **changes), "norm", ROWS, WIDTH, "rmsnorm").forward)

    assert kernels("torchtitan") == kernels("pytorch") == kernels("torchtitan-2025", compile=True) == 1
    assert kernels("torchtitan-2025") == kernels("torchtitan-2024") > 4
    for name in ("torchtitan", "torchtitan-2025"):
        found = linear(share(name, "fp8"), "fc", WIDTH, WIDTH, normed=True).forward
        assert [w.what for w in found if isinstance(w, MemoryBound)] == ["reduce", "scale", "cast_transpose"]


def test_autocast_may_keep_the_stream_in_16_bits() -> None:
    wide, low = share("oneflow", "fp16"), share("oneflow-bert", "fp16")
    assert (wide.es, low.es, low.e, low.autocast) == (4, 2, 2, True)
    casts = [w for w in linear(low, "fc", WIDTH, WIDTH, stream=True).forward if isinstance(w, MemoryBound) and w.what == "cast"]
    assert [w.bytes for w in casts] == [6 * WIDTH * WIDTH], "of the weights alone"


@pytest.mark.parametrize(("width", "units"), [(30522, "fp32"), (30528, "fp16")])
def test_matrix_units_of_old_libraries_take_multiples_of_8(width: int, units: str) -> None:
    def dtypes(name: str, precision: str) -> set[str]:
        part = linear(share(name, precision), "head", WIDTH, width)
        return {w.dtype for w in (*part.forward, *part.backward, *part.wgrad) if isinstance(w, Gemm)}

    assert dtypes("tf1-horovod-cuda10", "fp16") == {units}
    assert dtypes("tf1-horovod", "fp16") == {"fp16"}
    assert dtypes("tf1-horovod-cuda10", "fp32") == {"fp32"}


def xl(precision: str = "fp32", **changes: object) -> Network:
    spec = load_model("transformer-xl-base")
    assert isinstance(spec, TransformerXl)
    return describe(
        msgspec.structs.replace(spec, **changes), Shape(micro=2, seq=192, precision=precision), load_framework("pytorch-transformer-xl")
    )


def part(network: Network, block: str, name: str) -> Part:
    return next(p for p in dict(network.blocks)[block].parts if p.name == name)


def test_kernels_over_the_scores_of_transformer_xl() -> None:
    """Pad, add and scale, mask, softmax; softmax, mask (copied first), scale, zeros, shift back, copy."""
    scores, core = 2 * 4 * 192 * 384, part(xl(heads=4), "L0", "attn.core")

    def over(works: tuple[Work, ...]) -> Counter[str]:
        return Counter(w.what for w in works if isinstance(w, MemoryBound) and w.written == 4 * scores)

    assert over(core.forward) == Counter({"copy": 1, "add": 1, "scale": 1, "softmax": 1})
    assert over(core.backward) == Counter({"softmax": 1, "scale": 3, "zero": 1, "copy": 2})
    dropped = part(xl(attention_dropout=0.2), "L0", "attn.core")
    assert Counter(w.what for w in dropped.forward if isinstance(w, MemoryBound))["dropout"] == 1
    assert core.views and part(xl(), "L0", "attn.qkv").views == 0


def test_transformer_xl_drops_what_relu_leaves() -> None:
    n = 2 * 192 * 2048
    act, quiet = part(xl(), "L0", "mlp.act"), part(xl(dropout=0.0), "L0", "mlp.act")
    assert [w.what for w in act.forward if isinstance(w, MemoryBound)] == ["activation", "dropout"]
    assert [w.what for w in act.backward if isinstance(w, MemoryBound)] == ["dropout", "activation"]
    assert (act.saved, quiet.saved) == (5 * n, 0)


def test_picking_rows_of_the_adaptive_softmax_costs_gradients_as_large_as_all_scores() -> None:
    picked = part(xl(), "head", "head.picked")
    whole = 4 * 2 * 192 * (19997 + 3)
    assert picked.reads, "the host waits for the counts"
    found = Counter(w.what for w in picked.backward if isinstance(w, MemoryBound) and w.written == whole)
    assert found == Counter({"zero": 5, "index_add": 1, "add": 3})
    table = 4 * 267735 * 512
    assert Counter(w.what for w in picked.wgrad if isinstance(w, MemoryBound) and w.written == table) == Counter(
        {"zero": 4, "add": 4, "copy": 1}
    )
    assert [w.what for w in part(xl(div=4), "head", "head.picked").wgrad if isinstance(w, MemoryBound)] == ["add"], "tables of their own"


@pytest.mark.parametrize(
    ("model", "inside"),
    [
        ("llama3-8b", {"norm1", "norm2"}),
        ("qwen3-30b-a3b", {"norm1"}),  # heads' norms and that before the router are modules
        ("deepseek-v3", {"attn.q_norm", "attn.kv_norm", "norm2"}),  # of a dense layer; latent attention's first products are plain linears
        ("qwen3-next-80b-a3b", {"norm1"}),  # the gated delta rule's projection holds it, as attention's does
    ],
)
def test_a_norm_inside_a_linear_is_no_module_of_its_own(model: str, inside: set[str]) -> None:
    """megatron/core/models/gpt's gpt_layer_specs.py and experimental_attention_variant_module_specs.py; the layer itself is one, which its
    first norm stands for."""
    spec = load_model(model)
    held, apart = (
        {p.name: p for p in dict(describe(spec, Shape(micro=1, seq=128), load_framework(name), "flash").blocks)["L0"].parts}
        for name in ("megatron-core", "torchtitan")
    )
    norms = {name for name, p in held.items() if p.cls == "norm"}
    assert {name for name in norms if held[name].modules < apart[name].modules} == inside
    assert {name for name in norms if held[name].native} == inside, "in the linear's function of autograd"


def test_a_fused_projections_halves_are_read_where_they_lie_unless_something_fuses_what_reads_them() -> None:
    """chunk of torch: silu reads the first half, the product the second; backward multiplies by the product's other factor first. A clamp, or a
    projection for each, lays them together."""

    def act(framework: str, model: str = "llama3-8b", name: str = "mlp.act") -> Part:
        parts = [
            p for _, block in describe(load_model(model), Shape(micro=1, seq=128), load_framework(framework)).blocks for p in block.parts
        ]
        return next(p for p in parts if p.name == name)

    def halved(works: tuple[Work, ...]) -> list[bool]:
        return [w.halves for w in works if isinstance(w, MemoryBound)]

    eager = act("pytorch")
    assert (halved(eager.forward), halved(eager.backward)) == ([True, True], [False, True, True, False])
    assert {w.rows for w in (*eager.forward, *eager.backward) if isinstance(w, MemoryBound) and w.halves} == {128}
    for other in (act("torchtitan"), act("megatron"), act("pytorch", "gpt-oss-20b", "moe.act")):
        assert not any(halved(other.forward) + halved(other.backward))


@pytest.mark.parametrize(
    ("framework", "working"), [("megatron-2020", 2), ("megatron-2022", 2), ("megatron-deepspeed", 2), ("megatron-lm", 2), ("deepspeed", 8)]
)
def test_megatron_makes_the_softmax_in_place_on_one_rank_too(framework: str, working: int) -> None:
    """Beside the fp32 softmax that is kept: the 16-bit logits, or fp32 gradients before and after log_softmax."""
    assert loss(share(framework, "fp16"), 1024).working == working * 4 * 128 * 1024


@pytest.mark.parametrize(("precision", "casts"), [("fp16", 1), ("bf16", 2)])
def test_autocast_widens_scores_before_softmax_unless_they_are_of_fp16(precision: str, casts: int) -> None:
    """ATen's softmax of fp16 into fp32 is one kernel, also backward; of bf16 its input is copied. What follows reads 16 bits in both."""
    network = describe(load_model("gpt2-124m"), Shape(micro=2, seq=64, precision=precision), load_framework("pytorch-amp"), "math")
    core = part(network, "L0", "attn.core")
    for works in (core.forward, core.backward):
        assert [work.what for work in works if isinstance(work, MemoryBound)].count("cast") == casts


@pytest.mark.parametrize(
    ("framework", "tp", "rows"),
    [
        ("megatron-core", 1, 50304),
        ("nemo", 4, 50688 // 4),
        ("pytorch", 1, 50257),
        ("torchtitan", 4, 12565),
        ("mlperf-nvidia-bert", 1, 50264),
    ],
)
def test_megatrons_vocabulary_is_filled_up(framework: str, tp: int, rows: int) -> None:
    """make_vocab_size_divisible_by = 128 on each rank; what counts as the model's parameters and FLOPs is its own. (Unaligned products of the head
    were 10 % of a step on A100.)"""
    here = share_of(Shape(micro=1, seq=64, tp=tp), load_framework(framework))
    assert here.words(50257) == rows
    head = next(work for work in logits(here, 64, 50257).forward if isinstance(work, Gemm))
    assert head.n == rows and embedding(here, 64, 50257).tensors == (64 * rows,)
    counted = [describe(load_model("gpt2-124m"), Shape(micro=1, seq=64, tp=tp), load_framework(name)) for name in (framework, "pytorch")]
    assert counted[0].parameters == counted[1].parameters and counted[0].flops_per_sample == counted[1].flops_per_sample
