"""Plans predicted, played and trained on GPUs: a table that shows how good predictions are there.

    rows, summary, files = twin_gpu(None, Path("runs/gpu"), minutes=9)

Every plan of `executor.validation.gpu_plans` is predicted from the catalog alone and from a calibration of this GPU, played op by op, and
trained by PyTorch's own machinery: on one GPU, on all GPUs of the node, and by ranks that share one GPU. Each plan's row is kept in its
folder, so that a call continues where an earlier one ended; a plan that dies, hangs or runs out of memory is reported, and the others go
on.

With `device="cpu"` tiny plans of the same kinds run in the same way on a machine without GPUs, which is how tests use it. Results of one
H200 are in `reports/measured/h200-sxm`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

from executor.nvml import device_facts, driver
from executor.ranks.environment import on_gpus
from executor.ranks.spare import spares
from executor.twin import Say, torch_version
from executor.validation.gpu_calibration import ONE, probe
from executor.validation.gpu_cases import Case, cases, this_machine, visible_gpus
from executor.validation.gpu_measure import case_key, row_of
from executor.validation.gpu_rows import Row, Summary, rates, read_row, summary
from executor.validation.gpu_site import Site, gpu_name
from sim.cost.calibration import load_calibration
from sim.files.runs import environment, write_atomic, write_json
from topologies.errors import BadInput, UnknownName
from topologies.thismachine import cores

MOST_STEPS = 30
_READY = 64
"""Ranks that import torch at the beginning, while nothing is measured; enough for the whole table on one GPU. If only as many as there are
cores were started at a time, every four plans would take ten seconds longer (16 cores)."""


def twin_gpu(
    names: Iterable[str] | None,
    folder: Path,
    *,
    minutes: float = 9.0,
    gpus: int = 0,
    device: str = "cuda",
    steps: int = MOST_STEPS,
    quick: bool = False,
    keep: Path | None = None,
    say: Say = print,
) -> tuple[list[Row], Summary, Path]:
    """Runs the plans `names` (None: all). Returns their rows, the summary, and the folder with all files.

    Args:
        folder: of traces, calibrations and rows.
        minutes: after this time no further plan is begun; rows of an earlier call take no time.
        gpus: GPUs of this node that may be used; 0: all.
        device: "cuda", or "cpu" for tiny plans on a machine without a GPU.
        steps: most steps that are timed of each plan.
        quick: a short probe, for tests.
        keep: summary and calibration, which are small enough to commit, are also written to a folder here, named after the GPU.

    Raises `Refused` if there is no GPU, `UnknownName` for a plan that is not in the table.
    """
    machine = this_machine(device, folder)
    count = gpus or 2
    if device == "cuda":
        count = min(gpus or machine.gpus, visible_gpus(machine))
    known = cases(count, device == "cpu")
    wanted = list(known) if names is None else list(names)
    for name in wanted:
        if name not in known:
            raise UnknownName("plan of the GPU table", name, known)
    version = driver() if device == "cuda" else ""
    site = Site(
        folder=folder / gpu_name(machine, device),
        machine=machine,
        device=device,
        gpus=count,
        steps=steps,
        quick=quick,
        say=say,
        end=time.monotonic() + 60.0 * minutes,
        made_with=(gpu_name(machine, device), torch_version(), version, str(steps), *(["quick"] if quick else [])),
        versions={"driver": version, "torch": torch_version(), "commit": environment()["commit"]},
    )
    site.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        if device == "cuda":
            stack.enter_context(on_gpus())
            stack.enter_context(spares(min(_READY, 4 * cores())))
        return _walked(site, known, wanted, keep)


def _walked(site: Site, known: dict[str, Case], wanted: list[str], keep: Path | None) -> tuple[list[Row], Summary, Path]:
    """Probes, then runs plan after plan."""
    probe(site)
    rows: list[Row] = []
    left = {name: row for name, case in known.items() if (row := read_row(site.folder / name, case_key(case, site), whole=False))}
    before = [row for name, row in left.items() if name not in wanted and (row.stock or row.played)]
    # Plans that failed before come after those that were never begun: they may fail again, and take time.
    for name in sorted(wanted, key=lambda name: name in left and bool(left[name].failed)):
        rows.append(row_of(known[name], site))
        site.say(line(rows[-1]))
        _save([*before, *rows], site, keep)
    return rows, summary(rows), site.folder


def line(row: Row) -> str:
    """One row as text."""

    def show(value: float | None) -> str:
        return f"{value * 1e3:9.2f}" if value is not None else "        -"

    def off(against: str) -> str:
        error = row.error("calibrated", against)
        return f"{error:+7.1%}" if error is not None else "      -"

    stock, played = (one.median if one is not None else None for one in (row.stock, row.played))
    times = f"{show(row.uncalibrated)} {show(row.calibrated)} {show(played)} {show(stock)} ms  {off('played')} {off('stock')}"
    failed = "".join(f"  [{what}: {why.splitlines()[0][:120]}]" for what, why in (row.refused | row.failed).items())
    return f"{row.plan:20} {row.kind:26} {times}{failed}"


def _probed(folder: Path) -> dict[str, dict[str, float]]:
    """Calibration -> its rates, for those that can be read. One of an older version may still be there until a plan needs it."""
    found = {}
    for path in sorted(folder.glob("calibration-*.toml")):
        with suppress(BadInput):
            found[path.stem] = rates(load_calibration(path))
    return found


def _save(rows: list[Row], site: Site, keep: Path | None) -> None:
    """Writes the summary, after every plan; also into `keep`, with the calibration."""
    found: dict[str, Any] = {
        "device": device_facts() if site.device == "cuda" else {"name": "cpu"},
        "gpus": site.gpus,
        "environment": {what: said for what, said in environment().items() if what != "platform"},  # the kernel's build names its owner
        "steps": site.steps,
        "probed": _probed(site.folder),
        "rows": msgspec.to_builtins(rows),
        "summary": msgspec.to_builtins(summary(rows)),
    }
    calibration = site.folder / ONE
    write_json(site.folder / "summary.json", found)
    if keep is not None:
        write_json(keep / site.folder.name / "summary.json", found)
        if calibration.is_file():
            write_atomic(keep / site.folder.name / "calibration.toml", calibration.read_bytes())
