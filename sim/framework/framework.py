"""A framework: its habits, group by group, and where they are written down.

One TOML file each in `sim/framework/known/`, each value with its source in a comment. A file that has a `base` says only what differs from it,
and so does a plan's [framework] table.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from sim.framework.layers import Attention, Elementwise, Experts, Habits, Linears, Loss, Maps
from sim.framework.sharing import DataParallel, Pipeline, TensorParallel
from sim.framework.updating import Precision, Updates
from topologies.errors import BadInput, UnknownName

_ON_PYTORCH = ("accelerate", "ddp", "fsdp", "lightning", "timm")
"""What trains PyTorch's modules by PyTorch's own means: under autocast (bf16 = True), or with weights in 16 bits."""
_OF_TRANSFORMERS = ("axolotl", "hf", "llama-factory", "peft", "transformers", "trl")
"""What trains transformers' models in its Trainer."""
HostKind = Literal["python", "te", "te-graphs", "light", "graph"]


class Framework(Habits, frozen=True, kw_only=True):
    """A framework's defaults and habits. All physical, none a fudge: each changes which kernels or messages exist."""

    name: str
    source: str
    """Where these habits are documented."""
    host: HostKind = "python"
    """Host time per op: eager Python modules, TransformerEngine's (with parts of each layer captured), C++/compiled launches, or
    replayed CUDA graphs."""
    cuda_graphs: bool = False
    launch_blocking: bool = False
    """Every launch waits for its kernel (CUDA_LAUNCH_BLOCKING = 1)."""
    loads_all: bool = False
    """The device holds all kernels of its libraries from the start (before CUDA 11.7 and PyTorch 1.13, which load them when they are called)."""
    compile: bool = False
    """Elementwise chains fused by a compiler (torch.compile, XLA)."""
    vocab_multiple: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)] = 1
    """Rows of the vocabulary's table on each rank of tensor parallelism are filled up to a multiple of it."""
    early_stop: bool = False
    """Full recomputation ends with the last saved tensor: the layer's last product is not run again. Of eager modules it is torch.utils.checkpoint's,
    which calls a Python function with each tensor that autograd keeps."""
    precision: Precision = Precision()
    attention: Attention = Attention()
    linears: Linears = Linears()
    elementwise: Elementwise = Elementwise()
    maps: Maps = Maps()
    loss: Loss = Loss()
    experts: Experts = Experts()
    data_parallel: DataParallel = DataParallel()
    tensor_parallel: TensorParallel = TensorParallel()
    pipeline: Pipeline = Pipeline()
    optimizer: Updates = Updates()

    @property
    def te_attention(self) -> bool:
        """Attention over several ranks is TransformerEngine's."""
        return self.host in ("te", "te-graphs", "graph")

    def but(self, **changes: Any) -> Framework:
        """The same with other values; those of a group as a dict: `but(compile=True, optimizer={"clip": True})`."""
        whole = {
            name: msgspec.structs.replace(getattr(self, name), **value) if isinstance(value, dict) else value
            for name, value in changes.items()
        }
        return msgspec.structs.replace(self, **whole)


def frameworks() -> dict[str, Path]:
    """Name -> file of every framework that is described."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "known").glob("*.toml"))}


def load_framework(source: str | Mapping[str, Any]) -> Framework:
    """A framework by its name, or a table of a `base` and what differs from it. Raises `UnknownName` with the nearest name, `BadInput` for a table
    without a base, msgspec's `ValidationError` for one that says what no framework does."""
    if isinstance(source, str):
        return _shipped(source)
    own = dict(source)
    base = own.pop("base", None)
    if not isinstance(base, str):
        raise BadInput(f'[framework] has no base. Add e.g. base = "pytorch", one of: {", ".join(frameworks())}')
    tree = _over(msgspec.to_builtins(_shipped(base)), {"name": f"{base} (changed)", **own})
    found: Framework = msgspec.convert(tree, Framework)
    return found


@cache
def _shipped(name: str, below: tuple[str, ...] = ()) -> Framework:
    """The framework of a file, which is called as the file is; `below`: those that have it as their base, which it cannot have as its own."""
    known = frameworks()
    if name not in known:
        if name.endswith(".toml"):
            raise BadInput(
                f'framework "{name[:80]}": one of your own is a table in the plan, [framework] with base = "pytorch" and what differs'
            )
        meant = {
            **dict.fromkeys(_ON_PYTORCH, ("pytorch-amp", "pytorch")),
            **dict.fromkeys(_OF_TRANSFORMERS, ("huggingface", "huggingface-amp")),
        }
        raise UnknownName(
            "framework", name, known, f"sim/framework/known/{below[-1]}.toml" if below else "", meant.get(name.lower(), ()), every=True
        )
    if name in below:
        raise BadInput(f'sim/framework/known/{below[-1]}.toml: base = "{name}" leads back to it. Give one that is whole, e.g. "pytorch"')
    tree = {"name": name} | tomllib.loads(known[name].read_text("utf-8"))
    if "base" in tree:
        tree = _over(msgspec.to_builtins(_shipped(tree.pop("base"), (*below, name))), tree)
    try:
        return msgspec.convert(tree, Framework)
    except msgspec.ValidationError as error:
        raise BadInput(f"sim/framework/known/{name}.toml: {error}") from None


def _over(base: dict[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
    """`base` with what `tree` says, table by table."""
    both = {key: base[key] | value if isinstance(value, dict) and isinstance(base.get(key), dict) else value for key, value in tree.items()}
    return base | both
