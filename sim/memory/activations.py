"""Memory that changes during a step: what blocks keep from forward to backward, and what their backward passes need.

Kept: what each part saves, less what the recompute policy does without (Korthikanti et al. 2022, section 4). A backward pass
runs over the parts in reverse: each needs gradients in and out of it, brings back what was dropped, frees what it had
saved, and (where gradients do not last from one micro-batch to the next) leaves the gradients of its parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sim.model.layers.redo import Redone, redone, whole_again
from sim.model.parts import Block, Part
from sim.model.stages import Blocks
from sim.plan import Plan
from sim.work import BYTES, Attention, Conv, Gemm, GroupedGemm, MemoryBound


class Moment(NamedTuple):
    """Memory that changes during a step, at one moment, in bytes."""

    activations: int
    working: int
    gradients: int

    def of_samples(self, share: float) -> Moment:
        """The same with `share` times the samples. Gradients stay as large."""
        return self._replace(activations=round(self.activations * share), working=round(self.working * share))


class Pass(NamedTuple):
    """One block of a chunk, through forward and backward of one micro-batch. Bytes."""

    kept: int
    """Kept from the end of its forward to the end of its backward."""
    worst: Moment
    """The fullest moment of its backward: changes of activations and gradients since the backward's begin (activations <= 0), and the
    working set."""
    grown: int
    """Gradients that its backward adds; 0 where gradients live through the whole step anyway."""
    ahead: Moment = Moment(0, 0, 0)
    """The fullest moment of its forward: activations as a difference to those after it (<= 0), and the working set, which is not kept."""
    weighs: bool = True
    """Whether it has weight gradients. Where a schedule makes these apart, what the block keeps lasts until then."""

    @property
    def rise(self) -> int:
        """Bytes at the fullest moment of its backward above those at its begin."""
        return sum(self.worst)

    def of_samples(self, share: float) -> Pass:
        """The same with `share` times the samples. Gradients stay as large."""
        if share == 1.0:
            return self
        return self._replace(kept=round(self.kept * share), worst=self.worst.of_samples(share), ahead=self.ahead.of_samples(share))


Known = dict[tuple[int, bool, float], Pass]
"""Passes of a plan's blocks: (id() of the block, whether it is recomputed as a whole, bytes of a parameter's gradient) -> pass."""


def passes(plan: Plan, chunk: Blocks, each: float, known: Known, compiled: bool) -> list[Pass]:
    """The pass of every block of a stage, in forward order. `each`: bytes that a parameter's backward adds for its gradient. New passes
    are added to `known`."""
    found: list[Pass] = []
    for (_, block), again in zip(chunk, whole_again(plan.memory, chunk), strict=True):
        key = (id(block), again, each)
        if key not in known:
            known[key] = _whole(block, each) if again else _by_parts(block, each, redone(block, plan.memory.modules, compiled))
        found.append(known[key])
    return found


def moments(chain: Sequence[Pass], away: Mapping[int, int], kept: int, apart: bool = False) -> Iterator[Moment]:
    """The fullest moment of each block's backward, last block first. `kept`: bytes kept when the first of these begins. Activations
    that are `away` in host memory (`sent_away`) count while they are on their way. `apart`: weight gradients come later, so only blocks
    without any free what they keep."""
    grown = 0
    for at, one in reversed(list(enumerate(chain))):
        near = kept + sum(chain[here].kept for here, beside in away.items() if here <= at <= beside)
        yield Moment(near + one.worst.activations, one.worst.working, grown + one.worst.gradients)
        if one.ahead.working:
            yield Moment(near + one.ahead.activations, one.ahead.working, 0)
        kept, grown = kept - one.kept * (at not in away and not (apart and one.weighs)), grown + one.grown


def _whole(block: Block, each: float) -> Pass:
    """A block that is recomputed as a whole: only its input is kept, and backward first makes again all that its parts save."""
    back, grown = sum(part.saved for part in block.parts), 0.0
    seen: list[Moment] = [Moment(0, back, 0)]
    for part in reversed(block.parts):
        grown += each * _trained((part,))
        seen.append(Moment(0, back + widest(part), round(grown)))
        back -= part.saved
    return Pass(block.saved_input, max(seen, key=sum), round(grown), weighs=_weighs(block))


def _by_parts(block: Block, each: float, some: Redone) -> Pass:
    """A block whose backward goes part by part in reverse. What is recomputed comes back before the first gradient that needs it, and
    is freed with its part."""
    seen: list[Moment] = [Moment(0, 0, 0)]
    ahead: list[Moment] = [Moment(0, 0, 0)]
    freed, back, grown = 0, 0, 0.0
    for at, part in reversed(list(enumerate(block.parts))):
        back += some.back.get(at, 0)
        grown += each * _trained((part,))
        seen.append(Moment(-freed, widest(part) + back, round(grown)))
        if part.ahead:
            ahead.append(Moment(-freed, part.ahead, 0))
        freed += part.saved - some.dropped[at]
        back -= some.dropped[at]
    return Pass(freed, max(seen, key=sum), round(grown), max(ahead, key=sum), _weighs(block))


def _weighs(block: Block) -> bool:
    return any(part.wgrad for part in block.parts)


def _trained(parts: Sequence[Part]) -> int:
    return sum(part.params for part in parts if not part.frozen)


_TWICE = ("batchnorm", "batchnorm_fused", "groupnorm")
"""Kernels that read their input twice (first for sums). It takes memory only once."""


def widest(part: Part) -> int:
    """Bytes of the gradients that one kernel of the part reads and writes, at most; saved tensors do not count."""
    if part.working:
        return part.working
    found = 0.0
    for work in (*part.forward, *part.backward):
        if isinstance(work, (Gemm, GroupedGemm)):
            e = max(BYTES[work.dtype], 2.0)
            batch = work.batch if isinstance(work, Gemm) else 1
            found = max(found, e * batch * work.m * (work.n + (work.k if work.role == "dgrad" else 0)))
        elif isinstance(work, Attention):
            found = max(found, work.bytes / work.repeat)
        elif isinstance(work, Conv):
            oh, ow = work.out
            found = max(found, BYTES[work.dtype] * work.batch * (work.c_in * work.h * work.w + work.c_out * oh * ow))
        elif isinstance(work, MemoryBound) and work.what in _TWICE:
            found = max(found, work.written + max(0, work.read / 2 - part.saved))
        elif isinstance(work, MemoryBound):
            # What it reads is partly what the part saved, and partly a gradient as large as what it writes.
            found = max(found, min(max(work.read, work.written), work.written + max(0, work.read - part.saved)))
    return round(found)
