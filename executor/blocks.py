"""From a recorded forward and backward pass to a model's blocks: which segments make a layer, and which layers are equal."""

from __future__ import annotations

from typing import Any

from executor.recorder import Recorder, Segment
from sim.model.parts import Block, Part

_CLASSES = {
    "Gemm": "gemm", "GroupedGemm": "moe", "Attention": "attention", "Conv": "conv", "layernorm": "norm", "rmsnorm": "norm", "batchnorm": "norm",
    "activation": "activation", "embedding": "embedding", "softmax": "attention", "cross_entropy": "loss",
}  # fmt: skip


def blocks_of(recorder: Recorder) -> list[tuple[str, Block]]:
    """Parts grouped into blocks: the items of the container that holds most parameters, and what lies before, between and after."""
    container = _container(recorder.owned)
    found: list[tuple[str, list[Part]]] = []
    for segment in recorder.segments:
        item, inner = _place(segment.module, container)
        inside = any(name.startswith("L") for name, _ in found)
        label = f"L{item}" if item else ("head" if inside else "embed")
        if not found or found[-1][0].partition("+")[0] != label:
            again = sum(name.partition("+")[0] == label for name, _ in found)
            found.append((f"{label}+{again}" if again else label, []))
        found[-1][1].append(_part(segment, inner or "self", recorder, len(found[-1][1])))
    return [(name, _block(name, parts, recorder.entered.get(f"{container}{name[1:]}"))) for name, parts in found]


def _block(name: str, parts: list[Part], given: int | None) -> Block:
    """`given`: bytes that a layer was called with. The model's own input is no activation: before the first layer none is kept."""
    kind = {"e": "embed", "h": "head"}.get(name[0], "layer")
    first = parts[0].saved if parts else 0
    return Block(kind=kind, parts=tuple(parts), saved_input=0 if kind == "embed" else first if given is None else given)


def _place(module: str, container: str | None) -> tuple[str, str]:
    """(number of the container's item, name inside it); ("", name) outside."""
    if container is None or not module.startswith(container):
        return ("0" if container is None else ""), module
    item, _, inner = module[len(container) :].partition(".")
    return (item, inner) if item.isdigit() else ("", module)


def _container(owned: dict[str, tuple[Any, ...]]) -> str | None:
    """Prefix ("layers.", "" for the root) of the numbered children that hold most parameters; None: fewer than two."""
    sizes: dict[str, int] = {}
    items: dict[str, set[str]] = {}
    for name, parameters in owned.items():
        pieces = name.split(".")
        index = next((index for index, piece in enumerate(pieces) if piece.isdigit()), None)
        if index is not None:
            prefix = "".join(f"{piece}." for piece in pieces[:index])
            sizes[prefix] = sizes.get(prefix, 0) + sum(p.numel() for p in parameters)
            items.setdefault(prefix, set()).add(pieces[index])
    full = [prefix for prefix in sizes if len(items[prefix]) > 1]
    return max(full, key=lambda prefix: sizes[prefix], default=None)


def _part(segment: Segment, name: str, recorder: Recorder, index: int) -> Part:
    works = segment.works
    kinds = [_CLASSES.get(type(w).__name__) or _CLASSES.get(getattr(w, "what", ""), "elementwise") for w in works["forward"]]
    order = ("gemm", "moe", "conv", "attention", "loss", "norm", "embedding", "activation")
    return Part(
        name=name if segment.first else f"{name}.{index}",
        forward=tuple(works["forward"]),
        backward=tuple(works["backward"]),
        wgrad=tuple(works["wgrad"]),
        cls=next((kind for kind in order if kind in kinds), "elementwise"),
        tensors=recorder.tensors(segment.module) if segment.first else (),
        saved=segment.saved,
        working=max(segment.working, 1 if works["backward"] else 0),
        modules=1 if segment.first else 0,
    )


def merged(low: list[Block], high: list[Block]) -> tuple[list[tuple[Block, Block]], list[int]]:
    """Kinds of blocks at both batch sizes, and which kind each block is."""
    kinds: list[tuple[Block, Block]] = []
    order = []
    for pair in zip(low, high, strict=True):
        if pair not in kinds:
            kinds.append(pair)
        order.append(kinds.index(pair))
    return kinds, order
