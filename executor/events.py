"""CUDA's events and streams, typed."""

from __future__ import annotations

import torch


def cuda_event(timing: bool = True) -> torch.cuda.Event:
    """A new event; with `timing` its moment can be read."""
    return torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]


def cuda_stream(device: torch.device) -> torch.cuda.Stream:
    """A new stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
