"""What a step gains from a faster resource.

Elasticities come from the critical path (`gradient`): what the step owes to the ops of a resource, and for a kind of link how much less
each of these would cost on faster links. They are exact for small changes. Beside them stands what re-simulation says of 10 % more, and
of a resource without limit: the two differ where another path becomes critical on the way.
"""

from __future__ import annotations

import msgspec

from sim.cost.price import Cost, Derived, Pricer, transfer_cost
from sim.engine.run import simulate
from sim.planning.explain.gradient import Gradient, gradient
from sim.planning.explain.scaled import HOST, KINDS, Shares, faster_links, kind_of
from sim.program import Op, Program, full_id
from sim.setting.bind import Setting
from sim.setting.pricer import pricer_for
from sim.setting.program import program_for
from sim.timeline.metrics import step_time
from sim.trace import Span, Trace


class Sensitivity(msgspec.Struct, frozen=True):
    """What the step gains from one faster resource. `infinitely_fast` in seconds; the others as a share of the step."""

    resource: str
    infinitely_fast: float
    ten_percent: float
    """With 10 % more of it, simulated."""
    elasticity: float = 0.0
    """Change of the step by a small change of the resource, both relative, from the critical path: -0.5 is half a percent less for each
    percent more."""
    path_ten_percent: float = 0.0
    """With 10 % more of it, as the critical path alone says."""


class Noted(Derived):
    """A pricer that remembers which collectives and messages were asked for, to price them again elsewhere."""

    def __init__(self, inner: Pricer) -> None:
        super().__init__(inner)
        self.collectives: dict[tuple[int, int], tuple[Op, tuple[int, ...], int]] = {}
        """By op and first member."""
        self.messages: dict[tuple[int, int, int], tuple[Op, int, int, int]] = {}
        """By bytes and both ends."""

    def collective(self, op: Op, members: tuple[int, ...], siblings: int) -> Cost:
        """As the pricer says, and noted."""
        self.collectives[id(op), members[0]] = (op, members, siblings)
        return self.inner.collective(op, members, siblings)

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        """As the pricer says, and noted."""
        self.messages[op.bytes, source, target] = (op, source, target, siblings)
        return self.inner.message(op, source, target, siblings)


class Study:
    """Some steps of a setting's plan, simulated, with what the reported one owes to each op."""

    def __init__(self, setting: Setting, steps: int, counts: tuple[int, ...] = ()) -> None:
        """`counts`: micro-batches of each step, where these are not the plan's."""
        self.setting = setting
        self.program: Program = program_for(setting, steps, counts=counts)
        self.pricer: Pricer = pricer_for(setting)
        self.noted = Noted(self.pricer)
        self.trace: Trace = simulate(self.program, self.noted, setting.places)
        self.step = step_time(self.trace)
        ranks = set(self.trace.ranks)
        self.ops: dict[str, Op] = {
            full_id(rank, call, op): op
            for rank in ranks
            for thread in self.program.threads(rank)
            for call, op in self.program.ops(rank, thread)
        }
        self.gradient: Gradient = gradient(self.trace, self.pricer.slowdown, self._cost_of)
        self._shares = Shares(self.pricer)
        self._present = {kind for span in self.trace.spans for kind in self._of(span)}

    def _cost_of(self, span: Span) -> Cost | None:
        return self.pricer.local(self.ops[span.id], span.rank) if span.kind == "compute" else None

    def _of(self, span: Span) -> dict[str, float]:
        """Shares of a span's seconds by resource."""
        return self._shares.of(self.ops[span.id], span.rank) if span.kind == "compute" else {kind_of(span): 1.0}

    def owed(self) -> dict[str, float]:
        """Share of the step that rests on each resource of `KINDS`; launches are the host's."""
        found = dict.fromkeys(KINDS, 0.0)
        for index, seconds in self.gradient.spans.items():
            for kind, share in self._of(self.trace.spans[index]).items():
                found[kind] = found.get(kind, 0.0) + share * seconds / self.step
        found[HOST] += self.gradient.launches / self.step
        return found

    def owes(self, kind: str) -> float | None:
        """Share of the step that rests on a resource of `KINDS`; None where none of the program's ops does."""
        return self.owed()[kind] if kind in self._present or kind == HOST else None

    def on(self, kind: str, factor: float) -> Pricer:
        """Prices on links of a kind that are so many times as fast."""
        return pricer_for(msgspec.structs.replace(self.setting, topology=faster_links(self.setting.topology, kind, factor)))

    def on_links(self, kind: str, factor: float) -> float | None:
        """Change of the step, as a share of it, when what is on its path costs what it does on faster links; None: nothing costs less."""
        other = self.on(kind, factor)
        ratios: dict[tuple[int, int], float] = {}
        found, any_ = 0.0, False
        for index, seconds in self.gradient.spans.items():
            span = self.trace.spans[index]
            if span.kind not in ("collective", "send", "recv", "copy"):
                continue
            op = self.ops[span.id]
            ratio = ratios.get((id(op), span.rank))
            if ratio is None:
                ratio = ratios[id(op), span.rank] = self._ratio(op, span.rank, other)
            any_ = any_ or ratio != 1.0
            found += seconds / self.step * (ratio - 1.0)
        return found if any_ or self._elsewhere(other) else None

    def _elsewhere(self, other: Pricer) -> bool:
        """Something costs less there, though it may not be on the path."""
        return any(
            other.collective(*asked).seconds != self.pricer.collective(*asked).seconds for asked in self.noted.collectives.values()
        ) or any(other.message(*asked).seconds != self.pricer.message(*asked).seconds for asked in self.noted.messages.values())

    def _ratio(self, op: Op, rank: int, other: Pricer) -> float:
        """What an op costs there, over what it costs here."""
        mine, theirs = (transfer_cost(pricer, self.program.mesh, op, rank).seconds for pricer in (self.pricer, other))
        return theirs / mine if mine > 0 else 1.0
