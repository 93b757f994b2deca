"""Calibrations for a GPU table's predictions: this machine probed with one rank, and collectives with as many ranks as a plan has."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from executor.probe import comm_probe, united
from executor.ranks.launch import Interrupted, time_limit
from executor.twin import calibrated
from executor.validation.gpu_cases import Case
from executor.validation.gpu_site import Site
from sim.cost.calibration import load_calibration, save_calibration
from topologies.errors import BadInput, RunFailed

_PROBE_SECONDS = 300.0
ONE = "calibration-1.toml"
"""File name of the calibration with one rank."""


def probe(site: Site) -> None:
    """Calibrates with one rank; a calibration of an earlier `--quick` is not used for a full run. If it fails, `site.unprobed` says why,
    and so does each row, which then has no calibrated figure."""
    with suppress(BadInput):  # there is none, or it cannot be read
        if load_calibration(site.folder / ONE).quick and not site.quick:
            (site.folder / ONE).unlink()
    try:
        with time_limit(_PROBE_SECONDS):
            calibrated(1, site.folder / ONE, site.say, site.machine, quick=site.quick)
    except Interrupted:
        raise
    except RunFailed as error:
        site.unprobed = str(error)
        site.say(f"the probe failed: {error}")


def calibration_of(case: Case, site: Site) -> Path:
    """The calibration that this plan is predicted from: kernels of one rank, and collectives between as many ranks as the plan has, on the
    same GPUs.

    Raises `RunFailed` if the machine, or so many ranks, could not be probed.
    """
    # Ranks that share a GPU communicate through gloo, so their collectives differ from those of as many ranks through NCCL.
    path = site.folder / f"calibration-{case.plan.world}{'-shared' if case.where == 'shared' and site.device == 'cuda' else ''}.toml"
    if why := site.unprobed or site.unmet.get(path.name):
        raise RunFailed(why)
    one = site.folder / ONE
    base = load_calibration(one)  # `probe` has seen to it
    if case.plan.world == 1:
        return one
    if not path.is_file() or path.stat().st_mtime < one.stat().st_mtime:
        site.say(f"probing collectives over {case.plan.world} ranks ...")
        try:
            found = comm_probe(case.plan.world, quick=site.quick)
        except RunFailed as error:
            site.unmet[path.name] = error.cause
            raise
        missing = "; ".join(filter(None, (base.missing, found.missing)))
        save_calibration(
            msgspec.structs.replace(base, ranks=case.plan.world, tables=united(base.tables, found.tables), missing=missing), path
        )
    return path
