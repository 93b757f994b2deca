"""Chooses the NICs of each GPU: the nearest ones. GPUs that have the same nearest NICs share them evenly."""

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
    """Kind of the path from the GPU to its NICs, in NCCL's terms: PIX or PXB (GPUDirect), PHB or SYS (through host memory), C2C."""

    @property
    def rate(self) -> float:
        """Bytes per second in one direction that the rank gets while all ranks that share its NICs send."""
        return sum(nic.rate for nic in self.nics) / self.sharers


def nearest(machine: Machine, router: Router, gpus: Iterable[str], ranks: int) -> dict[str, NicUse]:
    """Returns the NICs of each GPU in `gpus`. A GPU that reaches no NIC has no entry.

    On a CPU host the only key is "", and all `ranks` ranks share all NICs."""
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
    """Divides the NICs `names` among `gpus` GPUs that are equally near to them: first the NICs that no nearer GPU has taken; without any of
    these, the NICs that the fewest GPUs use. `taken` counts the GPUs of each NIC."""
    free = [name for name in names if not taken[name]]
    if len(free) >= gpus:
        each = len(free) // gpus
        return [tuple(free[place * each : (place + 1) * each]) for place in range(gpus)]
    pool = free or sorted(names, key=lambda name: (taken[name], number_of(name)))[: max(1, min(gpus, len(names)))]
    return [(pool[place * len(pool) // gpus],) for place in range(gpus)]
