"""Published forms of what there is: `plan list`, `topology list`, `topology show`."""

from __future__ import annotations

import msgspec

from sim.files.forms.said import Said


class PlanRow(Said, frozen=True, kw_only=True):
    """A shipped plan, what it trains, and a machine that it is for."""

    plan: str
    what: str
    on: str


class Catalog(Said, frozen=True, kw_only=True):
    """`steptwin plan list --json`."""

    rows: list[PlanRow]
    models: list[str]


class Machines(Said, frozen=True, kw_only=True):
    """`steptwin topology list --json`."""

    machines: list[str]
    gpus: list[str]


class LinkRow(Said, frozen=True, kw_only=True):
    """Directed links of one kind on a node: how many, with unit the rate of one and the latency of one hop."""

    link: str
    count: int
    rate: str
    latency: str


class Machine(Said, frozen=True, kw_only=True):
    """`steptwin topology show --json`; memory and its rate are of one device, peak FLOP rates in TFLOP/s by precision."""

    name: str
    ranks: int
    nodes: int
    device: str
    memory: str
    memory_bandwidth: str = msgspec.field(name="memory bandwidth")
    sockets: int
    cores: int
    nics: dict[str, int]
    paths: dict[str, str] = msgspec.field(name="paths from rank 0")
    rows: list[LinkRow]
