"""Everything that reads what people write, as one call each: (samples, reader of one text)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.reliability import corpus


class Reader(NamedTuple):
    """A reader under test; `samples` are made when they are needed."""

    name: str
    samples: Callable[[], tuple[str, ...]]
    read: Callable[[str, Path], object]


def _plan(text: str, place: Path) -> object:
    from sim.files.planfile import load_plan
    from sim.result.figures import figures_of_memory
    from sim.setting.bind import bind

    return figures_of_memory(bind(load_plan(_file(place, "plan.toml", text)), "16x dgx-h100"))


def _topology(text: str, place: Path) -> object:
    from topologies.load import load_topology

    return _used(load_topology(_file(place, "machine.toml", text)))


def _expression(text: str, _: Path) -> object:
    from topologies.load import load_topology

    return _used(load_topology(text))


def _used(topology):  # type: ignore[no-untyped-def]
    return topology.path(0, topology.gpus - 1), topology.device(0)


def _foreign(text: str, _: Path) -> object:
    from topologies.readers import read_text

    return read_text(text, "machine", "").toml()


def _trace(text: str, place: Path) -> object:
    from sim.imported.kineto import read_trace
    from sim.timeline.metrics import breakdown

    return breakdown(read_trace(_file(place, "trace.json", text)))


def _calibration(text: str, place: Path) -> object:
    from sim.cost.calibration import load_calibration
    from sim.cost.timed import prices

    return prices(load_calibration(_file(place, "calibration.toml", text)))


def _config(text: str, place: Path) -> object:
    from sim.model import load_model

    return load_model(str(_file(place, "config.json", text)))


def _program(text: str, place: Path) -> object:
    from sim.files.programfile import load_program
    from sim.lower.checks.verify import verify

    return verify(load_program(_file(place, "program.json", text)))


def _rows(text: str, place: Path) -> object:
    from sim.accuracy.row import read_rows
    from sim.accuracy.rows.plans import case_of

    return [case_of(row) for row in read_rows(_file(place, "rows.csv", text))]


def _prices(text: str, place: Path) -> object:
    from sim.planning.capacity.prices import load_prices

    return load_prices(_file(place, "prices.toml", text))


def _nccl_tests(text: str, _: Path) -> object:
    from sim.cost.ncclimport import read_nccl_tests

    return read_nccl_tests(text)


def _space(text: str, _: Path) -> object:
    from sim.planning.sweeps.space import parse_space

    return parse_space(text)


def _edit(text: str, _: Path) -> object:
    from topologies.load import load_topology

    return _used(load_topology("2x dgx-h100", (text,)))


def _file(place: Path, name: str, text: str) -> Path:
    path = place / name
    path.write_text(text, "utf-8", errors="surrogatepass")
    return path


EDITS = ("link.nvlink.rate=400 GB/s", "fail=link:gpu0-sw0", "without=nvswitch", "slow=r3:0.8", "order=3,2,1,0", "gpu.flops.bf16=1 TFLOP/s")
READERS = (
    Reader("plan file", lambda: corpus.PLANS, _plan),
    Reader("topology file", lambda: corpus.TOPOLOGIES, _topology),
    Reader("topology expression", lambda: corpus.EXPRESSIONS, _expression),
    Reader("topology edit", lambda: EDITS, _edit),
    Reader("NCCL XML", lambda: corpus.XML, _foreign),
    Reader("nvidia-smi topo -m", lambda: corpus.MATRICES, _foreign),
    Reader("trace", corpus.traces, _trace),
    Reader("program", corpus.programs, _program),
    Reader("calibration", corpus.calibrations, _calibration),
    Reader("model config.json", lambda: corpus.CONFIGS, _config),
    Reader("published rows (CSV)", lambda: corpus.ROWS, _rows),
    Reader("nccl-tests output", lambda: corpus.NCCL_TESTS, _nccl_tests),
    Reader("price file", lambda: corpus.PRICES, _prices),
    Reader("sweep space", lambda: corpus.SPACES, _space),
)
