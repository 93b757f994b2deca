"""One plan's steps with as few ops as possible: equal layers are lowered, priced and condensed once, also across the plans of a sweep."""

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
"""Share of a step up to which its training thread may be busy, so that a short first step warms up as well as a whole one: launches do not
bind."""


def round_of(plan: Plan) -> int:
    """Number of micro-batches after which the timeline of a pipeline repeats itself.

    A timeline that does not repeat gives all micro-batches of the plan: that of a user's own schedule ("csv"), which is written for one
    number of micro-batches, and that of an interleaved or ZB-H1 schedule with virtual stages whose number of micro-batches is no multiple
    of `pp`."""
    p = plan.parallel
    if p.pp > 1 and (p.schedule == "csv" or (p.virtual_stages > 1 and p.schedule in ("interleaved", "zb-h1") and plan.microbatches % p.pp)):
        return plan.microbatches
    return 1 if p.virtual_stages == 1 and p.schedule in ("gpipe", "1f1b", "interleaved") else p.pp


def warm_of(plan: Plan, count: int) -> tuple[int, ...]:
    """Numbers of micro-batches of the steps that are simulated to warm up a step of `count` micro-batches.

    Without a pipeline: one step of `count`. With one, the stages end a step in the same order however long it is, so one step with the
    fewest micro-batches that the schedule takes is enough. The exceptions need two steps:

    Forward only: no stage waits for later ones, so the first stages run ahead by two steps, and what is still running takes from the links
    of the next step. Both steps have `count` micro-batches.

    Put-off weight gradients (ZB-H1): lighter stages end before the longest one, earlier with each micro-batch, until the lead is the bubble
    of the next step, which they begin earlier. Only the step after that ends as all later ones do. Both steps have `count` micro-batches.

    V placement: the first rank has the first and the last stage. If gradients take long, it ends in another order after the first step and
    after few micro-batches (found on two ranks, whose ZB-V is in order from seven micro-batches on). Both steps have at least 4 `pp`, but
    at most `count`."""
    p = plan.parallel
    if p.pp == 1:
        return (count,)
    if plan.task == "forward" or puts_off(name_of(p)):
        return (count, count)
    if style_of(name_of(p)) == "v":
        return (min(count, max(round_of(plan), 4 * p.pp)),) * 2
    return (min(count, round_of(plan)),)


def reads_itself(plan: Plan) -> bool:
    """Does the training thread itself read its batches from a disk or a store, which it shares with other ranks?"""
    return not plan.data.workers and plan.data.stored


def _shares_host(plan: Plan) -> bool:
    """Do ranks wait for each other on the disks, the memory or the PCIe switches of their host?"""
    return reads_itself(plan) or plan.host_updates or plan.memory.offload != "none"


class Run:
    """The steps of one plan. If all ranks of a stage are alike, equal layers are priced once for all plans that split and run a layer
    alike."""

    def __init__(self, setting: Setting, coarse: bool = False, pricer: Pricer | None = None) -> None:
        """`coarse`: as of `sim.steady.rounds.step_of`; ignored if ranks share what their host has. `pricer`: gives the costs of ops; None:
        the pricer of the setting."""
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
        """The simulated steps, one after the other. `counts`: number of micro-batches of each step."""
        return self._times(self.program(counts))

    def _times(self, program: Program) -> list[Step]:
        return step_times(program, self.pricer, self._places, self._alike, self._coarse and self.shortens)

    def whole(self) -> float:
        """Seconds of a step with all micro-batches, in the steady state."""
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
        """Two choices of steps, as numbers of micro-batches. The last step has all micro-batches and is reported; the steps before it warm
        up, as neighbouring steps overlap. In the first choice they are short where `warm_of` allows it, in the second as long as the last.

        If loaders may keep batches in store, or the training thread reads them while the device still works, both choices have three whole
        steps: the second step may do what no later one does."""
        plan = self._setting.plan
        count = plan.microbatches
        warm = (count, count) if plan.data.workers or reads_itself(plan) else warm_of(plan, count)
        return (*warm, count), (count,) * (len(warm) + 1)

    def traced(self) -> tuple[Program, Trace]:
        """Program and trace of a step with all micro-batches, after the steps that warm up. A run of kernels is one span."""
        warmed, full = self._counts
        program, trace = self._traced(warmed)
        return self._traced(full) if host_seconds(program, self.pricer) > step_time(trace) * _AHEAD else (program, trace)

    def _traces(self, steps: int) -> Steps:
        """`steps` steps with all micro-batches. At their end the loaders, which share the host's cores, may work less than in the
        middle."""
        program, trace = self._traced((self._setting.plan.microbatches,) * steps)
        return Steps(program, trace, self.pricer, step_time(trace))

    def _traced(self, counts: tuple[int, ...]) -> tuple[Program, Trace]:
        from sim.engine.run import simulate

        program = self.program(counts)
        return program, simulate(program, self.pricer, self._places, detail=False, condensed=True, alike=self._alike)

    def program(self, counts: tuple[int, ...]) -> Program:
        """The program of one step for each of `counts`, the number of its micro-batches."""
        return program_for(self._setting, len(counts), short=self._short, counts=counts)


def _apart(setting: Setting, shortcut: Shortcut) -> bool:
    """May a layer be one op while transfers run beside it? Not if the layer's transfers share most of their links with the all-gathers of
    ZeRO-3 for every layer. Experts that are spread over nodes share links with the messages of a pipeline: such steps come out up to 6 %
    too short, never too long. A sweep finds those that matter when it simulates them whole."""
    gathers = sharding_of(setting.plan, setting.framework)[0] == 3 and setting.plan.parallel.pp == 1
    return shortcut.inside("tp") and (not gathers or shortcut.inside("cp", "ep"))


_LAYERS: dict[tuple[object, ...], tuple[Shortener, Shortcut, Setting]] = {}
_MOST = 48
"""Most kinds of layers that are kept: a sweep uses them again with other pipelines and other data parallelism."""


def layers_of(plan: Plan) -> bytes:
    """The parts of a plan that decide the ops of its layers, as JSON. Plans with equal bytes lower a layer alike."""
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
    """The shortener of an earlier plan that lowers and prices layers alike, or a new one."""
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
