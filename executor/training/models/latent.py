"""Layers of multi-head latent attention: queries, keys and values through low-rank bottlenecks, one rotary key for all heads (DeepSeek-V2, section 2.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from executor.training.models.decoder import Layer
from executor.training.models.parts import Core, Rotary, make_norm
from sim.framework.framework import Framework
from sim.model.specs.decoder import Decoder


class Join(nn.Module):
    """Concatenates the content and the rotary columns of each head; the single rotary key is used by all heads."""

    def forward(self, q: Tensor, q_rope: Tensor, k: Tensor, k_rope: Tensor) -> tuple[Tensor, Tensor]:
        """All are (batch, heads, seq, columns); `k_rope` has one head."""
        return torch.cat((q, q_rope), -1), torch.cat((k, k_rope.expand(-1, k.shape[1], -1, -1)), -1)


class Latent(Layer):
    """A decoder's layer with latent attention."""

    def _attention(self, spec: Decoder, habits: Framework, seq: int, rate: float) -> None:
        assert spec.mla is not None
        h, heads, mla = spec.hidden, spec.heads, spec.mla
        self.mla = mla
        self.q_down: nn.Module = nn.Identity()
        self.q_norm: nn.Module = nn.Identity()
        if mla.q_lora:
            self.q_down, self.q_norm = nn.Linear(h, mla.q_lora, bias=spec.bias), make_norm("rmsnorm", mla.q_lora)
        self.q_up = nn.Linear(mla.q_lora or h, heads * (mla.nope + mla.rope), bias=False)
        self.kv_down = nn.Linear(h, mla.kv_lora + mla.rope, bias=spec.bias)
        self.kv_norm = make_norm("rmsnorm", mla.kv_lora)
        self.kv_up = nn.Linear(mla.kv_lora, heads * (mla.nope + mla.value), bias=False)
        self.rope = Rotary(mla.rope, seq)
        self.join = Join()
        self.core = Core(habits.attention.implementation == "math", dropout=rate)
        self.proj = nn.Linear(heads * mla.value, h, bias=spec.bias)

    def _turned(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mla, (batch, seq) = self.mla, x.shape[:2]
        assert self.rope is not None
        queries = self.q_up(self.q_norm(self.q_down(x))).view(batch, seq, -1, mla.nope + mla.rope).transpose(1, 2)
        narrow, turned = self.kv_down(x).split((mla.kv_lora, mla.rope), -1)
        wide = self.kv_up(self.kv_norm(narrow)).view(batch, seq, -1, mla.nope + mla.value).transpose(1, 2)
        (q, q_rope), (k, v) = queries.split((mla.nope, mla.rope), -1), wide.split((mla.nope, mla.value), -1)
        q_rope, k_rope = self.rope(q_rope, turned[:, None])
        q, k = self.join(q, q_rope, k, k_rope)
        return q, k, v
