"""Lanes that wait for a peer, and what has queued on them: the other half of `run`."""

from __future__ import annotations

from collections import deque

from sim.engine.inorder.moves import MEET, RECORD, WAIT, Body, End, Event, Lane, Mark, Meeting


class Waiting:
    """What one run's lanes wait for. `ends` as of `InOrder`; `ready`: threads and lanes that can go on."""

    def __init__(self, ends: dict[int, float], ready: list[Body | Lane]) -> None:
        self._ends, self._ready = ends, ready

    def meets(self, lane: Lane, start: float, seconds: float, meeting: Meeting, step: int) -> bool:
        """Has the op met its peers? It ends `seconds` after the last of them has come; until then its lane's ops queue."""
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
        """When a message ends that is ready at this end of its wire; the sender's end knows its seconds."""
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
        """What has queued behind a meeting, or behind an event that has happened now."""
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
