"""Captures any `torch.nn.Module`: forward and backward under fake tensors (no memory, no device), into a `*.model.json`.

Every aten call becomes a kernel with its shapes, in a part named after the module that made the call; what autograd saves
is counted as autograd saves it. `sim.model.load` reads the file without torch. torch is imported only when something is
captured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from executor.needs import needs_torch
from executor.recording.builder import PRECISIONS, Input, load_builder, precision_of, read_input
from sim.model.captured import Captured, bent, check_alike
from topologies.errors import BadInput

if TYPE_CHECKING:
    import torch

_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int64": 8, "int32": 4, "bool": 1}
SUFFIX = ".model.json"


def capture_to(spec: str, inputs: Sequence[str | Input], out: str | Path, trust: bool = False, *, precision: str = "") -> Path:
    """Captures `package.module:function` and writes `out`, a file that a plan names as its `model`.

    Args:
        spec: a function without arguments that returns the module. It is imported and run only with `trust`.
        inputs: shapes with the batch first, and dtypes: `2x3x224x224:fp32`, `8x128:int64`.
        out: the file to write. Its name must end in .json, by which a plan's `model` knows that it is a file.
        precision: dtype of parameters and floating-point inputs; "": that of the first floating-point input.

    Raises `BadInput` for code that cannot be loaded or run, or that decides by the values of tensors; `Refused`
    without `trust` or without torch.
    """
    read = tuple(one if isinstance(one, Input) else read_input(one) for one in inputs)
    chosen = precision_of(read, precision)
    target = _named(Path(out))
    if not target.parent.is_dir():
        raise BadInput(f"folder {target.parent} does not exist. Make it, or give another --out")
    needs_torch(f"capturing {spec}")
    build = load_builder(spec, trust)
    return save(capture(build, read, name=target.stem.removesuffix(".model"), precision=chosen), target)


def _named(path: Path) -> Path:
    """The path. Raises `BadInput` if it does not end in .json, as a plan would not know that its model is a file."""
    if path.suffix != ".json":
        raise BadInput(f"a captured model's file ends in .json, by which a plan's `model` knows it: {path} does not. Write {path}{SUFFIX}")
    return path


def capture(build: Callable[[], torch.nn.Module], inputs: tuple[Input, ...], *, name: str = "", precision: str = "fp32") -> Captured:
    """The kernels of one forward and backward at the inputs' batch size and at twice that size; also at three times, if sizes do not grow
    linearly.

    A scalar output is the loss; any other is summed. Raises `BadInput` for control flow that depends on data or on the batch size.
    """
    from executor.recording.blocks import blocks_of, merged
    from executor.recording.onepass import record

    precision = precision_of(inputs, precision)
    first, name = inputs[0], name or getattr(build, "__name__", "model")
    passes = [
        record(build, tuple(Input((times * one.shape[0], *one.shape[1:]), one.dtype) for one in inputs), precision) for times in (1, 2, 3)
    ]
    named = [blocks_of(one) for one in passes]
    seen = [[block for _, block in blocks] for blocks in named]
    check_alike(name, first.shape[0], seen)
    kinds, order = merged(*(seen if bent(*seen) else seen[:2]))
    return Captured(
        name=name,
        precision=precision,
        micro=first.shape[0],
        order=tuple((label, kind) for (label, _), kind in zip(named[0], order, strict=True)),
        low=tuple(kind[0] for kind in kinds),
        high=tuple(kind[1] for kind in kinds),
        third=tuple(kind[2] for kind in kinds if len(kind) > 2),
        unseen=tuple(sorted(passes[0].unseen)),
        sample_bytes=sum(_BYTES[precision if one.dtype in PRECISIONS else one.dtype] * math.prod(one.shape[1:]) for one in inputs),
        seq=first.shape[1] if first.dtype.startswith("int") and len(first.shape) > 1 else 1,
    )


def save(model: Captured, path: str | Path) -> Path:
    """Writes a `*.json` file that `load_model` reads. Raises `BadInput` if `path` does not end in .json."""
    target = _named(Path(path))
    target.write_bytes(msgspec.json.encode(model))
    return target
