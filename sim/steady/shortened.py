"""One plan's steps in the fewest ops: equal layers are lowered, priced and condensed once, also for other plans of a sweep."""

from __future__ import annotations

import msgspec

from sim.cost.price import Pricer
from sim.engine.fold import alike
from sim.engine.shortcut import Shortcut
from sim.engine.steps import Step, step_times
from sim.framework.chosen import sharding_of
from sim.lower.short import Shortener
from sim.plan import Plan
from sim.program import Program
from sim.rules import mesh_of
from sim.schedule import puts_off
from sim.schedule.placement import style_of
from sim.schedule.reading import name_of
from sim.setting.bind import Setting
from sim.setting.pace import board_clock
from sim.setting.pricer import pricer_for
from sim.setting.program import program_for
from sim.steady.detail import STEPS
from sim.steady.settled import Steps, host_seconds, loader_seconds, until_settled
from sim.timeline.metrics import step_time
from sim.trace import Trace

_AHEAD = 0.9
"""Of a step, what its thread spends at most where a short first step warms up as well as a whole one: its lead does not bind."""


def round_of(plan: Plan) -> int:
    """Micro-batches after which a pipeline's timeline repeats itself. A schedule of one's own is for as many as it names, and other numbers of
    micro-batches than multiples of its ranks make rounds of other lengths: these do not repeat."""
    p = plan.parallel
    if p.pp > 1 and (p.schedule == "csv" or (p.virtual_stages > 1 and p.schedule in ("interleaved", "zb-h1") and plan.microbatches % p.pp)):
        return plan.microbatches
    return 1 if p.virtual_stages == 1 and p.schedule in ("gpipe", "1f1b", "interleaved") else p.pp


def warm_of(plan: Plan, count: int) -> tuple[int, ...]:
    """Micro-batches of the first steps, which warm up one of `count`: the last stages to end a pipeline's step do so in one order, however
    long it is, so that the fewest will do that its schedule takes. Where nothing runs backward no stage waits for the later ones, and what
    all of them still do takes from the next step's links; nothing comes back to the first stages, which run ahead of two steps. Lighter
    stages that put off weights' gradients (ZB-H1) end before the longest, by more with each micro-batch until that is the bubble of the
    next step, which they begin the earlier: the step after that is the first to end as all later ones do. In a V the first rank has the
    first and the last stage: where gradients take long it ends, after the first step's and after few micro-batches, in another order
    (found on two ranks, whose ZB-V is in order from seven micro-batches on)."""
    p = plan.parallel
    if p.pp == 1:
        return (count,)
    if plan.task == "forward" or puts_off(name_of(p)):
        return (count, count)
    if style_of(name_of(p)) == "v":
        return (min(count, max(round_of(plan), 4 * p.pp)),) * 2
    return (min(count, round_of(plan)),)


def reads_itself(plan: Plan) -> bool:
    """Does the training thread read its batches, from what it shares with other ranks: a disk, a store?"""
    return not plan.data.workers and plan.data.stored


def _shares_host(plan: Plan) -> bool:
    """Do ranks wait for each other on the disks, the memory or the PCIe switches of their host?"""
    return reads_itself(plan) or plan.host_updates or plan.memory.offload != "none"


class Run:
    """One plan's steps; where all stages' ranks are alike, equal layers are priced once, for all plans that split and run a layer alike."""

    def __init__(self, setting: Setting, coarse: bool = False, pricer: Pricer | None = None) -> None:
        """`pricer`: prices that are not the setting's own."""
        self._setting, self._coarse, self._places = setting, coarse and not _shares_host(setting.plan), setting.places
        self.pricer: Pricer = pricer or pricer_for(setting)
        self._short: Shortener | None = None
        self._shortcut: Shortcut | None = None
        plan = setting.plan
        if plan.noise.even and plan.update.summed and setting.topology.kind == "cuda" and alike(self._places):
            shortcut = Shortcut(self.pricer, mesh_of(plan), setting.topology)
            shortcut.coarse = self._coarse and _apart(setting, shortcut)
            self.pricer = self._shortcut = shortcut
            self._short = _shortener(setting, shortcut) if pricer is None else Shortener(shortcut.shorten, shortcut.coarse)

    @property
    def shortens(self) -> bool:
        """Are equal layers lowered and priced once?"""
        return self._short is not None

    @property
    def _alike(self) -> bool:
        return self._shortcut is not None and self._shortcut.alike

    def times(self, counts: tuple[int, ...]) -> list[Step]:
        """The steps; `counts`: micro-batches of each."""
        return self._times(self.program(counts))

    def _times(self, program: Program) -> list[Step]:
        return step_times(program, self.pricer, self._places, self._alike, self._coarse and self.shortens)

    def whole(self) -> float:
        """Seconds of a step with all micro-batches."""
        if self._setting.topology.kind == "cpu" and self._setting.plan.data.workers:
            return until_settled(self._traces, STEPS).step
        warmed, full = self._counts
        program = self.program(warmed)
        step = self._times(program)[-1]
        if step.host > step.seconds * _AHEAD and warmed != full:
            program = self.program(full)
            step = self._times(program)[-1]
        return max(step.settled, loader_seconds(program, self.pricer))

    @property
    def _counts(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Some steps, the last of which has all micro-batches, and is reported; those before it warm up what overlaps with its neighbours: short,
        or as long. Where loaders could keep its batches in store, or the thread reads them while the device still works, there are three whole ones:
        the second may do what none does after it."""
        plan = self._setting.plan
        count = plan.microbatches
        warm = (count, count) if plan.data.workers or reads_itself(plan) else warm_of(plan, count)
        return (*warm, count), (count,) * (len(warm) + 1)

    def traced(self) -> tuple[Program, Trace]:
        """A step with all micro-batches after one that warms up, with a trace of what their ranks do: runs of kernels as one span."""
        warmed, full = self._counts
        program, trace = self._traced(warmed)
        return self._traced(full) if host_seconds(program, self.pricer) > step_time(trace) * _AHEAD else (program, trace)

    def _traces(self, steps: int) -> Steps:
        """So many whole steps, beside whose end loader processes that share the host's cores need not work as in the middle."""
        program, trace = self._traced((self._setting.plan.microbatches,) * steps)
        return Steps(program, trace, self.pricer, step_time(trace))

    def _traced(self, counts: tuple[int, ...]) -> tuple[Program, Trace]:
        from sim.engine.run import simulate

        program = self.program(counts)
        return program, simulate(program, self.pricer, self._places, detail=False, condensed=True, alike=self._alike)

    def program(self, counts: tuple[int, ...]) -> Program:
        """Steps of so many micro-batches each."""
        return program_for(self._setting, len(counts), short=self._short, counts=counts)


def _apart(setting: Setting, shortcut: Shortcut) -> bool:
    """May layers be one op where transfers run beside them? Not where they share most of their links with what ZeRO-3 gathers for every
    layer. Experts over nodes share them with a pipeline's messages: such steps come out up to 6 % too short, never too long, so that a sweep
    finds those that matter out when it simulates them whole."""
    gathers = sharding_of(setting.plan, setting.framework)[0] == 3 and setting.plan.parallel.pp == 1
    return shortcut.inside("tp") and (not gathers or shortcut.inside("cp", "ep"))


_LAYERS: dict[tuple[object, ...], tuple[Shortener, Shortcut, Setting]] = {}
_MOST = 48
"""Kinds of layers that are kept: a sweep comes back to them with other pipelines and data parallelism."""


def layers_of(plan: Plan) -> bytes:
    """What of a plan sets the ops of its layers: plans that differ in the rest lower a layer alike."""
    p = msgspec.structs.replace(
        plan.parallel,
        pp=1,
        dp_replicate=1,
        dp_shard=1,
        zero=None,
        schedule="1f1b",
        actions=(),
        virtual_stages=1,
        stages=None,
        reshard_after_forward=True,
    )
    batch = msgspec.structs.replace(plan.batch, global_=0)
    return msgspec.json.encode(msgspec.structs.replace(plan, name="", parallel=p, batch=batch))


def _shortener(setting: Setting, shortcut: Shortcut) -> Shortener:
    """Layers of an earlier plan that lowers and prices them alike, or new ones."""
    key = (
        layers_of(setting.plan),
        board_clock(setting),
        setting.plan.world,
        id(setting.network),
        id(setting.topology),
        setting.framework,
        shortcut.coarse,
    )
    kept = _LAYERS.pop(key, None)
    if kept is None or not shortcut.adopt(kept[1]):
        kept = (Shortener(shortcut.shorten, shortcut.coarse), shortcut, setting)
    short = kept[0]
    short.shorten = shortcut.shorten
    _LAYERS[key] = (short, shortcut, setting)
    if len(_LAYERS) > _MOST:
        del _LAYERS[next(iter(_LAYERS))]
    return short
