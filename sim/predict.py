"""From a plan and a topology to a prediction: the composition that users call.

plan -> model, framework, mesh -> program -> priced -> simulated -> trace -> figures.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from sim.arguments import check_truth, check_whole
from sim.cost.calibration import load_calibration
from sim.cost.power import draws_of, spent_on
from sim.cost.price import Pricer
from sim.engine.run import simulate
from sim.memory.timeline import memory_timelines
from sim.plan import Plan
from sim.program import Program
from sim.result import uncertainty
from sim.result.figures import figures
from sim.result.prediction import Prediction
from sim.setting.bind import Setting, bind
from sim.setting.pricer import pricer_for
from sim.setting.program import program_for
from sim.steady.detail import STEPS, apart, coarse, fused, quick, simulated_ops
from sim.steady.periods import kinds, mean_step, on_path, varies
from sim.steady.rounds import told_by
from sim.steady.settled import Steps, until_settled
from sim.steady.stalls import held, output_seconds
from sim.timeline import metrics
from sim.trace import Trace
from topologies.load import Topology
from topologies.unfelt import unmeasured

_ROUNDS = 5
"""Clocks that are tried at most: the second is mostly within a percent of the first."""
_SAME_CLOCK = 0.005


def predict(
    plan: Plan | str | Path | dict[str, Any],
    topology: Topology | str | Path,
    *,
    edits: tuple[str, ...] = (),
    calibration: str | Path | None = None,
    costs: str = "fitted",
    steps: int = STEPS,
    fold: bool = True,
    detail: bool = True,
) -> Prediction:
    """Predicts one training step of `plan` on `topology`.

    Args:
        plan: a plan, a TOML file, a shipped plan's name, or a mapping in the file's form.
        topology: a machine ("dgx-h100"), a cluster ("16x dgx-h100"), a TOML file or a topology.
        edits: what-ifs on the topology ("link.nvlink.rate=400 GB/s").
        calibration: a file made by `probe`; its measured costs take precedence.
        costs: "fitted", or "tables": measured kernels of the package aiconfigurator-core where they cover a shape.
        steps: optimizer steps to simulate, two at least, as the first is like none after it, and more where they have not settled by then
            (`sim.steady.settled`); the last one is reported (of local updates the mean over a period: `sim.steady.periods`).
        fold: simulate equal ranks once.
        detail: a trace op by op, with memory over time and sync points. Without, what meets nobody else is simulated once, and of many micro-batches,
            where rounds of them are alike, few, which then are the trace's: several times as fast for scripts that ask for many steps.

    Raises `BadInput` or one of its kinds for input that cannot be used. A plan that does not fit into memory
    is predicted all the same, with `fits` false and what would make it fit.
    """
    return predict_setting(bind(plan, topology, edits), calibration=calibration, costs=costs, steps=steps, fold=fold, detail=detail)


def predict_setting(
    setting: Setting,
    *,
    calibration: str | Path | None = None,
    costs: str = "fitted",
    steps: int = STEPS,
    fold: bool = True,
    detail: bool = True,
) -> Prediction:
    """`predict` for inputs that are bound already."""
    check_whole("steps", steps, "simulated steps")
    check_truth("fold", fold)
    check_truth("detail", detail)
    setting = msgspec.structs.replace(setting, fold=fold)
    plan, topology = setting.plan, setting.topology
    quiet = plan.quiet
    clock = clock_under_load(setting, calibration, costs, steps)
    pricer = pricer_for(setting, calibration, costs, clock=clock)
    told = told_by(setting.quiet, pricer) if not detail and steps <= STEPS else ()
    simulated = [(weight, steps_of(setting, quiet, pricer, False, STEPS, (count,) * STEPS)) for count, weight in told]
    simulated = simulated or [(1.0, until_settled(partial(steps_of, setting, quiet, pricer, detail), max(steps, 2)))]
    _, (program, trace, _, alone) = simulated[-1]
    ops = simulated_ops(program, setting.places)
    fine = detail and apart(ops)
    if fine:
        trace.memory = {rank: list(line) for rank, line in memory_timelines(setting, trace).items()}
    parts = [(weight, one.trace) for weight, one in simulated]
    split = mean_step(setting, pricer, program.steps) if varies(plan) else metrics.together(parts)
    step = split.total if varies(plan) else sum(weight * one.step for weight, one in simulated)
    parts = on_path(setting, pricer, step, program.steps, fine) if varies(plan) else parts
    points = held(setting, program, pricer, trace, alone) if fine else []
    stall = output_seconds(setting, pricer, step, points)
    split = msgspec.structs.replace(split, output_s=split.output_s + stall)
    sorts = [(weight, one.program) for weight, one in simulated]
    if varies(plan) and not plan.asynchronous:
        sorts = [(weight, program_for(setting, program.steps, one)) for one, weight in kinds(quiet)]
    shares = uncertainty.mean_shares(sorts, pricer, topology, plan, step)
    sure = uncertainty.interval(
        step + stall, shares, uncertainty.outside(plan, topology, setting.network.parameters), calibration is not None
    )
    found = figures(setting, program, trace, step + stall, split, metrics.mean_path(parts, stall), sure, uncertainty.by_source(shares))
    found.syncs, found.clock = points, clock
    if detail and not fine:
        found.warnings.append(coarse(plan, ops))
    if calibration is not None:
        found.warnings += unmeasured(topology)
    return found


def details(setting: Setting, steps: int = STEPS) -> bool:
    """Are there few enough ops for a trace op by op, with what comes of it?"""
    return apart(simulated_ops(program_for(setting, max(steps, 2)), setting.places))


def clock_under_load(setting: Setting, calibration: str | Path | None, costs: str = "fitted", steps: int = STEPS) -> float:
    """Clock that the power limit leaves the boards in a step of the plan, over the boost clock at which their calibration was timed: the step is
    simulated at the boost clock, then at that which its draw leaves, until they are the same. 1 where the calibration says nothing of power."""
    draws = draws_of(load_calibration(calibration)) if calibration is not None and setting.topology.kind == "cuda" else None
    clock, quiet = 1.0, setting.plan.quiet
    for _ in range(_ROUNDS if draws is not None else 0):
        assert draws is not None
        pricer = pricer_for(setting, calibration, costs, clock=clock)
        program, _, _, step = until_settled(partial(steps_of, setting, quiet, pricer, False), max(steps, 2))
        before, clock = clock, draws.clock(spent_on(program, pricer, setting.topology, step, clock), clock)
        if abs(clock - before) <= _SAME_CLOCK:
            break
    return clock


def steps_of(setting: Setting, plan: Plan, pricer: Pricer, detail: bool, steps: int, counts: tuple[int, ...] = ()) -> Steps:
    """So many steps of `plan`, simulated as finely as their number of ops allows; `counts`: micro-batches of each, where these are not the plan's."""
    program = program_for(setting, steps, plan, counts=counts)
    trace = played(setting, program, pricer, detail)
    return Steps(program, trace, pricer, metrics.step_time(trace))


def played(setting: Setting, program: Program, pricer: Pricer, detail: bool = False) -> Trace:
    """The program's trace; with `detail` a span for each op, where they are not too many."""
    ops = simulated_ops(program, setting.places)
    return simulate(program, pricer, setting.places, detail and apart(ops), condensed=fused(ops) or not (detail or quick(ops)))
