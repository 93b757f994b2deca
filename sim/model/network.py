"""`describe`: a model spec on one rank of a split, as the `Network` that the lowering reads."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

import msgspec

from sim.framework.framework import Framework
from sim.model.captured import Captured, boundary
from sim.model.captured import blocks_of as captured_blocks
from sim.model.parts import Block, Network, Shape
from sim.model.specs.clip import Clip
from sim.model.specs.decoder import Decoder
from sim.model.specs.diffusion import DiffusionUNet, Dit, Flux, Wan
from sim.model.specs.pictures import Pictures
from sim.model.specs.recommender import Dlrm
from sim.model.specs.spec import Cnn, EncDec, Encoder, Mlp, ModelSpec, Seq2Seq, TransformerXl, Vit
from sim.model.specs.speech import Wav2Vec, Whisper
from sim.model.specs.vlm import VisionLanguage
from sim.work import MemoryBound
from topologies.errors import Refused

if TYPE_CHECKING:
    from sim.model.layers.begun import Ways

Blocks = tuple[tuple[str, Block], ...]


class _Totals(msgspec.Struct, frozen=True):
    parameters: int
    active: int
    flops: float
    forward: float


def describe(model: ModelSpec, shape: Shape, framework: Framework, attention: str = "flash") -> Network:
    """The network of `model` on one rank of `shape`. Raises `BadInput` where the split does not divide the model.

    Totals (parameters, FLOPs) are those of the whole model, from its description on one rank in bf16.
    """
    blocks = tuple((name, _end(block) if block.end else block) for name, block in _blocks(model, shape, framework, attention))
    micro = shape.micro if _shared_in_batch(model) else 1
    totals = _totals(model, shape.seq, shape.documents, micro, framework.linears.fused_projections)
    tokens = min(shape.seq, model.longest) if isinstance(model, Seq2Seq) else shape.seq
    return Network(
        name=model.name or type(model).__name__.lower(),
        blocks=blocks,
        boundary=boundary(blocks) if isinstance(model, Captured) else next((b.saved_input for _, b in blocks if b.saved_input), 0),
        parameters=totals.parameters,
        active_parameters=totals.active,
        flops_per_sample=totals.flops,
        forward_flops_per_sample=totals.forward,
        sample_unit=model.unit,
        seq=tokens if model.unit == "sequences" else 1,
        sample_bytes=model.input_bytes(tokens // shape.cp),
        whole_batches=isinstance(model, Dlrm),
        compares=(model.axis,) if isinstance(model, Clip) else (),
        chain=getattr(model, "chain", True),
        end_layers=framework.pipeline.ends_as_layers,
        tied=_tied(model),
        heads=_heads(model) if _ahead(model) and not getattr(model, "tied", False) else (),
        unseen=getattr(model, "unseen", ()),
        captured=isinstance(model, Captured),
    )


def _end(block: Block) -> Block:
    """An end of the model: its matrices are no hidden layer's (Jordan 2024 leaves input and output to AdamW)."""
    if not any(part.matrices for part in block.parts):
        return block
    parts = tuple(msgspec.structs.replace(part, matrices=(), tables=(*part.tables, *part.matrices)) for part in block.parts)
    return msgspec.structs.replace(block, parts=parts)


def _tied(model: ModelSpec) -> tuple[str, ...]:
    """An encoder-decoder's two embeddings are one table, whatever its head has; modules of multi-token prediction read the model's; and speech
    has one where its text begins."""
    holder = "target" if isinstance(model, Whisper) else "embed"
    tied = isinstance(model, Whisper) or (getattr(model, "tied", False) and getattr(model, "head", "") not in ("squad", "none"))
    others = ("target",) if isinstance(model, EncDec) else _ahead(model)
    heads = _heads(model) if tied else ()
    return (holder, *others, *heads) if others or heads else ()


def _ahead(model: ModelSpec) -> tuple[str, ...]:
    return tuple(f"mtp{at}" for at in range(getattr(model, "mtp", 0)))


def _heads(model: ModelSpec) -> tuple[str, ...]:
    """The head, and its products with what multi-token prediction makes."""
    return ("head", *(f"{name}.head" for name in _ahead(model)))


_BUILDERS: dict[type, tuple[str, str]] = {
    Decoder: ("language.decoder", "blocks_of"),
    Mlp: ("multilayer", "blocks_of"),
    Encoder: ("language.encoder", "blocks_of"),
    Vit: ("language.encoder", "vit_blocks"),
    Cnn: ("pictures.cnn", "blocks_of"),
    Pictures: ("pictures.builders", "blocks_of"),
    Dit: ("diffusion.dit", "blocks_of"),
    Flux: ("diffusion.flux", "blocks_of"),
    DiffusionUNet: ("diffusion.unet", "blocks_of"),
    Wan: ("diffusion.wan", "blocks_of"),
    Clip: ("multimodal.clip", "blocks_of"),
    Dlrm: ("dlrm", "blocks_of"),
    Whisper: ("speech.whisper", "blocks_of"),
    Wav2Vec: ("speech.wav2vec", "blocks_of"),
    VisionLanguage: ("multimodal.vlm", "blocks_of"),
    EncDec: ("language.encdec", "blocks_of"),
    TransformerXl: ("language.xl", "blocks_of"),
    Seq2Seq: ("language.lstm", "blocks_of"),
}
"""Spec, or what several specs are -> the module of `sim.model` and its function that build the blocks; loaded when a model needs it."""
_WITHOUT_ATTENTION = (Mlp, Cnn, Dlrm, TransformerXl, Seq2Seq)
"""Specs whose builders have no kinds of attention to choose from."""


def _blocks(model: ModelSpec, shape: Shape, framework: Framework, attention: str) -> Blocks:
    if isinstance(model, Captured):
        return captured_blocks(model, shape)
    found = next((_BUILDERS[kind] for kind in type(model).__mro__ if kind in _BUILDERS), None)
    if found is None:
        raise Refused(f"a model of family {type(model).__name__} is not supported")
    home = import_module(f"sim.model.{found[0]}")
    build = getattr(home, found[1])
    choices = () if isinstance(model, _WITHOUT_ATTENTION) else (attention,)
    blocks: Blocks = build(model, shape, framework, *choices)
    if getattr(model, "lora", None) is None:
        return blocks
    return _adapted(blocks, framework, getattr(home, "ways", None), getattr(model, "parallel_block", False))


def _adapted(blocks: Blocks, framework: Framework, ways: Ways | None, beside: bool) -> Blocks:
    """Of a model whose adapters alone are trained. `ways`: of its family, where its parts are no chain."""
    from sim.model.layers.begun import begun, chain
    from sim.model.layers.lora import base_in_halves

    narrow = framework.precision.wide_adapters and not framework.precision.autocast
    return begun(base_in_halves(blocks) if narrow else blocks, ways or chain, beside)


def _shared_in_batch(model: ModelSpec) -> bool:
    """Is one sample's share of the work another in a larger batch? A captured model's whose losses compare all pairs, and a Transformer-XL's, whose
    relative positions are projected once for all samples."""
    return isinstance(model, TransformerXl) or (isinstance(model, Captured) and bool(model.third))


_PLAIN = Framework(name="count", source="counting only")


@lru_cache(maxsize=256)
def _totals(model: ModelSpec, seq: int, documents: int, micro: int, fused: bool) -> _Totals:
    """Parameters, and model FLOPs of one sample of `micro`: forward, gradient of inputs, gradient of weights (not of frozen ones).

    Forward counts matrix products, convolutions and attention (its causal half once, inside `documents`); each gradient costs as much. `fused`:
    queries, keys and values are one linear, which has one adapter.
    """
    framework = _PLAIN.but(linears={"fused_projections": fused})
    shape = Shape(micro=micro, seq=seq, documents=documents, precision=getattr(model, "precision", "bf16"))
    blocks = _blocks(model, shape, framework, "flash")
    counted: dict[int, tuple[int, float, float, float]] = {}
    parameters = 0
    idle = flops = forward = 0.0
    for _, block in blocks:
        if id(block) not in counted:
            counted[id(block)] = (block.params, *_block_flops(block), _idle(model, block))
        params, work, ahead, unused = counted[id(block)]
        parameters, flops, forward, idle = parameters + params, flops + work, forward + ahead, idle + unused
    idle += model.untouched if isinstance(model, Dlrm) else 0
    return _Totals(parameters, parameters - round(idle), flops / micro, forward / micro)


def _block_flops(block: Block) -> tuple[float, float]:
    """Of forward and backward, and of forward alone."""
    total = ahead = 0.0
    for part in block.parts:
        forward = sum(work.flops for work in part.forward if not isinstance(work, MemoryBound))
        total += forward * (1 if part.detached else 2 if part.frozen else 3)
        ahead += forward
    return total, ahead


def _idle(model: ModelSpec, block: Block) -> float:
    """Parameters of experts that one token does not pass through."""
    moe = getattr(model, "moe", None)
    if moe is None:
        return 0.0
    return float(sum(part.params for part in block.parts if part.expert) * (1 - moe.top_k / moe.experts))
