"""Measures this machine: the calibration file of `sim.cost.calibration`.

As many ranks measure at once as will train, each with the same number of threads, so that the figures include the sharing of caches, memory
bandwidth and hyper-threads. On two cores this takes five minutes for one rank, fifteen for four; `quick` takes less.
"""

from __future__ import annotations

import datetime
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from executor.nvml import driver
from executor.ranks.environment import place
from executor.ranks.launch import Interrupted, launch
from executor.ranks.world import World, set_precision
from executor.usage import taken_by_others
from sim.cost.calibration import SHAPES, Calibration, Sample, save_calibration
from sim.files.runs import refuse_unwritable, write_atomic
from topologies.errors import BadInput, RunFailed
from topologies.thismachine import RANKS, cores

if TYPE_CHECKING:
    from executor.probes.bench import Bench


Tables = dict[str, tuple[Sample, ...]]


class Request(msgspec.Struct, frozen=True):
    """What the parent asks of each rank."""

    quick: bool = False
    communication: bool = False
    """Measure only collectives, messages, and the host time of ranks that share parameters."""
    tables: tuple[str, ...] = ()
    """Measure only these tables, in this order; empty: all."""
    known: tuple[Sample, ...] = ()
    """Host work that was measured before: some tables are computed relative to it."""


class Measured(msgspec.Struct, frozen=True):
    """What one rank answers."""

    samples: list[tuple[str, Sample]]
    device: str
    threads: int
    versions: dict[str, str]
    missing: str = ""
    """Tables that failed, and why."""
    lacking: tuple[str, ...] = ()
    """Names of the tables that failed or were not begun. Those that were never begun come first, so that one that hangs is tried last."""


def probe(ranks: int, path: str | Path | None = None, quick: bool = False) -> Calibration:
    """Measures with `ranks` processes and writes the calibration to `path` (None: to no file). Raises `RunFailed`; `BadInput`, before
    anything is measured, if no file can be written there."""
    if path is not None:
        refuse_unwritable(Path(path))
    calibration = _probe(ranks, Request(quick))
    if path is not None:
        save_calibration(calibration, path)
    return calibration


def completed(found: Calibration, path: Path) -> Calibration:
    """`found` with the tables that it lacks, also written to `path`. Tables that fail again are not tried another time. Raises
    `Interrupted`."""
    request = Request(found.quick, tables=found.lacking, known=tuple(found.rows("host")))
    tables, lacking = found.tables, found.lacking[1:]  # if the probe brings nothing, the first table is the one that ended it
    try:
        more = _probe(found.ranks, request)
    except Interrupted:
        raise
    except RunFailed as error:
        missing = f"{found.lacking[0]}: {error.cause}; {found.missing}"
    else:
        tables, missing = united(tables, more.tables), more.missing
        lacking = more.lacking if len(more.lacking) < len(found.lacking) else ()
    whole = msgspec.structs.replace(found, tables=tables, missing=missing, lacking=lacking)
    save_calibration(whole, path)
    return whole


def united(old: Tables, new: Tables) -> Tables:
    """All points of both tables; where both have a point, the new one."""
    kinds = [kind for kind in SHAPES if kind in old or kind in new]
    return {kind: tuple({(s.name, s.dtype, s.shape): s for s in (*old.get(kind, ()), *new.get(kind, ()))}.values()) for kind in kinds}


def comm_probe(ranks: int, quick: bool = False) -> Calibration:
    """Only the tables of what ranks do together, and of FSDP2's and DTensor's host time; kernels can be taken from a probe of one rank.
    Raises `RunFailed`."""
    return _probe(ranks, Request(quick, communication=True))


def _probe(ranks: int, request: Request) -> Calibration:
    if ranks > RANKS and place() is None:
        raise BadInput(f"{ranks} ranks are more than the {RANKS} that one machine takes: probe with as many as will train here")
    begin, before = time.monotonic(), taken_by_others()
    with tempfile.TemporaryDirectory(prefix="steptwin-probe-") as folder:
        try:
            found = launch("executor.probe:measure", request, ranks, Path(folder), Measured)
        except RunFailed as error:
            found = [_left(Path(folder) / _LEFT, error)]
    seconds = time.monotonic() - begin
    return Calibration(
        device="cuda" if found[0].device == "cuda" else "cpu",
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        machine=_host(),
        cores=cores(),
        ranks=ranks,
        threads=found[0].threads,
        seconds=seconds,
        others=max(0.0, taken_by_others() - before) / (seconds * cores()),
        versions=found[0].versions,
        quick=request.quick,
        missing=found[0].missing,
        lacking=found[0].lacking,
        tables=merge([rank.samples for rank in found]),
    )


_LEFT = "rank0.tables"
"""File in the probe's folder with what the rank of a single GPU has measured so far."""


def _left(path: Path, error: RunFailed) -> Measured:
    """What the rank of a probe that did not finish has measured. Raises an error like `error` if there is nothing; only a single GPU's rank
    leaves a part."""
    if isinstance(error, Interrupted) or not path.is_file():
        raise type(error)(f"the probe came to no end, no calibration was written: {error.cause}") from None
    found = msgspec.msgpack.decode(path.read_bytes(), type=Measured)
    return msgspec.structs.replace(found, missing="; ".join(filter(None, (found.missing, f"the probe came to no end: {error.cause}"))))


def _host() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def merge(ranks: list[list[tuple[str, Sample]]]) -> dict[str, tuple[Sample, ...]]:
    """One table per kind. The median of each point is the mean of its medians over ranks and moments; its p10 is the lowest and its p90 the
    highest of them."""
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


def _alone(world: World, quick: bool) -> list[Callable[[Bench], None]]:
    """The tables that a rank measures by itself: kernels of its device, and host work."""
    from executor.probes import device, kernels
    from executor.probes.aliased import aliased
    from executor.probes.ddp import ddp
    from executor.probes.host import dispatch
    from executor.probes.in_step import in_step
    from executor.probes.input import files, loader, pinned
    from executor.probes.optimizers import optimizers
    from executor.probes.power import power
    from executor.probes.recomputed import recomputed
    from executor.probes.sharded import sharded

    of_device: list[Callable[[Bench], None]] = (
        [device.gemms, device.memory_bound, device.attention, device.convolutions, device.launches, device.copies, power]
        if world.kind == "cuda"
        else [kernels.gemms, aliased, kernels.memory_bound, kernels.attention, kernels.convolutions]
    )
    # On a CPU all host work is timed between other work anyway, and nothing is pinned.
    in_context, pins = ([in_step], [pinned]) if world.kind == "cuda" else ([], [])
    on_host = [kernels.copies, dispatch, optimizers, *in_context, recomputed, ddp, sharded]
    moments = [] if world.kind == "cuda" or quick else [kernels.once_more]
    return [*of_device, *on_host, *moments, loader, *pins, files, *moments]


def _only_together() -> list[Callable[[Bench], None]]:
    """The tables of `_alone` that need several ranks; a probe of one rank has all others."""
    from executor.probes.sharded import sharded

    return [sharded]


def _together() -> list[Callable[[Bench], None]]:
    """The tables of what ranks do with each other."""
    from executor.probes import comm

    return [comm.stretch, comm.apart, comm.collectives, comm.messages, comm.issue]


def _guarded(table: Callable[[Bench], None], bench: Bench) -> str:
    """Measures one table. Returns "", or why it failed; then the other tables are still worth keeping. That is so on a single GPU and, on
    several GPUs, for tables in which each rank measures by itself; any other failure is raised."""
    try:
        table(bench)
    except Exception as error:
        if bench.world.kind != "cuda" or (bench.world.size > 1 and table not in _only_together()):
            raise
        set_precision(False)  # the table may have ended before it restored this
        return f"{table.__name__}: {type(error).__name__}: {(str(error).strip() or '-').splitlines()[0][:200]}"
    return ""


def measure(world: World, request: Request) -> Measured:
    """What one rank measures: all tables, in the same order on every rank."""
    import torch

    from executor.players.events import wake
    from executor.probes.bench import Bench

    gpus = torch.cuda.device_count() if world.kind == "cpu" and torch.cuda.is_available() else 0
    if gpus:
        raise BadInput(
            f"torch sees {gpus} GPU{'s' if gpus > 1 else ''} here, and {world.local_size} ranks were asked for: what they measure would be the CPU. Use "
            f"--ranks {gpus}, or hide the GPUs with CUDA_VISIBLE_DEVICES= where the CPU is meant"
        )
    set_precision(False)
    wake(world.device)
    bench = Bench(world, request.quick)
    bench.found += [("host", sample) for sample in request.known]
    versions = {"torch": str(torch.__version__), "python": sys.version.split()[0]}
    if world.kind == "cuda":
        versions |= {
            "cuda": str(torch.version.cuda),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call]
            "gpu": torch.cuda.get_device_name(),
            "driver": driver(),
        }
    tables = _asked(world, request)
    found, failed = Measured([], world.kind, torch.get_num_threads(), versions), dict[str, str]()
    for at, table in enumerate(tables, 1):
        if why := _guarded(table, bench):
            failed[table_name(table)] = why
        then = [table_name(later) for later in tables[at:]]
        found = msgspec.structs.replace(
            found, samples=bench.found[len(request.known) :], missing="; ".join(failed.values()), lacking=(*then[1:], *then[:1], *failed)
        )
        if world.kind == "cuda" and world.size == 1:
            write_atomic(world.folder / _LEFT, msgspec.msgpack.encode(found))
    return found


def _asked(world: World, request: Request) -> list[Callable[[Bench], None]]:
    tables = [*_together(), *_only_together()] if request.communication else [*_alone(world, request.quick), *_together()]
    known = {table_name(table): table for table in tables}
    return [known[name] for name in request.tables if name in known] if request.tables else tables


def table_name(table: Callable[[Bench], None]) -> str:
    """`device.copies`: the module's name is part of it, as there is also `kernels.copies`."""
    return f"{table.__module__.rpartition('.')[2]}.{table.__name__}"
