"""Costs of a program's ops on GPUs: where kernels, links and the framework's host meet.

Kernels come from the fitted parameters, collectives and copies from the topology's links.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from msgspec.structs import replace

from sim.cost.collective import collective_cost, message_cost
from sim.cost.host import MEMCPY, Calls, host_seconds
from sim.cost.kernel import kernel_cost
from sim.cost.overlap import slowdown
from sim.cost.place import Common, share_of
from sim.cost.price import Cost, Source, weakest
from sim.cost.staged import staged
from sim.framework.framework import Framework
from sim.program import FILED, HOST, MEETING, SERVER, Op, cpu_lane, held_beside
from sim.work import HostWork, Work
from topologies.graph import Topology
from topologies.hardware import Gpu

PIN = "pin"
_UPDATE = "cpu_optimizer"
_CORES = 16.0
"""Cores that `cpu_optimizer` in `params/host.toml` is for."""
kept_collective = lru_cache(maxsize=4096)(collective_cost)
kept_message = lru_cache(maxsize=4096)(message_cost)
"""For all plans of a sweep: those that split their ranks alike send the same sizes in the same groups."""


class GpuPricer(Common):
    """Kernels by shape, launches by the framework's host, links by the topology."""

    sustained = True
    """Clocks are the catalog's of training; False: the boost clock, but for `board`."""
    world: int | None = None
    """Ranks that train: the machine's first ones; None: any may."""

    def __init__(self, topology: Topology, framework: Framework, factor: Callable[[int], float] | None = None, board: float = 1.0) -> None:
        """`board`: clock of the GPU that the plan's steps wait for, over that of the mean one (`sim.setting.pace`)."""
        super().__init__(topology, factor)
        self.framework = framework
        self._board = board
        self.host = "graph" if framework.cuda_graphs else framework.host
        self._compute: dict[tuple[int, int, float], tuple[Cost, Op]] = {}
        self._chains: dict[tuple[object, ...], Cost] = {}
        self._collectives: dict[tuple[str, int, str, tuple[Work, ...], int, int], tuple[Cost, tuple[int, ...]]] = {}
        """Equal layers send equal messages; a group's members are told by being the same tuple."""
        self._seconds: dict[tuple[str, int], float] = {}
        self._launches: dict[tuple[str, int], Cost] = {}
        self._devices: dict[int, tuple[Gpu, float]] = {}
        self._kinds: list[Gpu] = []

    def _gpu(self, rank: int) -> tuple[Gpu, float]:
        """The rank's device, one value for all that are equal (not for all of one name), and how much longer compute takes there."""
        found = self._devices.get(rank)
        if found is None:
            device = self.topology.device(rank)
            assert isinstance(device, Gpu)
            kind = next((one for one in self._kinds if one == device), None)
            if kind is None:
                self._kinds.append(kind := device)
            found = self._devices[rank] = (kind, self.stretch(rank))
        return found

    def _spent(self, what: str, rank: int) -> float:
        """Seconds of one unit of host work on a core of its own."""
        return host_seconds(what, self.host, self.topology.host(self.topology.node(rank)))

    def _turns(self, rank: int) -> float:
        """How much longer a training thread takes where a node has fewer cores than ranks: these work at the same moments, and take turns."""
        here = [other for other in self.topology.on_node(rank) if self.world is None or other < self.world]
        return max(1.0, len(here) / self.topology.cores(self.topology.node(rank)))

    def _taken(self, what: str, rank: int) -> float:
        """Of one unit on the rank's training thread."""
        found = self._seconds.get((what, rank))
        if found is None:
            found = self._seconds[what, rank] = self._spent(what, rank) * self._turns(rank)
        return found

    def _launch(self, what: str, rank: int) -> Cost:
        """Of an op that takes no time but its launch."""
        found = self._launches.get((what, rank))
        if found is None:
            found = self._launches[what, rank] = Cost(0.0, host=self._taken(what, rank))
        return found

    def local(self, op: Op, rank: int) -> Cost:
        """What needs no other rank; for collectives and messages only their launch."""
        kind = op.kind
        if kind == "compute":
            return self._kernels(op, rank)
        if (kind == "record" or kind == "wait") and op.lane != HOST:
            return self._launch("event", rank)
        if kind == "host":
            seconds = sum(self._host_work(work, op.lane, rank) for work in op.works if isinstance(work, HostWork))
            return Cost(seconds, "fitted", uses=self._shared(op, rank, seconds) if seconds > 0 else ())
        if kind == "copy":
            return self._copy(op, rank)
        if op.lane == HOST and kind not in MEETING:
            return Cost(0.0)
        return self._launch("collective" if kind in MEETING else "event", rank)

    def _shared(self, op: Op, rank: int, seconds: float) -> tuple[tuple[str, float], ...]:
        """What a thread takes from its machine: a loader process one core, an update on the CPU those that its rate is for; both the bus of
        their socket's memory."""
        loads = op.lane.startswith("loader")
        moved = sum(work.moved for work in op.works if isinstance(work, HostWork) and (loads or work.what == _UPDATE))
        if not (loads or moved):
            return ()
        bus = next((link for link in self.topology.host_path(rank, True).links if "/dram@" in link), "") if moved else ""
        share = share_of(op)
        buses = ((bus, share * moved / seconds),) if bus else ()
        return (*self.cores(rank, share), *buses) if loads else (*buses, *self.cores(rank, self._updaters(rank)))

    def _updaters(self, rank: int) -> float:
        """Cores that update a rank's parameters where no other rank needs them."""
        return min(_CORES, self.topology.cores(self.topology.node(rank)))

    def _host_work(self, work: HostWork, lane: str, rank: int) -> float:
        """Seconds on a thread of `lane`. Loader processes share cores by a rule of their own (`sim.engine.machine`), an update on the CPU op by op."""
        units = work.count * work.repeat
        if work.what == PIN:
            return self._pinning(units, rank)
        if work.what == _UPDATE:
            return self._spent(_UPDATE, rank) * units * _CORES / self._updaters(rank)
        if lane.startswith("loader"):
            return (work.seconds or self._spent(work.what, rank)) * units
        return (work.seconds * self._turns(rank) if work.seconds else self._taken(work.what, rank)) * units

    def _pinning(self, size: float, rank: int) -> float:
        """Seconds in which the thread that pins takes over a batch of `size` bytes, which its process has not met yet, and copies it."""
        return self._spent("loader", rank) + size / MEMCPY

    def _kernels(self, op: Op, rank: int) -> Cost:
        gpu, stretch = self._gpu(rank)
        key = (id(op), id(gpu), stretch)
        found = self._compute.get(key)
        if found is None or found[1] is not op:
            calls = Calls(*(self._taken(what, rank) for what in Calls._fields))
            found = self._compute[key] = (self._chain(op, gpu, stretch, calls), op)
        return found[0]

    def _chain(self, op: Op, gpu: Gpu, stretch: float, calls: Calls) -> Cost:
        """`_run` of the op's kernels, found once for all ops that run the same ones: equal layers, buckets of one size."""
        key = (op.works, held_beside(op), id(gpu), stretch, calls)
        found = self._chains.get(key)
        if found is None:
            found = self._chains[key] = self._run(op, gpu, stretch, calls)
        return found

    def kernel(self, work: Work, gpu: Gpu) -> Cost:
        """One work on the device: by the fitted model, unless a pricer knows better."""
        return kernel_cost(work, gpu, self.framework.attention.kernels, self.sustained, self._board)

    def _run(self, op: Op, gpu: Gpu, stretch: float, calls: Calls) -> Cost:
        """Kernels one after the other: the k-th waits for its launch and for the one before (max-plus).

        A repeated kernel is called once from Python, then launched by a loop in C++.
        """
        total, issued, end = 0.0, 0.0, 0.0
        sources: set[Source] = set()
        for work in op.works:
            cost = self.kernel(work, gpu)
            sources.add(cost.source)
            seconds = cost.seconds * stretch
            launch = calls.of(work)
            last = issued + launch + (work.repeat - 1) * min(calls.launch, launch)
            # `repeat` equal kernels: either the device or the launches are the slower chain.
            end = max(max(end, issued + launch) + seconds, last + seconds / work.repeat)
            issued, total = last, total + seconds
        held = held_beside(op)
        beside = total * slowdown(gpu, held) if held is not None else 0.0
        return Cost(total, weakest(sources), host=issued, ready=end, slowed=beside)

    def _copy(self, op: Op, rank: int) -> Cost:
        if op.how in FILED:
            return self._disk(op, rank)
        launch = self._taken("copy", rank)
        if cpu_lane(op.lane):  # host memory to host memory
            return Cost(op.bytes / MEMCPY, "assumed")
        path = self.topology.host_path(rank, "d2h" not in op.lane)
        rate = min(path.rate, MEMCPY) if op.how == "pageable" else path.rate
        return Cost(path.latency + op.bytes / rate, "fitted", path.latency, tuple((link, rate) for link in path.links), host=launch)

    def collective(self, op: Op, members: tuple[int, ...], siblings: int) -> Cost:
        if op.lane == HOST and op.bytes:
            there = kept_collective(op.name, op.bytes, members, self.topology, "auto", siblings)
            return staged(op.name, op.bytes, members, self.topology, there)
        key = (op.name, op.bytes, op.how, op.works, siblings, id(members))
        found = self._collectives.get(key)
        if found is None or found[1] is not members:
            cost = kept_collective(op.name, op.bytes, members, self.topology, op.how or "auto", siblings)
            found = self._collectives[key] = (self._beside(op, cost, members[0]) if op.works else cost, members)
        return found[0]

    def _beside(self, op: Op, cost: Cost, rank: int) -> Cost:
        """An exchange beside another micro-batch's kernels: what it lasts longer than they do, but at least what these lose by the SMs that it
        holds."""
        gpu, stretch = self._gpu(rank)
        compute = slowdown(gpu)
        cover = sum(self.kernel(work, gpu).seconds for work in op.works) * stretch
        seen = max(1.0 - 1.0 / compute, 1.0 - cover / cost.seconds) if cost.seconds > 0 else 1.0
        # All of its data goes over the links, the part that is hidden too.
        return replace(cost, seconds=cost.seconds * seen, latency=cost.latency * seen, payload=cost.payload / seen)

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        """Over the devices' links and the network; what is in host memory goes between the processes of the hosts."""
        there = kept_message(op.bytes, source, target, self.topology, siblings)
        if op.lane == HOST or op.lane.startswith(SERVER):
            return staged("send", op.bytes, (source, target), self.topology, there)
        return there

    def slowdown(self, rank: int) -> float:
        return slowdown(self._gpu(rank)[0])
