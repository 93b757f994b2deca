"""The capacity page: how a training run scales, what becomes progress, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence

from reports.figures.scaling import days, expense, failures, goodput, scaling
from reports.page import Card, Page
from reports.words import count, seconds
from sim.planning.capacity.capacity import Capacity
from topologies.units import show_energy


def capacity_page(title: str, found: Capacity, strong: Sequence[Capacity] = (), weak: Sequence[Capacity] = (), unit: str = "") -> str:
    """The file's text.

    `found`: the run that was asked for. `strong` and `weak`: results of `sim.planning.capacity.scaling.scaling` for it, with the same and
    with a growing global batch; () leaves them out. `unit`: of the prices ("USD").
    """
    changed = f", with {' '.join(found.overrides)}" if found.overrides else ""
    page = Page(
        title,
        f"{found.trained} on {found.gpus:,} GPUs, {found.topology}{changed}: {found.steps:,} steps of {seconds(found.quiet_step_s)} each, "
        "predicted.",
    )
    page.cards(_cards(found, unit))
    page.room(found.fits)
    if found.memory and found.memory.nearly_full:
        page.warnings([f"This plan takes {found.memory}. It may not fit in life."])
    page.section(
        "Where the days go", "Progress, and what restarts, steps that failures took back and checkpoints take (median of simulated runs)."
    )
    page.figure(days(found))
    curves = [curve for curve in (strong, weak) if len(curve) > 1]
    if curves:
        page.section("Scaling", "Training speed against the smallest cluster, failures left aside; the dotted line is perfect scaling.")
        page.figure(scaling(strong, weak))
        page.section("Goodput", "Share of the elapsed time that becomes progress: larger clusters fail more often.")
        page.figure(goodput(strong, weak))
        page.section(
            "Time against expense", "Faster or cheaper: each point is a size of the cluster. Hollow points do not fit into memory."
        )
        page.figure(expense(strong, weak, unit))
    rows = list(strong) or [found]
    few = "Larger clusters cannot split this global batch." if len(strong) == 1 < len(weak) else ""
    page.section("Same global batch" if strong else "The run", few)
    _table(page, rows, unit)
    if weak:
        page.section("Global batch grows with the cluster")
        _table(page, weak, unit)
    return page.text(
        "Made by StepTwin. Days are of 24 hours; GPU-hours count failures and restarts; energy is of GPUs, hosts, network and cooling."
    )


_HEAD = ("GPUs", "step", "days", "goodput", "failures", "checkpoint every", "GPU-hours", "energy", "money", "memory")


def _table(page: Page, runs: Sequence[Capacity], unit: str) -> None:
    """A row for each run; without prices there is no column for money."""
    kept = [at for at, name in enumerate(_HEAD) if name != "money" or any(one.money is not None for one in runs)]
    page.table([_HEAD[at] for at in kept], [[_row(one, unit)[at] for at in kept] for one in runs])


def _paid(found: Capacity) -> str:
    """A note if more hours are paid for than the plan's GPUs work; else ""."""
    return f"; {count(found.paid_gpu_hours)} are paid for" if found.paid_gpu_hours > found.gpu_hours else ""


def _row(one: Capacity, unit: str) -> tuple[str, ...]:
    return (
        f"{one.gpus:,}",
        seconds(one.step_time_s),
        f"{one.days:,.2f}" if one.days >= 0.1 else f"{one.days:.2g}",
        f"{one.goodput:.1%}",
        f"{one.failures:,}",
        seconds(one.checkpoint_interval_s),
        count(one.gpu_hours),
        _energy(one),
        _money(one, unit),
        "does NOT fit" if not one.fits else "nearly full" if one.memory and one.memory.nearly_full else "fits",
    )


def _energy(one: Capacity) -> str:
    return show_energy(one.energy_j) if one.energy_j is not None else "-"


def _money(one: Capacity, unit: str) -> str:
    return f"{count(one.money)} {unit}".strip() if one.money is not None else "-"


def _cards(found: Capacity, unit: str) -> list[Card]:
    low, high = (seconds(86400 * one) for one in found.days_interval)
    cards: list[Card] = [
        (seconds(found.elapsed_s), "elapsed", f"80 % interval {low} to {high}, {found.mark}"),
        (f"{found.goodput:.1%}", "goodput", f"{failures(found)}, checkpoint every {seconds(found.checkpoint_interval_s)}"),
        (count(found.gpu_hours), "GPU-hours", f"on {found.gpus:,} GPUs" + _paid(found)),
        (_energy(found), "energy", "GPUs, hosts, network and cooling"),
    ]
    if found.money is not None:
        cards.append((_money(found, unit), "money", "at the prices given" + "".join(f"; nothing for {edit}" for edit in found.unpriced)))
    return cards
