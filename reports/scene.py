"""What a page shows beside the trace: the machine, link use, memory over time. Computed from the prediction's own inputs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from reports.figures.links import LinkUse, link_use
from sim.memory.timeline import Line
from sim.plan import Plan
from sim.program import Program
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.setting.rooms import rooms
from sim.trace import Trace
from topologies.graph import Topology


class Scene(msgspec.Struct, frozen=True):
    """Where a plan ran, or would. Empty fields leave their section out."""

    topology: Topology | None = None
    uses: tuple[LinkUse, ...] = ()
    memory: Mapping[int, Line] = {}
    """Bytes in use by simulated rank."""
    rooms: Mapping[int, int] = {}
    """Bytes that the device of each simulated rank has."""
    trace_file: str = ""
    """Name of the full trace beside the page."""


def scene(plan: Plan, program: Program | None, trace: Trace, topology: Topology | None, trace_file: str = "") -> Scene:
    """The scene of a predicted trace. `topology`: as the plan was predicted on, what-ifs applied; without it only the trace is known.

    Link use is told for GPUs; on CPU hosts transfers share cores and memory buses, which the calibration's times contain. A trace without
    memory has runs of ops as one span: what they hold and move is not known.
    """
    lines: dict[int, Line] = {rank: tuple(line) for rank, line in trace.memory.items()}
    if topology is None:
        return Scene(memory=lines, trace_file=trace_file)
    setting = bind(plan, topology)
    told = lines and program is not None and topology.kind == "cuda"
    uses = link_use(program, trace, pricer_for(setting)) if told and program is not None else []
    return Scene(topology, tuple(uses), lines, rooms(setting, lines), trace_file)
