"""Low-rank adapters beside frozen linears (Hu et al. 2021): y = W x + B A dropout(x); W in 16 bits, or packed in four (QLoRA)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from sim.model.layers.elementwise import elementwise
from sim.model.layers.linear import weight_casts
from sim.model.parts import ADAPTER, Block, Part
from sim.model.share import Share
from sim.model.specs.lora import Lora
from sim.work import Gemm, GroupedGemm, MemoryBound, Work
from topologies.errors import Refused

Blocks = tuple[tuple[str, Block], ...]
Words = Mapping[str, str]

TARGETS = {
    "attn.qkv": "qkv",
    **dict.fromkeys(("attn.q", "cross.q", "attn.q_down", "attn.q_up"), "q"),
    **dict.fromkeys(("attn.kv", "cross.kv", "attn.kv_down", "attn.kv_up"), "kv"),
    "attn.proj": "proj",
    "cross.proj": "proj",
    "mlp.up": "up",
    "mlp.down": "down",
}
"""Part of a layer -> the word for it among `Lora.targets`: the letters of what its linears make, one each, or all of them one. Latent attention's are
adapted each (NeMo's recipes of DeepSeek)."""
_READ = frozenset("qkv")

NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight: four bits, a scale of 8 bits for 64 of them, and one of fp32 for 256 of those (double quantization: Dettmers et al. 2023, section 3)."""


def beside_frozen(
    parts: list[Part], lora: Lora, share: Share, *, name: str = "", targets: Words = TARGETS, read: bool = False
) -> list[Part]:
    """A layer's parts frozen, with their adapters (`adapt`). Raises `Refused` for what is not kept in four bits, under the model's `name`."""
    found = freeze(adapt(parts, lora, share, name=name, targets=targets, read=read))
    if lora.base == "nf4":
        if share.fp8 or any(part.expert for part in found):
            why = f"it is unpacked to 16 bits, not to {share.gemm}" if share.fp8 else "experts in one tensor are none"
            raise Refused(f'{name}: lora.base = "nf4" packs linears (bitsandbytes.nn.Linear4bit); {why}. Leave lora.base out')
        found = [_packed(part, share) if part.frozen and part.cls == "gemm" and part.tensors else part for part in found]
    return found


def chosen(part: str, linears: int, lora: Lora, *, name: str = "", targets: Words = TARGETS) -> list[int]:
    """Which of a part's `linears` have adapters, by number. Raises `Refused`, under the model's `name`, where one linear makes both what is adapted
    and what is not."""
    word = targets.get(part, "")
    letters = _READ.issuperset(word)
    made = [frozenset(letter) for letter in word] if letters and linears > 1 else [frozenset(word if letters else (word,))] * linears
    found = [at for at, makes in enumerate(made) if makes & lora.adapted]
    for at in found:
        if not made[at] <= lora.adapted:
            wanted = " and ".join(sorted(made[at] & lora.adapted))
            raise Refused(
                f"{name}: lora.targets: one linear ({part}) makes {', '.join(letter for letter in word if letter in made[at])} and has one adapter, "
                f"so {wanted} cannot have one alone. Name all of these; decoders have a linear for each under huggingface and torchtitan"
            )
    return found


def adapt(parts: list[Part], lora: Lora, share: Share, *, name: str = "", targets: Words = TARGETS, read: bool = False) -> list[Part]:
    """The parts with an adapter after each target, of as many as it has linears that are `chosen` (PEFT and torchtitan wrap each torch.nn.Linear).
    Column-parallel linears split B, row-parallel ones A.

    `targets`: the word for each part that may have adapters; `read`: an adapter of attention has kept already what an MLP beside it reads.
    """
    adapted: list[Part] = []
    for part in parts:
        adapted.append(part)
        gemms = [work for work in part.forward if isinstance(work, Gemm)] if part.name in targets else []
        wide = _wide(part, gemms[0], share) if gemms else 0
        names = [f"{part.name}{ADAPTER}"] if len(gemms) == 1 else [f"{part.name}.{at}{ADAPTER}" for at in range(len(gemms))]
        made = [_adapter(names[at], gemms[at], share, lora, wide) for at in chosen(part.name, len(gemms), lora, name=name, targets=targets)]
        one = read and part.name == "mlp.up" and bool(lora.adapted & _READ)
        adapted += [*made[: 1 - one], *(_reading(adapter, gemms[0], share, lora, wide) for adapter in made[1 - one :])]
    return adapted


def _wide(part: Part, gemm: Gemm, share: Share) -> int:
    """Bytes of an element of what the linear reads: those of the residual stream where it casts that, or reads a norm's result."""
    cast: Work = MemoryBound("cast", 4 * gemm.m * gemm.k, 2 * gemm.m * gemm.k, share.act)
    streamed = part.normed or cast in part.forward[len(part.tensors) * share.autocast :]
    return share.es if streamed and not share.framework.compile else share.e


def _reading(adapter: Part, base: Gemm, share: Share, lora: Lora, read: int) -> Part:
    """An adapter of a linear whose input another adapter has kept already, where it makes no copy of its own."""
    return adapter if copies(lora, share, read) else replace(adapter, saved=adapter.saved - base.m * base.k * share.e)


def copies(lora: Lora, share: Share, read: int) -> bool:
    """Does each adapter keep a copy of its own of what its linear reads, in elements of `read` bytes?"""
    return lora.dropout > 0 or share.framework.precision.wide_adapters or read > share.e


def base_in_halves(blocks: Blocks) -> Blocks:
    """The blocks with 16-bit elements in all that is frozen, whatever the adapters have (`Precision.wide_adapters`)."""
    made = {id(block): replace(block, parts=tuple(_halved(part) for part in block.parts)) for _, block in blocks}
    return tuple((name, made[id(block)]) for name, block in blocks)


def _halved(part: Part) -> Part:
    return replace(part, stored=2.0) if part.frozen and part.tensors and not part.stored else part


def freeze(parts: list[Part]) -> list[Part]:
    """The parts of the base without gradients of their weights (a tied head's are the embedding's): products then need not keep their inputs.
    Adapters stay as they are."""
    return [_still(part) if (part.tensors or part.wgrad) and not (part.frozen or part.name.endswith(ADAPTER)) else part for part in parts]


def reread(lora: Lora | None, share: Share) -> int | None:
    """Bytes of an element of attention's result that what reads it keeps: the frozen projection none, an adapter all, unless it is dropout's
    result or a copy that it reads. None without adapters (`core`)."""
    if lora is None:
        return None
    return 0 if lora.dropout or share.framework.precision.wide_adapters or "proj" not in lora.targets else share.e


def _still(part: Part) -> Part:
    """What a product keeps is its input, for the weights' gradient alone, whatever casts and sorts rows around it; a router's scores stay. A
    convolution keeps its input in any case (torch's derivatives.yaml: one function, convolution_backward, gives all its gradients)."""
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


def _adapter(name: str, base: Gemm, share: Share, lora: Lora, read: int) -> Part:
    """`read`: bytes of an element of what the linear reads. What is wider than products take is cast for them, and so are weights of 32 bits; their
    gradients take the way back."""
    m, k, n = base.m, base.k, base.n
    r, e, dtype = lora.rank, share.e, share.core
    drops, wide = lora.dropout > 0, 4 if share.framework.precision.wide_adapters else read
    widen, narrowed = (
        [elementwise("cast", share, m * k, read, wide)] * (wide > read),
        [elementwise("cast", share, m * k, wide, e)] * (wide > e),
    )
    down, up = weight_casts(share, (r * k, n * r), always=share.framework.precision.wide_adapters)
    forward: list[Work] = [*widen, *[elementwise("dropout", share, m * k, wide, wide + 1)] * drops, *narrowed]
    forward += [
        *down,
        Gemm(m, r, k, dtype),
        Gemm(m, n, r, dtype),
        elementwise("scale", share, m * n, e, e),
        elementwise("add", share, m * n, 2 * e, e),
    ]
    backward: list[Work] = [elementwise("scale", share, m * n, e, e), Gemm(m, r, n, dtype, 1, "dgrad"), Gemm(m, k, r, dtype, 1, "dgrad")]
    backward += [elementwise("cast", share, m * k, e, wide)] * (wide > e)
    backward += [elementwise("dropout", share, m * k, wide + 1, wide)] * drops
    backward += [elementwise("cast", share, m * k, wide, read)] * (wide > read)
    backward.append(elementwise("add", share, m * k, 2 * read, read))
    wgrad = (Gemm(n, r, m, dtype, 1, "wgrad"), Gemm(r, k, m, dtype, 1, "wgrad"), *up)
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
