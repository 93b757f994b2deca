"""`marked` opens ranges that torch.profiler records, around forward and backward of each part."""

from __future__ import annotations

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from executor.marks import marked, op_name


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.mlp = nn.LayerNorm(8), nn.ModuleDict({"c_fc": nn.Linear(8, 16), "c_proj": nn.Linear(16, 8)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp["c_proj"](torch.relu(self.mlp["c_fc"](self.ln_1(x))))


def test_names_of_well_known_models() -> None:
    known = {
        "model.layers.3.self_attn.q_proj": "L3.attn.qkv",
        "model.layers.3.self_attn.o_proj": "L3.attn.proj",
        "transformer.h.0.mlp.c_fc": "L0.mlp.up",
        "transformer.h.0.mlp.c_proj": "L0.mlp.down",
        "transformer.h.0.attn.c_proj": "L0.attn.proj",
        "layers.11.feed_forward.w2": "L11.mlp.down",
        "model.embed_tokens": "embed.tokens",
        "lm_head": "head.logits",
        "model.norm": "head.norm",
        "model.layers.3": "",
        "something.else": "",
    }
    assert {name: op_name(name) for name in known} == known


def test_ranges_are_recorded_and_hooks_removed() -> None:
    model = nn.Sequential()
    model.add_module("h", nn.ModuleList([_Layer()]))
    layer = model.h[0]
    with profile(activities=[ProfilerActivity.CPU]) as session, marked(model):
        layer(torch.ones(2, 8, requires_grad=True)).sum().backward()
    found = [event.name for event in session.events() if event.name.startswith("op:")]
    assert sorted(found) == sorted(f"op:{phase}/L0.{part}" for phase in ("fwd", "bwd") for part in ("norm1", "mlp.up", "mlp.down"))
    assert not layer.ln_1._forward_pre_hooks
    assert not layer.ln_1._backward_hooks
