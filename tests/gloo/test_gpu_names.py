"""Every name of torch.cuda and of its neighbours that the executor uses is in torch: a GPU is not needed to find a typing error."""

from __future__ import annotations

import re
from functools import reduce
from pathlib import Path

import pytest
import torch
import torch.distributed

HOME = Path(__file__).parents[2]
NAME = re.compile(r"(?<![\w.])torch\.(?:cuda|backends|version|profiler|distributed)(?:\.\w+)+")
USED = sorted({name for path in (HOME / "executor").rglob("*.py") for name in NAME.findall(path.read_text("utf-8"))})


def test_names_are_found() -> None:
    assert {
        "torch.cuda.Event",
        "torch.cuda.Stream",
        "torch.cuda.set_stream",
        "torch.cuda._sleep",
        "torch.cuda.max_memory_allocated",
    } <= set(USED)


@pytest.mark.parametrize("name", USED)
def test_torch_has_it(name: str) -> None:
    import importlib

    parts = name.split(".")[1:]
    for at in range(len(parts), 0, -1):  # a module that nothing has imported yet is no attribute
        try:
            module = importlib.import_module(".".join(["torch", *parts[:at]]))
        except ImportError:
            continue
        assert reduce(getattr, parts[at:], module) is not module or at == len(parts)
        return
    assert hasattr(torch, parts[0])
    reduce(getattr, parts, torch)


@pytest.mark.parametrize(
    ("of", "names"),
    [
        (torch.cuda.Event, ("record", "synchronize", "elapsed_time", "query", "wait")),
        (torch.cuda.Stream, ("synchronize", "wait_event", "wait_stream", "record_event")),
        (torch.Tensor, ("pin_memory", "record_stream")),
        (torch.distributed, ("init_process_group", "new_group", "barrier", "all_gather_into_tensor", "reduce_scatter_tensor")),
    ],
)
def test_their_methods_too(of: object, names: tuple[str, ...]) -> None:
    assert not [name for name in names if not hasattr(of, name)]
