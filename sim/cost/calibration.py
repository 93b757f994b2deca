"""The calibration file of one machine: its measured points, and how it is read and written.

`executor.probe` writes the file, this module reads it (no torch here). It is TOML that a person can read: who,
when, with which versions, then one table per kind of measurement with the median, the 10th and 90th percentile
and the number of repetitions of each point. All times are seconds, sizes bytes.
"""

from __future__ import annotations

import math
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from sim.cost.between import Curve
from sim.files.runs import write_atomic
from topologies.devices import shelf
from topologies.errors import BadInput, Refused
from topologies.graph import Topology
from topologies.nvidia import of_model
from topologies.table import read_toml

VERSION = 5
ASSUMED_COPY = 5e9
"""Bytes per second of a memcpy on one server core, both ends in DRAM (assumed; single cores reach 4-12 GB/s)."""
_LARGEST = 4 << 20
"""Bytes of a calibration file; a full GPU probe writes less than a tenth of it."""
SHAPES: dict[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "aliased": ("m", "n", "k"),
    "memory": ("bytes",),
    "attention": ("batch", "heads", "seq", "d"),
    "conv": ("batch", "c_in", "h", "w", "c_out", "kh", "kw", "stride", "groups"),
    "optimizer": ("tensors", "parameters"),
    "host": (),
    "collective": ("ranks", "bytes"),
    "again": ("ranks", "bytes"),
    "loader": ("bytes",),
    "file": ("bytes",),
    "copy": ("bytes",),
    "power": ("products", "passes", "attentions"),
}
"""Kinds of tables, and what the numbers of a row's shape mean. `power`: how often each kernel runs in one turn of a steady loop; a row `watts` holds the
mean draw over the board's power limit, a row `product` or `pass` the seconds of that kernel in the loop, at the clock that the limit leaves.
`aliased`: a product whose rows have a power of two as length; its value is not seconds but a factor on those of a product of nearly the same size."""
ALIASED = (256, 1024)
"""Lengths of rows, in elements, at which the probe measures how much longer a CPU's products take: multiples of each count as this length."""


_ALONE = 0.1
"""Share of the cores' time up to which other programs are ignored: a system's own threads take a percent or two."""


class Sample(msgspec.Struct, frozen=True):
    """One measured point."""

    name: str
    """gemm, conv: fwd dgrad wgrad; aliased: the role of a product and one of its sizes (dgrad.n); attention: fwd bwd, fwd_full bwd_full where nothing is
    masked; memory: the kernel; host: the kind of work; collective: its name."""
    dtype: str
    shape: tuple[int, ...]
    median: float
    p10: float
    p90: float
    n: int
    cpu: float = 0.0
    """CPU seconds of one call in its process, all threads together (collectives; 0: not measured)."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True, eq=False, weakref=True):
    """Everything that `probe` measured on one machine."""

    device: Literal["cpu", "cuda"]
    date: str
    machine: str
    cores: int
    ranks: int
    """Processes that measured at the same time: caches, memory and hyper-threads were shared as in training."""
    threads: int
    """Compute threads of each process."""
    seconds: float = 0.0
    """How long the probe took."""
    versions: dict[str, str] = {}
    quick: bool = False
    loaded: bool = False
    """GPUs. True (older probes): kernels were timed while work like a training step's ran before them, so at the clock that such a load leaves.
    False: at the boost clock; the clock in training then follows from the table of power (`sim.cost.power`), or without it from the catalog."""
    others: float = 0.0
    """Share of the cores' time that other programs took during the probe."""
    missing: str = ""
    """Tables of a GPU that lack points, and why they could not be measured; "": none."""
    lacking: tuple[str, ...] = ()
    """Tables of a GPU that the next probe should measure again: not reached in time, or failed once."""
    tables: dict[str, tuple[Sample, ...]] = {}

    @property
    def crowded(self) -> str:
        """A warning where other programs used the cores during the probe; "" where they did not."""
        if self.others < _ALONE:
            return ""
        return f"other programs took {self.others:.0%} of the cores while it was measured, and its times are longer for that. Probe again when they are done"

    @property
    def entries(self) -> int:
        """Measured points in all tables."""
        return sum(len(rows) for rows in self.tables.values())

    @property
    def collectives(self) -> tuple[Sample, ...]:
        """Points of the `collective` table: name, (ranks, bytes of the whole array), seconds."""
        return self.tables.get("collective", ())

    @property
    def copy_rate(self) -> float:
        """Bytes per second of a copy from memory to memory on one core (the largest size measured)."""
        curve = self.curve("copy", "memcpy")
        return curve.sizes[-1] / curve.seconds[-1] if curve else ASSUMED_COPY

    def rows(self, kind: str, name: str | None = None, dtype: str | None = None) -> list[Sample]:
        """Points of one table, in the file's order."""
        return [s for s in self.tables.get(kind, ()) if (name is None or s.name == name) and (dtype is None or s.dtype == dtype)]

    def curve(self, kind: str, name: str, dtype: str | None = None) -> Curve:
        """Seconds by bytes (the first number of each point's shape)."""
        return Curve((s.shape[0], s.median) for s in self.rows(kind, name, dtype))

    def host_seconds(self, name: str, default: float = 0.0) -> tuple[float, bool]:
        """(seconds of one unit of a kind of host work, whether it was measured)."""
        found = self.rows("host", name)
        return (found[0].median, True) if found else (default, False)


def save_calibration(calibration: Calibration, path: str | Path) -> None:
    """Writes the file atomically: whole or not at all."""
    write_atomic(Path(path), show_calibration(calibration))


def show_calibration(calibration: Calibration) -> str:
    """The text of the calibration file (TOML)."""
    c = calibration
    head = [
        "# Measured by `steptwin probe`. Times in seconds; median, p10 and p90 over n repetitions of one call.",
        f"version = {VERSION}",
        *(
            f"{key} = {msgspec.json.encode(getattr(c, key)).decode()}"
            for key in ("device", "date", "machine", "cores", "ranks", "threads", "missing")
        ),
        *([f"lacking = {msgspec.json.encode(c.lacking).decode()}"] if c.lacking else []),
        f"seconds = {c.seconds:.1f}",
        f"others = {c.others:.3f}",
        f"quick = {str(c.quick).lower()}",
        f"loaded = {str(c.loaded).lower()}",
        "",
        "[versions]",
        *(f"{key} = {msgspec.json.encode(value).decode()}" for key, value in sorted(c.versions.items())),
    ]
    for kind, samples in c.tables.items():
        head += ["", f"[{kind}]  # name, dtype, [{', '.join(SHAPES[kind])}], median, p10, p90, n, processor seconds"]
        head += ["rows = [", *(f"  {_row(sample)}," for sample in samples), "]"]
    return "\n".join(head) + "\n"


def _row(s: Sample) -> str:
    times = ", ".join(f"{value:.3e}" for value in (s.median, s.p10, s.p90))
    return f'["{s.name}", "{s.dtype}", {list(s.shape)}, {times}, {s.n}, {s.cpu:.3e}]'


def load_calibration(path: str | Path | None) -> Calibration:
    """Reads a file; `None` gives a calibration without points, from which every cost is `assumed`.

    Raises `BadInput` that says which file, what is wrong and to probe again.
    """
    if path is None:
        return Calibration(device="cpu", date="", machine="none measured", cores=1, ranks=1, threads=1)
    source = Path(path)
    seen: tuple[int, ...] = ()
    with suppress(OSError):  # reading it says why
        told = source.stat()
        seen = told.st_dev, told.st_ino, told.st_mtime_ns, told.st_size
    return _read(source, seen)


def calibration_on(path: str | Path | None, topology: Topology) -> Calibration:
    """`load_calibration` for a machine. Raises `Refused` where it was measured on devices of another kind, or on GPUs that are none of the machine's."""
    found = load_calibration(path)
    gpus = {device.name for device, _ in topology.devices(topology.gpus)} if topology.kind == "cuda" else set()
    told = found.versions.get("gpu", "") if found.device == "cuda" else f"a CPU ({found.machine})"
    same = of_model(told) if gpus and found.device == "cuda" else []
    others = sorted(name for name in gpus & {*shelf("gpus")} if same and name not in same)
    if found.device != topology.kind or others:
        there = ", ".join(others) if others else "GPUs" if gpus else "CPUs"
        raise Refused(
            f"calibration {path} was measured on {told or 'GPUs'}; {topology.name} has {there}. Run `steptwin probe` on such a machine, or leave "
            "--calibration out to use the fitted model"
        )
    return found


@lru_cache(maxsize=8)
def _read(source: Path, seen: tuple[int, ...]) -> Calibration:
    """Reads the file again only when `seen` (device, inode, time, size) has changed. One prediction asks several times (`sim.setting.pace`), and caches of
    costs are keyed by the identity of the calibration."""
    return _from_tree(read_toml(source, "calibration", _LARGEST, "Run `steptwin probe` to measure this machine"), source)


def _from_tree(tree: dict[str, object], source: Path) -> Calibration:
    if tree.pop("version", None) != VERSION:
        raise BadInput(f"calibration {source} is not of version {VERSION}. Run `steptwin probe` again")
    tables = {}
    try:
        for kind in [key for key in tree if key in SHAPES]:
            rows = msgspec.convert(tree.pop(kind), dict[str, list[list[object]]])["rows"]
            samples = tuple(msgspec.convert(dict(zip(Sample.__struct_fields__, row, strict=True)), Sample) for row in rows)
            for s in samples:
                if (
                    len(s.shape) != len(SHAPES[kind])
                    or not (0 < s.median < 1e5)
                    or any(not (kind != "power") <= n < 1 << 62 for n in s.shape)
                    or not math.isfinite(s.p90 + s.p10 + s.cpu)
                ):
                    raise BadInput(
                        f"calibration {source}: [{kind}] has an impossible row (too few or too many sizes, or a size or a time that is not positive and "
                        f"finite): {_row(s)}. Run `steptwin probe` again"
                    )
            tables[kind] = samples
        return msgspec.convert({**tree, "tables": {}}, _Head).whole(tables)
    except (msgspec.ValidationError, KeyError, ValueError, TypeError) as error:
        raise BadInput(f"calibration {source}: {error}. Run `steptwin probe` again") from None


class _Head(Calibration, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of a calibration file outside its tables: an unknown key is an error."""

    def whole(self, tables: dict[str, tuple[Sample, ...]]) -> Calibration:
        fields = {name: getattr(self, name) for name in Calibration.__struct_fields__}
        return Calibration(**{**fields, "tables": tables})
