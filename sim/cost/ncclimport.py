"""Reads what nccl-tests print (`all_reduce_perf` and its kin) into rows of measured times, and fits a topology to them.

The fit sets the rate and the latency of the links that limit the group: inside a node NVLink, xGMI or PCIe, over nodes the NICs
and the network. The rest of the cost model stays as it is, so the fit holds for other collectives and sizes too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from sim.cost.collective import collective_cost
from topologies.errors import BadInput
from topologies.graph import Topology
from topologies.load import load_topology

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce")
_NAME = re.compile(r"\b(" + "|".join((*NAMES, "sendrecv", "gather", "scatter", "hypercube")) + r")_perf\b")
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\s")
_HOST = re.compile(r"^#\s+Rank\s+\d+\s.*\bon\s+(\S+)", re.MULTILINE)
# size (B), count (elements), type, then redop and root where the tool prints them, then the out-of-place time (us).
_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+[a-z]\w*\s+(?:[a-z]\w*\s+)?(?:-?\d+\s+)?(\d+(?:\.\d+)?)\s+\d+\.\d+\s+\d+\.\d+(?:\s|$)")
_CONTRACTION = (math.sqrt(5.0) - 1.0) / 2.0
_ROUNDS = 3
_STEPS = 14
_KINDS = {"NVL": "nvlink", "NVB": "nvlink", "C2C": "c2c", "PIX": "pcie", "PXB": "pcie", "PHB": "pcie", "SYS": "pcie"}


class Timing(NamedTuple):
    """One out-of-place timing; `size` in bytes as nccl-tests count it, `seconds` per call."""

    name: str
    ranks: int
    size: int
    seconds: float


def hosts(text: str) -> tuple[str, ...]:
    """The names of the hosts in the '# Rank' lines of a run, each once, sorted."""
    return tuple(sorted({str(name) for name in _HOST.findall(text)}))


def read_nccl_tests(text: str, unsaid: str = "") -> list[Timing]:
    """The rows of one run. `unsaid`: its collective where the output does not name it (older versions do not). Raises `BadInput` where the text is no such
    output, or has no row with a time."""
    found = {str(word) for word in _NAME.findall(text)} or ({unsaid.replace("all_to_all", "alltoall")} if unsaid else set())
    if len(found) != 1 or not found <= set(NAMES):
        raise BadInput(f"nccl-tests output: collective {sorted(found) or 'not named'}; give one run, named as one of {', '.join(NAMES)}")
    ranks = {int(hit[1]) for line in text.splitlines() if (hit := _RANK.match(line))}
    if not ranks or ranks != set(range(len(ranks))):
        raise BadInput("nccl-tests output: the '# Rank' lines are missing or incomplete; keep the header of the run")
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not re.match(r"^\s*\d+\s+\d+\s", line):
            continue
        hit = _ROW.match(line)
        if hit is None:
            raise BadInput(f"nccl-tests output, line {number}: not a row of size, count, type, time, algbw, busbw: {line.strip()[:80]}")
        if float(hit[3]) > 0:  # sizes too small to give every rank one element are printed with count and time 0
            rows.append(Timing(next(iter(found)).replace("alltoall", "all_to_all"), len(ranks), int(hit[1]), float(hit[3]) * 1e-6))
    if not rows:
        raise BadInput("nccl-tests output: no row with a time")
    return rows


class Calibrated(NamedTuple):
    """Edits of a topology, and a row for each size: bytes, microseconds measured, before and after, and both relative errors."""

    edits: tuple[str, ...]
    table: list[dict[str, object]]

    @property
    def before(self) -> float:
        """Median absolute error without the edits."""
        return median(abs(float(str(row["error_before"]))) for row in self.table)

    @property
    def after(self) -> float:
        """Median absolute error with the edits."""
        return median(abs(float(str(row["error_after"]))) for row in self.table)


def calibrate(path: str | Path, topology: str | Topology, unsaid: str = "") -> Calibrated:
    """The edits that bring the predictions nearest to the timings in `path` (one run of nccl-tests), least squares of log ratios. `unsaid`: the
    collective where the run does not name it.

    The edits are never worse than none: where fitting does not help they are empty. Raises `BadInput` for a file that is no such
    output, a CPU host, or a topology that has fewer nodes or GPUs on each than the run.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None
    timings = [timing for timing in read_nccl_tests(text, unsaid) if timing.size > 0]
    base = load_topology(topology)
    ranks = _ranks(base, timings[0].ranks, len(hosts(text)) or 1)
    rate, latency, rate_edit, latency_edit = _bounds(base, ranks)

    def edits(at: Sequence[float]) -> tuple[str, ...]:
        return (f"{rate_edit}={rate * math.exp(at[0]) / 1e9:.2f} GB/s", f"{latency_edit}={latency * math.exp(at[1]) * 1e6:.3f} us")

    def loss(at: Sequence[float]) -> float:
        return _loss(timings, ranks, load_topology(base, edits(at)))

    best = _search(loss)
    chosen = edits(best) if loss(best) < _loss(timings, ranks, base) else ()
    return Calibrated(chosen, _table(timings, ranks, base, load_topology(base, chosen)))


def _ranks(topology: Topology, count: int, nodes: int) -> tuple[int, ...]:
    """The ranks of the topology that ran: the same number on each of the run's hosts. Raises `BadInput` where it has no such ranks."""
    if topology.kind == "cpu":
        raise BadInput(f"{topology.name} is a CPU host: nccl-tests time GPUs; measure gloo by steptwin probe")
    each, rest = divmod(count, nodes)
    if rest or topology.nodes < nodes or each > topology.ranks_per_node:
        raise BadInput(
            f"the run has {count} ranks on {nodes} hosts; {topology.name} has {topology.nodes} nodes of {topology.ranks_per_node} GPUs. "
            f"Give a topology of at least that, e.g. '{nodes}x dgx-h100'"
        )
    return tuple(node * topology.ranks_per_node + local for node in range(nodes) for local in range(each))


def _bounds(topology: Topology, ranks: tuple[int, ...]) -> tuple[float, float, str, str]:
    """(rate in bytes/s, latency in seconds) of the link that limits the group, and the keys of the edits that set them."""
    if topology.node(ranks[0]) != topology.node(ranks[-1]):
        use = topology.nic_of(ranks[0])
        if use is None:
            raise BadInput(f"{topology.name} has no NIC beside its GPUs: nothing to fit between nodes")
        return use.nics[0].rate / use.nics[0].count, topology.path(ranks[0], ranks[-1]).latency, "nic.rate", "link.net.latency"
    path = topology.path(ranks[0], ranks[1])
    kind = "xgmi" if any("xgmi" in link for link in path.links) else _KINDS.get(path.kind, "nvlink")
    return path.rate, path.latency / max(1, len(path.links)), f"link.{kind}.rate", f"link.{kind}.latency"


def _loss(timings: Sequence[Timing], ranks: tuple[int, ...], topology: Topology) -> float:
    return sum(math.log(collective_cost(t.name, t.size, ranks, topology).seconds / t.seconds) ** 2 for t in timings)


def _search(loss: Callable[[Sequence[float]], float]) -> tuple[float, float]:
    """Golden-section search for (log of the factor on the rate, log of that on the latency), one after the other, `_ROUNDS` times. The factors are at
    most 5 and 20, up or down."""
    at = [0.0, 0.0]
    for _ in range(_ROUNDS):
        for axis, reach in enumerate((math.log(5.0), math.log(20.0))):
            low, high = -reach, reach
            for _ in range(_STEPS):
                step = (high - low) * _CONTRACTION
                left, right = high - step, low + step
                if loss([left if i == axis else v for i, v in enumerate(at)]) <= loss(
                    [right if i == axis else v for i, v in enumerate(at)]
                ):
                    high = right
                else:
                    low = left
            at[axis] = (low + high) / 2.0
    return at[0], at[1]


def _table(timings: Sequence[Timing], ranks: tuple[int, ...], before: Topology, after: Topology) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for t in timings:
        old, new = (collective_cost(t.name, t.size, ranks, topology).seconds for topology in (before, after))
        rows.append(
            {
                "collective": t.name,
                "bytes": t.size,
                "measured_us": t.seconds * 1e6,
                "before_us": old * 1e6,
                "after_us": new * 1e6,
                "error_before": old / t.seconds - 1.0,
                "error_after": new / t.seconds - 1.0,
            }
        )
    return rows
