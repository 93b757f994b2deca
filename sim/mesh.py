"""Rank <-> coordinates, and who talks to whom.

The mesh is an array of ranks with one dimension per kind of parallelism, in torchtitan's words. Derived axes:
`dp` (dp_replicate x dp_shard; `dp_ring`: the same, where each sends to the next), `grad` (dp x cp: the ranks that hold the same parameters and
average gradients), `fsdp` (dp_shard x cp: the ranks that share one sharded copy), `stage` (all with the same place in a pipeline), `ep`, `edp`
(where expert gradients are averaged) and `efsdp` (where experts are sharded), `cp_ulysses` (neighbours of cp that exchange heads of attention)
and `cp_ring` (cp ranks that hold the same heads then), `fsdp_inner` (neighbours of fsdp that share what is kept from forward to backward),
`world`. Experts have a mesh of their own on the same ranks (Megatron's expert_decoder_rank_generator in core/parallel_state.py): `etp` of the
tp ranks hold the slices of one expert, the others of tp count with dp and cp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from topologies.errors import BadInput, UnknownName

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
_INSIDE = {
    "dp": ("dp_replicate", "dp_shard"),
    "dp_ring": ("dp_replicate", "dp_shard"),
    "grad": ("dp_replicate", "dp_shard", "cp"),
    "fsdp": ("dp_shard", "cp"),
    "stage": ("dp_replicate", "dp_shard", "cp", "tp"),
    "world": AXES,
}


_EXPERTS = ("ep", "edp", "efsdp")
_WITHIN = ("cp_ulysses", "cp_ring", "fsdp_inner")
"""Axes that cut one other axis."""
ALL_AXES = (*AXES, *_INSIDE, *_EXPERTS, *_WITHIN)
"""Every name that a group of ranks may have."""
NEIGHBOURS = ("pp", "cp", "cp_ring", "dp_ring")
"""Axes whose members exchange with neighbours."""


class Mesh(msgspec.Struct, frozen=True):
    """`sizes` by axis; `order` lists the axes outermost first (the last varies fastest over ranks)."""

    sizes: dict[str, int]
    order: tuple[str, ...] = AXES
    ep: int = 1
    etp: int = 0
    """Ranks that split one expert; 0: all of tp."""
    ulysses: int = 1
    """Neighbours of cp that exchange heads, where the others form rings."""
    inner: int = 1
    """Neighbours of fsdp that share what a smaller mesh keeps after forward."""

    def __post_init__(self) -> None:
        if sorted(self.order) != sorted(AXES):
            raise BadInput(f"a mesh orders each of {', '.join(AXES)} once, got {', '.join(self.order)}")
        for axis, size in self.sizes.items():
            if axis not in AXES:
                raise UnknownName("mesh axis", axis, AXES)
            if size < 1:
                raise BadInput(f"mesh axis {axis} must be at least 1, got {size}")
        tp = self.size("tp")
        if self.etp < 0 or (self.etp and tp % self.etp):
            raise BadInput(f"etp = {self.etp} must divide tp = {tp}")
        data, words = self.size("grad") * self.copies, "dp_replicate x dp_shard x cp" + (" x tp / etp" if self.copies > 1 else "")
        if self.ep < 1 or data % self.ep:
            raise BadInput(f"ep = {self.ep} must divide {words} = {data}")
        if self.ulysses < 1 or self.size("cp") % self.ulysses:
            raise BadInput(f"cp_ulysses = {self.ulysses} must divide cp = {self.size('cp')}")
        if self.inner < 1 or self.size("fsdp") % self.inner:
            fits = [ways for ways in range(2, self.size("fsdp")) if self.size("fsdp") % ways == 0]
            words = f"Use {', '.join(map(str, fits))} or true" if fits else "Use true"
            raise BadInput(f"reshard_after_forward = {self.inner} must divide dp_shard x cp = {self.size('fsdp')}. {words}")

    def __hash__(self) -> int:
        return hash((frozenset(self.sizes.items()), self.order, self.ep, self.etp, self.ulysses, self.inner))

    @property
    def copies(self) -> int:
        """Groups of `etp` ranks among the tp ranks, each of which holds whole experts: tp / etp."""
        return self.size("tp") // self.etp if self.etp else 1

    @property
    def apart(self) -> bool:
        """Experts have process groups of their own, as the ranks that hold the same expert are not those that hold the same dense parameters."""
        return self.ep > 1 or self.copies > 1

    @property
    def data_axis(self) -> str:
        """The axis over which dense gradients are averaged."""
        return "grad" if self.size("cp") > 1 else "dp"

    def shard_axis(self, expert: bool) -> str:
        """The axis over which parameters, experts' or dense ones, are split (ZeRO)."""
        return "efsdp" if expert and self.apart else "fsdp"

    def size(self, axis: str) -> int:
        """Ranks in one group of `axis`. Raises `UnknownName` for what is no axis."""
        size = self.sizes.get(axis)  # asked for very often
        if size is not None:
            return size
        if axis in _INSIDE:
            size = 1
            for name in _INSIDE[axis]:
                size *= self.sizes.get(name, 1)
            return size
        if axis == "ep":
            return self.ep
        if axis == "edp":
            return self.size("grad") * self.copies // self.ep
        if axis == "efsdp":
            return max(1, self.size("fsdp") * self.copies // self.ep)
        if axis == "cp_ulysses":
            return self.ulysses
        if axis == "cp_ring":
            return self.size("cp") // self.ulysses
        if axis == "fsdp_inner":
            return self.inner
        if axis not in AXES:
            raise UnknownName("mesh axis", axis, ALL_AXES)
        return 1

    @property
    def world(self) -> int:
        return self.size("world")

    def coordinates(self, rank: int) -> dict[str, int]:
        """Axis -> place of a rank along it."""
        found: dict[str, int] = {}
        for axis in reversed(self.order):
            rank, found[axis] = divmod(rank, self.sizes.get(axis, 1))
        return found

    def places(self, axis: str) -> list[int]:
        """Each rank's place along one of the mesh's own axes."""
        inner = math.prod(self.sizes.get(name, 1) for name in self.order[self.order.index(axis) + 1 :])
        size = self.sizes.get(axis, 1)
        return [rank // inner % size for rank in range(self.world)]

    def rank(self, coordinates: dict[str, int]) -> int:
        """The rank at these coordinates; axes that are not named count as 0."""
        rank = 0
        for axis in self.order:
            rank = rank * self.sizes.get(axis, 1) + coordinates.get(axis, 0)
        return rank

    def _along(self, axes: tuple[str, ...], rank: int) -> tuple[int, ...]:
        first, stride, ways = rank, 1, list[range]()
        for axis in reversed(self.order):
            size = self.sizes.get(axis, 1)
            if axis in axes:
                first -= rank // stride % size * stride
                ways.append(range(0, size * stride, stride))
            stride *= size
        found = [first]
        for way in reversed(ways):
            found = [at + further for at in found for further in way]
        return tuple(found)

    def group(self, axis: str, rank: int) -> tuple[int, ...]:
        """The ranks of `rank`'s group along `axis`, in group order (the order of their coordinates). Raises `UnknownName`."""
        if axis in _EXPERTS:
            return self._expert_group(axis, rank)
        if axis in _WITHIN:
            if axis == "fsdp_inner":
                members, ways = self._along(_INSIDE["fsdp"], rank), self.inner
            else:
                members, ways = self._along(("cp",), rank), self.ulysses
            block, lane = divmod(members.index(rank), ways)
            return members[lane::ways] if axis == "cp_ring" else members[block * ways : (block + 1) * ways]
        self.size(axis)  # raises for a name that is no axis
        return self._along(_INSIDE.get(axis, (axis,)), rank)

    def _expert_group(self, axis: str, rank: int) -> tuple[int, ...]:
        # ep takes neighbours (Megatron's and torchtitan's order: after etp, ep varies fastest).
        data = self._along(_INSIDE["grad"], rank) if self.copies == 1 else self._with_tp(rank)
        block, lane = divmod(data.index(rank), self.ep)
        if axis == "ep":
            return data[block * self.ep : (block + 1) * self.ep]
        same = data[lane :: self.ep]
        if axis == "edp":
            return same
        size = self.size("efsdp")
        first = block // size * size
        return same[first : first + size]

    def _with_tp(self, rank: int) -> tuple[int, ...]:
        """Ranks of the gradient and tensor parallel groups that hold the same slice of their experts."""
        slices = self.coordinates(rank)["tp"] % self.etp
        return tuple(other for other in self._along((*_INSIDE["grad"], "tp"), rank) if self.coordinates(other)["tp"] % self.etp == slices)

    def groups(self, axis: str) -> tuple[tuple[int, ...], ...]:
        """Every group along `axis`, by its smallest member."""
        seen: set[int] = set()
        found = []
        for rank in range(self.world):
            if rank not in seen:
                found.append(self.group(axis, rank))
                seen.update(found[-1])
        return tuple(found)


def peer_of(members: Sequence[int], rank: int, offset: int) -> int:
    """The rank that is `offset` places after `rank` in its group `members`, which is closed to a ring."""
    return members[(members.index(rank) + offset) % len(members)]
