"""Where gradients begin beside adapters: autograd makes none of what lies before all that is trained, and keeps nothing for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from sim.model.parts import ADAPTER, Block, Part, still
from sim.work import Gemm, MemoryBound
from topologies.errors import Refused

Blocks = tuple[tuple[str, Block], ...]


class Way(NamedTuple):
    """What a part reads and makes, as names of streams: a model that is one chain has one."""

    reads: tuple[str, ...] = ("",)
    """Streams whose branches it reads, as they stand before it."""
    makes: tuple[str, ...] = ("",)
    stem: bool = False
    """It reads what the branch began with, not what the part before it made of that."""
    opens: bool = False
    """A residual stream begins with what it makes."""
    adds: bool = False
    """It adds what its branch began with, as all parts do whose name ends in `residual`."""


Ways = Callable[[str, str], Way]
"""Of a part, by the names of its block and its own."""
_STEMS = ("attn.kv_down",)
"""Read what the first linear of latent attention reads."""


def chain(block: str, part: str) -> Way:
    """Each part reads the one before it."""
    return Way(stem=part in _STEMS)


class _Living:
    """Which streams need gradients, at one place of the model: what their branches have made since the last residual, and what is added there."""

    def __init__(self, beside: bool) -> None:
        self.beside = beside
        self.branch: dict[str, bool] = {}
        self.stem: dict[str, bool] = {}

    def key(self) -> tuple[tuple[str, bool], ...]:
        return tuple(sorted(self.branch.items()))

    def reads(self, way: Way) -> bool:
        """Does anything that it reads need a gradient?"""
        found = self.stem if way.stem else self.branch
        return any(found.get(stream, False) for stream in way.reads)

    def made(self, way: Way, alive: bool) -> None:
        """A branch that needs a gradient does so up to the next residual."""
        for stream in way.makes:
            self.branch[stream] = alive or (not way.opens and self.branch.get(stream, False))
            if way.opens:
                self.stem[stream] = alive

    def added(self, way: Way, alive: bool) -> None:
        """Behind a residual. A layer's two branches that lie `beside` each other both begin with what the layer reads."""
        for stream in way.makes:
            before = self.stem.get(stream, False)
            self.branch[stream] = before if self.beside else alive or before
            if not self.beside:
                self.stem[stream] = self.branch[stream]


def begun(blocks: Blocks, ways: Ways = chain, beside: bool = False) -> Blocks:
    """The blocks without gradients of what lies before the first adapters, and of what these read: autograd begins there, or with what else is
    trained (a projector of pictures). Attention counts as one: where queries or values alone have adapters, fused kernels give all three gradients
    (written out, the first layer has up to three products less than are counted here). `beside`: a layer's two branches read the same, and each has a beginning.

    Raises `Refused` where nothing is trained.
    """
    living, found = _Living(beside), []
    made: dict[object, tuple[Block, _Living]] = {}
    for name, block in blocks:
        key = id(block), living.key()
        if key not in made:
            parts, after = _walked(name, block.parts, living, ways)
            same = all(one is other for one, other in zip(parts, block.parts, strict=True))
            made[key] = block if same else replace(block, parts=tuple(parts)), after
        new, living = made[key]
        found.append((name, new))
    if not any(_trained(part) for _, block in found for part in block.parts):
        raise Refused(
            "lora.targets: the model has none of these linears (experts have no adapters), so nothing would be trained. Add qkv or proj"
        )
    return tuple(found)


def _trained(part: Part) -> bool:
    return bool(part.tensors) and not part.frozen


def _walked(name: str, parts: Sequence[Part], before: _Living, ways: Ways) -> tuple[list[Part], _Living]:
    """A block's parts as far as they have gradients, and what has some behind it."""
    living = _Living(before.beside)
    living.stem, living.branch = dict(before.branch), dict(before.branch)
    read: dict[str, bool] = {}
    found, ever = list[Part](), False
    for part in parts:
        way = ways(name, part.name)
        alive = read[part.name] = living.reads(way)
        if way.adds or part.name.endswith("residual"):
            stem = any(living.stem.get(stream, False) for stream in way.makes)
            found.append(still(part) if not alive else part if stem else _without_fork(part))
            living.added(way, alive)
        elif part.name.endswith(ADAPTER):
            found.append(part if read[_base(part.name, read)] else _without_input(part))
            living.made(way, True)
        else:
            found.append(part if alive or _trained(part) else still(part))
            living.made(way, alive or _trained(part))
        ever = ever or alive or _trained(part)
    if before.beside:
        living.branch = {"": ever}
    return found, living


def _base(name: str, read: dict[str, bool]) -> str:
    """The linear that an adapter stands beside: one of several has a number."""
    base = name.removesuffix(ADAPTER)
    return base if base in read else base.rpartition(".")[0]


def _without_input(adapter: Part) -> Part:
    """All that comes behind the gradient of the narrow product is that of the input's."""
    behind = next(at for at, work in enumerate(adapter.backward) if isinstance(work, Gemm)) + 1
    return replace(adapter, backward=adapter.backward[:behind])


def _without_fork(part: Part) -> Part:
    """The residual stream before it needs no gradient, which would be a sum of two."""
    last = part.backward[-1] if part.backward else None
    return replace(part, backward=part.backward[:-1]) if isinstance(last, MemoryBound) and last.what == "add" else part
