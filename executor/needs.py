"""What runs need beside the base installation, and the message that says how to get it."""

from __future__ import annotations

import importlib.util
import warnings

from topologies.errors import Refused


def needs_torch(what: str) -> None:
    """Raises `Refused` for `what` ("running plans") where PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise Refused(
            f"{what} needs PyTorch, which is not installed. Run: pip install 'steptwin[torch]' (or torch alone); predict, sweep, explain and "
            "capacity work without it"
        )


def unusable() -> str:
    """Why torch cannot compute on this machine's GPUs, in torch's own words; "" if it can. Opens no CUDA context."""
    import torch

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return ""
    words = [str(one.message).partition("(Triggered")[0].strip() for one in told]
    return " ".join(next(iter(words), "CUDA does not start").split())[:200].rstrip(".")
