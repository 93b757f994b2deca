"""Which kernels make 8-bit operands: by scaling, and by what stands before a linear (TransformerEngine, normalization.cpp)."""

from __future__ import annotations

import pytest

from sim.framework.framework import load_framework
from sim.model.layers.attention import core
from sim.model.layers.heads import Heads
from sim.model.layers.linear import linear
from sim.model.parts import Part, Shape
from sim.model.share import Share, share_of
from sim.work import Gemm, MemoryBound


def share(precision: str, **habits: object) -> Share:
    framework = load_framework("megatron-core").but(**habits)
    return share_of(Shape(micro=1, seq=256, precision=precision), framework)


def kernels(part: Part) -> tuple[list[str], list[str]]:
    """What the part runs beside its product: forward, backward."""
    forward, backward = ([work.what for work in works if isinstance(work, MemoryBound)] for works in (part.forward, part.backward))
    return forward, backward


@pytest.mark.parametrize(
    ("precision", "scaling", "normed", "plain"),
    [
        ("fp8", "delayed", [], ["cast_transpose"]),
        ("fp8", "current", ["scale", "cast_transpose"], ["reduce", "scale", "cast_transpose"]),
        ("fp8", "rowwise", ["cast", "reduce", "cast"], ["cast", "reduce", "cast"]),
        ("mxfp8", "delayed", ["quantise"], ["quantise"]),
        ("bf16", "delayed", [], []),
    ],
)
def test_what_makes_an_operand_of_8_bits(precision: str, scaling: str, normed: list[str], plain: list[str]) -> None:
    own = share(precision, linears={"fp8_scaling": scaling})
    assert kernels(linear(own, "a", 64, 64, normed=True)) == (normed, plain)
    assert kernels(linear(own, "a", 64, 64)) == (plain, plain)
    assert kernels(linear(own, "a", 64, 64, fused_input=True, fused_grad=True)) == ([], [])


@pytest.mark.parametrize(
    ("scaling", "left"),
    [("delayed", []), ("current", ["scale", "cast"]), ("rowwise", ["cast", "reduce", "cast"])],
)
def test_a_compiler_takes_in_casts_whose_scale_is_known(scaling: str, left: list[str]) -> None:
    """A tensor's own scale is known when all of it is made: the cast reads it again."""
    assert kernels(linear(share("fp8", linears={"fp8_scaling": scaling}, compile=True), "a", 64, 64)) == (left, left)
    assert kernels(linear(share("mxfp8", linears={"fp8_scaling": scaling}, compile=True), "a", 64, 64)) == ([], [])


def test_an_operand_scaled_by_rows_is_made_twice_and_its_products_are_of_another_kind() -> None:
    part = linear(share("fp8", linears={"fp8_scaling": "rowwise"}), "a", 64, 64)
    elements = 256 * 64
    assert [(w.read, w.written) for w in part.forward if isinstance(w, MemoryBound)] == [
        (2 * elements, elements), (2 * elements, 0), (2 * elements, elements),
    ]  # fmt: skip
    assert {w.dtype for w in (*part.forward, *part.backward, *part.wgrad) if isinstance(w, Gemm)} == {"rowfp8"}


def test_casts_are_inside_the_nodes_of_their_linears() -> None:
    own = share("fp8", linears={"fp8_scaling": "current"})
    assert len(linear(own, "a", 64, 64).forward) - linear(own, "a", 64, 64).native == 2
    normed = linear(own, "a", 64, 64, normed=True)
    assert len(normed.forward) - normed.native == 1


def test_attention_in_8_bits_makes_its_operands() -> None:
    heads = Heads(4, 2, 64, 64)
    wide, narrow = (core(share("mxfp8", attention={"fp8": own}), heads, causal=True) for own in (False, True))
    assert kernels(wide) == ([], [])
    assert kernels(narrow) == (["quantise"], ["quantise"])
    work = narrow.forward[0]
    assert isinstance(work, MemoryBound) and work.read == 2 * 256 * 64 * (4 + 2 + 2)
