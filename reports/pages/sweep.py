"""The page of a sweep: the plans that no other beats, which settings made them so, and the best plan beside the runner-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.figures.coordinates import coordinates, per_gpu
from reports.figures.plans import breakdowns, pareto_figure
from reports.page import Card, Page
from reports.words import count, counted, gib, seconds, short
from sim.planning.sweeps.space import settings_of
from sim.planning.sweeps.store import Row
from sim.planning.sweeps.sweep import Sweep, by_reason
from sim.planning.sweeps.tables import split_of, unit_of

_MOST_ROWS = 15
_MEANINGS = (
    ("step", "seconds from one optimizer step to the next, in the steady state"),
    ("samples / s / GPU", "sequences or images of the global batch over the step time and the number of GPUs"),
    ("GPU-time per sample", "its inverse: seconds of one GPU that a sample takes, whatever the size of the cluster"),
    (
        "MFU",
        "model FLOPs utilisation: FLOPs of one forward and backward pass, without recomputation, over the GPUs' dense peak, that of 16-bit for "
        "narrower formats",
    ),
    (
        "nothing beats it",
        "no other plan that trains the same on as many GPUs of the same machine is at least as good in time, memory and cost, and better in one of them (the Pareto front)",
    ),
    (
        "nearly full",
        "tensors and context alone take more than 93 % of the device: with the error of these figures and what the allocator loses the plan may fail",
    ),
    ("not simulated", "its lower bound of the step is no better than what another plan reaches with no more memory or money"),
)


_BEST = (
    "Best: most model FLOPs per second and GPU, or for their money where prices are known, among the plans that fit; of plans that train the same "
    "on one machine, most samples per second and GPU."
)


def sweep_page(title: str, found: Sweep) -> str:
    """The file's text. `found`: what `sim.planning.sweeps.sweep.sweep` returns; it holds at least one plan that fits."""
    ranked = found.ranked
    tried = sum(found.counts.values())
    page = Page(title, f"{counted(tried, 'plan')}: {outcomes(found.counts)}.")
    page.cards(_cards(ranked, found.front))
    page.section("The best beside the runner-up", _BEST)
    page.table(("", "best", "runner-up"), _beside(ranked))
    if found.roomy:
        words = f"{found.roomy.key}, a step of {seconds(found.roomy.step_time or 0.0)}, {_memory(found.roomy)}"
        page.warnings([f"The best plan is nearly full and may not fit in life. The best with room in memory: {words}."])
    page.figure(breakdowns(ranked[:5]))
    if len(found.by_machine) > 1:
        page.section("The best on each machine", "And on each number of its GPUs; the best of all first.")
        page.table(*_machines(found.by_machine))
    page.section("Time, memory and cost" if any(row.cost for row in ranked) else "Time and memory",
                 "Each point is a plan that fits. No other plan beats those on a line in everything, on as many GPUs of the same machine; hover for the plan.")  # fmt: skip
    page.figure(pareto_figure(ranked, found.front))
    if len(ranked) > 1:
        page.section(
            "What made them so",
            "One line a plan, from its settings to what they give; hover its end for the plan, click a band below to hide it.",
        )
        page.figure(coordinates(ranked))
    some = (
        f"{_MOST_ROWS} of {len(found.front)}, the best first; the line of the figure above has all."
        if len(found.front) > _MOST_ROWS
        else ""
    )
    page.section("Plans that nothing beats", some)
    head = ("plan", "step", "GPU-time per sample", "MFU", "memory", f"cost per million {unit_of(ranked)}")
    priced = len(head) if any(row.cost for row in ranked) else len(head) - 1
    page.table(head[:priced], [_row(row)[:priced] for row in found.front[:_MOST_ROWS]])
    _rejected(page, found)
    page.words(_MEANINGS)
    return page.text("Made by StepTwin. Memory is the peak on the fullest GPU; GPU-time per sample is GPUs over samples per second.")


_OUTCOMES = {
    "done": "simulated",
    "bound": "not simulated, since another is better even if they reach their bound",
    "memory": "do not fit into memory",
    "refused": "cannot be built",
    "failed": "failed",
}


def outcomes(counts: Mapping[str, int]) -> str:
    """The counts in words: `166 simulated, 102 do not fit into memory`; outcomes that did not occur are left out."""
    return ", ".join(f"{counts[name]:,} {words}" for name, words in _OUTCOMES.items() if counts.get(name))


def _cards(ranked: Sequence[Row], front: Sequence[Row]) -> list[Card]:
    best = ranked[0]
    cards: list[Card] = [
        (seconds(best.step_time or 0.0), "step of the best plan", short(best.key, 90)),
        (f"{per_gpu(best):,.4g}", "samples / s / GPU", f"{best.gpus:,} GPUs" + (f", MFU {best.mfu:.1%}" if best.mfu is not None else "")),
        (gib(best.memory or 0), "peak memory per GPU", "of the best plan" + (", nearly full" if best.nearly_full else "")),
    ]
    if len(ranked) > 1:
        worst, priced = ranked[-1], bool(best.cost)
        times = worst.worth[0] / best.worth[0] if priced else worst.effort / best.effort
        what = "best over worst that fits" + (", in money" if priced else "")
        cards.append((f"{times:.2f} x", what, f"{counted(len(front), 'plan')} that nothing beats"))
    return cards


def _machines(best: Sequence[Row]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(head, rows) of the table of machines."""
    figures = _FIGURES if any(row.cost for row in best) else _FIGURES[:-1]
    head = ("machine", "plan", *(f"{name} {unit_of(best)}" if name.startswith("cost") else name for name, _ in figures))
    return head, [(row.machine, split_of(row), *(show(row) for _, show in figures)) for row in best]


def _beside(ranked: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Rows (name, best, runner-up): settings in which the two plans differ, then their figures. With one plan, all its settings."""
    pair = [*ranked[:2], None][:2]
    sides = [settings_of(row.key) if row else {} for row in pair]
    keys = list(dict.fromkeys(key for side in sides for key in side))
    rows = [
        (key, sides[0].get(key, "-"), sides[1].get(key, "-")) for key in keys if len(ranked) < 2 or sides[0].get(key) != sides[1].get(key)
    ]
    for name, show in _FIGURES:
        if name.startswith("cost") and not any(row.cost for row in ranked[:2]):
            continue
        said = f"{name} {unit_of(ranked)}" if name.startswith("cost") else name
        rows.append((said, *(show(row) if row else "-" for row in pair)))  # type: ignore[arg-type]
    return rows


_FIGURES: tuple[tuple[str, Any], ...] = (
    ("step time", lambda row: seconds(row.step_time or 0.0)),
    ("samples / s / GPU", lambda row: f"{per_gpu(row):,.4g}"),
    ("MFU", lambda row: f"{row.mfu:.1%}" if row.mfu is not None else "-"),
    ("peak memory", lambda row: _memory(row)),
    ("GPUs", lambda row: f"{row.gpus:,}"),
    ("cost per million", lambda row: count(row.cost) if row.cost else "-"),
)


def _row(row: Row) -> tuple[str, ...]:
    rate = per_gpu(row)
    return (
        row.key,
        seconds(row.step_time or 0.0),
        seconds(1.0 / rate) if rate else "-",
        f"{row.mfu:.1%}" if row.mfu is not None else "-",
        _memory(row),
        count(row.cost) if row.cost else "-",
    )


def _memory(row: Row) -> str:
    return f"{row.fill}" if row.fill else gib(row.memory or 0)


def _rejected(page: Page, found: Sweep) -> None:
    """Adds why other plans are out: those that came closest to fitting, and each other reason once, with its number of plans."""
    out = [row for row in found.rows if row.outcome != "done"]
    if not out:
        return
    page.section("Plans that are out", "Those that come closest to fitting first, then each other kind of reason once.")
    tight = sorted((row for row in out if row.outcome == "memory"), key=lambda row: row.memory or 0)[:5]
    kinds = by_reason(row for row in out if row.outcome != "memory")
    words = {"memory": "does not fit", "refused": "cannot be built", "failed": "failed", "bound": "not simulated"}
    rows = [(row.key, words["memory"], row.reason, "1") for row in tight]
    rows += [(same[0].key, words.get(same[0].outcome, same[0].outcome), same[0].reason, f"{len(same):,}") for same in kinds[:8]]
    page.table(("plan", "outcome", "why", "plans like it"), rows)
