"""Captured modules against the descriptions of the same models: products, convolutions and attention one by one (and so their
FLOPs and bytes), all other kernels by the bytes that each layer moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from executor.recording.capture import Input, capture  # noqa: E402
from executor.training.models.experts import Experts  # noqa: E402
from sim.framework.framework import Framework, load_framework  # noqa: E402
from sim.model import ModelSpec, Network, Part, Shape, describe, load_model  # noqa: E402
from sim.model.language.lstm import lstm  # noqa: E402
from sim.model.layers.activation import activation  # noqa: E402
from sim.model.layers.moe import moe  # noqa: E402
from sim.model.readers.families import decoder  # noqa: E402
from sim.model.share import share_of  # noqa: E402
from sim.model.specs.decoder import Moe  # noqa: E402
from sim.model.specs.spec import EncDec, Encoder, Mlp, Vit  # noqa: E402
from sim.work import Attention, Conv, Gemm, GroupedGemm, Work  # noqa: E402
from tests.conformance import modules  # noqa: E402

PLAIN = Framework(name="plain", source="test").but(
    precision={"param_dtype": "fp32", "grad_dtype": "fp32", "reduce_dtype": "fp32"},
    optimizer={"implementation": "fused"},
    elementwise={"norm_kernels": "apart"},
)
APART = Framework(name="apart", source="test").but(
    precision={"param_dtype": "fp32", "grad_dtype": "fp32", "reduce_dtype": "fp32"},
    optimizer={"implementation": "fused"},
    linears={"fused_projections": False},
    elementwise={"norm_kernels": "apart"},
)
"""q, k, v as linears of their own."""


class Pair(NamedTuple):
    """A module with its inputs, and what describes it. `same`: (captured block, described block) whose bytes are compared."""

    build: Callable[[], object]
    inputs: Input
    spec: ModelSpec
    framework: Framework
    seq: int
    same: tuple[tuple[str, str], ...]
    attention: str = "flash"


WORDS = Input((4, 64), "int64")
LAYERS = (("L0", "L0"), ("L1", "L1"))
PAIRS: dict[str, Pair] = {
    "llama": Pair(
        modules.Llama, WORDS,
        decoder("llama", n_layers=2, hidden=128, n_heads=4, vocab_size=1000, ffn_hidden=352, dropout=0.0),
        APART, 64, (*LAYERS, ("head", "head"), ("embed", "embed")),
    ),
    "llama-grouped": Pair(
        lambda: modules.Llama(kv=2), WORDS,
        decoder("llama", n_layers=2, hidden=128, n_heads=4, n_kv_heads=2, vocab_size=1000, ffn_hidden=352, dropout=0.0),
        APART, 64, (*LAYERS, ("head", "head"), ("embed", "embed")),
    ),
    "vit": Pair(
        modules.Vit, Input((4, 3, 64, 64)), Vit(name="v", layers=2, hidden=96, heads=4, image=64, patch=16, classes=10),
        PLAIN, 1, (*LAYERS, ("embed", "embed"), ("head", "head")),
    ),
    "bert": Pair(modules.Bert, WORDS, Encoder(name="b", layers=2, hidden=128, heads=4, vocab=1000, positions=64, dropout=0.0), PLAIN, 64, LAYERS),
    "t5": Pair(
        modules.T5, WORDS,
        EncDec(name="t", layers=2, hidden=128, heads=4, ffn=512, vocab=1000, norm="rmsnorm", bias=False, relative=32, dropout=0.0),
        APART, 64, (*LAYERS, ("L2", "D0"), ("L3", "D1"), ("head", "head")), "math",
    ),
    "resnet50": Pair(
        modules.ResNet50, Input((2, 3, 224, 224)), load_model("resnet50"), PLAIN, 1,
        (("embed", "stem"), ("L0", "S0.0"), ("L1", "S0.1"), ("L3", "S1.0"), ("L7", "S2.0"), ("L15", "S3.2"), ("head", "head")),
    ),
    "mlp": Pair(modules.Mlp, Input((32, 64)), Mlp(name="m", widths=(64, 256, 256, 16), loss="mse"), PLAIN, 1, ()),
}  # fmt: skip


def works_of(parts: Iterable[Part]) -> list[Work]:
    return [work for part in parts for work in (*part.forward, *part.backward, *part.wgrad)]


def products(works: Iterable[Work]) -> Counter[object]:
    """Every product, convolution and attention by its shape; the sides of a product in either order, batches counted."""
    found: Counter[object] = Counter()
    for w in works:
        if isinstance(w, Gemm):
            found["gemm", w.role, w.k, *sorted((w.m, w.n)), w.dtype, w.repeat] += w.batch
        elif isinstance(w, GroupedGemm):
            sides = sorted((w.k, w.n)) if w.role == "wgrad" else (w.k, w.n)  # a weight that is stored the other way round
            found["grouped", w.role, w.groups, w.m, *sides, w.dtype] += 1
        elif isinstance(w, Attention):
            found["attention", w.batch, w.heads, w.kv_heads, w.q, w.kv, w.d, w.causal, w.dtype, w.backward] += 1
        elif isinstance(w, Conv):
            found["conv", w.role, w.batch, w.c_in, w.c_out, w.kh, w.out, w.dtype] += 1
    return found


@cache
def both(name: str) -> tuple[Network, Network]:
    pair = PAIRS[name]
    micro, token = pair.inputs.shape[0], pair.inputs.dtype == "int64"
    spec = capture(pair.build, (pair.inputs,), name=name)  # type: ignore[arg-type]
    captured = describe(spec, Shape(micro=micro, seq=pair.seq if token else 1, precision="fp32"), pair.framework)
    return captured, describe(pair.spec, Shape(micro=micro, seq=pair.seq, precision="fp32"), pair.framework, pair.attention)


@pytest.mark.no_cover
@pytest.mark.parametrize("name", PAIRS)
def test_products_are_the_same_one_by_one(name: str) -> None:
    captured, described = both(name)
    found, said = (products(work for _, block in network.blocks for work in works_of(block.parts)) for network in (captured, described))
    if name == "mlp":  # the first layer's input needs no gradient: described all the same, and left out when lowered
        said["gemm", "dgrad", 256, 32, 64, "fp32", 1] -= 1
    assert found == +said
    assert captured.parameters == described.parameters
    if PAIRS[name].attention == "flash":  # totals count the causal half of attention once, which written-out attention computes whole
        assert captured.flops_per_sample == described.flops_per_sample


@pytest.mark.no_cover
@pytest.mark.parametrize("name", [name for name, pair in PAIRS.items() if pair.same])
def test_layers_move_the_same_bytes(name: str) -> None:
    """Within 5 %: what the descriptions leave out are copies of views (the three gradients of a fused qkv put together)."""
    captured, described = (dict(network.blocks) for network in both(name))
    for mine, its in PAIRS[name].same:
        found, said = (sum(w.bytes for w in works_of(block.parts)) for block in (captured[mine], described[its]))
        assert found == pytest.approx(said, rel=0.05), (mine, its, found / said)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_recurrent_layer_is_the_described_one(precision: str) -> None:
    """Whatever this machine's CPU can do: an LSTM is one call for each layer (whose 16-bit gradients arrive in fp32, and are cast)."""
    spec = capture(modules.Recurrent, (Input((4, 16, 64)),), precision=precision)
    network = describe(spec, Shape(micro=4, seq=1, precision=precision), PLAIN)
    share = share_of(Shape(micro=4, seq=16, precision=precision), PLAIN)
    described = [lstm(share, 64, 128), lstm(share, 128, 128)]
    part = network.blocks[0][1].parts[0]
    assert products(works_of([part])) == products(works_of(described))
    assert part.params == sum(one.params for one in described)
    assert part.saved == pytest.approx(sum(one.saved for one in described), rel=0.05)
    moved = [sum(w.bytes for w in works_of(parts) if getattr(w, "what", "") != "cast") for parts in ([part], described)]
    assert moved[0] == pytest.approx(moved[1], rel=0.01)


class Stacked(torch.nn.Module):
    """Two layers of what stock training builds."""

    def __init__(self, spec: Moe) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Experts(64, spec, "swiglu", fused=True) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = 1.0 * x.requires_grad_()
        for layer in self.layers:
            x = x + layer(x)
        return x.sum()


@pytest.mark.parametrize("more", [{}, {"shared": 64}, {"correction": True}])
def test_experts_of_stock_training_are_the_described_ones(more: dict[str, Any]) -> None:
    """Products one by one, and the bytes of all kernels within 5 %. Captured in 16 bits: under fake tensors torch takes no others."""
    spec = Moe(experts=8, top_k=2, ffn=96, **more)
    network = describe(capture(lambda: Stacked(spec), (Input((4, 16, 64), "bf16"),), precision="bf16"), Shape(micro=4, seq=1), PLAIN)
    share = share_of(Shape(micro=4, seq=16), load_framework("pytorch"))
    described = moe(share, 64, spec, "swiglu")
    layer = dict(network.blocks)["L0"]
    found, said = products(works_of(layer.parts)), products(works_of(described))
    assert found == said
    assert layer.params == sum(part.params for part in described)
    # The residual is the model's own: an add in forward, the sum of two gradients in backward.
    residual = 2 * 3 * 4 * 16 * 64 * 2
    moved = [sum(w.bytes for w in works_of(parts)) for parts in (layer.parts, described)]
    assert moved[0] - residual == pytest.approx(moved[1], rel=0.05)
    launched = [sum(len(part.forward) + len(part.backward) + len(part.wgrad) for part in parts) for parts in (layer.parts, described)]
    assert launched[0] - 3 == pytest.approx(launched[1], rel=0.15), "a few casts and sums of indices are left out"


def test_gelu_written_out_is_the_described_one() -> None:
    """The eight operators of transformers' NewGELUActivation and the eleven of its backward move what `gelu_new` says."""
    build = lambda: torch.nn.Sequential(torch.nn.Linear(64, 256), modules.NewGelu(), torch.nn.Linear(256, 64))  # noqa: E731
    network = describe(capture(build, (Input((32, 64)),)), Shape(micro=32, seq=1, precision="fp32"), PLAIN)
    described = activation(share_of(Shape(micro=32, seq=1, precision="fp32"), PLAIN), "act", 32, 256, "gelu_new")
    captured = network.blocks[1][1].parts[0]
    forward, backward = ((sum(w.bytes for w in works) for works in (p.forward, p.backward)) for p in (captured, described))
    assert list(forward) == pytest.approx(list(backward), rel=0.01)
    assert (len(captured.forward), len(captured.backward)) == (len(described.forward), len(described.backward))
    assert captured.saved == pytest.approx(described.saved, rel=0.01)
