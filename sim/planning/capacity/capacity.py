"""From a prediction to a plan of capacity: days, GPU-hours, energy, money, goodput; the smallest cluster for a deadline."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from sim.files.machinefile import machine_words
from sim.lower.output import WRITE
from sim.plan import Output, Plan
from sim.planning.capacity.goodput import Outcome, Reliability, daly, expected
from sim.predict import predict_setting
from sim.result.figures import figures_of_memory
from sim.result.uncertainty import LEVEL
from sim.setting.bind import Setting, bind
from sim.setting.pricer import pricer_for
from sim.setting.program import program_for
from sim.steady.stalls import writing_seconds
from sim.tables import Tabular
from topologies.cluster import parse
from topologies.errors import BadInput
from topologies.hardware import Gpu
from topologies.load import Topology, load_topology
from topologies.table import read_toml
from topologies.units import show_energy

DAY = 86400.0
HOST_POWER = 0.5
"""Power of host, network and cooling beside the GPUs' own, as a share of theirs: a DGX H100 draws up to 10.2 kW for
8 x 700 W = 5.6 kW of GPUs, 0.8 at full load; 0.5 is assumed for the mean of a training run."""
UTILISATION = 0.85
"""Mean GPU power in training over its limit (assumed)."""
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
    productive_s: float
    """All steps, without the checkpoints that the plan's own step has: these are counted by themselves."""
    elapsed_s: float
    goodput: float
    failures: int
    checkpoint_interval_s: float
    gpu_hours: float
    """Of the GPUs that the plan uses, for all of the elapsed time; nodes that stand by cost money, and are in neither hours nor joules."""
    energy_j: float | None
    """GPUs take `IDLE` of their limit while the job is down; hosts, network and cooling as much as in training."""
    money: float | None
    fits: bool
    plan: str = ""
    unpriced: tuple[str, ...] = ()
    """What was changed about the machine and is not among the prices: `money` has nothing for it."""

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
            *([("plan", self.plan)] if self.plan else []),
            ("GPUs", f"{self.gpus:,} of {self.topology}" + ("" if self.fits else "; DOES NOT FIT into memory")),
            ("steps", f"{self.steps:,} of {self.quiet_step_s:.4g} s"),
            (
                "elapsed",
                "{:,.2f} days (80 %: {:,.2f} to {:,.2f})".format(self.days, *self.days_interval)
                + f", of which {self.goodput:.1%} progress",
            ),
            ("failures", f"{self.failures:,}; a checkpoint every {self.checkpoint_interval_s:,.0f} s"),
            ("GPU-hours", f"{self.gpu_hours:,.0f}"),
            ("energy", "not known" if self.energy_j is None else show_energy(self.energy_j)),
            (
                "money",
                "no prices" if self.money is None else f"{self.money:,.0f}" + "".join(f"; nothing for {one}" for one in self.unpriced),
            ),
        ]
        return "\n".join(f"{name:<10} {text}" for name, text in rows)

    def to_dict(self) -> dict[str, Any]:
        """The published JSON (`sim.files.forms.planning`), days among its plain values."""
        found = self._rows()[0]
        low, high = found.pop("interval")
        return found | {"interval_s": {"low": low, "high": high, "level": LEVEL}, "days_interval": list(self.days_interval)}

    def _rows(self) -> list[dict[str, Any]]:
        return [{**msgspec.structs.asdict(self), "days": self.days, "days_interval": self.days_interval}]


def amount(tokens: float | None = None, epochs: float | None = None, dataset: float | None = None) -> float:
    """Tokens (or samples) of a training run: said as such, or as `epochs` over a data set of `dataset` tokens (or samples).

    Raises `BadInput` unless exactly one of the two is said, with positive numbers.
    """
    if (tokens is None) == (epochs is None and dataset is None):
        raise BadInput("say tokens, or epochs and dataset: how many passes over a data set of so many tokens (samples for images)")
    if tokens is None and (epochs is None or dataset is None):
        raise BadInput("epochs and dataset go together: how many passes, and how many tokens (samples for images) one pass has")
    found = tokens if tokens is not None else (epochs or 0.0) * (dataset or 0.0)
    if not isinstance(found, (int, float)) or not found > 0 or not math.isfinite(found):
        raise BadInput(f"tokens = {found!r} must be a positive number")
    return found


def load_prices(source: Mapping[str, float] | str | Path) -> dict[str, float]:
    """Money per GPU-hour by machine, from TOML or a mapping: `dgx-h100 = 2.5`; a file of one's own goes by the `name` in it. `"oversubscription=2" =
    -0.2` is what a change of the machine adds. Raises `BadInput`."""
    where = "prices" if isinstance(source, Mapping) else f"price file {source}"
    table: Mapping[str, object] = source if isinstance(source, Mapping) else read_toml(Path(source), "price file")
    prices = table.get("per_gpu_hour", table)
    if not isinstance(prices, Mapping):
        raise BadInput(f"{where}: per_gpu_hour must be a table of prices by machine")
    for name, price in prices.items():
        if isinstance(price, bool) or not isinstance(price, (int, float)) or not (-1e12 if "=" in name else 0) <= price < 1e12:
            raise BadInput(f"{where}: {name} = {str(price)[:40]} is no price per GPU-hour (a number that is not negative)")
    return {name: float(price) for name, price in prices.items()}


def price_of(prices: dict[str, float], on: str, gpus: int = 0, edits: tuple[str, ...] = ()) -> float:
    """Money per GPU-hour on `on`: the mean over its first `gpus` GPUs (0: all), where it mixes machines, with what prices say that `edits` add.

    Raises `BadInput` where the prices lack one of the machines or what other GPUs add, and where it all costs less than nothing.
    """
    for edit in edits:
        if edit.partition("=")[0].strip() == "gpu" and edit not in prices:
            raise BadInput(f'no price for {edit}: say what it adds to a GPU-hour of {on}, e.g. "{edit}" = 0.8')
    found = _machines_price(prices, on, gpus) + sum(prices.get(edit, 0.0) for edit in edits)
    if found < 0:
        raise BadInput(f"a GPU-hour of {on} with {', '.join(edits)} would cost {found:.4g}")
    return found


_FREE = ("fail", "slow", "order", "ranks_per_node", "p2p")
"""What happens to a machine, and how it is used: nobody pays for that."""


def unpriced(prices: Container[str] | None, edits: Iterable[str]) -> tuple[str, ...]:
    """Of `edits`, those that make another machine for which the prices add nothing: a GPU-hour costs what it costs without them."""
    return tuple(one for one in edits if prices is not None and one not in prices and one.partition("=")[0].strip() not in _FREE)


def _machines_price(prices: dict[str, float], on: str, gpus: int) -> float:
    terms = parse(on)
    named = {term.name: _priced(term.name, prices) for term in terms}
    missing = [name for name in named.values() if name not in prices]
    if missing:
        raise BadInput(f"no price for {', '.join(missing)}; there are prices for {', '.join(sorted(prices)) or 'nothing'}")
    if len(named) == 1:
        return prices[named[terms[0].name]]
    left, spent, taken = gpus or 1 << 62, 0.0, 0
    for term in terms:
        here = min(left, term.count * (term.ranks or load_topology(term.name).ranks_per_node))
        left, taken, spent = left - here, taken + here, spent + here * prices[named[term.name]]
    return spent / taken


def _priced(name: str, prices: dict[str, float]) -> str:
    """What a machine is called among prices: as after --on, else as its own file calls it."""
    if name in prices or not name.endswith(".toml"):
        return name
    return str(read_toml(Path(name)).get("name", Path(name).stem))


def capacity(plan: Plan, on: str | Topology, tokens: float, *, how: Reliability | None = None, checkpoint: float | None = None,
             prices: dict[str, float] | None = None, seed: int = 0, edits: tuple[str, ...] = ()) -> Capacity:  # fmt: skip
    """Trains `tokens` tokens (samples for models without a sequence) with `plan` on `on`, after `edits` of it ("link.nvlink.rate=200 GB/s").

    `checkpoint` is the stall of one checkpoint in seconds; unsaid: what the plan's own [output] stalls for, or else the sharded state written
    at 1 GB/s per GPU (assumed). How often checkpoints are made is found here (Daly's interval, or as often as asynchronous ones can be written or
    loaders make up for them), whatever the plan says.
    Raises `BadInput` when prices are given but not for this machine, and for tokens or a checkpoint that cannot be.
    """
    amount(tokens)
    if checkpoint is not None and not 0 <= checkpoint < math.inf:
        raise BadInput(f"checkpoint = {checkpoint} s must be finite and not negative")
    setting = bind(plan, on, edits)
    found = predict_setting(setting, detail=False)
    saves = setting.plan.output.checkpoint_every > 0
    step = _saving(setting, 0) if saves else found.step_time_s
    _, fit = figures_of_memory(setting)
    steps = math.ceil(tokens / (plan.global_batch * setting.network.seq))
    how = how or Reliability()
    work = steps * step
    writing = writing_seconds(setting, pricer_for(setting)) if saves else 0.0
    mtbf = how.mtbf(plan.world, setting.topology.ranks_per_node)
    if checkpoint is not None or not saves:
        stall, least = _shard(setting) / _RATE if checkpoint is None else checkpoint, step
    else:
        stall, least = _stall(setting, step, writing, mtbf)
    run, interval = expected(work, stall, mtbf, how, seed, step=least, writing=writing)
    return Capacity(
        gpus=plan.world,
        plan=plan.name or plan.model_name,
        topology=machine_words(setting.topology),
        steps=steps,
        step_time_s=found.step_time_s,
        interval=found.interval,
        productive_s=work,
        elapsed_s=run.elapsed,
        goodput=run.goodput,
        failures=run.failures,
        checkpoint_interval_s=interval,
        gpu_hours=run.elapsed / 3600 * plan.world,
        energy_j=_energy(setting.topology, run, plan.world),
        money=_money(prices, on.name if isinstance(on, Topology) else on, run.elapsed / 3600, plan.world, how, setting.topology, edits),
        fits=fit is None,
        unpriced=unpriced(prices, edits),
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


_RATE = 1e9
"""Bytes per second at which each GPU's part of a checkpoint is written where the plan does not say where to (assumed)."""


def _shard(setting: Setting) -> int:
    """Bytes that the rank with most writes of a sharded checkpoint."""
    program = program_for(_output(setting, Output(checkpoint_every=1, checkpoint_mode="sharded")), 1)
    return max((op.bytes for ops in program.segments.values() for op in ops if op.id == WRITE), default=0)


def _energy(topology: Topology, run: Outcome, gpus: int) -> float | None:
    """Joules of all GPUs that the plan uses, each by its own power, and of what is around them."""
    power = 0.0
    for device, share in topology.devices(gpus):
        if not isinstance(device, Gpu) or not device.power:
            return None
        power += share * gpus * device.power
    return power * (UTILISATION * (run.elapsed - run.down + HOST_POWER * run.elapsed) + IDLE * run.down)


def _money(
    prices: dict[str, float] | None, on: str, hours: float, gpus: int, how: Reliability, topology: Topology, edits: tuple[str, ...]
) -> float | None:
    """Nodes that stand by are paid for as those that work, all the time; without a number of them there is no saying how many."""
    paid = gpus + (how.spares or 0) * topology.ranks_per_node
    return None if prices is None else price_of(prices, on, gpus, edits) * hours * paid
