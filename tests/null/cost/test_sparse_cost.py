"""Attention to chosen keys and the scores that choose them, against published timings (sources in sim/cost/params/sparse.toml)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sim.cost.calibration import Calibration, Sample
from sim.cost.kernel import kernel_cost
from sim.cost.nearest import nearest
from sim.cost.sparse import in_parts, sparse_cost
from sim.cost.timed import prices
from sim.work import Attention, Gemm, MemoryBound, Scores, parse_work
from topologies.devices import gpu


def _core(tokens: int, heads: int, d: int, chosen: int, backward: bool) -> Attention:
    """As the benchmark has it: each query picks as many."""
    return Attention(1, heads, 1, tokens, tokens + chosen, d, 512, causal=False, backward=backward, chosen=chosen)


@pytest.mark.parametrize(
    ("name", "tokens", "heads", "d", "chosen", "backward", "milliseconds"),
    [
        ("h200-sxm", 4096, 64, 576, 2048, True, 7.992),
        ("h200-sxm", 32768, 64, 576, 2048, True, 100.843),  # keys and sums do not stay in L2
        ("h200-sxm", 4096, 64, 512, 640, True, 2.664),
        ("h200-sxm", 8192, 128, 512, 1152, True, 16.642),
        ("h200-sxm", 32768, 128, 512, 1152, True, 101.713),
        ("gb200", 4096, 64, 576, 2048, False, 1.138),
        ("gb200", 4096, 64, 576, 2048, True, 4.423),
        ("gb200", 2048, 64, 512, 640, False, 0.221),
        ("gb200", 8192, 128, 512, 1152, False, 1.854),
        ("gb200", 8192, 128, 512, 1152, True, 7.799),
        ("gb300", 8192, 64, 576, 2048, False, 2.132),
        ("gb300", 32768, 128, 512, 1152, False, 7.274),
        ("gb300", 32768, 64, 576, 2048, True, 35.899),
    ],
)
def test_published_kernels(name: str, tokens: int, heads: int, d: int, chosen: int, backward: bool, milliseconds: float) -> None:
    seconds, source = sparse_cost(_core(tokens, heads, d, chosen, backward), gpu(name))
    assert seconds * 1e3 == pytest.approx(milliseconds, rel=0.12) and source == "fitted"


@pytest.mark.parametrize(("keys", "milliseconds"), [(32768, 16.079), (65536, 45.442), (262144, 195.013)])
def test_published_scores(keys: int, milliseconds: float) -> None:
    """The last 32,768 queries of a causal sequence see nearly all keys of a long one."""
    mean, share = keys - 32768 / 2, keys / 2
    seconds, _ = sparse_cost(Scores(1, 32, 32768, keys, 128), gpu("h200-sxm"))
    assert seconds * 1e3 * mean / share == pytest.approx(milliseconds, rel=0.17)


def test_few_heads_take_as_long_as_a_full_block() -> None:
    """Tensor parallelism leaves rows of each block empty: 64 heads over 8 ranks are no faster than on one."""
    times = [sparse_cost(_core(4096, heads, 576, 2048, False), gpu("h100-sxm"))[0] for heads in (8, 64, 65)]
    assert times[0] == times[1] < times[2]


def test_other_devices_are_assumed() -> None:
    assert kernel_cost(_core(4096, 64, 576, 2048, False), gpu("a100-sxm-80gb")).source == "assumed"
    assert kernel_cost(_core(4096, 64, 576, 2048, False), gpu("h100-sxm")).source == "fitted"


@pytest.mark.parametrize("work", [Scores(2, 4, 64, 256, 32, 16, "bf16", True), _core(64, 4, 96, 32, True)])
def test_works_are_read_back(work: Scores | Attention) -> None:
    assert parse_work(str(work)) == work


@pytest.mark.parametrize("backward", [False, True])
def test_parts_do_the_same_products(backward: bool) -> None:
    """Backward of attention: scores again, and the gradients of both products (five products: 3 d + 2 dv, as cuDNN's benchmark counts)."""
    core = replace(_core(64, 4, 96, 32, backward), dv=64)
    products = [work for work in in_parts(core) if isinstance(work, Gemm)]
    assert sum(work.flops for work in products) == 2 * 64 * 4 * 32 * (3 * 96 + 2 * 64 if backward else 96 + 64)
    scores = Scores(2, 4, 64, 64, 32, 16, backward=backward)
    keys = round(scores.pairs / 64)
    assert sum(work.flops for work in in_parts(scores) if isinstance(work, Gemm)) == (3 if backward else 1) * 2 * 2 * 64 * 4 * keys * 32
    picked = in_parts(scores)[0]
    assert isinstance(picked, MemoryBound) and picked.written == 2 * 64 * keys * 32 * 2


def test_a_calibration_prices_the_parts() -> None:
    rows = tuple(Sample("fwd", "fp32", shape, 1e-3, 1e-3, 1e-3, 5) for shape in ((64, 64, 64), (512, 512, 512)))
    known = Calibration(device="cpu", date="", machine="", cores=1, ranks=1, threads=1, tables={"gemm": rows})
    work = replace(_core(64, 4, 96, 32, True), dtype="fp32")
    parts = [prices(known).price(part)[0] for part in in_parts(work)]
    assert prices(known).price(work)[0] == pytest.approx(sum(parts))
    assert nearest(work, known) is None, "points of other attention say nothing of it"
