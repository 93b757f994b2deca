"""Uncertainty of a prediction: an interval of the step time, and a mark that tells whether data cover it.

The relative error of a step combines the errors of its kinds of cost,

    sigma^2 = plan^2 + sum over kinds (sum over sources share x sigma(kind) x width(source))^2,

with `share` the part of the step that a kind of cost takes (gemm, attention, memory, links, network, host). Errors within one
kind are fully correlated (all GEMMs of a GPU are too fast together), errors of different kinds are independent, and `plan` is
the error that every step may have: jitter of the run, settings that are not in the plan. The interval is
step x exp(-+ z sigma), because errors of times are ratios. The figures are in `cost/params/uncertainty.toml`, fitted by
`sim.accuracy.intervals`. Combining errors by shares is the usual first-order propagation (JCGM 100:2008, 5.1.2 and 5.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import exp, hypot
from typing import Literal

import msgspec

from sim.cost.device import document
from sim.cost.price import Cost, Pricer, Source, transfer_cost
from sim.plan import Plan
from sim.program import COMPUTE, HOST, MOVES, SERVER, Op, Program
from topologies.graph import Topology
from topologies.hardware import Gpu

Mark = Literal["calibrated", "interpolated", "extrapolated"]
Shares = dict[tuple[str, str], float]
"""(kind of cost, source) -> share of the step; sums to 1."""

_Known = dict[tuple[object, ...], tuple[str, Cost]]

KINDS = ("gemm", "attention", "memory", "links", "network", "host")
_MATRIX = ("gemm", "moe", "conv", "rnn")
_MOST = 0.5
"""Share of a step with measured costs from which on the step counts as calibrated."""
LEVEL, Z = 0.80, 1.2816
"""The interval's level, and the standard normal's quantile at (1 + level) / 2."""


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Relative standard errors, as fractions (`uncertainty.toml`)."""

    plan: float
    """Error of every step, whatever its costs."""
    sigma: dict[str, float]
    """Error of each kind of cost where it is fitted."""
    width: dict[str, float]
    """Factor of the error by source of the cost (fitted: 1); `beyond`: factor of the whole error where the plan lies outside the data."""
    range: dict[str, float]
    """Largest values among the published steps: gpus, seq_len, parameters."""
    assumed_at_most: float
    """Share of the step on assumed costs up to which it still counts as interpolated."""


class Interval(msgspec.Struct, frozen=True):
    """The step lies between `low` and `high` (seconds) with probability `LEVEL`; `mark` tells what this is based on."""

    low: float
    high: float
    mark: Mark
    sigma: float
    """Relative standard error."""
    why: tuple[str, ...] = ()
    """Reasons why it is extrapolated; () otherwise."""


@cache
def figures() -> Figures:
    """The fitted figures."""
    return msgspec.convert(document("uncertainty"), Figures)


def interval(
    step: float, shares: Mapping[tuple[str, str], float], beyond: tuple[str, ...] = (), probed: bool = False, known: Figures | None = None
) -> Interval:
    """The interval of a step of `step` seconds with these `shares` of costs. `beyond`: in what the plan lies outside the data (`outside`).

    `probed`: costs come from a calibration file, so that measured costs were measured on this machine; where they make up at least half
    of the step, it is calibrated. Otherwise measured costs (tables of a kind of GPU) have the error of fitted ones. `known`: the figures to
    use; None: the fitted ones.
    """
    known = known or figures()
    rests = by_source(shares)
    calibrated = probed and rests["measured"] >= _MOST
    why = () if calibrated else beyond
    if rests["assumed"] > known.assumed_at_most and not calibrated:
        why = (*why, f"{rests['assumed']:.0%} of the first rank's step rests on assumed costs")
    mark: Mark = "calibrated" if calibrated else "extrapolated" if why else "interpolated"
    sigma = relative_error(shares, known, probed) * (known.width["beyond"] if beyond and not calibrated else 1.0)
    reach = exp(Z * sigma)
    return Interval(step / reach, step * reach, mark, sigma, why)


def by_source(shares: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """Sums the shares by source: measured, fitted and assumed costs."""
    return {
        name: sum((share for (_, source), share in shares.items() if source == name), 0.0) for name in ("measured", "fitted", "assumed")
    }


def relative_error(shares: Mapping[tuple[str, str], float], known: Figures, probed: bool = False) -> float:
    """Relative standard error of a step with these shares of costs; `probed` as in `interval`."""
    errors, width = [known.plan], known.width if probed else {**known.width, "measured": known.width["fitted"]}
    for kind in KINDS:
        weighted = sum(share * width[source] for (of, source), share in shares.items() if of == kind)
        errors.append(known.sigma[kind] * weighted)
    return hypot(*errors)


def outside(plan: Plan, topology: Topology, parameters: int, known: Figures | None = None) -> tuple[str, ...]:
    """Reasons why a plan lies outside the data of published steps: device, number of GPUs, sequence length, size of the model. (): it does
    not."""
    known = known or figures()
    found = []
    device = topology.device(0)
    if isinstance(device, Gpu):
        from sim.cost.sustained import training_clock

        if training_clock(device)[1] == "assumed":
            found.append(f"no training step of {device.name} has been published among the data")
    sizes = {"gpus": plan.world, "seq_len": plan.seq_len or 0, "parameters": parameters}
    words = {"gpus": "GPUs", "seq_len": "tokens per sequence", "parameters": "parameters"}
    found += [
        f"{size:,} {words[name]}: the data end at {known.range[name]:,.0f}" for name, size in sizes.items() if size > known.range[name]
    ]
    return tuple(found)


def shares_of(program: Program, pricer: Pricer, topology: Topology, plan: Plan, step: float) -> Shares:
    """Shares of the last step of `program` on rank 0 by kind and source of cost. `step`: its seconds."""
    return mean_shares([(1.0, program)], pricer, topology, plan, step)


def mean_shares(programs: Sequence[tuple[float, Program]], pricer: Pricer, topology: Topology, plan: Plan, step: float) -> Shares:
    """Shares of a mean step of `step` seconds on rank 0 by kind and source of cost. `programs`: (weight, program); their last steps are
    averaged.

    Kernels and collectives on the compute lane count in full. The time in which that lane is idle is, in this order: the pipeline's bubble,
    which is left out because it makes all else longer in proportion; communication on other lanes, at most its own time; the host.
    """
    lane: Shares = {}
    beside: Shares = {}
    host: Source = "fitted"
    for weight, program in programs:
        own, others, host = _spent(program, pricer, topology)
        for sums, spent in ((lane, own), (beside, others)):
            sums.update({key: sums.get(key, 0.0) + weight * seconds for key, seconds in spent.items()})
    idle = max(0.0, step - sum(lane.values()))
    p = plan.parallel
    slots = plan.microbatches * p.virtual_stages + p.pp - 1
    idle -= min(idle, step * (p.pp - 1) / max(1, slots))
    hidden = sum(beside.values())
    exposed = min(idle, hidden)
    found: Shares = dict(lane)
    for key, seconds in beside.items():
        found[key] = found.get(key, 0.0) + (seconds / hidden * exposed if hidden else 0.0)
    found["host", host] = found.get(("host", host), 0.0) + idle - exposed
    total = sum(found.values())
    return {key: seconds / total for key, seconds in found.items() if seconds > 0} if total > 0 else {("host", "assumed"): 1.0}


def _spent(program: Program, pricer: Pricer, topology: Topology) -> tuple[Shares, Shares, Source]:
    """For rank 0's last step: seconds on the compute lane, seconds of communication and copies on other lanes (both by kind and source),
    and the main source of the host's costs."""
    last = max(call.step for call in program.threads(0)[HOST])
    calls = Counter(call.segment for call in program.threads(0)[HOST] if call.step == last)
    lane: Shares = {}
    beside: Shares = {}
    host: dict[Source, float] = {"fitted": 0.0}
    known: _Known = {}
    alike: dict[tuple[int, str], tuple[Op, int]] = {}
    for segment, times in calls.items():
        for op in program.segments[segment]:
            if op.kind == "compute":  # equal layers share their kernels: each set is priced once
                alike[id(op.works), op.cls] = (op, alike.get((id(op.works), op.cls), (op, 0))[1] + times)
            elif op.kind == "host":
                cost = pricer.local(op, 0)
                host[cost.source] = host.get(cost.source, 0.0) + times * cost.seconds
            elif op.kind in MOVES:
                kind, cost = _moved(op, known, program, pricer, topology)
                into = lane if op.lane == COMPUTE else beside
                into[kind, cost.source] = into.get((kind, cost.source), 0.0) + times * cost.seconds
    for cost in _served(program, pricer, topology, known, last):
        host[cost.source] = host.get(cost.source, 0.0) + cost.seconds
    for op, times in alike.values():
        cost = pricer.local(op, 0)
        kind = "gemm" if op.cls in _MATRIX else "attention" if op.cls == "attention" else "memory"
        lane[kind, cost.source] = lane.get((kind, cost.source), 0.0) + times * cost.seconds
    return lane, beside, max(host, key=host.__getitem__)


def _served(program: Program, pricer: Pricer, topology: Topology, known: _Known, step: int) -> Iterator[Cost]:
    """Costs of a parameter server beside rank 0 in a step, and of its messages. Ranks wait for these, and their devices are idle."""
    for thread, calls in program.threads(0).items():
        for call in calls if thread.startswith(SERVER) else ():
            for op in program.segments[call.segment] if call.step == step else ():
                if op.kind == "host":
                    yield pricer.local(op, 0)
                elif op.kind in ("send", "recv"):
                    yield _moved(op, known, program, pricer, topology)[1]


def _moved(op: Op, known: _Known, program: Program, pricer: Pricer, topology: Topology) -> tuple[str, Cost]:
    """Kind ("links": inside a node, or "network") and cost of a transfer of rank 0. Equal transfers are priced once (`known`)."""
    key = (op.kind, op.group, op.bytes, op.peer, op.name, op.how, op.lane, op.works)
    found = known.get(key)
    if found is not None:
        return found
    mesh = program.mesh
    if op.kind == "copy":
        found = ("links", pricer.local(op, 0))
    else:
        members = mesh.group(op.group, 0)
        far = any(topology.node(rank) != topology.node(members[0]) for rank in (members[1:2] + members[-1:]))
        siblings = max(1, mesh.world // (len(members) if op.kind == "collective" else 1) // (mesh.size("pp") if op.group != "pp" else 1))
        found = ("network" if far else "links", transfer_cost(pricer, mesh, op, 0, siblings))
    known[key] = found
    return found
