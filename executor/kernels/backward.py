"""Backward of one operator, as a kernel that is launched: without autograd's engine, where that would hand it to another thread."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from executor.kernels.site import Body

_OUTPUTS = 2
"""Outputs that an operator has beside the first, at most, whose gradients its node asks for: a fused norm's inverse deviations."""


def backward(out: torch.Tensor, inputs: Sequence[torch.Tensor], grad: torch.Tensor) -> Body:
    """A call that gives the gradients of `inputs` again and again. On a GPU the engine hands each call to the device's thread and waits for it, some
    tens of microseconds of the host, once in a training step: there the operator's node is called where nothing lies between it and `inputs`."""
    node = _alone(out, inputs, grad) if out.device.type == "cuda" else None
    return node or (lambda: torch.autograd.grad(out, tuple(inputs), grad, retain_graph=True))


def _alone(out: torch.Tensor, inputs: Sequence[torch.Tensor], grad: torch.Tensor) -> Body | None:
    """The node of `out`, called by this thread; None where the graph has others."""
    node: Any = out.grad_fn
    leaves = [getattr(before, "variable", None) for before, _ in node.next_functions if before is not None]
    if [id(leaf) for leaf in leaves] != [id(tensor) for tensor in inputs]:
        return None
    for others in range(_OUTPUTS + 1):
        given = (grad, *[None] * others)
        with suppress(TypeError):  # it asks for another number of gradients
            node(*given)
            return lambda: node(*given)
    return None
