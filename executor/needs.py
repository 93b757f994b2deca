"""What runs need beside the base installation, and the message that says how to get it."""

from __future__ import annotations

import importlib.util

from topologies.errors import Refused


def needs_torch(what: str) -> None:
    """Raises `Refused` for `what` ("running plans") where PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise Refused(
            f"{what} needs PyTorch, which is not installed. Run: pip install 'steptwin[torch]' (or torch alone); predict, sweep, explain and "
            "capacity work without it"
        )
