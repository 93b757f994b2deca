"""A network small enough to write its whole program down, and a pricer of constants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from sim.cost.price import Cost
from sim.files.planfile import load_plan
from sim.framework.framework import Framework
from sim.lower.step import lower
from sim.model.parts import Block, Network, Part
from sim.program import Op, Program
from sim.work import Gemm, HostWork, MemoryBound

MIB = 1 << 20
QUIET = Framework(name="quiet", source="tests", host="light").but(
    precision={"param_dtype": "fp32", "grad_dtype": "fp32", "reduce_dtype": "fp32"}, optimizer={"implementation": "fused"}
)
"""No host work, fp32 throughout, one launch for the optimizer."""


def linear(name: str = "linear", elements: int = MIB, **more: Any) -> Part:
    return Part(
        name=name,
        forward=(Gemm(8, 8, 8, "fp32"),),
        backward=(Gemm(8, 8, 8, "fp32", role="dgrad"),),
        wgrad=(Gemm(8, 8, 8, "fp32", role="wgrad"),),
        cls="gemm",
        tensors=(elements,),
        saved=100,
        **more,
    )


def norm() -> Part:
    kernel = MemoryBound("layernorm", 64, 64, "fp32")
    return Part(name="norm", forward=(kernel,), backward=(kernel,), cls="norm", tensors=(8, 8), whole=(8, 8), saved=10)


def loss() -> Part:
    kernel = MemoryBound("cross_entropy", 64, 64, "fp32")
    return Part(name="loss", forward=(kernel,), backward=(kernel,), cls="loss", saved=10)


def network(layers: int = 2, parts: tuple[Part, ...] | None = None) -> Network:
    layer = Block(kind="layer", parts=parts or (linear(),), saved_input=32)
    blocks = (*((f"L{i}", layer) for i in range(layers)), ("head", Block(kind="head", parts=(loss(),), saved_input=32)))
    total = sum(block.params for _, block in blocks)
    return Network(
        name="tiny", blocks=blocks, boundary=32, parameters=total, active_parameters=total, flops_per_sample=1.0, sample_bytes=64
    )


def program(
    plan: dict[str, Any], net: Network | None = None, framework: Framework = QUIET, device: str = "cuda", steps: int = 2
) -> Program:
    return lower(load_plan({"model": "tiny", "precision": "fp32", **plan}), net or network(), framework, device, steps)


def show(ops: tuple[Op, ...]) -> list[str]:
    """`lane: id` of each op, in the order of issue."""
    return [f"{op.lane}: {op.id}" for op in ops]


def messages(program: Program, rank: int = 0, step: int = 1) -> list[tuple[str, str, int]]:
    """(collective, group, bytes) that a rank runs in one step, in order of issue."""
    found = []
    for call, op in program.ops(rank):
        if call.step == step and op.kind in ("collective", "send", "recv"):
            found.append((op.name or op.kind, op.group, op.bytes))
    return found


def traffic(program: Program, group: str, step: int = 1) -> float:
    """Bytes that rank 0 sends over one group in a step, each collective by its ring (nccl-tests' busbw factors)."""
    n = program.mesh.size(group)
    factor = {
        "all_reduce": 2 * (n - 1) / n,
        "all_gather": (n - 1) / n,
        "reduce_scatter": (n - 1) / n,
        "all_to_all": (n - 1) / n,
        "send": 1.0,
        "recv": 0.0,
        "barrier": 0.0,
    }
    return sum(factor[name] * size for name, axis, size in messages(program, 0, step) if axis == group)


class Constant:
    """A second for each kernel and host op, half a second for each message, a tenth for each copy; launches cost nothing."""

    capacity: Mapping[str, float] = defaultdict(lambda: 1.0)

    def __init__(self, slow: dict[int, float] | None = None) -> None:
        self.slow = slow or {}

    def local(self, op: Op, rank: int) -> Cost:
        if op.kind == "compute":
            return Cost(len(op.works) * self.slow.get(rank, 1.0))
        if op.kind == "host":
            return Cost(sum(work.seconds * work.count for work in op.works if isinstance(work, HostWork)))
        return Cost(0.1 if op.kind == "copy" else 0.0)

    def collective(self, op: Op, members: tuple[int, ...], siblings: int) -> Cost:
        return Cost(0.5)

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        return Cost(0.5)

    def slowdown(self, rank: int) -> float:
        return 1.0
