"""Lanes that wait for a peer, and the ops that queue on them: the second half of `sim.engine.inorder.run`."""

from __future__ import annotations

from collections import deque

from sim.engine.inorder.moves import MEET, RECORD, WAIT, Body, End, Event, Lane, Mark, Meeting


class Waiting:
    """The meetings and waiting lanes of one run. `ends`: `InOrder.ends`, which this fills; `ready`: threads and lanes that can go on,
    to which this adds."""

    def __init__(self, ends: dict[int, float], ready: list[Body | Lane]) -> None:
        self._ends, self._ready = ends, ready

    def meets(self, lane: Lane, start: float, seconds: float, meeting: Meeting, step: int) -> bool:
        """Brings an op to its meeting. True: it was the last to come, and all members end after it by the longest `seconds` of any.
        False: others are missing, and until they come its lane's ops queue."""
        table, number = meeting
        come = table.come(number, (start, seconds, lane, step))
        if come is None:
            if lane.queue is None:
                lane.queue = deque()
            return False
        begin = longest = 0.0
        for came, its, _, _ in come:
            if came > begin:
                begin = came
            if its > longest:
                longest = its
        end = begin + longest
        for _, _, other, of in come:
            if end > self._ends.get(of, 0.0):
                self._ends[of] = end
            other.free = end
            if other is not lane:
                self._ready.append(other)
        return True

    def comes(self, end: End, ready: float, seconds: float, step: int) -> Event:
        """Brings a message to this end of its wire, where it is ready at `ready` (seconds). Returns when it ends, or an event if the
        other end has not come to it yet. The sender's end knows how many `seconds` it takes; the receiver's says 0."""
        other = end.other
        if not other.pending:
            mark = Mark()
            end.pending.append((ready, seconds, step, mark))
            return mark
        came, its, of, mark = other.pending.popleft()
        begin = end.free
        if came > begin:
            begin = came
        if ready > begin:
            begin = ready
        last = end.free = other.free = begin + (its if its > seconds else seconds)
        ends = self._ends
        if last > ends.get(step, 0.0):
            ends[step] = last
        if of != step and last > ends.get(of, 0.0):
            ends[of] = last
        mark.time = last
        if mark.waiting:
            self._ready += mark.waiting
        return last

    def goes_on(self, lane: Lane) -> None:
        """Runs the ops that queue on a lane after what it waited for has happened, up to the next op that must wait."""
        queue = lane.queue
        assert queue is not None
        while queue:
            does, ready, seconds, event, meeting, step = queue[0]
            if does == WAIT and isinstance(event, Mark):
                if event.time is None:
                    event.waiting.append(lane)
                    return
                event = event.time
            queue.popleft()
            start = lane.free if lane.free > ready else ready
            if does == MEET:
                assert meeting is not None
                if not self.meets(lane, start, seconds, meeting, step):
                    return
            elif does == WAIT:
                assert isinstance(event, float)
                lane.free = start if start > event else event
            elif does == RECORD:
                assert isinstance(event, Mark)
                lane.free = start
                self._ready += event.fire(start)
            else:
                lane.free = end = start + seconds
                if end > self._ends.get(step, 0.0):
                    self._ends[step] = end
        lane.queue = None
