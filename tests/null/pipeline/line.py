"""A network of equal layers between ends that cost nothing, and what a simulated pipeline did with it."""

from __future__ import annotations

from typing import Any

from sim.cost.price import Cost
from sim.engine.run import simulate
from sim.model.parts import Block, Network
from sim.program import Op, Program
from sim.sections import VEES
from sim.trace import Span, Trace
from tests.null.lower.tiny import Constant, linear, program

BOUNDARY = 32


def line(layers: int) -> Network:
    """Forward 1 s, gradient of the input 1 s, of the weights 1 s for each layer."""
    layer = Block(kind="layer", parts=(linear(),), saved_input=BOUNDARY)
    ends = Block(kind="embed", parts=()), Block(kind="head", parts=())
    blocks = (("embed", ends[0]), *((f"L{i}", layer) for i in range(layers)), ("head", ends[1]))
    return Network(
        name="line",
        blocks=blocks,
        boundary=BOUNDARY,
        parameters=layers,
        active_parameters=layers,
        flops_per_sample=1.0,
        sample_bytes=8,
    )


class Free(Constant):
    """Kernels of layers take a second; messages, gradient copies and the optimizer nothing."""

    def __init__(self, message: float = 0.0) -> None:
        super().__init__()
        self._message = message

    def local(self, op: Op, rank: int) -> Cost:
        return super().local(op, rank) if op.kind == "compute" and op.cls == "gemm" else Cost(0.0)

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        return Cost(self._message)

    def collective(self, op: Op, members: tuple[int, ...], siblings: int) -> Cost:
        return Cost(self._message)


def pipeline(schedule: str, pp: int, microbatches: int, chunks: int = 1, **more: Any) -> Program:
    """One step of a pipeline with one layer a stage (two for the ranks of a V)."""
    layers = more.pop("layers", pp * (2 if schedule in VEES else chunks))
    dp, device = more.get("dp_replicate", 1), more.pop("device", "cuda")
    plan = {
        "batch": {"global": microbatches * dp},
        "parallel": {"pp": pp, "schedule": schedule, "virtual_stages": chunks, **more},
    }
    return program(plan, line(layers), device=device, steps=1)


def kernels(trace: Trace) -> list[Span]:
    return [span for span in trace.spans if span.kind == "compute" and span.cls == "gemm"]


def bubble(made: Program, message: float = 0.0) -> float:
    """Idle share of the ranks between the first and the last kernel of the step."""
    found = kernels(simulate(made, Free(message)))
    busy = sum(span.end - span.start for span in found) / len({span.rank for span in found})
    return 1 - busy / (max(span.end for span in found) - min(span.start for span in found))
