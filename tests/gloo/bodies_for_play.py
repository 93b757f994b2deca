"""Several programs played one after the other on the same ranks."""

import msgspec

from executor.play import RankResult, Request, play
from executor.ranks.world import World


class Many(msgspec.Struct):
    """Requests in order."""

    requests: list[Request]


def spans(world: World, many: Many) -> list[RankResult]:
    """What this rank saw of each."""
    return [play(world, request) for request in many.requests]
