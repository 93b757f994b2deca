"""Recomputation: which layers of a stage run again in backward, or which parts of a layer, before whose gradients, and what is not kept for them.

Selective recomputation's modules are those of Megatron-Core (`recompute_modules` in megatron/core/transformer/transformer_config.py). Of
attention's core, `mlp`, `moe` and `shared_experts` the input is kept and all inside runs again; of `layernorm`, `moe_act` and `mla_up_proj`
the output is thrown away and made again for the part that read it (CheckpointWithoutOutput in megatron/core/tensor_parallel/random.py).

`op` is torchtitan's (selective_ac_option = "op": distributed/activation_checkpoint.py, in 2024 parallelisms/parallelize_llama.py): the whole layer
runs again but for operators whose results are kept, which are fused attention, reduce_scatter, all_to_all, and the first, third, fifth ... product of the
layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, get_args

from msgspec.structs import replace

from sim.model.parts import Block, Part, Seam
from sim.sections import Memory, Module
from sim.work import BYTES, Attention, Gemm, Work
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
    run: tuple[Part, ...] = ()
    """`parts` with what of each runs again, where that is not all of it."""


class Redone(NamedTuple):
    """A block's recomputation."""

    runs: dict[int, tuple[Part, ...]]
    """By the part before whose gradients they run: parts, in order."""
    back: dict[int, int]
    """By the same part: bytes that they bring back."""
    dropped: tuple[int, ...]
    """By part: bytes of `saved` that are not kept."""


def whole_again(memory: Memory, blocks: Sequence[tuple[str, Block]]) -> list[bool]:
    """Which blocks of a stage run again as a whole (recompute = "full"): its layers, or the first `recompute_layers` of them, but those that
    have no backward."""
    left, found = (memory.recompute_layers or len(blocks)) if memory.recompute == "full" else 0, list[bool]()
    for _, block in blocks:
        found.append(left > 0 and not (block.end or block.detached))
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


def redone(block: Block, modules: Iterable[Module], compiled: bool = False) -> Redone:
    """What of a block `modules` make run again; modules that it does not have do nothing. `compiled`: by a compiler, which keeps and runs nothing
    that is not read."""
    modules = () if block.detached else dict.fromkeys(modules)
    found = sorted((redo for module in modules for redo in _found(module, block, compiled)), key=lambda redo: redo.parts)
    runs: dict[int, tuple[Part, ...]] = {}
    back: dict[int, int] = {}
    dropped = [0] * len(block.parts)
    for redo in found:
        runs[redo.at] = (*runs.get(redo.at, ()), *(redo.run or (block.parts[at] for at in redo.parts)))
        for at, size in redo.dropped.items():
            back[redo.at] = back.get(redo.at, 0) + size
            dropped[at] += size
    return Redone(runs, back, tuple(dropped))


def check_modules(modules: tuple[Module, ...], blocks: Iterable[Block]) -> None:
    """Raises `BadInput` for a module that no block has, or that another one holds."""
    if not modules:
        return
    has = modules_of(blocks)
    for module in modules:
        if module not in has:
            raise BadInput(f"memory.recompute_modules: no layer of this model has {module}. Allowed: {', '.join(has)}")
    inside = [module for module in ("moe_act", "shared_experts") if module in modules and "moe" in modules]
    if inside:
        raise BadInput(f"memory.recompute_modules: moe holds {inside[0]}. Leave {inside[0]} out")
    if "op" in modules and len(modules) > 1:
        raise BadInput("memory.recompute_modules: op is of whole layers. Leave the others out")


def modules_of(blocks: Iterable[Block]) -> list[Module]:
    """What of the layers can be recomputed by itself."""
    apart = list({id(block): block for block in blocks}.values())  # equal layers are one block
    return [module for module in MODULES if any(_found(module, block) for block in apart)]


def _found(module: Module, block: Block, compiled: bool = False) -> list[Redo]:
    if module == "op":
        return _operators(block, compiled)
    prefix = _INSIDE.get(module)
    return _inside(block, *prefix) if prefix else _FIND[module](block.parts)


def _operators(block: Block, compiled: bool) -> list[Redo]:
    """All up to the last tensor that backward needs, for the part that needs it. Results are kept from where they are made, until backward has
    passed what they are saved for; those that nothing reads, too, where no compiler sees that (the last part keeps more then than it drops)."""
    last = max((at for at, part in enumerate(block.parts) if part.saved), default=-1)
    end = last if block.parts[last].cls == "gemm" else last + 1
    run: list[Part] = []
    dropped: dict[int, int] = {}
    kept, products = block.saved_input, 0
    for at, part in enumerate(block.parts if last >= 0 and not block.end else ()):
        left, made, products = _kept(part, products, compiled)
        came = _came(block, part)
        kept += 0 if compiled and at >= end else made + came
        dropped[at] = part.saved - kept if at == last else max(0, part.saved - kept)
        kept -= part.saved - dropped[at]
        seam: Seam = "" if came or part.seam == "cp.attention" else part.seam
        run += [replace(part, forward=left, seam=seam)] if at < end and (left or seam) else []
    return [Redo(last, tuple(range(end)), dropped, tuple(run))] if run else []


def _came(block: Block, part: Part) -> int:
    """Bytes that a message left and that are kept: of a reduce_scatter, or of an all_to_all of rows."""
    if part.seam.startswith("ep."):
        return part.seam_bytes
    return block.saved_input if part.seam == "tp.reduce" else 0


def _kept(part: Part, products: int, compiled: bool) -> tuple[tuple[Work, ...], int, int]:
    """Kernels of a part that run again, bytes of results that are kept instead, and products up to here. What only a sum over ranks reads, which is
    kept, a compiler does not make again."""
    left: list[Work] = []
    made = 0
    for work in part.forward:
        if isinstance(work, Attention):  # its result, and a number of the softmax for each row
            made += work.batch * work.heads * work.q * round((work.dv or work.d) * max(2.0, BYTES[work.dtype]) + 4)
        elif part.cls == "gemm" and isinstance(work, Gemm):  # 8-bit operands are tensors of torchao that mm takes
            products += 1
            made += round(work.m * work.n * work.batch * max(2.0, BYTES[work.dtype])) * (products % 2)
            left += [work] * (not (products % 2 or (compiled and part.seam == "tp.reduce")))
        else:
            left.append(work)
    return tuple(left), made, products


Parts = tuple[Part, ...]


def _core(parts: Parts) -> list[Redo]:
    return [Redo(at, (at,), {at: part.dropped}) for at, part in enumerate(parts) if part.recompute]


def _norms(parts: Parts) -> list[Redo]:
    """The norms of the layer itself (not those of queries, keys or latents), for the first of the parts that read them in backward."""
    norms = [(at, part) for at, part in enumerate(parts[:-1]) if part.cls == "norm" and "." not in part.name]
    result, found = max((part.saved for _, part in norms), default=0), []  # of two norms beside each other one keeps the input of both
    for at, _ in norms:
        if parts[at + 1].cls not in ("gemm", "moe"):
            continue
        reader = _named(parts, "moe.shared.up") if parts[at + 1].name == "moe.router" else None
        reader = at + 1 if reader is None else reader
        found.append(Redo(reader, (at,), {reader: min(parts[reader].saved, result)}))
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


def _inside(block: Block, prefix: str, but: str = "") -> list[Redo]:
    """All parts under a prefix, for the last of them. Their input is kept by the one that holds it: as this rank has it, where it runs again from what is
    gathered, and without what else that part keeps."""
    parts = block.parts
    run = tuple(at for at, part in enumerate(parts) if part.name.startswith(prefix) and part.name != but)
    if not run:
        return []
    shared = _named(parts, "moe.shared.up")
    holds = next((at for at in run if parts[at].saved), run[0]) if shared is None or shared not in run else shared
    dropped = {at: parts[at].saved for at in run if at != holds}
    return [Redo(run[-1], run, dropped | {holds: max(0, parts[holds].saved - block.saved_input)})]


def _named(parts: Parts, name: str) -> int | None:
    return next((at for at, part in enumerate(parts) if part.name == name), None)


_FIND: dict[Module, Callable[[Parts], list[Redo]]] = {
    "core_attn": _core,
    "layernorm": _norms,
    "mla_up_proj": _latent,
    "moe_act": _act,
}
_INSIDE: dict[Module, tuple[str, ...]] = {"mlp": ("mlp.", "mlp.residual"), "shared_experts": ("moe.shared.",), "moe": ("moe.",)}
"""What is before the dot in its parts' names, and the part that is not of it."""
