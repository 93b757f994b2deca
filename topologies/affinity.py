"""Which NICs a GPU uses: the nearest ones, shared out evenly among the GPUs that have the same nearest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from topologies.hardware import Nic
from topologies.machine import Machine, number_of
from topologies.route import ORDER, Router


class NicUse(msgspec.Struct, frozen=True):
    """The NICs of one rank."""

    names: tuple[str, ...]
    nics: tuple[Nic, ...]
    sharers: int
    """Ranks of the node that use these NICs."""
    kind: str
    """How far they are: PIX, PXB (GPUDirect), PHB, SYS (through host memory), C2C."""

    @property
    def rate(self) -> float:
        """Bytes per second, one direction, that the rank gets while all its sharers send."""
        return sum(nic.rate for nic in self.nics) / self.sharers


def nearest(machine: Machine, router: Router, gpus: Iterable[str], ranks: int) -> dict[str, NicUse]:
    """GPU -> its NICs, for the GPUs in use. A GPU that reaches no NIC is absent.

    CPU hosts: the key is "" and all `ranks` share all NICs."""
    if not machine.nics:
        return {}
    if machine.kind == "cpu":
        names = tuple(machine.nics)
        return {"": NicUse(names, tuple(machine.nics.values()), max(1, ranks), "PHB")}
    wishes: dict[str, tuple[str, tuple[str, ...]]] = {}
    for gpu in gpus:
        legs = {nic: leg.kind for nic in machine.nics if (leg := router.tree(gpu, nic)) is not None}
        if legs:
            kind = min(legs.values(), key=ORDER.index)
            wishes[gpu] = (kind, tuple(sorted((nic for nic in legs if legs[nic] == kind), key=number_of)))
    chosen: dict[str, tuple[str, ...]] = {}
    taken: Counter[str] = Counter()
    groups = dict.fromkeys(wishes.values())
    for wish in sorted(groups, key=lambda wish: ORDER.index(wish[0])):
        alike = [gpu for gpu, other in wishes.items() if other == wish]
        for gpu, names in zip(alike, _shares(wish[1], len(alike), taken), strict=True):
            chosen[gpu] = names
            taken.update(names)
    users = {nic: sum(nic in names for names in chosen.values()) for nic in machine.nics}
    return {
        gpu: NicUse(names, tuple(machine.nics[n] for n in names), max(users[n] for n in names), wishes[gpu][0])
        for gpu, names in chosen.items()
    }


def _shares(names: tuple[str, ...], gpus: int, taken: Mapping[str, int]) -> list[tuple[str, ...]]:
    """NICs of each of `gpus` GPUs that are equally near to `names`: NICs that no nearer GPU took, else the least used."""
    free = [name for name in names if not taken[name]]
    if len(free) >= gpus:
        each = len(free) // gpus
        return [tuple(free[place * each : (place + 1) * each]) for place in range(gpus)]
    pool = free or sorted(names, key=lambda name: (taken[name], number_of(name)))[: max(1, min(gpus, len(names)))]
    return [(pool[place * len(pool) // gpus],) for place in range(gpus)]
