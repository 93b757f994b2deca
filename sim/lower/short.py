"""Shortens programs of which only a step's time is asked: equal layers share their ops, and runs of ops become fewer.

A program made with a `Shortener` takes the same time with fewer ops. Its ops do not carry the layers' names, so it is never shown or
played.
"""

from __future__ import annotations

from collections.abc import Callable

from sim.lower.template import BlockOps, PartOps, Templates
from sim.model.parts import Part
from sim.program import Op

Ops = tuple[Op, ...]
Shorten = Callable[[Ops, bool], Ops]
"""(ops, whether collectives may run beside them) -> fewer ops that take the same time."""


class Shortener:
    """Shortens each run of ops of a layer's template once, however many layers and segments it stands in."""

    def __init__(self, shorten: Shorten, coarse: bool = False) -> None:
        """`coarse`: whole stretches become one op even where collectives may run beside them. These then slow all of the stretch alike."""
        self.shorten, self._coarse = shorten, coarse
        self._closed: dict[int, tuple[bool, BlockOps]] = {}
        self.templates: Templates = {}
        """Lowered blocks by kind, which all programs share whose plans split and run a layer alike."""
        self._known: dict[tuple[object, ...], tuple[Ops, list[Ops]]] = {}
        self._made: dict[tuple[int, str], tuple[Ops, Part]] = {}
        self._lines: dict[object, Ops] = {}
        self._named: dict[tuple[int, str], BlockOps] = {}
        self._open: set[str] = set()

    def once(self, part: Part, how: str, make: Callable[[], Ops]) -> Ops:
        """What `make` makes for a part, made once for each `how`: the same ops wherever the part stands (accumulation of gradients,
        say)."""
        found = self._made.get((id(part), how))
        if found is None:
            found = self._made[id(part), how] = (make(), part)
        return found[0]

    def run(self, parts: list[Ops], beside: bool) -> Ops:
        """The ops of `parts` one after the other, shortened. Parts are equal if they are the same tuple objects. `beside`: collectives
        may run beside them."""
        beside = beside and not self._coarse
        key = (beside, *map(id, parts))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = (self.shorten(tuple(op for ops in parts for op in ops), beside), parts)
        return found[0]

    def line(self, key: object, make: Callable[[], list[Ops]], beside: bool) -> Ops:
        """`run` of what `make` makes, once for all plans for which `key` is the same."""
        key = (key, beside and not self._coarse)
        found = self._lines.get(key)
        if found is None:
            found = self._lines[key] = self.run(make(), beside)
        return found

    def named(self, template: BlockOps, name: str) -> BlockOps:
        """The template's block under a layer's name, with the template's own ops."""
        found = self._named.get((id(template), name))
        if found is None:
            parts = tuple(PartOps(name, p.part, p.forward, p.backward, p.wgrad, p.joint) for p in template.parts)
            found = self._named[id(template), name] = BlockOps(name, template.block, parts, template.prelude, template.again)
        return found

    def shares(self, block: BlockOps) -> bool:
        """Whether equal layers may share this template's ops, and whether these may be shortened (`closed`). Found once for each
        template."""
        found = self._closed.get(id(block))
        if found is None:
            found = self._closed[id(block)] = (closed(block), block)
        return found[0]

    def open(self, name: str) -> bool:
        """Whether the block of this name must keep its ops as they are."""
        return name in self._open

    def keep(self, name: str) -> None:
        """From now on the block of this name keeps its ops as they are."""
        self._open.add(name)


def closed(block: BlockOps) -> bool:
    """Whether each wait in the block's passes follows its record in the same pass. Then equal layers may share the names of their
    events."""
    back = [block.prelude, *(part.joint for part in reversed(block.parts))]
    alone = [[part.backward for part in reversed(block.parts)], [part.wgrad for part in reversed(block.parts)]]
    return all(_closed([op for ops in line for op in ops]) for line in ([part.forward for part in block.parts], back, *alone))


def _closed(ops: list[Op]) -> bool:
    recorded: set[str] = set()
    for op in ops:
        if op.shift is not None or (op.event and op.kind != "record" and op.event not in recorded):
            return False
        if op.kind == "record":
            recorded.add(op.event)
    return True
