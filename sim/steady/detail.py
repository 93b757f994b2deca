"""How finely a run is simulated: its steps, and the number of ops up to which each has a span of its own."""

from __future__ import annotations

from sim.engine.fold import Symmetry, alike, representatives
from sim.plan import Plan
from sim.program import Program

STEPS = 3
"""Simulated steps: the first fills the input path and (DDP) has other buckets; the last is reported."""
OPS_APART = 2_000_000
"""Ops of the simulated ranks up to which each has a span of its own: about 1.5 GB. Beyond, runs of kernels are one span, with the same times."""
OPS_QUICK = 200_000
"""Ops up to which a run that needs no spans is as exact as one that does: it takes half a second."""
OPS_FUSED = 20_000_000
"""Beyond these, what meets nobody else is one span too: when in it kernels wait for communication beside them is not known."""


def simulated_ops(program: Program, symmetry: Symmetry) -> int:
    """Ops that are simulated: those of one rank for each role where all sit alike, or of those that stand for others."""
    ops = {
        name: sum(len(program.segments[call.segment]) for calls in role.threads.values() for call in calls)
        for name, role in program.roles.items()
    }
    if alike(symmetry):
        return sum(ops.values())
    return sum(ops[program.role_of[rank]] for rank in set(representatives(program, symmetry)))


def apart(ops: int) -> bool:
    """Each of so many ops has a span of its own."""
    return ops <= OPS_APART


def quick(ops: int) -> bool:
    """So many ops are run exactly where figures alone are wanted, too."""
    return ops <= OPS_QUICK


def fused(ops: int) -> bool:
    """Of so many ops, what meets nobody else is one span."""
    return ops > OPS_FUSED


def coarse(plan: Plan, ops: int) -> str:
    """What a trace lacks that has too many ops for a span each."""
    lost = " and layers" if fused(ops) else ""
    same = "the same within 1 %" if fused(ops) else "the same"
    many = plan.microbatches > 1
    return (
        f"{ops:,} ops{f' ({plan.microbatches:,} micro-batches in a step)' if many else ''}: runs of kernels{lost} are one span each; no memory "
        f"timeline, no use of links. The step time is {same}. Predict fewer {'micro-batches' if many else 'layers or ranks'} to see every op"
    )
