"""What one rank computes with: its rows, its element sizes, its framework's habits."""

from __future__ import annotations

import msgspec

from sim.framework.framework import Framework
from sim.model.parts import Shape
from sim.work import BYTES, activation_dtype
from topologies.errors import BadInput, UnknownName


class Share(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One rank's share of one micro-batch of a sequence model, with dtypes. Made by `share_of`."""

    shape: Shape
    framework: Framework
    math: bool
    """Attention of separate kernels, not a fused one."""
    seq: int
    """Tokens of one sequence on this rank (seq / cp)."""
    rows: int
    """Tokens on this rank: micro x seq / cp."""
    srows: int
    """Rows of norms and residuals: rows / tp under sequence parallelism."""
    act: str
    """dtype of activations: bf16, fp16 or fp32."""
    e: int
    """Bytes of one activation."""
    gemm: str
    """dtype of the blocks' linear layers: `act`, tf32, or an 8- or 4-bit format (rowfp8: fp8 with a scale for each row and column)."""
    core: str
    """dtype of attention's products and of the head: never 8- or 4-bit."""
    fused: str
    """dtype of a fused attention kernel: `core`, or 8-bit where the framework says so."""
    es: int
    """Bytes of one element of the residual stream: 4 under autocast (norms return fp32, and fp32 + fp16 = fp32), unless it keeps 16 bits."""
    fp8: bool
    autocast: bool

    @property
    def micro(self) -> int:
        return self.shape.micro

    @property
    def tp(self) -> int:
        return self.shape.tp

    @property
    def gathers_once(self) -> bool:
        """DTensor's plans gather a module's input for all that reads it, what no rank splits included (torch's PrepareModuleInput)."""
        return self.framework.tensor_parallel.style == "dtensor" and self.tp > 1

    def over_tp(self, width: int) -> int:
        """Bytes of all rows of `width` columns, which ranks of tp gather or sum; none without them."""
        return self.rows * width * self.e if self.tp > 1 else 0

    def words(self, vocab: int) -> int:
        """Rows of the vocabulary's table on this rank, with those that fill it up."""
        multiple = self.framework.vocab_multiple
        return -(-vocab // (multiple * self.tp)) * multiple


def share_of(shape: Shape, framework: Framework, attention: str = "flash") -> Share:
    """Raises `UnknownName` for a precision, `BadInput` where cp does not divide the sequence."""
    if shape.precision not in BYTES:
        raise UnknownName("precision", shape.precision, BYTES)
    if attention not in ("flash", "math"):
        raise UnknownName("attention", attention, ("flash", "math"))
    if shape.seq % shape.cp:
        raise BadInput(f"cp = {shape.cp} does not divide seq_len = {shape.seq}. Use a multiple of {shape.cp} as seq_len")
    small = BYTES[shape.precision] < 2
    act = activation_dtype(shape.precision)
    core = "tf32" if shape.precision == "tf32" else act
    rows = shape.micro * (shape.seq // shape.cp)
    split = shape.tp if shape.sequence_parallel else 1
    autocast = framework.precision.autocast and act in ("bf16", "fp16")
    return Share(
        shape=shape,
        framework=framework,
        math=attention == "math",
        seq=shape.seq // shape.cp,
        rows=rows,
        srows=-(-rows // split),
        act=act,
        e=int(BYTES[act]),
        gemm="rowfp8" if shape.precision == "fp8" and framework.linears.fp8_scaling == "rowwise" else shape.precision if small else core,
        core=core,
        fused="fp8" if small and framework.attention.fp8 else core,
        es=4 if autocast and not framework.precision.low_stream else int(BYTES[act]),
        fp8=small,
        autocast=autocast,
    )
