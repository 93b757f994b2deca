"""Recomputation: which layers of a stage run again in backward, or which parts of a layer, before whose gradients, and what is not kept for them.

Selective recomputation's modules are those of Megatron-Core (`recompute_modules` in megatron/core/transformer/transformer_config.py). Of attention's core, `mlp`,
`moe` and `shared_experts` the input is kept and all inside runs again; of `layernorm`, `moe_act` and `mla_up_proj` the output is thrown away
and made again for the part that read it (CheckpointWithoutOutput in megatron/core/tensor_parallel/random.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, get_args

from sim.model.parts import Block, Part
from sim.plan import Memory, Module
from topologies.errors import BadInput

MODULES: tuple[Module, ...] = get_args(Module)
_UP = ("attn.q_norm", "attn.q_up", "attn.kv_norm", "attn.kv_up", "attn.rope", "attn.join")


class Redo(NamedTuple):
    """What runs again, and why."""

    at: int
    """The part before whose gradients it runs."""
    parts: tuple[int, ...]
    dropped: dict[int, int]
    """Bytes of a part's `saved` that are not kept from forward; all of them are back before `at`'s gradients."""


class Redone(NamedTuple):
    """A block's recomputation."""

    runs: dict[int, tuple[Part, ...]]
    """By the part before whose gradients they run: parts, in order."""
    back: dict[int, int]
    """By the same part: bytes that they bring back."""
    dropped: tuple[int, ...]
    """By part: bytes of `saved` that are not kept."""


def whole_again(memory: Memory, blocks: Sequence[tuple[str, Block]]) -> list[bool]:
    """Which blocks of a stage run again as a whole (recompute = "full"): its layers, or the first `recompute_layers` of them."""
    left, found = (memory.recompute_layers or len(blocks)) if memory.recompute == "full" else 0, list[bool]()
    for _, block in blocks:
        found.append(left > 0 and not block.end)
        left -= found[-1]
    return found


def sent_away(memory: Memory, blocks: Sequence[tuple[str, Block]]) -> dict[int, int]:
    """Blocks of a stage that keep their activations in host memory (offload = "activations"), by place: all, or the first `offload_layers` of its
    layers; but not its last block, whose backward comes at once. And the place of the block beside which each leaves, and beside whose backward it
    comes back: they take turns over the stage (TransformerEngine's cpu_offload.py, layer_window_map), of all the next one."""
    if memory.offload != "activations":
        return {}
    some = memory.offload_layers
    able = [at for at, (_, block) in enumerate(blocks) if not (some and block.end)]
    places = [at for at in able[: some or None] if at < len(blocks) - 1]
    if not places:
        return {}
    each, further = divmod(max(len(able), len(places) + 1), len(places))
    return {at: places[0] + each * (turn + 1) - 1 + min(turn + 1, further) for turn, at in enumerate(places)}


def redone(block: Block, modules: Iterable[Module]) -> Redone:
    """What of a block `modules` make run again; modules that it does not have do nothing."""
    found = sorted((redo for module in dict.fromkeys(modules) for redo in _FIND[module](block.parts)), key=lambda redo: redo.parts)
    runs: dict[int, tuple[Part, ...]] = {}
    back: dict[int, int] = {}
    dropped = [0] * len(block.parts)
    for redo in found:
        runs[redo.at] = (*runs.get(redo.at, ()), *(block.parts[at] for at in redo.parts))
        for at, size in redo.dropped.items():
            back[redo.at] = back.get(redo.at, 0) + size
            dropped[at] += size
    return Redone(runs, back, tuple(dropped))


def check_modules(modules: tuple[Module, ...], blocks: Iterable[Block]) -> None:
    """Raises `BadInput` for a module that no block has, or that another one holds."""
    if not modules:
        return
    blocks = list({id(block): block for block in blocks}.values())  # equal layers are one block
    has = [module for module in MODULES if any(_FIND[module](block.parts) for block in blocks)]
    for module in modules:
        if module not in has:
            raise BadInput(f"memory.recompute_modules: no layer of this model has {module}. Allowed: {', '.join(has)}")
    inside = [module for module in ("moe_act", "shared_experts") if module in modules and "moe" in modules]
    if inside:
        raise BadInput(f"memory.recompute_modules: moe holds {inside[0]}. Leave {inside[0]} out")


Parts = tuple[Part, ...]


def _core(parts: Parts) -> list[Redo]:
    return [Redo(at, (at,), {at: part.dropped}) for at, part in enumerate(parts) if part.recompute]


def _norms(parts: Parts) -> list[Redo]:
    """The norms of the layer itself (not those of queries, keys or latents), for the first of the parts that read them in backward."""
    found = []
    for at, part in enumerate(parts[:-1]):
        if part.cls != "norm" or "." in part.name or parts[at + 1].cls not in ("gemm", "moe"):
            continue
        reader = _named(parts, "moe.shared.up") if parts[at + 1].name == "moe.router" else None
        reader = at + 1 if reader is None else reader
        found.append(Redo(reader, (at,), {reader: min(parts[reader].saved, part.saved)}))
    return found


def _latent(parts: Parts) -> list[Redo]:
    """Queries, keys and values of latent attention; what of attention's core is redone by itself is left to it."""
    core, up = _named(parts, "attn.core"), _named(parts, "attn.kv_up")
    if core is None or up is None:
        return []
    run = tuple(at for at, part in enumerate(parts[:core]) if part.name in _UP)
    inputs = {at: parts[at].saved for at in run if parts[at].name.endswith("_up")}
    return [Redo(core, run, inputs | {core: parts[core].saved - parts[core].dropped})]


def _act(parts: Parts) -> list[Redo]:
    act, down = _named(parts, "moe.act"), _named(parts, "moe.down")
    return [] if act is None or down is None else [Redo(down, (act,), {down: parts[down].saved})]


def _inside(prefix: str, but: str = "") -> Callable[[Parts], list[Redo]]:
    """All parts under a prefix, for the last of them; the one that holds the input keeps it."""

    def find(parts: Parts) -> list[Redo]:
        run = tuple(at for at, part in enumerate(parts) if part.name.startswith(prefix) and part.name != but)
        if not run:
            return []
        shared = _named(parts, "moe.shared.up")
        holds = run[0] if shared is None or shared not in run else shared
        return [Redo(run[-1], run, {at: parts[at].saved for at in run if at != holds})]

    return find


def _named(parts: Parts, name: str) -> int | None:
    return next((at for at, part in enumerate(parts) if part.name == name), None)


_FIND: dict[Module, Callable[[Parts], list[Redo]]] = {
    "core_attn": _core,
    "layernorm": _norms,
    "mla_up_proj": _latent,
    "moe_act": _act,
    "mlp": _inside("mlp.", "mlp.residual"),
    "shared_experts": _inside("moe.shared."),
    "moe": _inside("moe."),
}
