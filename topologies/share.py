"""Max-min fair sharing of links by concurrent flows, as a pure function.

Progressive filling (Bertsekas and Gallager, *Data Networks*, 1992, section 6.5.2): all flows rise together; when a link
is full its flows stay where they are and the others go on. The result is the one allocation in which no flow can get
more without taking from one that has no more than it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from topologies.errors import BadInput


def fair_share(
    flows: Sequence[Iterable[str]], rates: Mapping[str, float], limits: Sequence[float] | None = None, counts: Sequence[int] | None = None
) -> tuple[float, ...]:
    """Bytes per second of each flow while all of them run.

    `flows`: the links of each flow (`Path.links`; a link named twice is crossed twice). `rates`: link -> bytes/s.
    `limits`: the most that each flow takes, bytes/s (default: no limit). `counts`: how many equal flows each entry
    stands for (default 1); the result is the rate of one of them. A flow over no link gets its limit, or infinity.
    Raises `BadInput` for a link without a rate.
    """
    crossings = [Counter(links) for links in flows]
    limits = [float("inf")] * len(flows) if limits is None else limits
    counts = [1] * len(flows) if counts is None else counts
    left = {link: _rate(rates, link) for link in dict.fromkeys(link for crossing in crossings for link in crossing)}
    got: list[float] = [0.0] * len(flows)
    open_ = {i for i, count in enumerate(counts) if count > 0}
    level = 0.0
    while open_:
        load: dict[str, int] = {}
        for i in sorted(open_):
            for link, times in crossings[i].items():
                load[link] = load.get(link, 0) + times * counts[i]
        step = min((left[link] / times for link, times in load.items()), default=float("inf"))
        step = min(step, min(limits[i] for i in open_) - level)
        full = {link for link, times in load.items() if left[link] / times <= step * (1 + 1e-12)}
        if step == float("inf"):
            for i in open_:
                got[i] = float("inf")
            break
        level += max(0.0, step)
        for link, times in load.items():
            left[link] = 0.0 if link in full else left[link] - step * times
        done = {i for i in open_ if limits[i] <= level * (1 + 1e-12) or full & crossings[i].keys()}
        for i in done:
            got[i] = min(level, limits[i])
        open_ -= done
    return tuple(got)


def _rate(rates: Mapping[str, float], link: str) -> float:
    try:
        rate = rates[link]
    except KeyError:
        raise BadInput(f"a flow crosses the link '{link[:80]}', which has no rate") from None
    if not rate > 0:
        raise BadInput(f"the link '{link[:80]}' has the rate {rate:g}; it must be above zero")
    return rate
