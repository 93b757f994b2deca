"""`describe`: a model spec on one rank of a split, as the `Network` that the lowering reads."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from sim.framework import Framework
from sim.model.captured import Captured, boundary
from sim.model.decoder_spec import Decoder
from sim.model.parts import Block, Network, Shape
from sim.model.picture_spec import Pictures
from sim.model.recommender_spec import Dlrm
from sim.model.spec import Cnn, EncDec, Encoder, Mlp, ModelSpec, Seq2Seq, TransformerXl, Vit
from sim.model.speech_spec import Whisper
from topologies.errors import Refused

Blocks = tuple[tuple[str, Block], ...]


class _Totals(msgspec.Struct, frozen=True):
    parameters: int
    active: int
    flops: float


def describe(model: ModelSpec, shape: Shape, framework: Framework, attention: str = "flash") -> Network:
    """The network of `model` on one rank of `shape`. Raises `BadInput` where the split does not divide the model.

    Totals (parameters, FLOPs) are those of the whole model, from its description on one rank in bf16.
    """
    blocks = _blocks(model, shape, framework, attention)
    totals = _totals(model, shape.seq)
    tied = ("embed", "head") if getattr(model, "tied", False) and getattr(model, "head", "") not in ("squad", "none") else None
    return Network(
        name=model.name,
        blocks=blocks,
        boundary=boundary(blocks) if isinstance(model, Captured) else next((b.saved_input for _, b in blocks if b.saved_input), 0),
        parameters=totals.parameters,
        active_parameters=totals.active,
        flops_per_sample=totals.flops,
        sample_unit=_unit(model),
        seq=shape.seq if _unit(model) == "sequences" else 1,
        sample_bytes=_sample_bytes(model, shape),
        whole_batches=isinstance(model, Dlrm),
        chain=getattr(model, "chain", getattr(model, "arch", "") != "mask-rcnn"),
        tied=tied,
    )


def _blocks(model: ModelSpec, shape: Shape, framework: Framework, attention: str) -> Blocks:
    if isinstance(model, Decoder):
        from sim.model import decoder

        return decoder.blocks_of(model, shape, framework, attention)
    if isinstance(model, Mlp):
        from sim.model import multilayer

        return multilayer.blocks_of(model, shape, framework)
    if isinstance(model, Encoder):
        from sim.model import encoder

        return encoder.blocks_of(model, shape, framework, attention)
    if isinstance(model, Vit):
        from sim.model import encoder

        return encoder.vit_blocks(model, shape, framework, attention)
    if isinstance(model, Cnn):
        from sim.model import cnn

        return cnn.blocks_of(model, shape, framework)
    if isinstance(model, Pictures):
        from sim.model import pictures

        return pictures.blocks_of(model, shape, framework, attention)
    if isinstance(model, Dlrm):
        from sim.model import dlrm

        return dlrm.blocks_of(model, shape, framework)
    if isinstance(model, Whisper):
        from sim.model import whisper

        return whisper.blocks_of(model, shape, framework, attention)
    if isinstance(model, EncDec):
        from sim.model import encdec

        return encdec.blocks_of(model, shape, framework, attention)
    if isinstance(model, TransformerXl):
        from sim.model import xl

        return xl.blocks_of(model, shape, framework)
    if isinstance(model, Seq2Seq):
        from sim.model import lstm

        return lstm.blocks_of(model, shape, framework)
    if isinstance(model, Captured):
        from sim.model import captured

        return captured.blocks_of(model, shape)
    raise Refused(f"a model of family {type(model).__name__} cannot be described")


def _unit(model: ModelSpec) -> str:
    if isinstance(model, Pictures):
        return model.unit
    if isinstance(model, (Vit, Cnn)):
        return "images"
    if isinstance(model, Captured):
        return "sequences" if model.seq > 1 else "samples"
    return "samples" if isinstance(model, (Mlp, Dlrm)) else "sequences"


def _sample_bytes(model: ModelSpec, shape: Shape) -> int:
    """Token ids and labels are int64 (BERT: also segments and mask); vectors and images are fp32."""
    if isinstance(model, Captured):
        return model.sample_bytes
    if isinstance(model, (Pictures, Dlrm)):
        return model.sample_bytes
    if isinstance(model, Whisper):
        return model.sample_bytes(shape.seq)
    if isinstance(model, Mlp):
        return 4 * (model.widths[0] + model.widths[-1])
    if isinstance(model, Cnn) and model.arch == "mask-rcnn":
        from sim.model import mask_rcnn

        return mask_rcnn.sample_bytes(model)
    if isinstance(model, (Vit, Cnn)):
        side = (
            model.image or (300 if model.arch == "ssd300" else 32 if model.arch == "cifar" else 224)
            if isinstance(model, Cnn)
            else model.image
        )
        return 12 * side * side
    return (32 if isinstance(model, Encoder) else 16) * (shape.seq // shape.cp)


_PLAIN = Framework(name="count", source="counting only")


@lru_cache(maxsize=256)
def _totals(model: ModelSpec, seq: int) -> _Totals:
    """Parameters, and model FLOPs of one sample: forward, gradient of inputs, gradient of weights (not of frozen ones).

    Forward counts matrix products, convolutions and attention (its causal half once); each gradient costs as much.
    """
    blocks = _blocks(model, Shape(micro=1, seq=seq, precision=getattr(model, "precision", "bf16")), _PLAIN, "flash")
    counted: dict[int, tuple[int, float, float]] = {}
    parameters = 0
    idle = flops = 0.0
    for _, block in blocks:
        if id(block) not in counted:
            counted[id(block)] = (block.params, _block_flops(block), _idle(model, block))
        params, work, unused = counted[id(block)]
        parameters, flops, idle = parameters + params, flops + work, idle + unused
    idle += model.untouched if isinstance(model, Dlrm) else 0
    return _Totals(parameters, parameters - round(idle), flops)


def _block_flops(block: Block) -> float:
    total = 0.0
    for part in block.parts:
        forward = sum(work.flops for work in part.forward if type(work).__name__ != "MemoryBound")
        total += forward * (1 if part.detached else 2 if part.frozen else 3)
    return total


def _idle(model: ModelSpec, block: Block) -> float:
    """Parameters of experts that one token does not pass through."""
    moe = getattr(model, "moe", None)
    if moe is None:
        return 0.0
    return float(sum(part.params for part in block.parts if part.expert) * (1 - moe.top_k / moe.experts))
