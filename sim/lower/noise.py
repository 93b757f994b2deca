"""Stragglers and imbalance: factors on each rank's compute time and on its samples.

`r3: 1.3x, r7: 2x` names ranks; `lognormal(0.05), seed=1` and `normal(0.05)`, `uniform(0.1)` draw one for each rank: log-normal with that
sigma, 1 + |normal|, or uniform in [1, 1 + width].
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from sim.plan import Plan
from sim.rules import mesh_of
from topologies.errors import BadInput

_RANK = re.compile(r"r(\d+)\s*:\s*(\d+(?:\.\d+)?)x?\Z")
_DRAWN = re.compile(r"(lognormal|normal|uniform)\((\d+(?:\.\d+)?)\)(?:\s*,\s*seed\s*=\s*(\d+))?\Z")


_WIDEST = 2.0
"""The largest width of a draw. With a sigma of two, one rank of twenty is already fifty times slower or faster than the median."""


def slowness(plan: Plan) -> Callable[[int], float]:
    """(rank) -> factor on the time of all its compute. Raises `BadInput` for text that cannot be read, for ranks that do not exist, and
    for written factors below 1: whoever means a share of full speed would get a faster rank."""
    text = plan.noise.stragglers
    found = table(text, "noise.stragglers", plan.world, plan.seed)
    fast = min(found, key=lambda rank: found[rank], default=0)
    if found.get(fast, 1.0) < 1.0 and not _DRAWN.match(text.strip()):
        raise BadInput(
            f"noise.stragglers = '{text}': r{fast} would be faster. Write how many times as long it takes, 1x or more (1.25x: at 0.8 of full speed)"
        )
    return _by_rank(found)


def loads(plan: Plan) -> Callable[[int], float]:
    """(rank) -> factor on its number of samples, which lengthens its input, forward and backward (`sim.setting.uneven`). Ranks that
    split a model or a sequence work on the same samples: they share one draw, and a factor for one of them holds for all. Raises
    `BadInput` for what cannot be read, ranks that do not exist, and two factors for the same samples."""
    text = plan.noise.imbalance
    named = table(text, "noise.imbalance", plan.world, plan.seed + 1)
    if not named:
        return _one
    batches = batches_of(plan)
    first: dict[Batch, int] = {}
    for rank in sorted(named):
        other = first.setdefault(batches[rank], rank)
        if named[other] != named[rank] and not _DRAWN.match(text.strip()):
            raise BadInput(
                f"noise.imbalance = '{text}': r{other} and r{rank} work on the same samples. Give them one factor, or name one of them"
            )
    return _by_rank({rank: named[first[batch]] for rank, batch in enumerate(batches) if batch in first})


Batch = tuple[int, int]
"""Coordinates along dp_replicate and dp_shard: ranks that have both in common work on the same samples."""


def batches_of(plan: Plan) -> list[Batch]:
    """For each rank the samples that it works on."""
    mesh = mesh_of(plan)
    return list(zip(mesh.places("dp_replicate"), mesh.places("dp_shard"), strict=True))


def _by_rank(found: dict[int, float]) -> Callable[[int], float]:
    return (lambda rank: found.get(rank, 1.0)) if found else _one


def _one(_: int) -> float:
    return 1.0


@lru_cache(maxsize=64)
def table(text: str, key: str, world: int, seed: int) -> dict[int, float]:
    """Rank -> factor, for the ranks that `text` names or draws a factor for. `key` is named in errors. Raises `BadInput` for text that
    cannot be read."""
    text = text.strip()
    if text in ("", "none"):
        return {}
    drawn = _DRAWN.match(text)
    if drawn:
        if float(drawn.group(2)) > _WIDEST:
            raise BadInput(f"{key} = '{text}': a width of {drawn.group(2)} makes factors of thousands; at most {_WIDEST:g} (0.05: 5 %)")
        return _draw(drawn.group(1), float(drawn.group(2)), int(drawn.group(3) or seed), world)
    found: dict[int, float] = {}
    for item in text.split(","):
        match = _RANK.match(item.strip())
        if match is None:
            raise BadInput(
                f"{key} = '{text}': cannot read '{item.strip()}'. Write e.g. 'r3: 1.3x, r7: 2x', 'lognormal(0.05), seed=1' or 'none'"
            )
        rank, factor = int(match.group(1)), float(match.group(2))
        if rank >= world:
            raise BadInput(f"{key} = '{text}': the plan has ranks r0 to r{world - 1}, not r{rank}")
        if rank in found:
            raise BadInput(f"{key} = '{text}' names r{rank} twice. Give each rank one factor")
        if not 0 < factor < 1e6:
            raise BadInput(f"{key} = '{text}': a factor is above 0 (1.3x: 30 % slower), not {factor}")
        found[rank] = factor
    return found


def _draw(kind: str, width: float, seed: int, world: int) -> dict[int, float]:
    import random

    source = random.Random(seed)
    if kind == "lognormal":
        return {rank: source.lognormvariate(0.0, width) for rank in range(world)}
    if kind == "normal":
        return {rank: 1.0 + abs(source.gauss(0.0, width)) for rank in range(world)}
    return {rank: 1.0 + source.uniform(0.0, width) for rank in range(world)}
