"""What a page shows besides the trace: the machine, link use, memory over time. Computed from the prediction's inputs."""

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
    """Where a plan ran, or would run. A section of the page is left out if its field is empty."""

    topology: Topology | None = None
    uses: tuple[LinkUse, ...] = ()
    memory: Mapping[int, Line] = {}
    """Simulated rank -> bytes in use over time."""
    rooms: Mapping[int, int] = {}
    """Simulated rank -> bytes of its device's memory."""
    trace_file: str = ""
    """Name of the full trace beside the page."""


def scene(plan: Plan, program: Program | None, trace: Trace, topology: Topology | None, trace_file: str = "") -> Scene:
    """The scene of a predicted trace. `topology`: the machine of the prediction, with what-ifs applied; None: only the trace is known.

    Link use is computed only for GPUs; on CPU hosts transfers share cores and memory buses, and the calibration's times contain that. In a
    trace without memory, several ops are one span, and what they hold and move is not known.
    """
    lines: dict[int, Line] = {rank: tuple(line) for rank, line in trace.memory.items()}
    if topology is None:
        return Scene(memory=lines, trace_file=trace_file)
    setting = bind(plan, topology)
    told = lines and program is not None and topology.kind == "cuda"
    uses = link_use(program, trace, pricer_for(setting)) if told and program is not None else []
    return Scene(topology, tuple(uses), lines, rooms(setting, lines), trace_file)
