"""What the user gives for a capture: the function that makes the module, and the inputs' shapes. Does not import torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from topologies.errors import BadInput, Refused

PRECISIONS = ("fp32", "bf16", "fp16")
DTYPES = (*PRECISIONS, "int64", "int32", "bool")


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
    if not shape or min(shape) < 1 or (dtype and dtype not in DTYPES):
        raise BadInput(f"cannot read input {text!r}. Write sizes with the batch first and a dtype of {', '.join(DTYPES)}: 8x128:int64")
    return Input(shape, dtype or "fp32")


def precision_of(inputs: Sequence[Input], wanted: str = "") -> str:
    """`wanted`, else the dtype of the first floating-point input, else fp32. Raises `BadInput` if there is no input, if the inputs' batches
    differ, or if `wanted` cannot be captured."""
    if not inputs:
        raise BadInput("no input is given. Name each by its shape, the batch first: --input 8x3x224x224:fp32 or --input 8x128:int64")
    if wanted and wanted not in PRECISIONS:
        raise BadInput(f"precision {wanted!r} cannot be captured. Allowed: {', '.join(PRECISIONS)}")
    if len({one.shape[0] for one in inputs}) > 1:
        raise BadInput(f"the inputs' batches differ: {', '.join(str(one.shape[0]) for one in inputs)}. Put the batch first in each")
    return wanted or next((one.dtype for one in inputs if one.dtype in PRECISIONS), "fp32")


def load_builder(name: str, trust: bool) -> Callable[[], Any]:
    """The function `package.module:function`, which returns a module. Raises `BadInput`; raises `Refused` without `trust`, and imports
    nothing then."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise BadInput(f"cannot read {name!r}. Write package.module:function, a function that returns the torch.nn.Module")
    if not trust:
        raise Refused(f"capturing {name} imports {module} and runs its code on this machine. Read it, then add --trust")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
        for piece in attribute.split("."):
            found = getattr(found, piece)
    except ModuleNotFoundError as error:
        where = "it" if error.name and module.startswith(error.name) else f"'{error.name}', which it imports,"
        raise BadInput(f"cannot load {name}: {where} is not found ({error}). Run in the folder that holds it, or install it") from None
    except (ImportError, AttributeError) as error:
        raise BadInput(f"cannot load {name}: {error}") from None
    except Exception as error:  # the module's own code, whatever it does
        raise BadInput(f"cannot load {name}: importing {module} failed with {type(error).__name__}: {error}") from None
    if not callable(found) or (hasattr(found, "named_modules") and not isinstance(found, type)):
        raise BadInput(f"{name} is no function; give one that returns the torch.nn.Module (a fresh one at each call)")
    return found  # type: ignore[no-any-return]
