"""Seconds of a `Work` from measurements on this machine: a calibration's points, interpolated and extrapolated.

Inside the measured points a cost is `measured`, beyond them `fitted` (same efficiency, or bytes in proportion), and
`assumed` where nothing alike was measured. Of a CPU times are those of a call from Python on one rank while all other ranks
do the same, so they hold dispatch, caches and memory bandwidth as a training step sees them; of a GPU the device's own.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial

from msgspec.structs import replace

from sim.cost.between import Curve, Grid
from sim.cost.calibration import ALIASED, Calibration, Sample
from sim.cost.convolved import Convolutions
from sim.cost.memory_bound import filled
from sim.cost.price import Source
from sim.cost.sparse import in_parts, of_choice
from sim.cost.variant import HALVES, NARROW, WEIGHTS, WIDEN, variant
from sim.optimizers import OPTIMIZERS
from sim.work import BYTES, LINE, LISTED, Attention, Conv, Gemm, GroupedGemm, HostWork, MemoryBound, Work, row_alignment

ASSUMED_FLOPS = {"fp32": 5e10, "bf16": 5e10, "fp16": 1e10}
"""FLOP/s of one server core where nothing was measured: AVX2 at 3 GHz reaches 96 peak, about half in GEMMs (assumed)."""
ASSUMED_BYTES = 6e9
"""Bytes per second of memory-bound kernels on one core, both directions together (assumed)."""
_FULL = 1 << 16
"""Rows of queries with which attention reaches its measured rate on a GPU: four waves of 128 rows on 132 SMs; fewer leave more of them idle."""
_COLUMN = 64
"""Number of elements of a column that exceeds the ways of any cache: an L1 has 8 to 12 ways."""
_STREAMED = 192 << 20
"""Bytes of a kernel from which no GPU's L2 holds a large part of its data (a B200 has 126 MB)."""
ASSUMED_HOST = {
    "kernel": 3e-6,
    "module": 4e-6,
    "view": 2e-6,
    "autograd": 4e-6,
    "node": 4e-6,
    "optimizer": 10e-6,
    "optimizer_step": 30e-6,
    "accumulate": 5e-6,
    "cpu_optimizer": 5e-9,
    "collate": 20e-6,
    "log": 5e-6,
    "collective": 40e-6,
    "ddp_step": 150e-6,
    "ddp_bucket": 40e-6,
    "ddp_parameter": 3e-6,
    "fsdp_unit": 200e-6,
    "fsdp_parameter": 10e-6,
    "checkpointed": 150e-6,
    "packed": 4e-6,
    "dtensor_linear": 200e-6,
    "dtensor_norm": 100e-6,
    "dtensor_adam": 80e-6,
    "dtensor_sgd": 5e-6,
    "loader": 150e-6,
    "checkpoint": 500e-6,
}
"""Seconds of host work where nothing was measured (assumed; eager PyTorch spends 5-25 us per op in all)."""
_ASSUMED_UNIT = 2e-6
"""The same for a kind that is not listed (assumed: a short call from Python)."""
_LEAST_KERNEL = 0.25
"""Share of a call's measured seconds that its kernel takes at least (assumed): the dispatch, measured by itself, may be as long as the whole call."""


@lru_cache(maxsize=4)
def prices(calibration: Calibration) -> Prices:
    """The calibration's curves, built once."""
    return Prices(calibration)


_NEAREST = {
    "sqrt": "scale", "scatter_add": "embedding_backward", "strided": "scale", "add_": "add", "scale_": "scale", "softmax_wide": "softmax", "softmax_wide_backward": "softmax_backward",
    WEIGHTS: "reduce", WIDEN: "cast",
} | {name: one.like for name, one in OPTIMIZERS.items()}  # fmt: skip
"""Kernel -> the one that stands in for it, where older calibrations, or all, do not measure it."""


class Prices:
    """Curves and grids over one calibration's points."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self._known: dict[Work, tuple[float, Source]] = {}
        self._gemm: dict[tuple[str, str, int], Grid] = {}
        """By (role, dtype, bytes to which rows are aligned: `_rows`)."""
        self._longer = {
            (s.name, s.dtype, s.shape[at]): s.median
            for s in calibration.rows("aliased")
            for at, along in enumerate("mn")
            if s.name.endswith(f".{along}")
        }
        """By (role and axis, dtype, row length): how many times as long a product takes whose rows are a power of two long."""
        self._attention: dict[tuple[str, str], Grid] = {}
        self._memory: dict[tuple[str, str], Curve] = {}
        products: dict[tuple[str, str, int], list[Sample]] = {}
        for s in calibration.rows("gemm"):
            m, n, k = s.shape
            products.setdefault((s.name, s.dtype, self._rows(Gemm(m, n, k, s.dtype, 1, s.name))), []).append(s)
        for key, rows in products.items():
            self._gemm[key] = Grid(((s.shape, s.median) for s in rows), partial(_of_product, BYTES[key[1]]))
        head = _of_head if calibration.device == "cpu" else _flops_of_head
        for name, dtype in {(s.name, s.dtype) for s in calibration.rows("attention")}:
            rows = calibration.rows("attention", name, dtype)
            self._attention[name, dtype] = Grid(((s.shape[2:], s.median / math.prod(s.shape[:2])) for s in rows), head)
        for name, dtype in {(s.name, s.dtype) for s in calibration.rows("memory")}:
            self._memory[name, dtype] = calibration.curve("memory", name, dtype)
        self._convolutions = {
            key: Convolutions(calibration.rows("conv", *key)) for key in {(s.name, s.dtype) for s in calibration.rows("conv")}
        }
        # A call's own seconds on a CPU hold the way to its kernel; what was timed of a GPU are the device's.
        self.dispatch = self.host("kernel")[0] if calibration.device == "cpu" else 0.0

    def host(self, what: str) -> tuple[float, Source]:
        """Seconds of one unit of host work."""
        seconds, measured = self.calibration.host_seconds(what, ASSUMED_HOST.get(what, _ASSUMED_UNIT))
        return seconds, "measured" if measured else "assumed"

    def price(self, work: Work) -> tuple[float, Source]:
        """Seconds of all repetitions, and their source."""
        found = self._known.get(work)
        if found is None:
            one, source = self._one(work)
            found = self._known[work] = (one * work.repeat, source)
        return found

    def _one(self, work: Work) -> tuple[float, Source]:
        if isinstance(work, Gemm):
            return self._product(work)
        if isinstance(work, MemoryBound):
            return self._bytes(work)
        if of_choice(work):
            parts = [self.price(replace(part, repeat=1)) for part in in_parts(work)]
            return sum(seconds for seconds, _ in parts), "assumed" if any(source == "assumed" for _, source in parts) else "fitted"
        if isinstance(work, Attention):
            return self._fused_attention(work)
        if isinstance(work, Conv):
            return self._convolution(work)
        if isinstance(work, GroupedGemm):
            return self._experts(work)
        assert isinstance(work, HostWork)
        if work.seconds:
            return work.seconds * work.count, "measured"
        seconds, source = self.host(work.what)
        return seconds * work.count, source

    def _product(self, work: Gemm) -> tuple[float, Source]:
        dtype = self._exact(work.dtype)
        aligned = self._rows(work)
        # Rows of 8 bytes were not timed: those of 4 take kernels of the same kind.
        near = [(role, dtype, rows) for rows in (aligned, aligned // 2, LINE) for role in (work.role, "fwd")]
        grid = next((self._gemm[key] for key in near if key in self._gemm), None)
        if grid is None:
            return self._assumed(work, dtype)
        seconds, inside = grid.at((work.m, work.n, work.k))
        if not inside:  # a product thinner than those measured is bound by its larger operand's bytes
            seconds = max(seconds, max(work.k * work.n, work.m * work.k) * BYTES[dtype] / (2.0 * self.calibration.copy_rate))
        seconds *= self._aliased(work, dtype)
        # One call runs all products of a batch, so it pays for one dispatch.
        seconds = work.batch * max(seconds - self.dispatch, _LEAST_KERNEL * seconds) + self.dispatch if work.batch > 1 else seconds
        if work.accumulate:
            seconds += self._added(work)
        # Products of a batch share a GPU, and one that adds to what is there reads it on the way: neither is the sum of what was measured.
        alone = self.calibration.device == "cpu" or not (work.batch > 1 or work.accumulate)
        exact = inside and alone and (work.role, dtype, aligned) in self._gemm
        return seconds, "measured" if exact else "fitted"

    def _aliased(self, work: Gemm, dtype: str) -> float:
        """How many times as long the product takes as one whose rows are not a power of two long: elements of a column then fall into the same few sets of a
        cache, and evict each other where there are more of them than ways."""
        if not self._longer or work.k < _COLUMN:
            return 1.0
        found = 1.0
        for along, long in (("m", work.m), ("n", work.n)):
            near = next((size for size in reversed(ALIASED) if long % size == 0), 0)
            found *= self._longer.get((f"{work.role}.{along}", dtype, near), 1.0)
        return found

    def _added(self, work: Gemm) -> float:
        """Seconds to add the product to a buffer. A buffer of the product's dtype is read inside the GEMM (beta = 1), a third of the bytes that the separate
        add_ moves which torch runs for a buffer of another dtype."""
        size = int(BYTES[work.into]) * work.m * work.n * work.batch
        added = self._bytes(MemoryBound("add_", 2 * size, size, work.into))[0]
        return added / 3.0 if work.into == work.dtype else added

    def _rows(self, work: Gemm) -> int:
        """Bytes to which all rows are aligned, where the choice of kernel depends on it (16-bit products on a GPU); else 16, the largest."""
        return row_alignment(work) if self.calibration.device == "cuda" and BYTES[work.dtype] == 2 else LINE

    def _assumed(self, work: Work, dtype: str) -> tuple[float, Source]:
        flops = ASSUMED_FLOPS.get(dtype, ASSUMED_FLOPS["fp32"])
        return max(work.flops / flops, work.bytes / ASSUMED_BYTES) / work.repeat + ASSUMED_HOST["kernel"], "assumed"

    def _bytes(self, work: MemoryBound) -> tuple[float, Source]:
        name, size = variant(work), float(work.read + work.written)
        if self.calibration.device == "cpu":  # whose vectors read a half of a row as they read a row
            name = name.removesuffix(HALVES)
        if name.startswith(LISTED):
            return self._listed(work, size)
        if name != WEIGHTS:
            return self._moved(name, work.dtype, size)
        if self.calibration.device == "cpu":
            return 0.0, "measured"  # with the gradient of the norm's input, in one pass over its rows
        # A block of threads of a GPU for each 32 columns goes through all rows: fewer columns leave SMs idle, more fill the memory's bandwidth.
        rows = 2.0 * work.rows * NARROW * BYTES[work.dtype] or size
        return max(self._moved(name, work.dtype, rows), self._moved("reduce", work.dtype, size))

    def _listed(self, work: MemoryBound, size: float) -> tuple[float, Source]:
        """Seconds of a multi-tensor kernel. Over small tensors it takes the `filled` part of the measured time, but at least as long as a kernel over as
        many bytes of one tensor."""
        (seconds, source), share = self._moved(work.what, work.dtype, size), filled(work)
        if share < 1.0:
            seconds = max(share * seconds, self._moved(work.what.removeprefix(LISTED), work.dtype, size)[0])
        return seconds, source

    def _moved(self, name: str, dtype: str, size: float) -> tuple[float, Source]:
        """Seconds of a kernel by its bytes."""
        curve = self._memory.get((name, dtype))
        source: Source = "measured"
        if not curve:
            source = "fitted"
            curve = (
                self._memory.get((name, "fp32"))
                or self._memory.get((_NEAREST.get(name, name.removesuffix("_backward")), "fp32"))
                or self._memory.get(("add", "fp32"))
            )
        if not curve:
            return size / ASSUMED_BYTES + ASSUMED_HOST["kernel"], "assumed"
        seconds, inside = curve.at(max(size, 1.0))
        streamed = self.calibration.device == "cuda" and size > curve.sizes[-1] >= _STREAMED  # more of it keeps the rate
        return seconds, source if inside or streamed else "fitted"

    def _fused_attention(self, work: Attention) -> tuple[float, Source]:
        way, dtype = "bwd" if work.backward else "fwd", self._exact(work.dtype)
        own = (way if work.causal else f"{way}_full", dtype)
        near = (own, (way, dtype), (own[0], "fp32"), (way, "fp32"), (way, "bf16"))
        found = next((key for key in near if key in self._attention), None)
        if found is None:
            return self._assumed(work, work.dtype)
        seq = max(1, round(math.sqrt(work.q * work.kv)))
        head, inside = self._attention[found].at((seq, work.d))
        like = Attention(1, 1, 1, seq, seq, work.d, causal=found[0] in ("fwd", "bwd"), backward=work.backward)
        full = self.calibration.device == "cpu" or work.batch * work.heads * work.q >= _FULL
        plain = inside and full and work.q == work.kv and not work.window and found == own
        return max(self.dispatch, head * work.flops / work.repeat / like.flops), "measured" if plain else "fitted"

    def _exact(self, dtype: str) -> str:
        """CPUs have no TF32."""
        return "fp32" if dtype == "tf32" and self.calibration.device == "cpu" else dtype

    def _convolution(self, work: Conv) -> tuple[float, Source]:
        """Interpolated between measured convolutions of its role and dtype; where there are none, of other dtypes, or of the forward role."""
        own = work.role, self._exact(work.dtype)
        near = (own, *((role, dtype) for role in (work.role, "fwd") for dtype in BYTES))
        found = next((key for key in near if key in self._convolutions), None)
        if found is None:
            return self._assumed(work, work.dtype)
        seconds, measured = self._convolutions[found].at(work)
        if measured and found == own:
            return max(self.dispatch, seconds), "measured"
        # Of few points none may say what one of few channels in a group is bound by: its maps' bytes.
        return max(self.dispatch, seconds, work.bytes / work.repeat / (2.0 * self.calibration.copy_rate)), "fitted"

    def _experts(self, work: GroupedGemm) -> tuple[float, Source]:
        share = max(1, work.m // work.groups)
        m, n, k = (work.n, work.k, share) if work.role == "wgrad" else (share, work.n, work.k)
        seconds, source = self._product(Gemm(m, n, k, work.dtype, 1, work.role, work.accumulate, 1, work.into))
        return seconds * work.groups, "fitted" if source == "measured" else source


def _of_product(size: float, shape: tuple[int, ...]) -> tuple[float, float]:
    """FLOPs of a product, and bytes of its operands and of itself."""
    m, n, k = shape
    return 2.0 * m * n * k, (m * k + k * n + m * n) * size


def _of_head(shape: tuple[int, ...]) -> tuple[float, float, float]:
    """Terms of one head of attention: products of queries and keys, elements of its rows, one call."""
    seq, d = shape
    return float(seq * seq * d), float(seq * d), 1.0


def _flops_of_head(shape: tuple[int, ...]) -> tuple[float]:
    """The first term of `_of_head` alone: a GPU's tiles round rows up, and a fit with more terms would count that as a cost of each row."""
    return _of_head(shape)[:1]
