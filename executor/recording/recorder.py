"""Records one forward and backward pass: each aten call as kernels of the module that made it, and what autograd saves."""

from __future__ import annotations

import sys
import weakref
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from executor.recording.aten import arithmetic_unseen, is_free, is_loss, kept_inside, tensors_of, works_of
from sim.work import Work


class Segment:
    """Consecutive forward calls of one module, and the backward calls of the nodes that they made."""

    def __init__(self, module: str, first: bool) -> None:
        self.module, self.first = module, first
        self.works: dict[str, list[Work]] = {"forward": [], "backward": [], "wgrad": []}
        self.loss = False
        """True if a loss is among the forward calls."""
        self.saved = 0
        self.ahead, self.behind = 0, 0
        """The most bytes that were alive during its forward calls (`ahead`) and its backward calls (`behind`), without parameters."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every aten call below autograd. A forward call belongs to the innermost module that runs; a backward call to the
    forward call that made its autograd node, which is found by the node's sequence number."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stack: list[str] = [""]
        self.segments: list[Segment] = []
        self.made: dict[int, Segment] = {}
        self.owned = {name: tuple(module.parameters(recurse=False)) for name, module in model.named_modules()}
        self.parameters = {p.untyped_storage()._cdata for p in model.parameters()}
        self.counted: set[int] = set()
        self.alive: list[torch.Tensor] = []
        """Keeps the tensors of the sets below alive, so that no address of a storage is used again (fake storages cost nothing)."""
        self.views: list[torch.Tensor] = []
        """Views of parameters. Under fake tensors some have a storage of their own, whose address a gradient must not get either."""
        self.kept: dict[int, int] = {}
        """Storage -> number of the segment that keeps it for backward."""
        self.pending = 0
        self.given: dict[int, int] = {}
        """Storage of an input or a buffer -> its bytes; they live for the whole step."""
        self.living: dict[int, Any] = {}
        """Storages that calls made and that still exist."""
        self.now = 0
        """Bytes of the storages in `living` and `given`."""
        self.latest: Segment | None = None
        """The segment of the latest backward call."""
        self.in_backward = False
        self.entered: dict[str, int] = {}
        """Module -> bytes of the floating-point inputs of its first call."""
        self.unseen: set[str] = set()
        """Names of ops that are counted by their bytes although they also do arithmetic."""
        self.failed = ""
        """The innermost module that ran when something failed."""
        self._error: BaseException | None = None
        for name, module in model.named_modules():
            if name:
                module.register_forward_pre_hook(lambda _m, x, name=name: self._enter(name, x))
                module.register_forward_hook(lambda _m, _x, _y: self._leave(), always_call=True)

    def give(self, tensors: list[torch.Tensor]) -> None:
        """Notes tensors that exist before and after the pass: the first segment, whose backward is last, keeps them."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self.parameters and storage._cdata not in self.kept:
                self.alive.append(tensor)
                self.kept[storage._cdata] = 0
                self.given[storage._cdata] = storage.nbytes()
        self.now = sum(self.given.values())

    def turn(self, out: Any) -> None:
        """Turns from forward to backward: `out` lives to the end of the step, and so do the tensors of `give`."""
        self._hold(out)
        if self.segments:
            self.segments[0].saved += sum(self.given.values())
        self.in_backward = True
        self.alive.clear()  # backward frees what autograd keeps

    def _follow(self, out: Any) -> None:
        """Counts the storages of results until they are freed."""
        for tensor in tensors_of(out):
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key not in self.living and key not in self.parameters and key not in self.given:
                self.now += size
                self.living[key] = weakref.ref(storage, partial(self._freed, key, size))

    def _freed(self, key: int, size: int, _: object) -> None:
        self.now -= size
        del self.living[key]

    def _enter(self, name: str, inputs: Any) -> None:
        self.stack.append(name)
        self.entered.setdefault(name, sum(t.numel() * t.element_size() for t in tensors_of(inputs) if t.is_floating_point()))

    def _leave(self) -> None:
        name, error = self.stack.pop(), sys.exc_info()[1]
        if error is not None and error is not self._error:
            self.failed, self._error = name, error

    @property
    def place(self) -> str:
        """Where an op failed, in words."""
        return f"module '{self.failed}'" if self.failed else "the model itself"

    def segment(self, free: bool) -> Segment | None:
        """The segment of the present call. Forward: the open one, or a new one; a call without a kernel (`free`) opens none, and may get
        None. Backward: the segment that made the node."""
        if self.in_backward:
            node = torch._C._current_autograd_node()
            found = self.made.get(node._sequence_nr()) if node is not None else None
            # Sums of gradients, and nodes of views, belong to the segment that runs around them.
            self.latest = found or self.latest or self.segments[-1]
            return self.latest
        module = self.stack[-1]
        if not self.segments or self.segments[-1].module != module:
            if free:
                return next((one for one in reversed(self.segments) if one.module == module), None)
            self.segments.append(Segment(module, all(one.module != module for one in self.segments)))
            self.segments[-1].saved, self.pending = self.pending, 0
        return self.segments[-1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            out = func(*args, **kwargs)
        except Exception as error:
            self.failed, self._error = self.stack[-1], error
            raise
        free = is_free(func)
        if free and isinstance(args[0] if args else None, torch.nn.Parameter):  # a view of a parameter is one
            self.parameters |= {t.untyped_storage()._cdata for t in tensors_of(out)}
            self.views += tensors_of(out)
        segment = self.segment(free)
        if segment is None:
            return out
        if not self.in_backward:  # this call's node has the number before the next one
            self.made.setdefault(torch._C._autograd._get_sequence_nr() - 1, segment)
        self._follow(out)
        if self.in_backward:
            segment.behind = max(segment.behind, self.now)
        else:
            segment.ahead = max(segment.ahead, self.now)
        if free:
            return out
        self.unseen |= {arithmetic_unseen(func)} - {""}
        field = "forward"
        if self.in_backward:
            field = "wgrad" if self._is_wgrad(segment.module, args, out) else "backward"
        role = {"forward": "fwd", "backward": "dgrad", "wgrad": "wgrad"}[field]
        if not self.in_backward:
            segment.saved += kept_inside(func, args)
            segment.loss |= is_loss(func)
        for work in works_of(func, args, kwargs, out, role):
            segment.works["wgrad" if getattr(work, "role", "") == "wgrad" else field].append(work)
        return out

    def _is_wgrad(self, module: str, args: Any, out: Any) -> bool:
        """True if the result has the shape of a parameter (or its transpose) and no parameter is an operand."""
        results = tensors_of(out)
        operands = tensors_of(args)
        if len(results) != 1 or any(isinstance(t, torch.nn.Parameter) or t.untyped_storage()._cdata in self.parameters for t in operands):
            return False
        shape = tuple(results[0].shape)
        return any(shape in (tuple(p.shape), tuple(reversed(p.shape)), (1, *p.shape)) for p in self._near(module))

    def _near(self, module: str) -> list[torch.nn.Parameter]:
        """The module's own parameters, and those of children that are not called as modules (attention's output projection)."""
        ran = {one.module for one in self.segments}
        inside = f"{module}." if module else ""
        names = [name for name in self.owned if name == module or (name.startswith(inside) and name not in ran)]
        apart = [other for other in ran if other != module and other.startswith(inside)]
        own = [name for name in names if not any(name == other or name.startswith(f"{other}.") for other in apart)]
        return [p for name in own for p in self.owned[name]]

    def tensors(self, module: str) -> tuple[torch.nn.Parameter, ...]:
        """The parameters that `module` uses; a shared one counts where it is first used."""
        fresh = tuple(p for p in self._near(module) if id(p) not in self.counted)
        self.counted.update(map(id, fresh))
        return fresh

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Counts what autograd saves: each storage once, without parameters. Returns `tensor`."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self.parameters and storage._cdata not in self.kept:
            self.alive.append(tensor)
            opened = len(self.segments) - 1
            if self.segments and self.segments[-1].module == self.stack[-1]:
                self.segments[-1].saved += storage.nbytes()
            else:  # inputs are saved before the call that opens the segment
                self.pending += storage.nbytes()
                opened += 1
            self.kept[storage._cdata] = opened
        return tensor

    def _hold(self, out: Any) -> None:
        """Makes the first segment, whose backward is last, keep what the model returns."""
        for tensor in tensors_of(out):
            storage = tensor.untyped_storage()
            owner = self.kept.get(storage._cdata)
            if owner is not None and owner < len(self.segments):
                self.segments[owner].saved -= storage.nbytes()
            self.segments[0].saved += storage.nbytes()
