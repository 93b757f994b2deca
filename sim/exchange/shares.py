"""What an op takes from its machine beside its lane, in words that hold on any machine.

Durations in a trace are those of an op that has the machine to itself. Ranks of one machine share its cores, its disk, the store, and the
links between host memory and their devices; Chakra's schema knows none of these, so the word stands in an attribute of the node
(`steptwin.share`). How much the op takes while it runs follows: one core, or its bytes over the time that is not latency.
"""

from __future__ import annotations

from typing import Literal, get_args

from sim.cost.price import Cost
from sim.engine.sharing import Uses
from sim.program import Op
from topologies.graph import Topology

Share = Literal["cores", "disk.read", "disk.write", "store.read", "store.write", "memory", "h2d", "d2h"]
SHARES: tuple[Share, ...] = get_args(Share)


def leaves(op: Op) -> bool:
    """Does this copy go from the device to the host?"""
    return "d2h" in op.lane or "d2h" in op.how


def share_of(op: Op, cost: Cost) -> Share | None:
    """What a local op with this cost shares with other ranks of its machine; None: nothing."""
    if not cost.uses or cost.seconds <= 0:
        return None
    _, _, what = cost.uses[0][0].partition(".")
    for word in SHARES[:5]:
        if what == word:
            return word
    if op.kind == "host":
        return "memory"
    return "d2h" if leaves(op) else "h2d"


def part_of(cost: Cost, moved: float) -> float:
    """Of the bytes that an op moves, those that it takes from others: one rank of a group may read for all of it."""
    return cost.uses[0][1] * (cost.seconds - cost.latency) / moved if moved > 0 else 1.0


def uses_of(share: Share, moved: float, seconds: float, rank: int, machine: Topology, cores: float = 1.0) -> Uses:
    """(resource, amount per second) of an op that takes `moved` bytes in `seconds` (without latency) on a rank of `machine`; "memory": with so many
    of its cores.

    What comes from a store comes from the node's disk where the machine has none.
    """
    node = machine.node(rank)
    if share == "cores":
        return ((f"n{node}.cores", 1.0),)
    if moved <= 0 or seconds <= 0:
        return ()
    rate = moved / seconds
    if share == "memory":
        buses = (link for link in machine.host_path(rank, True).links if "/dram@" in link)
        return (*((bus, rate) for bus in buses), (f"n{node}.cores", cores))
    if share in ("h2d", "d2h"):
        return tuple((link, rate) for link in machine.host_path(rank, share == "h2d").links)
    place, _, way = share.partition(".")
    if place == "disk" or machine.store(node) is None:
        return ((f"n{node}.disk.{way}", rate),)
    return ((f"n{node}.store.{way}", rate), (f"store.{way}", rate))
