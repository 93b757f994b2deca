"""Several stock runs one after the other on the same ranks: starting processes takes longer than these plans."""

import msgspec

from executor.ranks.world import World
from executor.stock import Request, train


class Many(msgspec.Struct):
    """Requests in order."""

    requests: list[Request]


def losses(world: World, many: Many) -> list[list[float]]:
    """Losses of each; empty where this rank does not know them (pipelines)."""
    return [train(world, request).losses for request in many.requests]
