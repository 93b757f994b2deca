"""Verbs that plan: sweep, explain, capacity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from sim.planning.progress import logged, watched
from sim.verbs import PlanName, heeded, unfit
from topologies.errors import BadInput
from topologies.verbs import AsJson, Desk, Fail, On, Prices, Report, Sets, Without, Workers, split

if TYPE_CHECKING:
    from sim.plan import Plan
    from sim.planning.capacity.capacity import Capacity
    from sim.planning.capacity.goodput import Reliability
    from sim.planning.capacity.scaling import Curve
    from sim.planning.explain.explanation import Explanation


def add(app: typer.Typer, plans: typer.Typer, desk: Desk) -> None:
    """Adds the verbs."""
    _sweep(app, desk)
    _explain(app, desk)
    _capacity(app, desk)


def _sweep(app: typer.Typer, desk: Desk) -> None:
    @app.command()
    def sweep(
        plan: PlanName,
        space: Annotated[
            str, typer.Argument(help='Values by key, of plan and machine: "tp=1,2,4 pp=1..8 gpus=64 oversubscription=1,2"')
        ] = "",
        on: On = "dgx-h100",
        set_: Sets = None,
        fail: Fail = None,
        without: Without = None,
        auto: Annotated[int | None, typer.Option("--auto", help="All sensible plans on so many GPUs; a space beside it says more")] = None,
        trials: Annotated[
            int | None, typer.Option("--trials", help="Look at so many plans of the space, chosen by optuna, not at all")
        ] = None,
        seed: Annotated[int, typer.Option("--seed", help="Of --trials")] = 0,
        every: Annotated[
            str, typer.Option("--every", help="Simulate also what cannot be better than another plan: short (ranks it), or whole")
        ] = "",
        out: Annotated[
            Path | None, typer.Option("--out", help="SQLite file for the results, continued if it exists; default: one for each sweep")
        ] = None,
        workers: Workers = 2,
        backend: Annotated[str, typer.Option(help="dask or ray, for an existing cluster")] = "",
        address: Annotated[str, typer.Option(help="The cluster's scheduler, e.g. tcp://host:8786")] = "",
        prices: Prices = None,
        report: Report = None,
        as_json: AsJson = False,
    ) -> None:
        """Every plan of a space: memory, bounds, then simulation; resumes where it was.  Example: steptwin sweep llama3-8b-fsdp8 --auto 16 --on "2x dgx-h100\""""
        from sim.files.machinefile import changed_words
        from sim.files.planfile import read_plan
        from sim.planning.capacity.prices import load_prices, unpriced
        from sim.planning.sweeps.auto import expanded
        from sim.planning.sweeps.space import parse_space
        from sim.planning.sweeps.sweep import sweep as run
        from sim.planning.sweeps.told import again_by, batch, changes, tell

        overrides, edits = split(set_, fail, without)
        base = read_plan(plan, overrides)  # its points are checked: they may split another way
        _agree(space, auto, trials, seed, every)
        points = expanded(base, written := parse_space(space if auto is None else f"{space} auto={auto}"), on, edits)
        how: dict[str, Any] = {"workers": workers, "backend": backend, "address": address, "edits": edits, "say": logged(desk.say)}
        how["prices"] = load_prices(prices) if prices else None
        _free(desk, unpriced(how["prices"], (*edits, *changes(points, how["prices"]))))
        with _resumable(desk):
            if trials is None:
                found = run(base, points, on, out, every=every, **how)
            else:
                from sim.planning.sweeps.search import search

                found = search(base, points, on, out, trials=trials, seed=seed, **how)
        again = [again_by(plan, overrides, edits, found, row) for row in (found.best, found.roomy)]
        tell(desk, found, edits, batch(base, written, found), again, as_json)
        if failed := found.failure:
            desk.say(f"{found.counts['failed']} plans failed, a fault of StepTwin: please report {failed.key} ({failed.reason})")
        if report:
            desk.say(f"report: {desk.page('sweep', report, f'{base.name or base.model_name} on {changed_words(on, edits)}', found)}")


@contextmanager
def _resumable(desk: Desk) -> Iterator[None]:
    """An interrupted sweep says that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        desk.say("what was decided is kept: the same command goes on with it")
        raise


def _agree(space: str, auto: int | None, trials: int | None, seed: int, every: str) -> None:
    """Raises `BadInput` for options of a sweep that contradict each other, or that have no effect without another one."""
    if not space and auto is None:
        raise BadInput('give a space ("tp=1,2,4 pp=1..8 gpus=64") or --auto GPUS, or both')
    if seed and trials is None:
        raise BadInput(f"--seed {seed} chooses which plans --trials draws. Add --trials, or leave --seed out")
    if every and trials is not None:
        raise BadInput("--every simulates all plans, --trials only some of them. Give one of the two")


def _explain(app: typer.Typer, desk: Desk) -> None:
    @app.command()
    def explain(
        plan: PlanName,
        on: On = "dgx-h100",
        set_: Sets = None,
        fail: Fail = None,
        without: Without = None,
        report: Report = None,
        as_json: AsJson = False,
    ) -> None:
        """Critical path, what each resource is worth, and the best changes of plan.  Example: steptwin explain llama3-8b-fsdp8"""
        from sim.files.planfile import load_plan
        from sim.planning.explain.explanation import explain as run
        from sim.setting.bind import bind

        overrides, edits = split(set_, fail, without)
        setting = heeded(desk, bind(load_plan(plan, overrides), on, edits))
        explained = run(setting, say=logged(desk.say))
        if report:
            desk.say(f"report: {desk.page('explain', report, explained.plan, explained.topology, explained)}")
        if as_json:
            desk.show(explained.to_dict(), True, "explain")
        else:
            _explained(desk, explained)
        if not explained.fits:
            raise typer.Exit(3)


def _explained(desk: Desk, explained: Explanation) -> None:
    """Three tables: resources, the critical path, and changes of plan."""
    from sim.planning.explain.explanation import SHOWN
    from topologies.units import show_duration

    found: dict[str, Any] = msgspec.to_builtins(explained)
    low, high = map(show_duration, explained.interval or (0.0, 0.0))
    head = {
        "rows": found["sensitivities"],
        "plan": found["plan"],
        "topology": found["topology"],
        "step_time_s": found["step_time_s"],
        "80 % interval": f"{low} to {high}",
    }
    head |= {"verdict": found["verdict"], "memory": explained.room}
    desk.show(head, False, "what faster resources are worth")
    path = [{"class": name, "time_s": spent, "share": spent / explained.step_time_s} for name, spent in explained.path[:SHOWN]]
    desk.show({"rows": path}, False, "critical path")
    changes = [
        {"change": " ".join(one.overrides), "step_time_s": one.step_time_s, "gain": one.gain, "memory": f"{one.memory}"}
        for one in explained.changes
    ]
    none = (
        "none gains a thousandth of the step" if found["fits"] else "none makes it fit alone; `steptwin predict` names what does together"
    )
    desk.show({"rows": changes} if changes else {"changes of plan": none}, False, "changes")


def _reliability(mtbf_gpu: str, mtbf_node: str, restart: str, repair: str, spares: int | None) -> Reliability:
    """From the words of the command line; an empty one leaves its default."""
    from sim.planning.capacity.goodput import Reliability
    from topologies.units import duration

    times = {
        name: math.inf if text == "never" else duration(text, f"--{name.replace('_', '-')} (or never)", ("h", "d"))
        for name, text in {"mtbf_gpu": mtbf_gpu, "mtbf_node": mtbf_node}.items()
        if text
    }
    said = {"restart": _time(restart, "--restart", ("s", "min")), "repair": _time(repair, "--repair", ("h", "d"))}
    times |= {name: seconds for name, seconds in said.items() if seconds is not None}
    return Reliability(spares=spares, **times)


def _time(text: str, option: str, units: tuple[str, str]) -> float | None:
    """Seconds of an option that may be left out. Raises `UnitError` that names some `units`."""
    from topologies.units import duration

    return duration(text, option, units) if text else None


def _capacity(app: typer.Typer, desk: Desk) -> None:
    @app.command()
    def capacity(
        plan: PlanName,
        tokens: Annotated[str, typer.Option(help='What to train: tokens (15T, 15e12), or samples of the plan ("50k samples")')] = "",
        epochs: Annotated[float | None, typer.Option(help="In place of --tokens: passes over --dataset")] = None,
        dataset: Annotated[str, typer.Option(help='What one pass has: tokens (300B), or samples of the plan ("50k samples")')] = "",
        on: On = "dgx-h100",
        set_: Sets = None,
        days: Annotated[float | None, typer.Option(help="Find the smallest cluster that finishes in so many days")] = None,
        mtbf_gpu: Annotated[
            str, typer.Option("--mtbf-gpu", help="Mean time between failures of one GPU, or never; default: Llama 3 405B's")
        ] = "",
        mtbf_node: Annotated[str, typer.Option("--mtbf-node", help="The same of one node; default: only GPUs fail")] = "",
        restart: Annotated[str, typer.Option("--restart", help="From a failure to the first new step")] = "",
        checkpoint: Annotated[
            str, typer.Option("--checkpoint", help="Stall of one checkpoint; default: the plan's own, or its bytes into the store")
        ] = "",
        every: Annotated[str, typer.Option("--checkpoint-every", help="Time between checkpoints; default: the cheapest")] = "",
        spares: Annotated[
            int | None, typer.Option("--spares", help="Nodes that stand by while failed ones are repaired; default: no limit")
        ] = None,
        repair: Annotated[str, typer.Option("--repair", help="Time until a failed node is ready again; default: 4 h")] = "",
        seed: Annotated[int, typer.Option(help="Of the failures drawn")] = 0,
        prices: Prices = None,
        report: Report = None,
        as_json: AsJson = False,
    ) -> None:
        """Days, GPU-hours, energy, money, goodput of a training run; --report: scaling curves.  Example: steptwin capacity gpt2-ddp8 --tokens 10B"""
        from sim.files.planfile import load_plan
        from sim.planning.capacity import capacity as planned
        from sim.planning.capacity.amounts import amount, tokens_of
        from sim.planning.capacity.prices import load_prices
        from sim.planning.capacity.scaling import smallest
        from sim.setting.bind import bind

        overrides, edits = split(set_)
        base, how = load_plan(plan, overrides), _reliability(mtbf_gpu, mtbf_node, restart, repair, spares)
        many = [tokens_of(text, base, f"--{name}") if text else None for name, text in (("tokens", tokens), ("dataset", dataset))]
        work = amount(many[0], epochs, many[1])
        options: dict[str, Any] = {"how": how, "seed": seed, "prices": load_prices(prices) if prices else None, "edits": edits}
        options |= {
            "checkpoint": _time(checkpoint, "--checkpoint", ("s", "min")),
            "every": _time(every, "--checkpoint-every", ("min", "h")),
        }
        if days is None:
            heeded(desk, bind(base, on, edits))
            found = planned.capacity(base, on, work, **options)
        else:
            found = smallest(base, on, work, days, say=desk.say, **options)
        if not as_json:
            _noted(desk, found.unpriced, base.output.checkpoint_every, bool(every))
            _kept(desk, base, how, found.gpus, on, edits)
        desk.show((found.to_dict() if as_json else _in_words(found)) | unfit(found, as_json), as_json, "capacity")
        if report:
            desk.say(
                f"report: {desk.page('capacity', report, f'{found.plan} on {found.topology}', found, *_curves(desk, base, on, work, found.steps, options))}"
            )
        if not found.fits:
            raise typer.Exit(3)


def _curves(desk: Desk, plan: Plan, on: str, work: float, steps: int, options: dict[str, Any]) -> list[Curve]:
    """The same training of so many `steps` on larger clusters: with the batch as it is, and with one that grows. A mixture has no larger sizes of itself."""
    from sim.planning.capacity.scaling import Curve, curve_sizes, scaling
    from topologies.cluster import parse

    if len(parse(on)) > 1:
        return [Curve(), Curve()]
    sizes = {False: curve_sizes(plan.world), True: curve_sizes(plan.world, steps)}
    return [scaling(plan, on, sizes[weak], work, weak=weak, say=watched(desk.say), **options) for weak in (False, True)]


def _in_words(found: Capacity) -> dict[str, Any]:
    """What a person is shown."""
    shown = found.to_dict()
    for name in ("interval_s", "unpriced", "lost_s", "samples", "seq", "sample_unit", "tokens"):
        del shown[name]
    shown["memory"] = f"{found.memory or ''}"
    shown["overrides"] = " ".join(f"--set {one}" for one in found.overrides)
    if not found.overrides:
        del shown["overrides"]
    if found.paid_gpu_hours == found.gpu_hours:
        del shown["paid_gpu_hours"]
    if not found.mark_reasons:
        del shown["mark_reasons"]
    if found.quiet_step_s < found.step_time_s:  # what the plan saves is no part of the days: checkpoints are counted apart
        shown["step_without_checkpoints_s"] = found.quiet_step_s
    return (
        {"trained": found.trained}
        | shown
        | {"lost_to": found.lost_to(), "days_interval": "{:,.4g} to {:,.4g}, of 80 %".format(*found.days_interval)}
    )


def _kept(desk: Desk, plan: Plan, how: Reliability, gpus: int, on: str, edits: tuple[str, ...]) -> None:
    """Where checkpoints must not lie: on what fails."""
    from topologies.load import load_topology

    lies = plan.output.checkpoint_every and plan.output.checkpoint_to == "disk" and how.spares != 0
    if lies and gpus > load_topology(on, edits).ranks_per_node:
        desk.say('note: output.checkpoint_to = "disk": a node that fails takes its part of the checkpoint with it. "store" outlives it')


def _noted(desk: Desk, free: Iterable[str], every: int, said: bool) -> None:
    """What another machine is not charged for, and how often the plan would save."""
    if every and not said:
        desk.say(f"note: checkpoints are made as often as costs least, not every {every:,} steps, as the plan has it")
    _free(desk, free)


def _free(desk: Desk, edits: Iterable[str]) -> None:
    """What another machine is not charged for."""
    for edit in edits:
        desk.say(f'note: no price for {edit}: the money is that of the machine without it. --prices: "{edit}" = 0.1 adds to each GPU-hour')
