"""Backward of one operator as a directly launched kernel, without autograd's engine where that would pass it to another thread."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from executor.kernels.site import Body

_OUTPUTS = 2
"""The most outputs beside the first one whose gradients an operator's node takes: a fused norm also returns its inverse deviations."""


def backward(out: torch.Tensor, inputs: Sequence[torch.Tensor], grad: torch.Tensor) -> Body:
    """A callable that computes the gradients of `inputs`; it can be called many times. On a GPU autograd's engine passes each backward to
    the device's thread and waits for it, tens of microseconds of the host, which a training step spends only once. So on a GPU the
    operator's node is called directly, if no other node is between it and `inputs`."""
    node = _alone(out, inputs, grad) if out.device.type == "cuda" else None
    return node or (lambda: torch.autograd.grad(out, tuple(inputs), grad, retain_graph=True))


def _alone(out: torch.Tensor, inputs: Sequence[torch.Tensor], grad: torch.Tensor) -> Body | None:
    """A call of the node of `out` in this thread; None if the graph has more nodes."""
    node: Any = out.grad_fn
    leaves = [getattr(before, "variable", None) for before, _ in node.next_functions if before is not None]
    if [id(leaf) for leaf in leaves] != [id(tensor) for tensor in inputs]:
        return None
    for others in range(_OUTPUTS + 1):
        given = (grad, *[None] * others)
        with suppress(TypeError):  # it takes another number of gradients
            node(*given)
            return lambda: node(*given)
    return None
