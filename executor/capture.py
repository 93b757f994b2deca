"""Captures any `torch.nn.Module`: forward and backward under fake tensors (no memory, no device), into a `*.model.json`.

Every aten call becomes a kernel by its shapes, in the part named like the module that made it; what autograd saves
is counted as autograd saves it. `sim.model.load_model` reads the file without torch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from executor.aten import tensors_of
from executor.recorder import Recorder, Segment
from sim.model.captured import Captured
from sim.model.parts import Block, Part
from topologies.errors import BadInput

_PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_INPUTS = {"int64": torch.int64, "int32": torch.int32, "bool": torch.bool, **_PRECISIONS}
_CLASSES = {
    "Gemm": "gemm", "Attention": "attention", "Conv": "conv", "layernorm": "norm", "rmsnorm": "norm", "batchnorm": "norm",
    "activation": "activation", "embedding": "embedding", "softmax": "attention", "cross_entropy": "loss",
}  # fmt: skip


class Input(msgspec.Struct, frozen=True):
    """One input of the model: its shape with the batch first, and its dtype."""

    shape: tuple[int, ...]
    dtype: str = "fp32"


def read_input(text: str) -> Input:
    """`8x3x224x224` or `8x128:int64`. Raises `BadInput`."""
    sizes, _, dtype = text.partition(":")
    try:
        shape = tuple(int(size) for size in sizes.split("x"))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1 or (dtype and dtype not in _INPUTS):
        raise BadInput(f"cannot read input {text!r}. Write sizes with the batch first and a dtype of {', '.join(_INPUTS)}: 8x128:int64")
    return Input(shape, dtype or "fp32")


def load_builder(name: str) -> Callable[[], torch.nn.Module]:
    """`package.module:function` that returns a module. Raises `BadInput`."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise BadInput(f"cannot read {name!r}. Write package.module:function, a function that returns the torch.nn.Module")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise BadInput(f"cannot load {name}: {error}") from None
    if not callable(found):
        raise BadInput(f"{name} is no function; give one that returns the torch.nn.Module")
    return found  # type: ignore[no-any-return]


def capture(build: Callable[[], torch.nn.Module], inputs: tuple[Input, ...], *, name: str = "", precision: str = "fp32") -> Captured:
    """The kernels of one forward and backward at the inputs' batch and at twice of it.

    A scalar output is the loss; any other is summed. Raises `BadInput` for control flow that depends on data.
    """
    if precision not in _PRECISIONS:
        raise BadInput(f"precision {precision!r} cannot be captured. Allowed: {', '.join(_PRECISIONS)}")
    micro = inputs[0].shape[0]
    low = _blocks(_record(build, inputs, precision))
    doubled = tuple(Input((2 * one.shape[0], *one.shape[1:]), one.dtype) for one in inputs)
    high = _blocks(_record(build, doubled, precision))
    kinds, order = _merge([block for _, block in low], [block for _, block in high])
    first = inputs[0]
    return Captured(
        name=name or getattr(build, "__name__", "model"),
        precision=precision,
        micro=micro,
        order=tuple((label, kind) for (label, _), kind in zip(low, order, strict=True)),
        low=tuple(a for a, _ in kinds),
        high=tuple(b for _, b in kinds),
        sample_bytes=sum(torch.empty((), dtype=_INPUTS[one.dtype]).element_size() * _count(one.shape[1:]) for one in inputs),
        seq=first.shape[1] if first.dtype.startswith("int") and len(first.shape) > 1 else 1,
    )


def save(model: Captured, path: str | Path) -> Path:
    """Writes a `*.model.json` that `load_model` reads."""
    target = Path(path)
    if not target.name.endswith(".model.json"):
        raise BadInput(f"a captured model's file ends in .model.json, not {target.name}")
    target.write_bytes(msgspec.json.encode(model))
    return target


def _count(sizes: tuple[int, ...]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _record(build: Callable[[], torch.nn.Module], inputs: tuple[Input, ...], precision: str) -> Recorder:
    dtype = _PRECISIONS[precision]
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = _built(build, dtype)
        values = [_value(one, dtype) for one in inputs]
        recorder = Recorder(model)
        try:
            with recorder:
                with torch.autograd.graph.saved_tensors_hooks(recorder.pack, lambda tensor: tensor):
                    out = model(*values)
                    loss = _loss(out)
                recorder.hold(out)
                recorder.in_backward = True
                loss.backward()  # type: ignore[no-untyped-call]
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            place = recorder.stack[-1] or "the model itself"
            raise BadInput(
                f"{place} decides by the values of a tensor ({error}); fake tensors have none. Replace the branch by torch.where, "
                "or capture the part around it"
            ) from None
    return recorder


def _built(build: Callable[[], torch.nn.Module], dtype: torch.dtype) -> torch.nn.Module:
    """The module with parameters of `dtype`; fake parameters cannot be converted afterwards."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model = build()
    finally:
        torch.set_default_dtype(before)
    if not isinstance(model, torch.nn.Module):
        raise BadInput(f"the builder returned {type(model).__name__}, not a torch.nn.Module")
    return model.train()


def _value(one: Input, dtype: torch.dtype) -> torch.Tensor:
    kind = _INPUTS[one.dtype]
    if kind.is_floating_point:
        return torch.empty(one.shape, dtype=dtype)
    return torch.zeros(one.shape, dtype=kind)


def _loss(out: Any) -> torch.Tensor:
    """The scalar that backward starts from."""
    loss = getattr(out, "loss", None)
    found = [loss] if isinstance(loss, torch.Tensor) else [t for t in tensors_of(out) if t.is_floating_point() and t.requires_grad]
    if not found:
        raise BadInput("the model returns no floating-point tensor that needs a gradient: nothing to run backward from")
    return found[0] if found[0].dim() == 0 else found[0].sum()


def _blocks(recorder: Recorder) -> list[tuple[str, Block]]:
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
    kinds = {"e": "embed", "h": "head"}
    return [(name, Block(kind=kinds.get(name[0], "layer"), parts=tuple(parts), saved_input=_input(parts))) for name, parts in found]


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
    order = ("gemm", "conv", "attention", "loss", "norm", "embedding", "activation")
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


def _input(parts: list[Part]) -> int:
    """The block's input, as far as its first part keeps it."""
    return parts[0].saved if parts else 0


def _merge(low: list[Block], high: list[Block]) -> tuple[list[tuple[Block, Block]], list[int]]:
    """Kinds of blocks at both batch sizes, and which kind each block is."""
    kinds: list[tuple[Block, Block]] = []
    order = []
    for pair in zip(low, high, strict=True):
        if pair not in kinds:
            kinds.append(pair)
        order.append(kinds.index(pair))
    return kinds, order
