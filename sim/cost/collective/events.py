"""A ring at full detail: every step of every rank, as a max-plus recurrence over ranks.

In each of its 2(n-1) steps (all_reduce; n-1 for all_gather and reduce_scatter) a rank sends a chunk of S/n to its successor when it has
received the chunk before: t[i] = max(t[i], t[i-1]) + latency[i-1] + chunk / rate[i-1]. With equal hops and an equal start this is the
closed form 2(n-1)/n S/B + 2(n-1) a. One numpy operation serves all ranks, so thousands of ranks take milliseconds.

Against the other fidelity: on one node, where nothing contends, `flow` charges exactly these events plus `ring_fill`, the time until the
first slice has gone round (`sim/cost/collective/rates.py`). Events send whole chunks and know no slices, so: flow - ring_fill = events.
LL and LL128 move lines, not slices: their fill is 0 and the two are equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from topologies.errors import BadInput

LATENCY = 3.4e-6
"""Seconds of one hop, NCCL's Simple protocol on NVLink (tuner of NCCL 2.30.7)."""
RATE = 3.5e11
"""Bytes per second of one hop: an H100 ring (assumed where nothing is said)."""


def ring_all_reduce_events(
    ranks: int,
    size: float,
    rate: float | Sequence[float] = RATE,
    latency: float | Sequence[float] = LATENCY,
    start: Sequence[float] = (),
    turns: int = 2,
) -> float:
    """Seconds until the last rank has the sum of `size` bytes, from time 0.

    `turns`: times that a chunk goes round: 2 for all_reduce, 1 for all_gather and reduce_scatter.

    `rate` and `latency` are of the hop from each rank to the next (one value, or one for each rank); `start` says when each
    rank arrives. Raises `BadInput` for shapes that do not fit and rates that are not positive.
    """
    import numpy as np

    if ranks < 1:
        raise BadInput(f"a ring has at least one rank, got {ranks}")
    rates = np.broadcast_to(np.asarray(rate, dtype=float), ranks) if np.ndim(rate) == 0 or len(np.asarray(rate)) == ranks else None
    delays = (
        np.broadcast_to(np.asarray(latency, dtype=float), ranks) if np.ndim(latency) == 0 or len(np.asarray(latency)) == ranks else None
    )
    if rates is None or delays is None or (len(start) not in (0, ranks)):
        raise BadInput(f"rates, latencies and starts of a ring are one value, or one for each of its {ranks} ranks")
    if not (rates > 0).all() or not (delays >= 0).all():
        raise BadInput("the rates of a ring must be positive and its latencies not negative")
    hop = delays + size / ranks / rates
    time = np.array(start, dtype=float) if len(start) else np.zeros(ranks)
    arrived = np.empty(ranks)
    for _ in range(turns * (ranks - 1)):
        # A rank sends when it is free and has what it must send; its successor has the chunk one hop later.
        sent = time + hop
        arrived[0] = sent[-1]
        arrived[1:] = sent[:-1]
        np.maximum(time, arrived, out=time)
    return float(time.max())
