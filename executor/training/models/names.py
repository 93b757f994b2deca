"""The names of a torch model's blocks and parts, as in a prediction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from executor.training.models.experts import Experts, Shared

PARTS = {
    "tokens": "embed.tokens",
    "qkv": "attn.qkv",
    "q": "attn.q",
    "kv_proj": "attn.kv",
    "q_down": "attn.q_down",
    "q_norm": "attn.q_norm",
    "q_up": "attn.q_up",
    "k_norm": "attn.k_norm",
    "kv_down": "attn.kv_down",
    "kv_norm": "attn.kv_norm",
    "kv_up": "attn.kv_up",
    "rope": "attn.rope",
    "join": "attn.join",
    "core": "attn.core",
    "proj": "attn.proj",
    "post1": "attn.post_norm",
    "post2": "mlp.post_norm",
    "up": "mlp.up",
    "act": "mlp.act",
    "down": "mlp.down",
    "scale1": "attn.scale",
    "scale2": "mlp.scale",
    "logits": "head.logits",
    "cap": "head.cap",
    "norm": "head.norm",
    "loss": "head.loss",
}
"""Submodule of a transformer's layer -> name of the part in `sim.model`, if it differs."""


_ENDS = {"embed", "stem", "target", "patches", "middle", "head"}
"""Blocks that are not layers."""


def ends_of(names: Iterable[str]) -> set[str]:
    """Those of a model's blocks that are not layers: its ends, and the mergers and deepstacks of vision-language models. Without an
    embedding or a stem, the first stage counts as an end."""
    given = set(names)
    between = {name for name in given if name.startswith(("merger", "deepstack"))}
    return given & _ENDS | between | (given & {"S0"} if not given & {"embed", "stem"} else set())


def parts_of(block: nn.Module, within: str = "") -> Iterator[tuple[str, nn.Module]]:
    """(path, module) of each part of a block: its submodules, and for experts their submodules, whose paths begin with `moe.`."""
    for name, child in block.named_children():
        if isinstance(child, (Experts, Shared)):
            yield from parts_of(child, f"{within}{name}.")
        else:
            yield f"{within}{name}", child


def part_name(path: str) -> str:
    """A module's path as a part's name: `L3.qkv.each.0` -> `L3.attn.qkv`; `S0__1.conv1` -> `S0.1.conv1`; `embed.tokens`, `head.norm` and
    `L3.moe.shared.up` do not change."""
    names = [name.replace("__", ".") for name in path.split(".")]
    if names[1:2] == ["moe"]:
        return ".".join(names)
    if len(names) < 2 or names[0] in _ENDS:
        return ".".join(names[:2])
    return f"{names[0]}.{PARTS.get(names[1], names[1]) if names[0][0] in 'LV' else names[1]}"
