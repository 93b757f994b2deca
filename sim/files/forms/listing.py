"""Published forms of what there is: `plan list`, `topology list`, `topology show`."""

from __future__ import annotations

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
    frameworks: list[str]


class Machines(Said, frozen=True, kw_only=True):
    """`steptwin topology list --json`."""

    machines: list[str]
    gpus: list[str]


class LinkRow(Said, frozen=True, kw_only=True):
    """Directed links of one kind on a node: how many, the rate of one and the latency of one hop."""

    link: str
    count: int
    bytes_per_s: float
    latency_s: float


class Way(Said, frozen=True, kw_only=True):
    """How rank 0 reaches others, in NCCL's word for it, and the first `rank` that is reached so."""

    kind: str
    rank: int
    bytes_per_s: float
    latency_s: float
    links: int
    through_host_memory: bool


class Network(Said, frozen=True, kw_only=True):
    """Switches between nodes: nodes under a leaf switch, and how much more enters it than leaves."""

    rails: int
    leaf_nodes: int
    spines: int
    oversubscription: float


class Nodes(Said, frozen=True, kw_only=True):
    """So many nodes of one kind of machine, in the order of their ranks."""

    name: str
    nodes: int


class Machine(Said, frozen=True, kw_only=True):
    """`steptwin topology show --json`; memory and its rate are of one device, peak FLOP rates by precision ({} for CPUs); links are of a node."""

    name: str
    ranks: int
    nodes: int
    device: str
    memory_bytes: int
    memory_bytes_per_s: float
    peak_flops_per_s: dict[str, float]
    machines: list[Nodes]
    sockets: int
    cores: int
    nics: dict[str, int]
    paths: list[Way]
    network: Network | None
    rows: list[LinkRow]
