"""What Megatron-Core's MLP and loss move beside their products: quantisation on its own, NeMo's squared ReLU, the compiled loss."""

from __future__ import annotations

import pytest

from sim.framework.framework import load_framework
from sim.model.layers.activation import activation
from sim.model.layers.ends import loss
from sim.model.layers.grouped import grouped
from sim.model.layers.latent import latent
from sim.model.layers.linear import linear
from sim.model.layers.mlp import mlp
from sim.model.parts import Shape
from sim.model.share import Share, share_of
from sim.model.specs.decoder import Mla
from sim.work import MemoryBound

ROWS, HIDDEN, FFN = 128, 64, 256


def _share(framework: str = "nemo", precision: str = "fp8", **habits: object) -> Share:
    return share_of(Shape(micro=1, seq=ROWS, tp=1, precision=precision), load_framework(framework).but(**habits))


def _moved(works: object, what: str) -> int:
    return sum(work.read + work.written for work in works if isinstance(work, MemoryBound) and work.what == what)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["swiglu", "gelu"])
def test_linears_quantise_what_the_activation_leaves(kind: str) -> None:
    """Forward the second product's input, backward the gradient of the first one's output: 16 bits read, an 8-bit tensor and its transpose
    written."""
    wide = FFN * (2 if kind == "swiglu" else 1)
    for fused, times in ((True, 0), (False, 1)):
        up, _, down = mlp(_share(elementwise={"quantising_activation": fused}), HIDDEN, FFN, kind)
        assert _moved(down.forward, "cast_transpose") == times * 4 * ROWS * FFN
        assert _moved(up.backward, "cast_transpose") == times * 4 * ROWS * wide


def test_squared_relu_in_eager_kernels() -> None:
    """relu, pow; pow's backward makes x^1, twice it and the product with the gradient, then relu's: 8 and 20 bytes an element for 4 and 6."""
    for eager, forward, backward in ((False, 4, 6), (True, 8, 20)):
        part = activation(_share(elementwise={"eager_relu2": eager}), "act", ROWS, FFN, "relu2")
        assert sum(w.read + w.written for w in part.forward if isinstance(w, MemoryBound)) == forward * ROWS * FFN
        assert sum(w.read + w.written for w in part.backward if isinstance(w, MemoryBound)) == backward * ROWS * FFN


def test_a_compiled_loss_passes_over_fp32_logits_three_times() -> None:
    vocab = 1024
    one, steps = (loss(_share(loss={"scripted": jit}), vocab) for jit in (False, True))
    sizes = [
        [sum(w.read + w.written for w in works if isinstance(w, MemoryBound)) / (ROWS * vocab) for works in (p.forward, p.backward)]
        for p in (one, steps)
    ]
    assert sizes == [[6, 6], [22, 6]]
    assert one.saved == steps.saved


def test_metrics_read_fp32_logits_again_and_again() -> None:
    """Cast 6, the loss 4 once more, maxima and argmax 12, subtraction 8, exp 8, sum 4, the loss 4; back 8, and 6 to 16 bits."""
    vocab = 1000
    part = loss(_share("internevo", "bf16"), vocab)
    sizes = [
        sum(w.read + w.written for w in works if isinstance(w, MemoryBound)) / (ROWS * vocab) for works in (part.forward, part.backward)
    ]
    assert sizes == [pytest.approx(46, abs=0.02), 14]


@pytest.mark.parametrize(("precision", "size"), [("bf16", 2), ("mxfp8", 1), ("nvfp4", 0.5)])
def test_linears_and_experts_keep_their_operands(precision: str, size: float) -> None:
    share = _share("megatron-bridge", precision)
    _, _, down = mlp(share, HIDDEN, FFN, "swiglu")
    experts = grouped(share, "moe.down", 4, ROWS, FFN, HIDDEN, False, "", 0, 2)
    assert (down.saved, experts.saved) == (size * ROWS * FFN, size * ROWS * FFN)


def test_each_linear_keeps_what_it_casts_for_itself() -> None:
    """Under autocast three linears on one fp32 input make three copies of 16 bits (held against torch by hand); in 8 bits the two that read a latent
    attention's norm keep an operand each, of 16 bits both keep the norm's result."""
    amp = share_of(Shape(micro=1, seq=ROWS, precision="bf16"), load_framework("pytorch-amp"))
    assert [linear(amp, "qkv", HIDDEN, (HIDDEN,) * n, stream=True).saved for n in (1, 3)] == [2 * ROWS * HIDDEN, 6 * ROWS * HIDDEN]
    for precision, sizes in (("bf16", (2, 0)), ("mxfp8", (1, 1))):
        found = {part.name: part.saved for part in latent(_share("megatron-bridge", precision), HIDDEN, 4, Mla(kv_lora=16, q_lora=16))}
        assert (found["attn.q_down"], found["attn.kv_down"]) == tuple(size * ROWS * HIDDEN for size in sizes)


@pytest.mark.parametrize(
    ("precision", "forward"),
    # Blocks of 32: 16 bits read, 8 written along rows and along columns. NVFP4: read for the largest value, for the rows and for the transformed
    # columns, half a byte written in each of these two, and a scale's byte for 16.
    [("mxfp8", [("quantise", 2, 2)]), ("nvfp4", [("reduce", 2, 0), *[("quantise", 2, 0.5625)] * 2])],
)
def test_what_makes_operands_of_blocks(precision: str, forward: list[tuple[str, float, float]]) -> None:
    part = linear(_share("megatron-bridge", precision), "proj", HIDDEN, FFN)
    for works, elements in ((part.forward, ROWS * HIDDEN), (part.backward, ROWS * FFN)):
        found = [(work.what, work.read / elements, work.written / elements) for work in works if isinstance(work, MemoryBound)]
        assert found == forward
