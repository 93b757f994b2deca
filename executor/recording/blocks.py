"""Makes a model's blocks of a recorded forward and backward pass: which segments are a layer, and which layers are equal."""

from __future__ import annotations

from typing import Any

import torch

from executor.recording.recorder import Recorder, Segment
from sim.model.parts import Block, Part

_CLASSES = {
    "Gemm": "gemm", "GroupedGemm": "moe", "Attention": "attention", "Conv": "conv", "layernorm_apart": "norm", "rmsnorm": "norm", "batchnorm": "norm", "groupnorm": "norm",
    "activation": "activation", "embedding": "embedding", "softmax": "attention",
}  # fmt: skip


Named = list[tuple[str, Block]]


def blocks_of(recorder: Recorder) -> Named:
    """(name, block) of each block: embed, L0 ... L(n-1), head. Layers are the numbered items of the containers that the model is made of.
    What runs between two layers belongs to the one before, or to a block `mid` if it has parameters of its own."""
    containers = _containers(recorder.owned)
    places = [_place(segment.module, containers) for segment in recorder.segments]
    last = max((index for index, (item, _) in enumerate(places) if item), default=-1)
    numbers: dict[str, int] = {}
    found: list[tuple[str, str, list[Part]]] = []
    owned = [recorder.tensors(segment.module) if segment.first else () for segment in recorder.segments]
    beside = _beside(recorder.segments, owned)
    for index, (segment, (item, inner)) in enumerate(zip(recorder.segments, places, strict=True)):
        tensors = owned[index]
        if item:
            label = f"L{numbers.setdefault(item, len(numbers))}"
        elif numbers and index < last:
            label = "mid" if tensors else found[-1][0].partition("+")[0]
        else:
            label = "head" if numbers else "embed"
        if not found or found[-1][0].partition("+")[0] != label:
            again = sum(name.partition("+")[0] == label for name, _, _ in found)
            found.append((f"{label}+{again}" if again else label, item, []))
        found[-1][2].append(_part(segment, inner or "self", tensors, len(found[-1][2]), beside[index]))
    return [(name, _block(name, parts, recorder.entered.get(item))) for name, item, parts in found]


def _beside(segments: list[Segment], owned: list[tuple[torch.nn.Parameter, ...]]) -> list[tuple[int, int]]:
    """For each segment the most bytes that were alive in its forward and in its backward, less what `sim.memory.activations` counts
    already: what it and the segments before it save and, in backward, the gradients of it and of the segments after it."""
    grown = sum(p.numel() * p.element_size() for own in owned for p in own if p.requires_grad)
    saved, found = 0, []
    for segment, own in zip(segments, owned, strict=True):
        saved += segment.saved
        found.append((max(0, segment.ahead - saved), max(0, segment.behind - saved - grown)))
        grown -= sum(p.numel() * p.element_size() for p in own if p.requires_grad)
    return found


def _block(name: str, parts: list[Part], given: int | None) -> Block:
    """`given`: bytes of the inputs of a layer; None: unknown or no layer, and what the first part saves is taken. An embedding keeps none,
    as the model's own input is no activation."""
    kind = {"e": "embed", "m": "embed", "h": "head"}.get(name[0], "layer")
    first = parts[0].saved if parts and name[0] != "e" else 0
    return Block(kind=kind, parts=tuple(parts), saved_input=first if given is None else given)


def _place(module: str, containers: list[str] | None) -> tuple[str, str]:
    """(the layer that a module is in, its name inside the layer); ("", the module) outside all layers. A model without numbered children
    (`containers` is None) is one layer."""
    if containers is None:
        return "0", module
    for prefix in containers:
        number, _, inner = module[len(prefix) :].partition(".")
        if module.startswith(prefix) and number.isdigit():
            return f"{prefix}{number}", inner
    return "", module


def _containers(owned: dict[str, tuple[Any, ...]]) -> list[str] | None:
    """Prefixes ("layers.", "" for the root) of the containers of layers: the one with most parameters, and all whose items consist of
    modules (an encoder beside a decoder, the stages of a CNN). None: nowhere are there two numbered children."""
    sizes: dict[str, int] = {}
    items: dict[str, set[str]] = {}
    deep: dict[str, set[str]] = {}
    for name, parameters in owned.items():
        pieces = name.split(".")
        index = next((index for index, piece in enumerate(pieces) if piece.isdigit()), None)
        if index is not None:
            prefix = "".join(f"{piece}." for piece in pieces[:index])
            sizes[prefix] = sizes.get(prefix, 0) + sum(p.numel() for p in parameters)
            items.setdefault(prefix, set()).add(pieces[index])
            if len(pieces) > index + 1:
                deep.setdefault(prefix, set()).add(pieces[index])
    full = [prefix for prefix in sizes if len(items[prefix]) > 1]
    if not full:
        return None
    largest = max(full, key=lambda prefix: sizes[prefix])
    return [prefix for prefix in full if prefix == largest or deep.get(prefix) == items[prefix]]


def _part(segment: Segment, name: str, own: tuple[torch.nn.Parameter, ...], index: int, beside: tuple[int, int]) -> Part:
    """A segment as a part. `own`: parameters that it is the first to use; `index`: its place in the block; `beside`: see `_beside`."""
    works = segment.works
    named = _CLASSES | ({"softmax": "loss"} if segment.loss else {})
    kinds = [named.get(type(w).__name__) or named.get(getattr(w, "what", ""), "elementwise") for w in works["forward"]]
    kinds += ["loss"] if segment.loss else []
    order = ("gemm", "moe", "conv", "attention", "loss", "norm", "embedding", "activation")
    return Part(
        name=name if segment.first else f"{name}.{index}",
        forward=tuple(works["forward"]),
        backward=tuple(works["backward"]),
        wgrad=tuple(works["wgrad"]),
        cls=next((kind for kind in order if kind in kinds), "elementwise"),
        tensors=tuple(p.numel() for p in own),
        matrices=tuple((p.shape[0], p.shape[1]) for p in own if p.dim() == 2 and "embedding" not in kinds),
        frozen=bool(own) and not any(p.requires_grad for p in own),
        saved=segment.saved,
        working=max(beside[1], 1),
        ahead=beside[0],
        modules=1 if segment.first else 0,
    )


def merged(*passes: list[Block]) -> tuple[list[tuple[Block, ...]], list[int]]:
    """The different blocks, each at all recorded batch sizes, and for each block of the model the number of its kind."""
    kinds: list[tuple[Block, ...]] = []
    order = []
    for seen in zip(*passes, strict=True):
        if seen not in kinds:
            kinds.append(seen)
        order.append(kinds.index(seen))
    return kinds, order
