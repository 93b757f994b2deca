"""Exports a program as Chakra execution traces: the ops of each rank, their dependencies, and the time of each op when it runs alone.

Every op becomes a node (`sim.exchange.opnode`) of its rank's graph (`sim.exchange.rankgraph`), which has the engine's times wherever
nothing is shared. Collectives and messages have bytes but no duration: the simulator that reads the trace computes it.
Attributes that begin with `steptwin.` hold what the schema has no field for: lanes, exact seconds (for some kernels also the seconds
beside a collective that occupies SMs), and the resources that ranks of one machine share (`sim.exchange.shares`). With them
`sim.exchange.replay` on the same machine takes as long as one step of the program by itself, to 1e-9.

What a trace cannot hold:
- steps before and after: all lanes begin idle. Where a host runs ahead of its GPU, or the input pipeline fills, the step that `predict`
  reports is shorter, because it is one of many;
- other threads than the training thread: input workers (batches are ready when they are needed), the writer of asynchronous
  checkpoints, and the cores and disk bandwidth that these use; a parameter server is refused;
- output that does not come with every step, such as a checkpoint every 1,000: `predict` adds its mean;
- the measurements behind the costs of collectives on CPU hosts: give the same calibration to a replay;
- memory that ops allocate and free.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from sim.cost.price import Pricer
from sim.exchange.attributes import Attr
from sim.exchange.groups import Groups
from sim.exchange.rankgraph import Graph
from sim.exchange.tracefile import write
from sim.plan import Plan
from sim.predict import clock_under_load
from sim.program import HOST, MEETING, Program
from sim.sections import Output
from sim.setting.bind import Setting
from sim.setting.pricer import pricer_for
from sim.setting.program import program_for
from sim.steady.detail import STEPS
from topologies.errors import BadInput, Refused

MOST_RANKS = 4096
"""Largest number of ranks, and so of files, that are written."""


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """The files that were written."""

    prefix: str
    """The prefix of the files PREFIX.0.et, PREFIX.1.et ..., which is ASTRA-sim's workload configuration."""
    groups: str
    """The file of communicator groups for ASTRA-sim (JSON)."""
    ranks: int
    nodes: int
    """Number of nodes in all files."""

    def __str__(self) -> str:
        return f"{self.ranks} traces with {self.nodes:,} nodes: {self.prefix}.RANK.et, groups in {self.groups}"


def export_plan(setting: Setting, folder: Path, *, calibration: str | Path | None = None, ranks: tuple[int, ...] = ()) -> Exported:
    """Writes the reported step of a plan to `folder`/MODEL.RANK.et, one file for each rank (or for each of `ranks`), and
    `folder`/MODEL.groups.json.

    Input workers are left out: ASTRA-sim has one CPU per device, where they would delay the training thread. Output that does not come with
    every step is left out, too. Raises `BadInput` for more than `MOST_RANKS` ranks, or ranks that the plan does not have.
    """
    plan = msgspec.structs.replace(setting.plan, output=_each_step(setting.plan.output))
    program = program_for(setting, STEPS, plan)
    pricer = pricer_for(setting, calibration, clock=clock_under_load(setting, calibration))
    return export_program(program, pricer, folder, ranks, STEPS - 1, setting.plan.framework_base)


def left_out(plan: Plan) -> list[str]:
    """Settings of the plan (`key = value`) whose work is not in the traces."""
    loaders = [f"data.workers = {plan.data.workers}"] if plan.data.workers else []
    return loaders + [f"output.{name} = {every}" for name, every in _rare(plan.output).items() if every]


def _each_step(output: Output) -> Output:
    """`output` without everything that does not come with every step."""
    return msgspec.structs.replace(output, **dict.fromkeys(_rare(output), 0))


def _rare(output: Output) -> dict[str, int]:
    """The `*_every` fields of `output` that differ from 1, with the number of steps between two outputs; 0: never."""
    every = {name: int(getattr(output, name)) for name in output.__struct_fields__ if name.endswith("_every")}
    return {name: steps for name, steps in every.items() if steps != 1}


def export_program(program: Program, pricer: Pricer, folder: Path, ranks: tuple[int, ...], step: int, framework: str) -> Exported:
    """Writes the training threads of one optimizer step of a program, with costs from `pricer`, for each rank in `ranks` (empty: all
    ranks).

    The traces name `framework`, so that a replay treats collectives as this framework does. Raises `BadInput` or `Refused`.
    """
    wanted = ranks or tuple(range(program.world))
    if len(wanted) > MOST_RANKS:
        raise BadInput(f"{len(wanted)} ranks are as many files; at most {MOST_RANKS} are written. Name the ranks, or export a smaller plan")
    for rank in wanted:
        if not 0 <= rank < program.world:
            raise BadInput(f"there is no rank {rank}: the program has ranks 0 to {program.world - 1}")
    _one_thread(program)
    folder.mkdir(parents=True, exist_ok=True)
    prefix = folder / "".join(c if c.isalnum() or c in "-_" else "-" for c in program.name or "program").strip("-")
    groups = Groups(program)
    nodes = 0
    head: dict[str, Attr] = {"steptwin.durations": "alone", "steptwin.world": program.world, "steptwin.device": program.device,
                             "steptwin.framework": framework}  # fmt: skip
    for rank in wanted:
        graph = Graph(program, pricer, groups, rank, step)
        nodes += write(Path(f"{prefix}.{rank}.et"), graph.messages(), head | {"rank": rank})
    table = Path(f"{prefix}.groups.json")
    table.write_text(json.dumps({str(number): list(members) for members, number in groups.numbers.items()}) + "\n")
    return Exported(prefix=str(prefix), groups=str(table), ranks=len(wanted), nodes=nodes)


def _one_thread(program: Program) -> None:
    """Raises `Refused` where another thread than the training thread communicates, because its ops are not in the traces."""
    for name, role in program.roles.items():
        for thread, calls in role.threads.items():
            for segment in dict.fromkeys(call.segment for call in calls) if thread != HOST else ():
                if any(op.kind in MEETING for op in program.segments[segment]):
                    raise Refused(
                        f"thread {thread} of {name} exchanges with other ranks (asynchronous updates), which a trace of one CPU for each "
                        'device cannot show. Export the plan with update.mode = "sync" or "local"'
                    )
