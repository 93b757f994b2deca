"""The same training on clusters of other sizes: scaling curves, and the smallest cluster that meets a deadline."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from sim.plan import Plan
from sim.planning.capacity.capacity import Capacity, capacity
from sim.planning.progress import Progress, Say
from sim.rules import check
from sim.tables import aligned, frame
from topologies.cluster import parse
from topologies.errors import BadInput, Refused, SteptwinError
from topologies.load import load_topology


class Curve(list[Capacity]):
    """The same training on several sizes of cluster, smallest first."""

    def __str__(self) -> str:
        head = ("GPUs", "step, s", "days", "goodput", "failures", "GPU-hours", "money", "fits")
        return aligned(head, [_line(one) for one in self])

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"rows": [one.to_dict() for one in self]}

    def to_frame(self) -> Any:
        """A pandas DataFrame, one row for each size. Raises `BadInput` without pandas."""
        return frame(one.to_dict() for one in self)


def _line(one: Capacity) -> tuple[str, ...]:
    money = "-" if one.money is None else _shown(one.money, 0)
    figures = (_shown(one.days, 2), f"{one.goodput:.1%}", f"{one.failures:,}", _shown(one.gpu_hours, 0), money, "yes" if one.fits else "NO")
    return (f"{one.gpus:,}", f"{one.step_time_s:.4g}", *figures)


def _shown(value: float, decimals: int) -> str:
    """The value with `decimals` decimals; a value too small for that is shown with three significant digits."""
    return f"{value:,.{decimals}f}" if value >= 10 ** (1 - decimals) else f"{value:.3g}"


_LARGEST = 131_072
"""GPUs of the largest cluster that a curve shows. The plan's own size and its double are shown even if they are larger."""


_FEWEST = 1000
"""The fewest steps of a training whose batch grows with the cluster. With fewer, larger steps it would not be the same training."""


def curve_sizes(world: int, steps: float = math.inf) -> list[int]:
    """The numbers of GPUs that a page shows: `world` and its doublings, at least one of them, up to `_LARGEST`. `scaling` takes any sizes.

    If the batch grows with the cluster, `steps` is the number of steps on `world`; doubling stops where fewer than `_FEWEST` would remain.
    """
    most = min(_LARGEST, world * steps / _FEWEST)
    return [world * 2**n for n in range(_LARGEST.bit_length()) if n < 2 or world * 2**n <= most]


def scaling(
    plan: Plan, machine: str, gpus: Iterable[int], tokens: float, weak: bool = False, say: Say | None = None, **options: object
) -> Curve:
    """The same training on more and more GPUs by data parallelism: strong (same global batch) or weak (batch grows with them).

    `machine`: one node, or a cluster of such nodes. Sizes are left out if the plan cannot be spread over them, if failures allow no
    progress, or if they lack what an edit names. Raises `BadInput` if there is no result and a size raised it. `say` gets lines of progress.
    """
    machine = _node(machine)
    per_node = load_topology(machine).gpus
    found, sizes, wrong = Curve(), tuple(gpus), list[BadInput]()
    progress = Progress(len(sizes), "sizes of cluster simulated", say)
    for count in sizes:
        try:
            one = _sized(plan, machine, count, -(-count // per_node), tokens, weak, options)
            found += [one] if one is not None else []
        except Refused:
            pass
        except BadInput as error:
            wrong.append(error)
        progress.more()
    if wrong and not found:
        raise wrong[0]
    return found


def _sized(plan: Plan, machine: str, gpus: int, nodes: int, tokens: float, weak: bool, options: dict[str, object]) -> Capacity | None:
    """The training on `gpus` GPUs; None if the plan cannot be spread over them. Raises `Refused` if it cannot run or makes no progress."""
    spread = _spread(plan, gpus, weak)
    if spread is None:
        return None
    found = capacity(spread, machine if nodes == 1 else f"{nodes}x {machine}", tokens, **options)  # type: ignore[arg-type]
    return msgspec.structs.replace(found, overrides=_differences(plan, spread))


def _differences(plan: Plan, spread: Plan) -> tuple[str, ...]:
    """The keys that `_spread` changed, in the form that `--set` takes."""
    fields = [("parallel", "dp_replicate"), ("parallel", "dp_shard"), ("batch", "global_"), ("batch", "micro")]
    values = [(section, name, getattr(getattr(plan, section), name), getattr(getattr(spread, section), name)) for section, name in fields]
    return tuple(f"{section}.{name.rstrip('_')}={new}" for section, name, old, new in values if new != old)


def _node(cluster: str) -> str:
    """The node that a cluster is made of: `"32x dgx-h100"` -> `"dgx-h100"`. Raises `BadInput` for a mixture of machines."""
    terms = parse(cluster)
    if len(terms) > 1:
        raise BadInput(f"{cluster}: a mixture has no larger sizes of itself. Name machines of one kind")
    return terms[0].name + (f":{terms[0].ranks}" if terms[0].ranks else "")


def _spread(plan: Plan, gpus: int, weak: bool) -> Plan | None:
    """The plan on `gpus` GPUs, by more or less data parallelism; micro-batches shrink if a rank has fewer samples.

    None if the GPUs or the batch do not divide, or if the plan that results is not valid.
    """
    p = plan.parallel
    inner = p.tp * p.pp * p.cp
    if gpus % inner:
        return None
    data = gpus // inner
    if data == plan.data_ranks:
        return plan
    axis = "dp_shard" if p.dp_shard > 1 or p.dp_replicate == 1 else "dp_replicate"
    other = p.dp_replicate if axis == "dp_shard" else p.dp_shard
    if data % other:
        return None
    batch = plan.global_batch * data // plan.data_ranks if weak else plan.global_batch
    if batch % data:
        return None
    micro = math.gcd(plan.batch.micro, batch // data)
    parallel = msgspec.structs.replace(p, **{axis: data // other})
    spread = msgspec.structs.replace(plan, parallel=parallel, batch=msgspec.structs.replace(plan.batch, global_=batch, micro=micro))
    try:
        return check(spread)
    except SteptwinError:
        return None


def smallest(plan: Plan, machine: str, tokens: float, days: float, most: int = 131_072, say: Say | None = None,
             **options: object) -> Capacity:  # fmt: skip
    """The smallest number of GPUs (a part of one node, or whole nodes; multiples of the plan's tp x pp x cp, over which the batch divides) that trains
    `tokens` within `days`, as far as more GPUs are never slower; `options` are those of `capacity`.

    Raises `BadInput` with the fastest that was found when none does.
    """
    if not 0 < days < math.inf:
        raise BadInput(f"days = {days} must be positive: by when must the training be done?")
    machine = _node(machine)
    p = plan.parallel
    inner, per_node = p.tp * p.pp * p.cp, load_topology(machine).gpus
    least = math.lcm(per_node, inner)
    every = (*range(inner, min(per_node, most + 1), inner), *range(least, most + 1, least))
    sizes = [size for size in every if _spread(plan, size, False) is not None]
    best: Capacity | None = None
    closest = "no size fits into memory, or the batch divides over none"

    def in_time(size: int) -> Capacity | None:
        nonlocal best, closest
        try:
            found = _sized(plan, machine, size, -(-size // per_node), tokens, False, options)
        except Refused as error:  # other sizes may do: what fails too often does so less on fewer GPUs
            closest = f"on {_gpus(size)} {error}"
            return None
        if found is None:
            return None
        if say:
            say(f"{_gpus(found.gpus)}: {_shown(found.days, 1)} days{'' if found.fits else ', does not fit into memory'}")
        if found.fits and (best is None or found.elapsed_s < best.elapsed_s):
            best = found
        return found if found.fits and found.days <= days else None

    late = -1
    for at in _doubling(sizes):
        found = in_time(sizes[at])
        if found:  # what lies between the last that was late and this one may do
            return next((one for size in sizes[late + 1 : at] if (one := in_time(size))), found)
        late = at
    if best is not None:
        closest = f"the fastest was {_gpus(best.gpus)} with {_shown(best.days, 1)} days"
        if best.gpus == sizes[-1] and 2 * best.gpus <= most:
            closest += f"; a step's samples (batch.global = {plan.global_batch}) divide over no more: with a larger one, e.g. --set batch.global={4 * plan.global_batch}, more GPUs can be used"
    raise BadInput(f"no cluster of up to {most} GPUs of {machine} finishes in {days} days with this plan: {closest}")


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' if count > 1 else ''}"


def _doubling(sizes: list[int]) -> list[int]:
    """Indices of the first size, of the next size that is at least twice as large, and so on; the last index is always included."""
    found: list[int] = []
    for at, size in enumerate(sizes):
        if not found or size >= 2 * sizes[found[-1]] or at == len(sizes) - 1:
            found.append(at)
    return found
