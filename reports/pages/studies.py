"""Pages of what-if studies: an explanation, faults, jobs that share a cluster, the spread of a step. Their figures are in
`reports.figures.planning`."""

from __future__ import annotations

from reports.figures import planning
from reports.page import Page
from reports.words import counted, ranks, seconds
from sim.planning.disturbed.faults import Faults
from sim.planning.disturbed.jobs import Jobs
from sim.planning.explain.explanation import Explanation
from sim.planning.montecarlo import Spread

_SAME = 1e-6
"""If all draws differ by no more than this share, they count as one time, and there is no histogram."""
_FOOTER = "Made by StepTwin. Times are of one optimizer step."


def explain_page(plan: str, on: str, found: Explanation) -> str:
    """The file's text: what the step is spent on, what faster resources bring, which changes of plan help."""
    page = Page(f"{plan} on {on}", f"{found.verdict}. Predicted; nothing was run.")
    best = found.changes[0] if found.changes else None
    cards = [(seconds(found.step_time_s), "step time", found.verdict.partition(":")[0])]
    if found.sensitivities:
        first = found.sensitivities[0]
        cards.append((seconds(first.infinitely_fast), f"with infinitely fast {first.resource}", f"elasticity {first.elasticity:+z.2f}"))
    if best is not None:
        cards.append((f"{-best.gain:+.1%}", "best single change of plan", " ".join(best.overrides)))
    page.cards(cards)
    page.room(found.fits)
    fills = [("This plan", found.memory), *((f"With {' '.join(one.overrides)} the plan", one.memory) for one in found.changes)]
    page.warnings([f"{name} takes {fill}. It may not fit in life." for name, fill in fills if fill and fill.nearly_full])
    page.section("Critical path", "Time along the chain of what waited for what, by class of op.")
    page.figure(planning.critical_path(found))
    page.section("What faster resources are worth", "The step if one resource were infinitely fast; the dashed line is the step as it is.")
    page.figure(planning.without_limit(found))
    rows = [
        (r.resource, seconds(r.infinitely_fast), f"{r.ten_percent:+z.1%}", f"{r.path_ten_percent:+z.1%}", f"{r.elasticity:+z.3f}")
        for r in found.sensitivities
    ]
    page.table(("resource", "step if infinitely fast", "step if 10 % faster", "the same, from the critical path", "elasticity"), rows)
    if found.changes:
        page.section("Changes of plan", "The best single changes that run, fit and gain; the dashed line is the step as it is.")
        page.figure(planning.changes(found))
        table = [(" ".join(one.overrides), seconds(one.step_time_s), f"{-one.gain:+.1%}", f"{one.memory}") for one in found.changes]
        page.table(("change", "step", "of the step", "memory on the fullest device"), table)
    return page.text(f"{_FOOTER} Elasticity: per cent of the step for one per cent of the resource's speed.")


def faults_page(found: Faults) -> str:
    """The file's text: the step under each fault."""
    page = Page(f"{found.plan} on {found.topology}", "What each fault costs the step, each alone. Predicted; nothing was run.")
    worst = max(found.rows, key=lambda row: row.step_time_s, default=None)
    cards = [(seconds(found.step_time_s), "step time", "nothing broken")]
    if worst is not None:
        cards.append((f"{worst.slowdown:.3f} x", "worst fault", worst.fault))
    page.cards(cards)
    page.room(found.fits)
    page.section("Step under each fault", "The dashed line is the step of the whole machine. Restarts and time-outs are not in it.")
    page.figure(planning.faults(found))
    page.table(("fault", "step", "slowdown"), [(row.fault, seconds(row.step_time_s), f"{row.slowdown:.3f} x") for row in found.rows])
    return page.text(_FOOTER)


def jobs_page(found: Jobs) -> str:
    """The file's text: each job's step alone and beside the others, in each placement."""
    page = Page(f"Jobs on {found.topology}", "Several jobs that share one cluster. Predicted; nothing was run.")
    worst = max(found.rows, key=lambda row: row.slowdown)
    page.cards([(f"{worst.slowdown:.3f} x", "largest slowdown", f"{worst.job} {worst.plan}, {worst.placement}")])
    for plan in dict.fromkeys(f"{row.job} {row.plan}" for row in found.rows if not row.fits):
        page.room(False, plan)
    page.section("Steps", "Grey: alone in the same places. Blue: beside the others.")
    page.figure(planning.jobs(found))
    rows = [
        (f"{r.job} {r.plan}", r.placement, ranks(len(r.ranks)), seconds(r.alone_s), seconds(r.together_s), f"{r.slowdown:.3f} x")
        for r in found.rows
    ]
    page.table(("job", "placement", "size", "alone", "beside the others", "slowdown"), rows)
    return page.text(_FOOTER)


def spread_page(plan: str, on: str, found: Spread) -> str:
    """The file's text: the step as a distribution."""
    drawn = counted(len(found.samples), "step")
    page = Page(f"{plan} on {on}", f"{drawn} drawn with seed {found.seed}. Predicted; nothing was run.")
    quantiles = (("P50", found.p50), ("P95", found.p95), ("P99", found.p99))
    page.cards(
        [(seconds(at), name, f"{round(at / found.without - 1, 4) + 0.0:+.1%} over the step without jitter") for name, at in quantiles]
    )
    page.room(found.fits)
    if max(found.samples) > min(found.samples) * (1 + _SAME):
        page.section("Step time", "How often each step time was drawn; dashed lines at the median, P95 and P99.")
        page.figure(planning.spread(found))
    elif len(found.samples) > 1:
        page.section("Step time", f"Every draw takes {seconds(found.p50)}: nothing of what was drawn is on this plan's critical path.")
    sigmas = found.jitter
    rows = [
        ("speed of each rank", f"{sigmas.rank:g}", "sigma of log(time)"),
        ("step to step", f"{sigmas.step:g}", "sigma of log(time)"),
        ("length of samples", f"{sigmas.length:g}", "sigma of log(length)"),
        ("one slow link", f"{sigmas.slow_link:g}", "times slower"),
    ]
    page.table(("drawn", "value", "unit"), rows)
    return page.text(f"{_FOOTER} Without jitter: {seconds(found.without)}.")
