"""The memory of the devices of a plan's ranks, with which the plan's need of memory is compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from sim.rules import mesh_of
from sim.setting.bind import Setting
from topologies.hardware import Cpu, Gpu


def smallest_devices(setting: Setting) -> tuple[Gpu | Cpu, ...]:
    """For each pipeline rank the device with least memory. On a CPU host, a device's memory is one rank's share of the node's memory."""
    topology, plan = setting.topology, setting.plan
    kinds = topology.devices(plan.world) if topology.kind != "cpu" else []
    if len(kinds) == 1:
        return (kinds[0][0],) * plan.parallel.pp
    ranks = Counter(map(topology.node, range(plan.world)))
    hosts = {node: replace(topology.host(node), memory=topology.host_memory(node) // count) for node, count in ranks.items()}
    found: dict[int, Gpu | Cpu] = {}
    for rank, stage in enumerate(mesh_of(plan).places("pp")):
        device = topology.device(rank) if kinds else hosts[topology.node(rank)]
        if stage not in found or device.memory < found[stage].memory:
            found[stage] = device
    return tuple(found[stage] for stage in range(plan.parallel.pp))


def rooms(setting: Setting, ranks: Iterable[int]) -> dict[int, int]:
    """Rank -> bytes of memory of the smallest device of its pipeline stage. Ranks whose memory is not known are left out."""
    devices, mesh = smallest_devices(setting), mesh_of(setting.plan)
    found = {rank: devices[mesh.coordinates(rank)["pp"]].memory for rank in ranks}
    return {rank: memory for rank, memory in found.items() if memory}
