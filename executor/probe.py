"""Measures this machine: the calibration file of `sim.cost.calibration`.

As many ranks measure at once as will train, each with the same threads, so that shared caches, memory bandwidth and
hyper-threads are in the figures. About a minute on two cores.
"""

from __future__ import annotations

import datetime
import platform
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from executor.environment import cores, place
from executor.launch import launch
from executor.world import World
from sim.cost.calibration import SHAPES, Calibration, Sample, save_calibration
from topologies.errors import BadInput, RunFailed
from topologies.thismachine import RANKS

if TYPE_CHECKING:
    from executor.probes.bench import Bench


class Request(msgspec.Struct, frozen=True):
    """What the parent asks of each rank."""

    quick: bool = False
    communication: bool = False
    """Collectives and messages alone."""


class Measured(msgspec.Struct, frozen=True):
    """What one rank answers."""

    samples: list[tuple[str, Sample]]
    device: str
    threads: int
    versions: dict[str, str]


def probe(ranks: int, path: str | Path | None = None, quick: bool = False) -> Calibration:
    """Measures with `ranks` processes and writes the calibration to `path`. Raises `RunFailed`."""
    calibration = _probe(ranks, Request(quick))
    if path is not None:
        save_calibration(calibration, path)
    return calibration


def comm_probe(ranks: int, quick: bool = False) -> Calibration:
    """The tables of what ranks do together, alone: kernels are those of one rank. Raises `RunFailed`."""
    return _probe(ranks, Request(quick, communication=True))


def _probe(ranks: int, request: Request) -> Calibration:
    if ranks > RANKS and place() is None:
        raise BadInput(f"{ranks} ranks are more than the {RANKS} that one machine takes: probe with as many as will train here")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="steptwin-probe-") as folder:
        try:
            found = launch("executor.probe:measure", request, ranks, Path(folder), Measured)
        except RunFailed as error:  # half a calibration is none, and the folder goes
            raise RunFailed(f"the probe came to no end, no calibration was written: {error.cause}") from None
    return Calibration(
        device="cuda" if found[0].device == "cuda" else "cpu",
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        machine=_host(),
        cores=cores(),
        ranks=ranks,
        threads=found[0].threads,
        seconds=time.monotonic() - begin,
        versions=found[0].versions,
        quick=request.quick,
        tables=merge([rank.samples for rank in found]),
    )


def _host() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def merge(ranks: list[list[tuple[str, Sample]]]) -> dict[str, tuple[Sample, ...]]:
    """One table per kind: each point the mean of the ranks' medians, the widest of their spreads."""
    points: dict[tuple[str, str, str, tuple[int, ...]], list[Sample]] = {}
    for samples in ranks:
        for kind, s in samples:
            points.setdefault((kind, s.name, s.dtype, s.shape), []).append(s)
    tables: dict[str, list[Sample]] = {kind: [] for kind in SHAPES}
    for (kind, name, dtype, shape), same in points.items():
        n = len(same)
        middle, cpu = sum(s.median for s in same) / n, sum(s.cpu for s in same) / n
        tables[kind].append(
            Sample(name, dtype, shape, middle, min(s.p10 for s in same), max(s.p90 for s in same), sum(s.n for s in same), cpu)
        )
    return {kind: tuple(rows) for kind, rows in tables.items() if rows}


def _alone(bench: Bench) -> None:
    """What a rank measures by itself: kernels of its device, and the host's share."""
    from executor.probes import device as probe_device
    from executor.probes import kernels as probe_kernels
    from executor.probes.ddp import ddp
    from executor.probes.host import dispatch
    from executor.probes.input import files, loader
    from executor.probes.optimizers import optimizers
    from executor.probes.sharded import sharded

    if bench.world.kind == "cuda":
        for table in (
            probe_device.gemms,
            probe_device.memory_bound,
            probe_device.attention,
            probe_device.convolutions,
            probe_device.copies,
        ):
            table(bench)
    else:
        for table in (probe_kernels.gemms, probe_kernels.memory_bound, probe_kernels.attention, probe_kernels.convolutions):
            table(bench)
    probe_kernels.copies(bench)
    for table in (dispatch, optimizers, ddp, sharded, loader):
        table(bench)
    files(bench, bench.world.folder)


def measure(world: World, request: Request) -> Measured:
    """One rank's share: all tables, in the same order as every other rank."""
    import sys

    import torch

    from executor.probes import comm as probe_comm
    from executor.probes.bench import Bench
    from executor.world import set_precision

    set_precision(False)
    bench = Bench(world, request.quick)
    if not request.communication:
        _alone(bench)
    for table in (probe_comm.collectives, probe_comm.messages, probe_comm.issue, probe_comm.beside):
        table(bench)
    versions = {"torch": str(torch.__version__), "python": sys.version.split()[0]}
    if world.kind == "cuda":
        versions |= {
            "cuda": str(torch.version.cuda),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call]
            "gpu": torch.cuda.get_device_name(),
        }
    return Measured(bench.found, world.kind, torch.get_num_threads(), versions)
