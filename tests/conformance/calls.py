"""What torch calls: the operators that work on tensors, as a dispatch mode writes them down."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_VIEWS = (
    "detach",
    "alias",
    "view",
    "reshape",
    "split",
    "split_with_sizes",
    "empty_like",
    "as_strided",
    "t",
    "transpose",
    "unsqueeze",
    "slice",
)
"""No kernels."""


class Calls(TorchDispatchMode):
    """Names of operators in order; `sizes`: elements of the largest tensor that each goes through; `inputs`: arguments that are tensors, or lists."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.sizes: list[int] = []
        self.inputs: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in _VIEWS:
            self.names.append(name)
            self.inputs.append(sum(any(True for _ in _tensors(arg)) for arg in args))
            self.sizes.append(max((t.numel() for t in _tensors((args, found))), default=0))
        return found


def _tensors(value: Any) -> Any:
    if hasattr(value, "numel"):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
