"""Lanes that wait for a peer, or for an event of the compute lane, and what has queued on them: the other half of `inorder`."""

from __future__ import annotations

from collections import deque

from sim.engine.moves import MEET, RECORD, WAIT, Body, Event, Events, Lane, Mark, Meeting


class Waiting:
    """What one run's lanes wait for. `ends` as of `InOrder`; `ready`: threads and lanes that can go on."""

    def __init__(self, ends: dict[int, float], ready: list[Body | Lane]) -> None:
        self._ends, self._ready = ends, ready

    def free(self, lane: Lane) -> Event:
        """When the lane has run what was put on it so far."""
        return lane.free if lane.queue is None else self.when(lane)

    def when(self, lane: Lane) -> Mark:
        """An event behind what has queued on the lane."""
        assert lane.queue is not None
        mark = Mark()
        lane.queue.append((RECORD, 0.0, 0.0, mark, None, 0))
        return mark

    def meets(self, lane: Lane, start: float, seconds: float, meeting: Meeting, step: int) -> bool:
        """Has the op met its peers? It ends `seconds` after the last of them has come; until then its lane's ops queue."""
        table, number = meeting
        come = table.open.get(number)
        if come is None:
            come = table.open[number] = [(start, seconds, lane, step)]
        else:
            come.append((start, seconds, lane, step))
        if len(come) < table.needed:
            if lane.queue is None:
                lane.queue = deque()
            return False
        del table.open[number]
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

    def made(self, compute: Lane, issued: float, events: Events, event: str, step: int) -> Event:
        """An event of the compute lane, recorded now."""
        if compute.queue is not None:
            found = events.new(event, None)
            compute.queue.append((RECORD, issued, 0.0, found, None, step))
            return found
        compute.free = events.latest[event] = compute.free if compute.free > issued else issued
        return compute.free

    def hands(self, lane: Lane, ready: float, seconds: float, made: Event, meeting: Meeting, step: int) -> None:
        """A message of what is `made` at an event of the compute lane."""
        if isinstance(made, Mark):
            if lane.queue is None:
                lane.queue = deque()
                self._ready.append(lane)
            lane.queue.append((WAIT, ready, 0.0, made, None, step))
        elif made > ready:
            ready = made
        if lane.queue is None:
            self.meets(lane, lane.free if lane.free > ready else ready, seconds, meeting, step)
        else:
            lane.queue.append((MEET, ready, seconds, 0.0, meeting, step))

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
