"""What all published forms have in common."""

from __future__ import annotations

import msgspec


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What a verb says. It may say more keys than its form names."""
