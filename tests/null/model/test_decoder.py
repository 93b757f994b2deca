"""Decoders: published sizes, Korthikanti's activation formula, and the laws of a split."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.framework.framework import Framework, load_framework
from sim.model import Network, Shape, describe, load_model
from sim.model.layers.redo import redone
from sim.model.load import model_from
from sim.model.readers.families import decoder
from sim.model.specs.decoder import Decoder
from sim.work import Gemm, MemoryBound
from topologies.errors import BadInput, UnknownName

EAGER = Framework(name="eager", source="test")
MEGATRON = Framework(name="fused", source="test").but(
    elementwise={"fused_activation": True, "fused_residual": True, "dropout": True},
    attention={"fused_rope": True},
    linears={"accumulates": True},
    loss={"in_place": True},
)


def gpt(**more: int) -> object:
    return decoder("gpt", name="g", n_layers=2, hidden=512, n_heads=8, vocab_size=1024, dropout=0.1, positions=64, **more)


def layer_saved(network: Network) -> int:
    return sum(part.saved for part in network.blocks[1][1].parts)


@pytest.mark.parametrize(("tp", "parallel"), [(1, False), (4, True)])
def test_a_gpt_layer_keeps_what_korthikanti_counts(tp: int, parallel: bool) -> None:
    """34 s b h + 5 a s^2 b, all of it divided by tp under sequence parallelism (Korthikanti et al. 2022, equations 1 and 4)."""
    s, b, h, a = 64, 4, 512, 8
    shape = Shape(micro=b, seq=s, tp=tp, sequence_parallel=parallel)
    saved = layer_saved(describe(gpt(), shape, EAGER, attention="math"))  # type: ignore[arg-type]
    statistics = 2 * 8 * s * b / tp  # mean and 1/std of two norms, which the paper leaves out
    assert saved == (34 * s * b * h + 5 * a * s * s * b) / tp + statistics


def test_two_branches_keep_the_result_of_one_norm_once() -> None:
    """Both linears of 16 bits keep the same tensor; with a norm for each, or casts of their own, they keep one each."""
    sizes = {"n_layers": 2, "hidden": 512, "n_heads": 8, "vocab_size": 1024, "parallel_block": True}
    rows = 2 * 64 * 512
    for more, shape, framework, kept in (
        ({}, Shape(micro=2, seq=64), EAGER, 0),
        ({"two_norms": True}, Shape(micro=2, seq=64), EAGER, 2 * rows),
        ({}, Shape(micro=2, seq=64, precision="fp8"), EAGER, rows),
        ({}, Shape(micro=2, seq=64), EAGER.but(precision={"autocast": True}), 2 * rows),
    ):
        layer = describe(decoder("gpt", name="g", **sizes, **more), shape, framework).blocks[1][1]
        assert next(part.saved for part in layer.parts if part.name == "mlp.up") == kept


def test_two_norms_beside_each_other_keep_what_they_read_once() -> None:
    """A copy in fp32 is each norm's own; what both give is made again for its reader."""
    spec = decoder("gpt", name="g", n_layers=2, hidden=512, n_heads=8, vocab_size=1024, parallel_block=True, two_norms=True)
    rows = 2 * 64
    for framework, kept in ((EAGER, 8 * rows), (EAGER.but(elementwise={"norm_in_fp32": True}), 4 * 512 * rows + 8 * rows)):
        layer = describe(spec, Shape(micro=2, seq=64), framework).blocks[1][1]
        assert next(part.saved for part in layer.parts if part.name == "norm2") == kept
        assert sum(redone(layer, ("layernorm",), False).dropped) == 2 * (2 * 512 * rows)


@pytest.mark.parametrize(
    ("more", "columns"),
    [
        ({"position": "learned"}, 0),  # views, of heads that have keys of their own
        ({"position": "rope"}, 8 + 8),
        ({"position": "rope", "kv_heads": 4}, 8 + 4),
        ({"position": "rope", "kv_heads": 4, "qk_norm": True}, 8),  # the queries' norm reads a copy, the keys' the result itself
        ({"position": "rope", "qk_norm": True}, 0),
        ({"position": "rope", "kv_heads": 1, "qk_norm": True}, 0),
        ({"position": "rope", "qk_norm": True, "qk_norm_whole": True}, 8 + 8),
        ({"position": "learned", "kv_heads": 4}, 8),
        ({"position": "rope", "kv_heads": 4, "fused_qkv": False}, 0),
    ],
)
def test_values_keep_a_fused_projections_result(more: dict[str, Any], columns: int) -> None:
    """In heads: columns of that result whose values attention or a norm keeps in tensors of their own."""
    spec = model_from({"base": "gpt2-124m", "layers": 1, "hidden": 512, "heads": 8, "vocab": 1024, "dropout": 0.0, **more})
    core = next(p for p in describe(spec, Shape(micro=2, seq=64), load_framework("pytorch")).blocks[1][1].parts if p.name == "attn.core")
    rows, kv = 2 * 64, more.get("kv_heads", 8)
    assert core.saved == 2 * rows * 64 * (8 + 2 * kv + columns) + 4 * rows * 8


def test_internevo_writes_its_gate_apart_and_copies_the_stream_for_its_norms() -> None:
    """w1 and w2 hand back two gradients that are added; norm(x.float()) moves 8 and 10 bytes an element more, and keeps 4 in place of 2."""
    spec = decoder("internlm", name="i", n_layers=1, hidden=512, n_heads=4, vocab_size=1024, ffn_hidden=1536)
    plain = load_framework("internevo").but(linears={"gate_apart": False}, elementwise={"norm_in_fp32": False})
    own, other = (
        {p.name: p for p in describe(spec, Shape(micro=2, seq=64), framework).blocks[1][1].parts}
        for framework in (load_framework("internevo"), plain)
    )
    rows = 2 * 64
    moved = [
        [sum(w.read + w.written for w in works if isinstance(w, MemoryBound)) for works in (part.forward, part.backward)]
        for part in (own["norm1"], other["norm1"], own["mlp.up"], other["mlp.up"])
    ]
    assert [a - b for a, b in zip(moved[0], moved[1], strict=True)] == [rows * 512 * 8, rows * 512 * 10]
    assert own["norm1"].saved - other["norm1"].saved == rows * 512 * 2
    assert [a - b for a, b in zip(moved[2], moved[3], strict=True)] == [0, rows * 512 * 6]
    widths = [[w.n for w in part.forward if isinstance(w, Gemm)] for part in (own["mlp.up"], other["mlp.up"], own["attn.qkv"])]
    assert widths == [[1536, 1536], [3072], [1536]]


def test_flash_keeps_no_square() -> None:
    s, b, h, a = 64, 4, 512, 8
    saved = layer_saved(describe(gpt(), Shape(micro=b, seq=s), EAGER))  # type: ignore[arg-type]
    assert saved == 34 * s * b * h + 2 * 8 * s * b + 4 * a * s * b


def test_megatrons_kernel_reads_half_of_causal_scores_and_no_copies_of_heads() -> None:
    """scaled_upper_triang_masked_softmax reads up to the diagonal and writes whole rows; baddbmm takes strided heads as they lie."""
    s, b, h, a = 64, 4, 512, 8
    softmax = EAGER.but(attention={"fused_softmax": True})

    def moved(framework: Framework, what: str) -> tuple[int, int]:
        network = describe(gpt(), Shape(micro=b, seq=s), framework, attention="math")  # type: ignore[arg-type]
        core = next(part for part in network.blocks[1][1].parts if part.name.endswith("core"))
        sums = [
            sum(w.read + w.written for w in works if isinstance(w, MemoryBound) and w.what == what)
            for works in (core.forward, core.backward)
        ]
        return sums[0], sums[1]

    scores, tokens = 2 * a * s * s * b, 2 * b * s * h
    assert moved(softmax, "softmax") == (2 * scores, 3 * scores)
    assert moved(softmax.but(attention={"causal_softmax": True}), "softmax") == (1.5 * scores, 2 * scores)
    assert moved(EAGER, "transpose") == (8 * tokens, 8 * tokens)
    assert moved(EAGER.but(attention={"strided_heads": True}), "transpose") == (2 * tokens, 6 * tokens)


def test_tensorflow_one_writes_gelu_and_dropout_out() -> None:
    """A BERT layer with graph operators moves what the same layer does with one kernel each, and the numbers of each mask in fp32."""

    def moved(framework: Framework, cls: str) -> int:
        network = describe(load_model("bert-base"), Shape(micro=2, seq=128), framework, attention="math")
        parts = [part for part in network.blocks[1][1].parts if part.cls == cls]
        return sum(w.read + w.written for part in parts for w in (*part.forward, *part.backward) if isinstance(w, MemoryBound))

    tokens, hidden, scores = 256, 768, 2 * 12 * 128 * 128
    eager = EAGER.but(elementwise={"dropout": True})
    graph, fused = eager.but(elementwise={"graph_operators": True}), eager.but(compile=True, elementwise={"graph_operators": True})
    gelu = tokens * 4 * hidden * 4  # fp32 values between the MLP's products
    assert moved(graph, "activation") == (18 + 28) * gelu and moved(eager, "activation") == 5 * gelu // 2
    dropped = 4 + 8 + 8 + 2 * 4 + 2 * 8 - 10  # bytes a value in 16 bits: random, + keep, floor, / keep and times the mask both ways
    assert moved(graph, "attention") - moved(eager, "attention") == dropped * scores
    assert moved(graph, "elementwise") - moved(eager, "elementwise") == dropped * 2 * tokens * hidden
    assert moved(fused, "activation") == moved(eager.but(compile=True), "activation")


def test_equal_layers_are_one_block() -> None:
    network = describe(load_model("llama3-8b"), Shape(micro=1, seq=128), EAGER)
    layers = [block for name, block in network.blocks if name.startswith("L")]
    assert len(layers) == 32
    assert len({id(block) for block in layers}) == 1


def test_tp_splits_products_evenly() -> None:
    def flops(tp: int) -> float:
        network = describe(load_model("llama3-8b"), Shape(micro=1, seq=256, tp=tp), EAGER)
        return sum(w.flops for _, b in network.blocks for p in b.parts for w in (*p.forward, *p.backward, *p.wgrad) if isinstance(w, Gemm))

    assert flops(8) * 8 == pytest.approx(flops(1), rel=1e-9)


def test_fp8_only_in_the_linears_of_the_layers() -> None:
    network = describe(load_model("llama3-8b"), Shape(micro=1, seq=256, precision="fp8"), MEGATRON)
    kinds = {
        (part.name, work.dtype) for _, block in network.blocks for part in block.parts for work in part.forward if isinstance(work, Gemm)
    }
    assert kinds == {("attn.qkv", "fp8"), ("attn.proj", "fp8"), ("mlp.up", "fp8"), ("mlp.down", "fp8"), ("head.logits", "bf16")}


def test_autocast_casts_every_weight_once_each_way() -> None:
    network = describe(load_model("gpt2-124m"), Shape(micro=1, seq=64, precision="fp16"), EAGER.but(precision={"autocast": True}))
    part = next(part for part in network.blocks[1][1].parts if part.name == "mlp.down")
    assert [str(work) for work in part.forward][:2] == [
        "memorybound(what=cast,read=9437184,written=4718592,dtype=fp16)",
        "memorybound(what=cast,read=3072,written=1536,dtype=fp16)",
    ]
    assert sum(getattr(work, "what", "") == "cast" for work in part.wgrad) == 2


def test_heads_that_do_not_divide_are_named() -> None:
    with pytest.raises(BadInput, match=r"tp = 7 does not divide attention heads = 32\. Use tp in 1, 2, 4, 8, 16$"):
        describe(load_model("llama3-8b"), Shape(micro=1, seq=128, tp=7), EAGER)
    with pytest.raises(BadInput, match="cp = 3 does not divide seq_len = 128"):
        describe(load_model("llama3-8b"), Shape(micro=1, seq=128, cp=3), EAGER)
    with pytest.raises(UnknownName, match="Did you mean llama3-8b"):
        load_model("llama3-8")


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.sampled_from([64, 128]), st.sampled_from([1, 2, 4]), st.booleans(), st.sampled_from(["bf16", "fp32", "fp8"]))
def test_seams_pair_up(micro: int, seq: int, tp: int, parallel: bool, precision: str) -> None:
    """Each gather of a layer has its reduce, of the same bytes, and only where tp splits."""
    shape = Shape(micro=micro, seq=seq, tp=tp, sequence_parallel=parallel, precision=precision)
    layer = describe(load_model("llama3.2-1b"), shape, MEGATRON).blocks[1][1]
    seams = [(part.seam, part.seam_bytes) for part in layer.parts if part.seam]
    size = micro * seq * 2048 * (4 if precision == "fp32" else 2)
    assert seams == ([("tp.gather", size), ("tp.reduce", size)] * 2 if tp > 1 else [])


def test_scaled_rotations_are_written_out_but_where_a_compiler_fuses() -> None:
    """TransformerEngine's kernel has no factor beside cos and sin (YaRN); XLA and torch.compile need none."""
    plain = Decoder(layers=1, hidden=512, heads=8, ffn=1024, vocab=1000)
    scaled = replace(plain, rope_scaled=True)

    def kernels(spec: Decoder, framework: str) -> int:
        network = describe(spec, Shape(micro=1, seq=256), load_framework(framework), "flash")
        return next(len(part.forward) for _, block in network.blocks for part in block.parts if part.name == "attn.rope")

    assert kernels(plain, "megatron-bridge") == 1 < kernels(scaled, "megatron-bridge")
    assert kernels(scaled, "maxtext") == 1


def test_columns_that_are_not_rotated_are_joined_to_those_that_are() -> None:
    """transformers' modeling_gpt_neox.py: slices, cat((q_rot, q_pass)); backward fills two slices with zeros, copies, adds. The fused kernel copies."""
    plain = Decoder(layers=1, hidden=512, heads=8, ffn=1024, vocab=1000)

    def turned(spec: Decoder, framework: str) -> tuple[list[str], float]:
        network = describe(spec, Shape(micro=1, seq=256), load_framework(framework), "flash")
        part = next(part for _, block in network.blocks for part in block.parts if part.name == "attn.rope")
        moved = [work for work in (*part.forward, *part.backward) if isinstance(work, MemoryBound)]
        return [work.what for work in moved], sum(work.bytes for work in moved)

    (all_of, _), (quarter, _) = turned(plain, "pytorch"), turned(replace(plain, rotary=0.25), "pytorch")
    assert Counter(quarter) - Counter(all_of) == Counter(copy=4, zero=4, add=2)
    assert turned(plain, "megatron-bridge") == turned(replace(plain, rotary=0.25), "megatron-bridge")


def test_python_s_views_of_heads_take_the_host_s_time() -> None:
    """A fused projection's parts are split, flattened and transposed, each a call; TransformerEngine's modules have their own time."""

    def views(framework: Framework, **more: Any) -> int:
        spec = decoder("gpt", name="g", n_layers=2, hidden=512, n_heads=8, vocab_size=1024, **more)
        layer = describe(spec, Shape(micro=2, seq=64), framework).blocks[1][1]
        return sum(part.views for part in layer.parts)

    assert [views(EAGER, fused_qkv=fused) for fused in (True, False)] == [10, 8]
    assert views(load_framework("megatron-core"), fused_qkv=True) == 0
