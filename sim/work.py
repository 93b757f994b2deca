"""What one kernel does, by shape alone: no device, no time.

A `Work` is a small frozen value. It knows its FLOPs (a multiply-add counts two) and the bytes that it must
move at least; `sim.cost` turns it into seconds on a device, `executor.kernels.bodies` into a torch kernel of the
same shape. It prints as one word with its shape (`gemm(m=8,n=8,k=8,dtype=bf16)`), and `parse_work` reads it back.
"""

from __future__ import annotations

import math
import re
from typing import Union

import msgspec

from topologies.errors import BadInput

BYTES = {
    "fp64": 8.0,
    "fp32": 4.0,
    "tf32": 4.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "mxfp8": 1.0,
    "rowfp8": 1.0,
    "fp4": 0.5,
    "nvfp4": 0.5,
    "int8": 1.0,
}
"""Bytes of one element as it is stored; tf32 is a mode of fp32 storage."""


def activation_dtype(precision: str) -> str:
    """dtype in which a plan's `precision` keeps activations: narrower formats than 16 bits are for products alone, and tf32 is stored as fp32."""
    if BYTES[precision] < 2:
        return "bf16"
    return "fp32" if precision == "tf32" else precision


EXACT = ("fp32", "fp64")
"""Dtypes whose products are not those of 16-bit or narrower matrix units, which clocks, draws and tiles were fitted on."""


class _Work(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    def __str__(self) -> str:
        pairs = zip(self.__struct_fields__, msgspec.structs.astuple(self), self.__struct_defaults_all__(), strict=True)
        return f"{type(self).__name__.lower()}({','.join(f'{k}={v}' for k, v, d in pairs if v != d)})"

    @classmethod
    def __struct_defaults_all__(cls) -> tuple[object, ...]:
        missing = len(cls.__struct_fields__) - len(cls.__struct_defaults__)
        return (msgspec.NODEFAULT,) * missing + cls.__struct_defaults__


class Gemm(_Work, tag="gemm", frozen=True):
    """`batch` products of (m, k) by (k, n)."""

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    batch: int = 1
    role: str = "fwd"
    """fwd | dgrad | wgrad: the operand layout (TN, NN, NT)."""
    accumulate: bool = False
    """Adds into a buffer (Megatron's main gradient) instead of writing its own dtype."""
    repeat: int = 1
    """The same kernel so many times in a row (LSTM time steps, expert loops)."""
    into: str = "fp32"
    """Dtype of the buffer that it adds into."""

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch * self.repeat

    @property
    def bytes(self) -> float:
        """Both operands read once, the product written once (a buffer is read and written)."""
        out = product_bytes(self)
        one = (self.m * self.k + self.k * self.n) * BYTES[self.dtype] + self.m * self.n * out
        return one * self.batch * self.repeat


class GroupedGemm(_Work, tag="groupedgemm", frozen=True):
    """`groups` experts share `m` rows (tokens x top-k on this rank): one kernel, or a loop when not fused."""

    groups: int
    m: int
    n: int
    k: int
    dtype: str = "bf16"
    role: str = "fwd"
    accumulate: bool = False
    fused: bool = True
    repeat: int = 1
    into: str = "fp32"

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.repeat

    @property
    def bytes(self) -> float:
        """Rows once; the weights of every expert once, or written once as gradients (wgrad)."""
        out = product_bytes(self)
        if self.role == "wgrad":
            return (self.m * (self.k + self.n) * BYTES[self.dtype] + self.groups * self.k * self.n * out) * self.repeat
        return ((self.m * self.k + self.groups * self.k * self.n) * BYTES[self.dtype] + self.m * self.n * out) * self.repeat


LISTED = "foreach_"
"""Before the name of a pass that multi-tensor kernels make over lists of tensors: torch._foreach_add_ makes `foreach_add_`."""
BLOCK = 65536
"""Elements of a tensor that one block of threads of such a kernel goes through (ATen/native/cuda/MultiTensorApply.cuh, apex)."""
LINE = 16
"""Bytes that matrix units load at once: rows that begin at none of their multiples need other kernels."""
ALIGNED = LINE // 2
"""Elements of 16 bits in them."""


def row_alignment(work: Gemm) -> int:
    """Bytes, 16 at most, of which every row of both operands and of the product is a multiple. A vocabulary of 50,257 leaves 2 in bf16."""
    stored = work.m if work.role == "wgrad" else work.k  # of the first operand, by its layout
    return math.gcd(LINE, round(stored * BYTES[work.dtype]), round(work.n * BYTES[work.dtype]))


def product_bytes(work: Gemm | GroupedGemm) -> float:
    """Bytes that an element of the product moves: written, or read and written where it is added to a buffer."""
    return 2.0 * BYTES[work.into] if work.accumulate else max(BYTES[work.dtype], 2.0)


class Attention(_Work, tag="attention", frozen=True):
    """Fused (flash) attention: softmax(Q K^T) V with `heads` query heads over `kv_heads`.

    FLOPs count the causal half once (2*b*h*s^2*d forward for q = kv = s), backward 5/2 of forward
    (FlashAttention-2 paper, section 4). `window` > 0 limits keys to a sliding window.
    """

    batch: int
    heads: int
    kv_heads: int
    q: int
    kv: int
    d: int
    dv: int = 0
    """Head size of the values where it differs (MLA); 0 means `d`."""
    causal: bool = True
    dtype: str = "bf16"
    backward: bool = False
    window: int = 0
    repeat: int = 1
    chosen: int = 0
    """Keys that each query picks, all of its heads the same: rows of one tensor, whose first `dv` columns are the values (DeepSeek's sparse
    attention over latents); 0: no choice."""

    @property
    def pairs(self) -> float:
        """Query-key pairs that are computed, for one head of one sequence. Fewer queries than keys are a rank's even share of them."""
        return seen_pairs(self.q, self.kv, self.window or self.chosen, self.causal)

    @property
    def flops(self) -> float:
        """Two products over the computed pairs; backward 5/2 of that."""
        forward = 2.0 * self.batch * self.heads * self.pairs * (self.d + (self.dv or self.d))
        return forward * (2.5 if self.backward else 1.0) * self.repeat

    @property
    def bytes(self) -> float:
        """q, k, v and the output once; scores stay on the chip. Backward twice that."""
        dv = self.dv or self.d
        q = self.heads * self.q * (self.d + dv)
        kv = self.kv_heads * self.kv * (self.d + (0 if self.chosen else dv))
        return self.batch * (q + kv) * BYTES[self.dtype] * (2.0 if self.backward else 1.0) * self.repeat


def seen_pairs(q: int, kv: int, most: int, causal: bool) -> float:
    """Of `q` queries and `kv` keys: each query sees the keys before it where `causal`, and no more than `most` of them (0: all)."""
    if most and most < kv:
        return float(q) * most - (q / kv * (most * (most - 1) / 2) if causal else 0.0)
    return float(q) * kv * (0.5 if causal else 1.0)


class Scores(_Work, tag="scores", frozen=True):
    """One number for each query and each key before it: the sum over `heads` of a function of their products with one head of keys. An indexer's
    weighted relu (DeepSeek-V3.2, equation 1), or attention's probabilities that it learns from.

    FLOPs are the products'; backward makes them again, and both gradients. `chosen` > 0: only the keys that a query picked.
    """

    batch: int
    heads: int
    q: int
    kv: int
    d: int
    chosen: int = 0
    dtype: str = "bf16"
    backward: bool = False
    repeat: int = 1

    @property
    def pairs(self) -> float:
        """Of one sequence, as in `Attention`."""
        return seen_pairs(self.q, self.kv, self.chosen, True)

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.heads * self.pairs * self.d * (3.0 if self.backward else 1.0) * self.repeat

    @property
    def bytes(self) -> float:
        """Queries and keys once, the numbers in fp32; backward also both gradients."""
        one = (self.heads * self.q + self.kv) * self.d * BYTES[self.dtype] * (2.0 if self.backward else 1.0) + 4.0 * self.pairs
        return self.batch * one * self.repeat


class Conv(_Work, tag="conv", frozen=True):
    """2-D convolution; `h`, `w` are the input's, `groups` as in torch."""

    batch: int
    c_in: int
    h: int
    w: int
    c_out: int
    kh: int
    kw: int
    stride: int = 1
    padding: int = -1
    """-1: half the kernel ("same" for stride 1)."""
    groups: int = 1
    dtype: str = "fp16"
    role: str = "fwd"
    repeat: int = 1
    channels_last: bool = False
    """fp32 maps whose channels lie side by side (NHWC). What runs on tensor cores is taken as such always: NCHW maps are turned round by
    kernels of their own (sim/model/pictures/vision.py)."""

    @property
    def out(self) -> tuple[int, int]:
        """(height, width) of the output."""
        pad_h, pad_w = (self.kh // 2, self.kw // 2) if self.padding < 0 else (self.padding, self.padding)
        return (self.h + 2 * pad_h - self.kh) // self.stride + 1, (self.w + 2 * pad_w - self.kw) // self.stride + 1

    @property
    def flops(self) -> float:
        """A multiply-add for each output element, input channel of its group and kernel tap."""
        oh, ow = self.out
        return 2.0 * self.batch * oh * ow * self.c_out * (self.c_in // self.groups) * self.kh * self.kw * self.repeat

    @property
    def bytes(self) -> float:
        """Input, output and weights once."""
        oh, ow = self.out
        moved = self.batch * (self.c_in * self.h * self.w + self.c_out * oh * ow)
        weights = self.c_out * (self.c_in // self.groups) * self.kh * self.kw
        return (moved + weights) * BYTES[self.dtype] * self.repeat


class MemoryBound(_Work, tag="memorybound", frozen=True):
    """A kernel whose time is its bytes: norm, activation, softmax, dropout, add, cast, embedding, optimizer..."""

    what: str
    """add | add_ | copy | cast | cast_transpose | activation | glu | dropout | layernorm | rmsnorm | batchnorm | batchnorm_fused | softmax | rope |
    embedding | embedding_backward | scatter_add | cross_entropy | permute | transpose | strided | pool | zero | scale | scale_ | norm (of a vector) |
    sgd | adam ...; strided: elementwise, over heads that lie between tokens. As in torch, a name that ends in _ writes over one of what it
    reads, and one that begins with foreach_ goes over lists of tensors."""
    read: int
    written: int
    dtype: str = "bf16"
    ops: float = 0.0
    """FLOPs, where they matter for the record."""
    repeat: int = 1
    rows: int = 0
    """Rows of a row-wise kernel (norms, softmax), tensors of a pass over lists: 0 where it does not matter."""
    halves: bool = False
    """One of its inputs is a half of each of `rows` rows (a chunk of a fused projection): torch's kernels read and write such values one by one."""

    @property
    def flops(self) -> float:
        return self.ops * self.repeat

    @property
    def bytes(self) -> float:
        return float(self.read + self.written) * self.repeat

    @property
    def elements(self) -> int:
        """That one kernel writes, or reads where it writes none: 1 at least."""
        return max(1, int((self.written or self.read) / BYTES[self.dtype]))


class HostWork(_Work, tag="hostwork", frozen=True):
    """Time on a CPU thread: `what` names the kind, `count` how many; `seconds` when the plan itself states it."""

    what: str
    """module | autograd | optimizer | preprocess | collate | log | checkpoint | collective ..."""
    count: float = 1.0
    seconds: float = 0.0
    repeat: int = 1
    processes: float = 1.0
    """Loader processes of the rank that do the same in turn, so that in the steady state all of them are at work at once."""
    moved: float = 0.0
    """Bytes that it reads from and writes to the socket's memory."""
    share: float = 1.0
    """Of what it takes from the machine, where one of several ranks does it for all of them: one of so many equal parts, each on a rank."""

    @property
    def flops(self) -> float:
        return 0.0

    @property
    def bytes(self) -> float:
        return 0.0


Work = Union[Gemm, GroupedGemm, Attention, Scores, Conv, MemoryBound, HostWork]
_KINDS: dict[str, type[Work]] = {k.__name__.lower(): k for k in (Gemm, GroupedGemm, Attention, Scores, Conv, MemoryBound, HostWork)}
_TEXT = re.compile(r"([a-z]+)\(([^()]*)\)\Z")


def parse_work(text: str) -> Work:
    """The inverse of `str(work)`. Raises `BadInput`."""
    match = _TEXT.match(text)
    if match is None or match.group(1) not in _KINDS:
        raise BadInput(f"cannot read work {text[:60]!r}. Allowed: {', '.join(_KINDS)}, e.g. gemm(m=8,n=8,k=8)")
    pairs = [item.partition("=") for item in match.group(2).split(",") if item]
    fields = {key: {"True": True, "False": False}.get(value, value) for key, _, value in pairs}
    try:
        return msgspec.convert(fields, _KINDS[match.group(1)], strict=False)
    except msgspec.ValidationError as error:
        raise BadInput(f"cannot read work {text[:60]!r}: {error}") from None
