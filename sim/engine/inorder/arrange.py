"""Turns a thread's calls into code for `sim.engine.inorder.run`: each rank's moves, made from sheets that ranks share.

A segment may begin with collectives that wait for none of its own kernels (a backward pass that gathers parameters). They may run
beside the kernels of the call before, so the two calls are arranged as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from sim.engine.inorder.moves import BESIDE, MEET, PLAIN, WIRE, Arrival, Code, End, Lane, Line, Move, Rank, Unordered
from sim.engine.inorder.sheet import Sheet, Unbound, free_of
from sim.engine.inorder.wires import ends_of, wires_of
from sim.engine.pricing import Pricing
from sim.engine.seats import Seats
from sim.program import COMPUTE, MESSAGE, Call, Op
from sim.turns import Turns, turns_of


class Arranger:
    """Makes code for the ranks of one run."""

    def __init__(self, prices: Pricing) -> None:
        self._prices = prices
        self._seats = Seats[Arrival](prices.groups)
        self._wires = wires_of(prices.program)
        self._ends: dict[object, tuple[End, End]] = {}
        """Pair of ranks (`Groups.pair`) -> the sender's and the receiver's end of their wire."""
        self._sheets: dict[tuple[str, tuple[str, ...]], Sheet] = {}
        """(thread, segments) -> their moves, where these are the same for all ranks."""
        self._free: dict[str, bool] = {}

    @property
    def waiting(self) -> bool:
        """Whether some rank has come to a collective or message and the others never did."""
        return next(self._seats.waiting(), None) is not None or any(end.pending for ends in self._ends.values() for end in ends)

    def lines(self, rank: Rank, thread: str, calls: Sequence[Call]) -> list[Line]:
        """The thread's calls, step by step, with their code. Raises `Unordered` as `code` does."""
        parts = turns_of(calls)
        sorts = dict.fromkeys(names for part in parts for names in part.names)
        if rank.slow != 1.0 and any(self._begins(name) for names in sorts for name in names):
            parts = [self._joined(part) for part in parts]
            sorts = dict.fromkeys(names for part in parts for names in part.names)
        code = {names: self.code(rank, thread, names) for names in sorts}
        return [(part.step, part.before, [code[names] for names in part.names], part.turns) for part in parts]

    def _begins(self, name: str) -> bool:
        """`free_of` of this segment, found once for all ranks."""
        found = self._free.get(name)
        if found is None:
            found = self._free[name] = free_of(self._prices.program.segments[name])
        return found

    def _joined(self, part: Turns) -> Turns:
        """The same turns, but each segment that may begin beside the kernels of the call before is joined to that call, if both have
        the same number."""
        runs: list[tuple[tuple[str, ...], int]] = []
        for sort, number in part.turns:
            for name in part.names[sort]:
                names: tuple[str, ...] = (name,)
                if self._begins(name) and runs and runs[-1][1] == number:
                    names = runs.pop()[0] + names
                runs.append((names, number))
        sorts = {names: at for at, names in enumerate(dict.fromkeys(names for names, _ in runs))}
        return part._replace(names=list(sorts), turns=[(sorts[names], number) for names, number in runs])

    def code(self, rank: Rank, thread: str, names: tuple[str, ...]) -> Code:
        """The moves of segments that are called one after the other, as `thread` of the rank makes them. Raises `Unordered` for ops that
        meet others on the thread's own lane, and for a device lane that two threads put ops on."""
        sheet = self._sheets.get((thread, names))
        if sheet is None:
            priced = chain.from_iterable(self._prices.unshared(rank.rank, thread, name) for name in names)
            sheet = Sheet(thread, rank.slow, priced, self._wires)
            if self._prices.alike and sheet.common:
                self._sheets[thread, names] = sheet
        return self.bound(rank, thread, sheet)

    def bound(self, rank: Rank, thread: str, sheet: Sheet) -> Code:
        """The sheet's moves with this rank's costs and meetings. Raises `Unordered` for a device lane that two threads put ops on."""
        if len(rank.threads) > 1 or not sheet.lanes.keys() <= rank.lanes.keys():
            self._takes(rank, thread, sheet)
        moves = sheet.plain
        if sheet.meets:
            moves = moves.copy()
            for at in sheet.meets:
                moves[at] = self._meeting(rank, sheet.moves[at])
        return moves, sheet.clock

    def _takes(self, rank: Rank, thread: str, sheet: Sheet) -> None:
        """Gives the rank the sheet's lanes. Raises `Unordered` if another thread uses one of them."""
        for name, message in sheet.lanes.items():
            if name != thread and rank.users.setdefault(name, thread) != thread:
                raise Unordered
            if name in rank.lanes:
                continue
            if message is None:
                rank.lanes[name] = Lane(name)
            else:
                rank.lanes[name] = rank.wires[name] = self._end(rank, message)

    def _end(self, rank: Rank, message: Op) -> End:
        """The rank's end of the wire of this message."""
        pair, names = self._prices.groups.pair(message, rank.rank), (message.lane, self._wires[message.lane])
        sends = message.kind == "send"
        if pair not in self._ends:
            self._ends[pair] = ends_of(*(names if sends else reversed(names)))
        return self._ends[pair][not sends]

    def _meeting(self, rank: Rank, move: Unbound) -> Move:
        """The move of a message or collective, with this rank's cost. Raises `Unordered` for a collective beside compute that slows the
        rank's kernels and meets other simulated ranks."""
        does, lane, at, _, event, shift, joined, op = move
        assert op is not None
        if op.kind in MESSAGE:
            seconds = self._prices.message(op, rank.rank).seconds if op.kind == "send" else 0.0
            return does, lane, at, seconds, event, shift, joined, None if does == WIRE else self._seats.of(op, rank.rank)
        seconds = self._prices.collective(op, rank.rank).seconds
        if len(self._prices.groups.represented(op.group, rank.rank)) == 1:
            return PLAIN if lane == COMPUTE or rank.slow == 1.0 else BESIDE, lane, at, seconds, event, shift, 0.0, None
        if lane != COMPUTE and rank.slow != 1.0:
            raise Unordered  # when it slows this rank's kernels is known only once the others have come
        return MEET, lane, at, seconds, "", None, 0.0, self._seats.of(op, rank.rank)
