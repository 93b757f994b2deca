"""From a prediction to a plan of capacity: days, GPU-hours, energy, money, goodput; the smallest cluster for a deadline."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from sim.cost.place import SAVED
from sim.files.machinefile import machine_words
from sim.lower.output import WRITE
from sim.memory.report import Fill
from sim.plan import Plan
from sim.planning.capacity.amounts import Trained, amount
from sim.planning.capacity.goodput import Outcome, Reliability, daly, expected
from sim.planning.capacity.prices import money, paid_gpus, unpriced
from sim.predict import predict_setting
from sim.result.figures import figures_of_memory
from sim.result.uncertainty import LEVEL, Mark
from sim.sections import Output
from sim.setting.bind import Setting, bind
from sim.setting.pricer import pricer_for
from sim.setting.program import program_for
from sim.setting.rooms import smallest_devices
from sim.steady.stalls import writing_seconds
from sim.tables import Tabular
from topologies.errors import BadInput
from topologies.hardware import Gpu
from topologies.load import Topology
from topologies.units import show_energy

DAY = 86400.0
HOST_POWER = 0.5
"""Power of host, network and cooling beside the GPUs' own, as a share of theirs: a DGX H100 draws up to 10.2 kW for
8 x 700 W = 5.6 kW of GPUs, 0.8 at full load; 0.5 is assumed for the mean of a training run."""
UTILISATION = 0.85
"""Mean GPU power in training over its limit (assumed)."""
WAITING = 1 / 6
"""GPU power over its limit while a job waits for data or writes a checkpoint: what H200s drew that waited (`reports/measured`, `sim/cost/power.py`)."""
IDLE = 0.1
"""GPU power over its limit while the job is down (assumed: nvidia-smi shows some 70 W of 700 W for an H100 without work)."""


class Capacity(Tabular, msgspec.Struct, frozen=True, kw_only=True):
    """What training takes. Seconds, joules, money in the price file's unit. Prints as a table; `to_frame()` is one row."""

    gpus: int
    topology: str
    """With what was changed about it."""
    steps: int
    step_time_s: float
    """As `predict` says it."""
    interval: tuple[float, float]
    """80 % interval of the step."""
    mark: Mark = "extrapolated"
    """What the step rests on, and why it is no more: as of a prediction."""
    mark_reasons: tuple[str, ...] = ()
    productive_s: float
    """All steps, without the checkpoints that the plan's own step has: these are counted by themselves."""
    elapsed_s: float
    goodput: float
    failures: int
    checkpoint_interval_s: float
    checkpoint_s: float
    """What one checkpoint stalls the step for."""
    lost_s: dict[str, float]
    """What is no progress. restarts: from failures to the first new step; repeats: steps that failures took back; checkpoints: their stalls."""
    gpu_hours: float
    """Of the GPUs that the plan uses, for all of the elapsed time."""
    paid_gpu_hours: float
    """What `money` pays for: with nodes that stand by, and nodes of which the plan uses a part as a whole. Joules are of `gpu_hours` alone."""
    energy_j: float | None
    """GPUs take `IDLE` of their limit while the job is down; hosts, network and cooling as much as in training."""
    money: float | None
    fits: bool
    plan: str = ""
    overrides: tuple[str, ...] = ()
    """What another number of GPUs has changed about the plan, as `--set` takes it: with them `predict` says this step."""
    memory: Fill | None = None
    unpriced: tuple[str, ...] = ()
    """What was changed about the machine and is not among the prices: `money` has nothing for it."""
    trained: Trained = Trained()

    @property
    def days(self) -> float:
        return self.elapsed_s / DAY

    @property
    def quiet_step_s(self) -> float:
        """Of one step, without the plan's checkpoints."""
        return self.productive_s / self.steps

    @property
    def days_interval(self) -> tuple[float, float]:
        """80 % interval of the days, by that of the step; the luck of failures is not in it."""
        low, high = (self.days * end / self.step_time_s for end in self.interval)
        return low, high

    def __str__(self) -> str:
        rows = [
            *([("plan", " ".join((self.plan, *(f"--set {one}" for one in self.overrides))))] if self.plan else []),
            ("GPUs", f"{self.gpus:,} of {self.topology}" + ("" if self.fits else "; DOES NOT FIT into memory")),
            ("trained", f"{self.trained}"),
            ("steps", f"{self.steps:,} of {self.quiet_step_s:.4g} s"),
            (
                "elapsed",
                "{:,.2f} days (80 %: {:,.2f} to {:,.2f}".format(self.days, *self.days_interval)
                + f"; {self.mark}), of which {self.goodput:.1%} progress",
            ),
            ("failures", f"{self.failures:,}; {self._saved()}"),
            ("lost", self.lost_to()),
            (
                "GPU-hours",
                f"{self.gpu_hours:,.0f}" + (f", {self.paid_gpu_hours:,.0f} are paid for" if self.paid_gpu_hours > self.gpu_hours else ""),
            ),
            ("energy", "not known" if self.energy_j is None else show_energy(self.energy_j)),
            (
                "money",
                "no prices" if self.money is None else f"{self.money:,.0f}" + "".join(f"; nothing for {one}" for one in self.unpriced),
            ),
        ]
        rows += [("memory", f"{self.memory}")] if self.memory and self.memory.nearly_full else []
        rows += [(self.mark, reason) for reason in self.mark_reasons]
        return "\n".join(f"{name:<10} {text}" for name, text in rows)

    def _saved(self) -> str:
        every = self.checkpoint_interval_s / self.quiet_step_s
        return f"every {every:,.0f} steps ({self.checkpoint_interval_s:,.0f} s) a checkpoint of {self.checkpoint_s:.3g} s"

    def lost_to(self) -> str:
        """Shares of the elapsed time that are no progress, in words."""
        return ", ".join(f"{name} {seconds / self.elapsed_s:.1%}" for name, seconds in self.lost_s.items())

    def to_dict(self) -> dict[str, Any]:
        """The published JSON (`sim.files.forms.planning`), days among its plain values."""
        found = self._rows()[0]
        low, high = found.pop("interval")
        return found | {"interval_s": {"low": low, "high": high, "level": LEVEL}, "days_interval": list(self.days_interval)}

    def _rows(self) -> list[dict[str, Any]]:
        found = msgspec.structs.asdict(self)
        found |= {"memory": msgspec.to_builtins(self.memory), "days": self.days, "days_interval": self.days_interval}
        return [found | msgspec.structs.asdict(found.pop("trained")) | {"tokens": self.trained.tokens}]


def capacity(plan: Plan, on: str | Topology, tokens: float, *, how: Reliability | None = None, checkpoint: float | None = None,
             every: float | None = None, prices: dict[str, float] | None = None, seed: int = 0, edits: tuple[str, ...] = ()) -> Capacity:  # fmt: skip
    """Trains `tokens` tokens (samples for models without a sequence) with `plan` on `on`, after `edits` of it ("link.nvlink.rate=200 GB/s").

    `checkpoint` is the stall of one checkpoint in seconds; default: what the plan's own [output] stalls for, or else the sharded state written
    to the shared store (by one thread for each GPU: `sim.cost.place.SAVED`). How often checkpoints are made is found here (Daly's interval, or as often as
    asynchronous ones can be written or loaders make up for them), whatever the plan says, or `every` so many seconds.
    Raises `BadInput` when prices are given but not for this machine, and for tokens or a checkpoint that cannot be.
    """
    amount(tokens)
    if checkpoint is not None and not 0 <= checkpoint < math.inf:
        raise BadInput(f"checkpoint = {checkpoint} s must be finite and not negative")
    if every is not None and not 0 < every < math.inf:
        raise BadInput(f"every = {every} s must be finite and above zero: the time from one checkpoint to the next")
    setting = bind(plan, on, edits)
    found = predict_setting(setting, detail=False)
    saves = setting.plan.output.checkpoint_every > 0
    step = _saving(setting, 0) if saves else found.step_time_s
    report, fit = figures_of_memory(setting, remedies=False)
    network = setting.network
    steps = math.ceil(tokens / (plan.global_batch * network.seq))
    how = how or Reliability()
    work = steps * step
    writing = writing_seconds(setting, pricer_for(setting)) if saves else 0.0
    mtbf = how.mtbf(plan.world, setting.topology.ranks_per_node)
    if checkpoint is not None or not saves:
        stall, least = _written(setting) if checkpoint is None else checkpoint, step
    else:
        stall, least = _stall(setting, step, writing, mtbf)
    run, interval = expected(work, stall, mtbf, how, seed, step=least, writing=writing, said=every)
    hours = run.elapsed / 3600
    paid = hours * paid_gpus(plan.world, how, setting.topology)
    return Capacity(
        gpus=plan.world,
        plan=plan.name or plan.model_name,
        topology=machine_words(setting.topology),
        trained=Trained(tokens / network.seq, network.seq, network.sample_unit),
        steps=steps,
        step_time_s=found.step_time_s,
        interval=found.interval,
        productive_s=work,
        elapsed_s=run.elapsed,
        goodput=run.goodput,
        failures=run.failures,
        checkpoint_interval_s=interval,
        checkpoint_s=stall,
        lost_s={"restarts": run.down, "repeats": run.lost, "checkpoints": run.checkpoints},
        gpu_hours=hours * plan.world,
        paid_gpu_hours=paid,
        energy_j=_energy(setting.topology, run, plan.world, found.breakdown.data_s / found.step_time_s),
        money=money(prices, on.name if isinstance(on, Topology) else on, plan.world, paid, edits),
        fits=fit is None,
        memory=report.fill(smallest_devices(setting)),
        unpriced=unpriced(prices, edits),
        mark=found.mark,
        mark_reasons=found.mark_reasons,
    )


_SELDOM = 10_000
"""Steps from one checkpoint to the next that are enough for its seconds to count as those of one alone."""
_MOMENT = 1e-9
"""Seconds: what is made up for in no more is not."""


def _output(setting: Setting, output: Output) -> Setting:
    return msgspec.structs.replace(setting, plan=msgspec.structs.replace(setting.plan, output=output))


def _saving(setting: Setting, every: int) -> float:
    """Seconds of a mean step with a checkpoint after every so many; 0: with none."""
    output = msgspec.structs.replace(setting.plan.output, checkpoint_every=every)
    return predict_setting(_output(setting, output), detail=False).step_time_s


def _stall(setting: Setting, step: float, writing: float, mtbf: float) -> tuple[float, float]:
    """Seconds of a checkpoint, and of the shortest time from one to the next that is worth it, where a step without takes `step`, and `writing` it
    beside training so long. None waits for the one before, however often the plan makes them.

    Where steps wait for loaders, these fill their stock meanwhile: each step after a checkpoint makes up for some of it, until nothing is left to make up
    for. More seldom they need not be made; and more often they are only where failures ask for that, whatever they cost then (Daly)."""
    plan, several = setting.plan, max(1, math.ceil(2.0 * writing / step))
    seldom = max(_SELDOM, several)
    rare = _added(setting, step, seldom)
    if not plan.data.workers or plan.asynchronous:
        return rare, step
    most, less = _added(setting, step, several), _added(setting, step, several + 1)
    if most - less < _MOMENT:
        return rare, step
    whole, each = most + (most - less) * several, (most - less) / step
    enough, often = (whole - rare) / each, max(step, daly(whole, mtbf))
    return (rare, enough) if enough < often else (whole - each * often, often)


def _added(setting: Setting, step: float, every: int) -> float:
    """Seconds that one checkpoint of every so many steps adds."""
    return every * max(0.0, _saving(setting, every) - step)


def _written(setting: Setting) -> float:
    """Seconds of a sharded checkpoint, by the slowest of what it passes: the thread of each GPU that writes it, a node's link to the
    shared store, the store itself."""
    part, topology = _shard(setting), setting.topology
    store, ranks = topology.store(0), setting.plan.world
    if store is None:
        return part / SAVED
    nodes = topology.nodes_of(ranks)
    return max(part / SAVED, part * min(ranks, topology.ranks_per_node) / store.write, part * ranks / store.total(True, nodes))


def _shard(setting: Setting) -> int:
    """Bytes that the rank with most writes of a sharded checkpoint."""
    program = program_for(_output(setting, Output(checkpoint_every=1, checkpoint_mode="sharded")), 1)
    return max((op.bytes for ops in program.segments.values() for op in ops if op.id == WRITE), default=0)


def _energy(topology: Topology, run: Outcome, gpus: int, starved: float) -> float | None:
    """Joules of all GPUs that the plan uses, each by its own power, and of what is around them. `starved`: the share of a step in which they wait for
    data."""
    power = 0.0
    for device, share in topology.devices(gpus):
        if not isinstance(device, Gpu) or not device.power:
            return None
        power += share * gpus * device.power
    steps = run.elapsed - run.down - run.checkpoints
    waiting = starved * steps + run.checkpoints
    drawn = UTILISATION * (steps - starved * steps) + WAITING * waiting + IDLE * run.down
    return power * (drawn + UTILISATION * HOST_POWER * run.elapsed)
