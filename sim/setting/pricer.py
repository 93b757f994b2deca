"""Makes the pricer of a setting: for CPUs or GPUs, with fitted costs, measured ones, or tables of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sim.cost.calibration import calibration_on
from sim.cost.gpu_pricer import GpuPricer
from sim.cost.price import Pricer
from sim.setting.bind import Setting
from sim.setting.pace import board_clock
from sim.setting.uneven import Uneven
from topologies.errors import Refused


def pricer_for(
    setting: Setting, calibration: str | Path | None = None, costs: str = "fitted", slower: float = 1.0, places: Sequence[int] = (),
    board: float | None = None, clock: float = 1.0,
) -> Pricer:  # fmt: skip
    """The pricer of the setting's kind of machine, with the plan's noise. `slower`: factor on the compute time of every rank. `places`:
    the machine's ranks that the plan's ranks use; (): the first ones. `board`: clock of every GPU, divided by that of the mean one;
    None: that of the board for which the step is expected to wait (`sim.setting.pace`). `clock`: the share of the clock that the power
    limit leaves to all boards (`sim.cost.power`). Raises `Refused` where `costs` or the calibration are for another kind of machine."""
    from sim.lower.noise import loads, slowness

    noise = _moved(slowness(setting.plan), places)
    factor = noise if slower == 1.0 else lambda rank: noise(rank) * slower
    found = _even(setting, calibration, costs, factor, (board_clock(setting) if board is None else board) * clock)
    if isinstance(found, GpuPricer) and not places:
        found.world = setting.plan.world
    return found if setting.plan.noise.imbalance == "none" else Uneven(found, _moved(loads(setting.plan), places))


def _moved(factor: Callable[[int], float], places: Sequence[int]) -> Callable[[int], float]:
    """The same factor, but asked for by ranks of the machine; 1 for those that the plan does not use."""
    if not places:
        return factor
    ranks = {place: rank for rank, place in enumerate(places)}
    return lambda place: factor(ranks[place]) if place in ranks else 1.0


def _even(setting: Setting, calibration: str | Path | None, costs: str, factor: Callable[[int], float], clock: float) -> Pricer:
    if setting.topology.kind == "cpu":
        from sim.cost.cpu_pricer import CpuPricer

        if costs != "fitted":
            raise Refused(f"cost source '{costs}' holds kernels of GPUs; {setting.topology.name} has CPUs. Leave --costs out")
        return CpuPricer(setting.topology, calibration_on(calibration, setting.topology), factor)
    if calibration is None and costs == "fitted":
        return GpuPricer(setting.topology, setting.framework, factor, clock)
    from sim.cost.measured import MeasuredPricer, lookups_of

    lookups = lookups_of(costs)
    if calibration is None:
        return MeasuredPricer(setting.topology, setting.framework, lookups, factor, clock)
    from sim.cost.calibrated import CalibratedPricer

    measured = calibration_on(calibration, setting.topology)
    return CalibratedPricer(setting.topology, setting.framework, measured, lookups, factor, clock)
