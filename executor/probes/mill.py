"""Other work between two timed calls.

A training step runs some sixty different kernels and as much Python and autograd code before it comes back to the same one:
instruction caches and branch predictors have forgotten it. Timed in a loop of its own, a small kernel takes half of what it
takes in a step (measured: layer_norm 4 us against 12, gelu 11 against 20, a thin GEMM 8 against 14). Turning the mill before
each timed call makes the call as cold as it is in a step.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

_TOKENS, _WIDTH, _HEADS = 16, 64, 2


class Mill(nn.Module):
    """Forward and backward of one small block with many different kernels: about 0.3 ms on one core."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(_TOKENS, _WIDTH), nn.LayerNorm(_WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 2 * _WIDTH), nn.Linear(2 * _WIDTH, _WIDTH)
        self.tokens = torch.arange(_TOKENS)

    def turn(self) -> None:
        """Runs the block once and forgets its gradients."""
        with torch.enable_grad():
            x = self.table(self.tokens)
            y = self.down(F.gelu(self.up(self.norm(x)))) + x
            heads = y.view(1, _TOKENS, _HEADS, -1).transpose(1, 2)
            y = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).reshape(_TOKENS, _WIDTH)
            F.cross_entropy(y, self.tokens).backward()  # type: ignore[no-untyped-call]
        for parameter in self.parameters():
            parameter.grad = None
