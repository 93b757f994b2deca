"""Costs of a program's ops on GPUs: kernels, links and the host work of the framework.

Kernels are priced by the fitted parameters, collectives and copies by the topology's links.
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
"""Number of cores for which `params/host.toml` gives `cpu_optimizer`."""
kept_collective = lru_cache(maxsize=4096)(collective_cost)
kept_message = lru_cache(maxsize=4096)(message_cost)
"""Costs kept for all plans of a sweep: plans that split their ranks alike send the same sizes in the same groups."""


class GpuPricer(Common):
    """Kernels by shape, launches by the framework's host, links by the topology."""

    sustained = True
    """True: kernels run at the catalog's training clock; False: at the boost clock. Both times `board`."""
    world: int | None = None
    """Number of ranks that train, the machine's first ones; None: all of its ranks may."""

    def __init__(self, topology: Topology, framework: Framework, factor: Callable[[int], float] | None = None, board: float = 1.0) -> None:
        """`board`: clock of the GPU for which the plan's steps wait, over that of the mean GPU (`sim.setting.pace`)."""
        super().__init__(topology, factor)
        self.framework = framework
        self._board = board
        self.host = "graph" if framework.cuda_graphs else framework.host
        self._compute: dict[tuple[int, int, float], tuple[Cost, Op]] = {}
        self._chains: dict[tuple[object, ...], Cost] = {}
        self._collectives: dict[tuple[str, int, str, tuple[Work, ...], int, int], tuple[Cost, tuple[int, ...]]] = {}
        """Costs kept for equal layers, which send equal messages. A group is identified by the identity of its tuple of members."""
        self._seconds: dict[tuple[str, int], float] = {}
        self._launches: dict[tuple[str, int], Cost] = {}
        self._devices: dict[int, tuple[Gpu, float]] = {}
        self._kinds: list[Gpu] = []

    def _gpu(self, rank: int) -> tuple[Gpu, float]:
        """(the rank's device, the factor `stretch` on its compute time). Equal devices share one `Gpu` object; devices of one name may differ."""
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
        """Seconds of one unit of the host work `what` on a core that no other thread uses."""
        return host_seconds(what, self.host, self.topology.host(self.topology.node(rank)))

    def _turns(self, rank: int) -> float:
        """Factor >= 1 on the time of a training thread: ranks over cores of the node, as all ranks work at the same moments and take turns on the cores."""
        here = [other for other in self.topology.on_node(rank) if self.world is None or other < self.world]
        return max(1.0, len(here) / self.topology.cores(self.topology.node(rank)))

    def _taken(self, what: str, rank: int) -> float:
        """Seconds of one unit of the host work `what` on the rank's training thread."""
        found = self._seconds.get((what, rank))
        if found is None:
            found = self._seconds[what, rank] = self._spent(what, rank) * self._turns(rank)
        return found

    def _launch(self, what: str, rank: int) -> Cost:
        """The cost of an op that takes no time except its launch, which is one unit of the host work `what`."""
        found = self._launches.get((what, rank))
        if found is None:
            found = self._launches[what, rank] = Cost(0.0, host=self._taken(what, rank))
        return found

    def local(self, op: Op, rank: int) -> Cost:
        """The cost of an op that needs no other rank; of a collective or a message only its launch."""
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
        """`Cost.uses` of a thread's op: a loader process takes one core, an optimizer step on the CPU `_updaters` cores, and both the memory bus of their
        socket. Empty for other host work."""
        loads = op.lane.startswith("loader")
        moved = sum(work.moved for work in op.works if isinstance(work, HostWork) and (loads or work.what == _UPDATE))
        if not (loads or moved):
            return ()
        bus = next((link for link in self.topology.host_path(rank, True).links if "/dram@" in link), "") if moved else ""
        share = share_of(op)
        buses = ((bus, share * moved / seconds),) if bus else ()
        return (*self.cores(rank, share), *buses) if loads else (*buses, *self.cores(rank, self._updaters(rank)))

    def _updaters(self, rank: int) -> float:
        """Number of cores that run a rank's optimizer step on the CPU while no other rank needs them."""
        return min(_CORES, self.topology.cores(self.topology.node(rank)))

    def _host_work(self, work: HostWork, lane: str, rank: int) -> float:
        """Seconds on a thread of `lane`. For loader processes (`sim.engine.machine`) and optimizer steps on the CPU (`Cost.uses`) the engine shares cores,
        so their seconds hold no `_turns`."""
        units = work.count * work.repeat
        if work.what == PIN:
            return self._pinning(units, rank)
        if work.what == _UPDATE:
            return self._spent(_UPDATE, rank) * units * _CORES / self._updaters(rank)
        if lane.startswith("loader"):
            return (work.seconds or self._spent(work.what, rank)) * units
        return (work.seconds * self._turns(rank) if work.seconds else self._taken(work.what, rank)) * units

    def _pinning(self, size: float, rank: int) -> float:
        """Seconds in which the pinning thread receives a batch of `size` bytes from another process, and copies it to pinned memory."""
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
        """`_run` of the op's kernels, computed once for all ops that run the same ones: equal layers, buckets of one size."""
        key = (op.works, held_beside(op), id(gpu), stretch, calls)
        found = self._chains.get(key)
        if found is None:
            found = self._chains[key] = self._run(op, gpu, stretch, calls)
        return found

    def kernel(self, work: Work, gpu: Gpu) -> Cost:
        """The cost of one work on the device, here by the fitted model; subclasses ask measurements first."""
        return kernel_cost(work, gpu, self.framework.attention.kernels, self.sustained, self._board)

    def _run(self, op: Op, gpu: Gpu, stretch: float, calls: Calls) -> Cost:
        """The cost of the op's kernels one after the other: the k-th waits for its launch and for the kernel before it (max-plus).

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
        """The cost of a collective beside another micro-batch's kernels (`op.works`): the part of `cost` that lasts longer than these kernels, but at least
        the share of time that they lose to the SMs that it holds."""
        gpu, stretch = self._gpu(rank)
        compute = slowdown(gpu)
        cover = sum(self.kernel(work, gpu).seconds for work in op.works) * stretch
        seen = max(1.0 - 1.0 / compute, 1.0 - cover / cost.seconds) if cost.seconds > 0 else 1.0
        # All of its data crosses the links, in the hidden part too.
        return replace(cost, seconds=cost.seconds * seen, latency=cost.latency * seen, payload=cost.payload / seen)

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        """Over the devices' links and the network; messages in host memory go between the hosts' processes (`staged`)."""
        there = kept_message(op.bytes, source, target, self.topology, siblings)
        if op.lane == HOST or op.lane.startswith(SERVER):
            return staged("send", op.bytes, (source, target), self.topology, there)
        return there

    def slowdown(self, rank: int) -> float:
        return slowdown(self._gpu(rank)[0])
