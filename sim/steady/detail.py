"""How finely a run is simulated: how many steps, and up to how many ops the trace has one span for each op."""

from __future__ import annotations

from sim.engine.fold import Symmetry, alike, representatives
from sim.plan import Plan
from sim.program import Program

STEPS = 3
"""Number of simulated steps. The first step fills the input path and, with DDP, has other buckets. The last step is reported."""
OPS_APART = 2_000_000
"""Up to this number of simulated ops (about 1.5 GB), each op has its own span. Above it, each run of kernels is one span; times stay the
same."""
OPS_QUICK = 200_000
"""Up to this number of ops, a run that needs no spans is simulated as exactly as one that needs them. It takes half a second."""
OPS_FUSED = 20_000_000
"""Above this number of ops, each stretch of ops that waits for no other rank is one span too. It is then not known at which moments inside
the span kernels wait for communication that runs beside them."""


def simulated_ops(program: Program, symmetry: Symmetry) -> int:
    """Number of ops that are simulated: the ops of one rank for each role if all ranks of a role are placed alike, otherwise the ops of
    every rank that represents others."""
    ops = {
        name: sum(len(program.segments[call.segment]) for calls in role.threads.values() for call in calls)
        for name, role in program.roles.items()
    }
    if alike(symmetry):
        return sum(ops.values())
    return sum(ops[program.role_of[rank]] for rank in set(representatives(program, symmetry)))


def apart(ops: int) -> bool:
    """Whether each op has its own span when `ops` ops are simulated."""
    return ops <= OPS_APART


def quick(ops: int) -> bool:
    """Whether `ops` ops are few enough to simulate them exactly even if only figures are wanted, no spans."""
    return ops <= OPS_QUICK


def fused(ops: int) -> bool:
    """Whether a stretch of ops that waits for no other rank is one span when `ops` ops are simulated."""
    return ops > OPS_FUSED


def coarse(plan: Plan, ops: int) -> str:
    """Text that says what a trace lacks if it has too many ops (`ops`) to show one span for each."""
    lost = " and layers" if fused(ops) else ""
    same = "the same within 1 %" if fused(ops) else "the same"
    many = plan.microbatches > 1
    return (
        f"{ops:,} ops{f' ({plan.microbatches:,} micro-batches in a step)' if many else ''}: runs of kernels{lost} are one span each; no memory "
        f"timeline, no use of links. The step time is {same}. Predict fewer {'micro-batches' if many else 'layers or ranks'} to see every op"
    )
