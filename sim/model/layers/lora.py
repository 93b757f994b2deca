"""Low-rank adapters beside frozen linears (Hu et al. 2021): y = W x + B A dropout(x); W in 16 bits, or packed in four (QLoRA)."""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.elementwise import elementwise
from sim.model.layers.linear import weight_casts
from sim.model.parts import ADAPTER, Part
from sim.model.share import Share
from sim.model.specs.decoder import Decoder, Lora
from sim.work import Gemm, GroupedGemm, MemoryBound, Work
from topologies.errors import Refused

_LATENT = ("attn.q_down", "attn.q_up", "attn.kv_down", "attn.kv_up")
"""Linears of latent attention that make queries, keys and values (NeMo's recipes of DeepSeek adapt each of them)."""
_CROSSED = ("attn.q", "attn.kv")
_TARGETS = {"attn.qkv": "qkv", **dict.fromkeys((*_LATENT, *_CROSSED), "qkv"), "attn.proj": "proj", "mlp.up": "up", "mlp.down": "down"}


NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight: four bits, a scale of 8 bits for 64 of them, and one of fp32 for 256 of those (double quantization: Dettmers et al. 2023, section 3)."""


def beside_frozen(parts: list[Part], spec: Decoder, share: Share) -> list[Part]:
    """A layer's parts frozen, with their adapters. Raises `Refused` for what is not kept in four bits."""
    assert spec.lora is not None
    found = freeze(adapt(parts, spec, share))
    if spec.lora.base == "nf4":
        if share.fp8 or any(part.expert for part in found):
            why = f"it is unpacked to 16 bits, not to {share.gemm}" if share.fp8 else "experts in one tensor are none"
            raise Refused(f'{spec.name}: lora.base = "nf4" packs linears (bitsandbytes.nn.Linear4bit); {why}. Leave lora.base out')
        found = [_packed(part, share) if part.frozen and part.cls == "gemm" and part.tensors else part for part in found]
    return found


def adapt(parts: list[Part], spec: Decoder, share: Share) -> list[Part]:
    """The parts with an adapter after each target, of as many as it has linears (PEFT and torchtitan wrap each torch.nn.Linear). Column-parallel
    linears split B, row-parallel ones A."""
    assert spec.lora is not None
    adapted: list[Part] = []
    for part in parts:
        adapted.append(part)
        if _TARGETS.get(part.name) in spec.lora.targets:
            gemms = [work for work in part.forward if isinstance(work, Gemm)]
            names = [f"{part.name}{ADAPTER}"] if len(gemms) == 1 else [f"{part.name}.{at}{ADAPTER}" for at in range(len(gemms))]
            adapted += [_adapter(name, gemm, share, spec.lora) for name, gemm in zip(names, gemms, strict=True)]
    return adapted


def freeze(parts: list[Part]) -> list[Part]:
    """The parts of the base without gradients of their weights (a tied head's are the embedding's): products then need not keep their inputs.
    Adapters stay as they are."""
    return [_still(part) if (part.tensors or part.wgrad) and not (part.frozen or part.name.endswith(ADAPTER)) else part for part in parts]


def reread(lora: Lora, share: Share) -> int:
    """Bytes of an element of attention's result that what reads it keeps: the frozen projection none, an adapter all, unless it is dropout's
    result that it reads."""
    return 0 if lora.dropout or "proj" not in lora.targets else share.e


def _still(part: Part) -> Part:
    """What a product keeps is its input, for the weights' gradient alone, whatever casts and sorts rows around it; a router's scores stay."""
    products = any(isinstance(work, Gemm | GroupedGemm) for work in part.wgrad)
    scores = any(isinstance(work, MemoryBound) and work.what in ("softmax", "activation") for work in part.backward)
    return replace(part, frozen=True, wgrad=(), saved=0 if products and not scores else part.saved)


def _packed(part: Part, share: Share) -> Part:
    """A linear that unpacks its weights for each of its products, and keeps none of what it unpacked (bitsandbytes, autograd/_functions.py:
    MatMul4Bit). Biases stay as they are."""
    sizes = tuple(rows * columns for rows, columns in part.matrices)
    weights, products = sum(sizes), list(part.forward)
    for cast in weight_casts(share, sizes)[0]:  # autocast finds no fp32 weights: what unpacks them writes 16 bits
        products.remove(cast)
    unpack: Work = MemoryBound("cast", round(NF4 * weights), share.e * weights, share.act)
    rest = (part.params - weights) * share.e
    gradients = max(work.m * (work.n + work.k) for work in part.backward if isinstance(work, Gemm))  # of its input and its result
    return replace(
        part,
        forward=(unpack, *products),
        backward=(unpack, *part.backward),
        untracked=part.untracked + 1,
        stored=(NF4 * weights + rest) / part.params,
        working=share.e * (weights + gradients),
    )


def _adapter(name: str, base: Gemm, share: Share, lora: Lora) -> Part:
    m, k, n = base.m, base.k, base.n
    r, e, dtype = lora.rank, share.e, share.core
    drops = lora.dropout > 0
    forward: list[Work] = [elementwise("dropout", share, m * k, e, e + 1)] * drops
    forward += [
        Gemm(m, r, k, dtype),
        Gemm(m, n, r, dtype),
        elementwise("scale", share, m * n, e, e),
        elementwise("add", share, m * n, 2 * e, e),
    ]
    backward: list[Work] = [elementwise("scale", share, m * n, e, e), Gemm(m, r, n, dtype, 1, "dgrad"), Gemm(m, k, r, dtype, 1, "dgrad")]
    backward += [elementwise("dropout", share, m * k, e + 1, e)] * drops
    backward.append(elementwise("add", share, m * k, 2 * e, e))
    wgrad = (Gemm(n, r, m, dtype, 1, "wgrad"), Gemm(r, k, m, dtype, 1, "wgrad"))
    return Part(
        name=name,
        forward=tuple(forward),
        backward=tuple(backward),
        wgrad=wgrad,
        cls="gemm",
        tensors=(r * k, n * r),
        matrices=((r, k), (n, r)),
        saved=m * k * (e + drops) + m * r * e,
        modules=3,
    )
