"""A torch profile as spans: what the stock run really did, with the simulator's names.

The profile is read from its Chrome JSON (a public format). A span is an outermost ATen op on the host thread, a device kernel, or
a collective on its own thread. A forward op's part comes from the range that a hook opened (`part:L0.attn.qkv`); a backward op
gets the part of the forward op with the same autograd sequence number.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.hooks import RemovableHandle

from executor.profiles.beside import kernels, messages
from executor.profiles.event import Event
from executor.profiles.host import HostThreads, gaps
from executor.training.models.names import part_name, parts_of
from sim.trace import Span

_DAY = 86_400 * 10**9
"""A day in nanoseconds."""


@contextmanager
def named_parts(model: nn.Module) -> Iterator[None]:
    """While open, every part of every block runs inside a range with its name."""
    handles: list[RemovableHandle] = []
    open_ranges: list[Any] = []

    def enter(name: str) -> Any:
        def hook(*_: object) -> None:
            mark = record_function(f"part:{name}")
            mark.__enter__()  # type: ignore[no-untyped-call]
            open_ranges.append(mark)

        return hook

    def leave(*_: object) -> None:
        open_ranges.pop().__exit__(None, None, None)

    for block_name, child in model.named_children():
        block = getattr(child, "_checkpoint_wrapped_module", child)  # the layer inside the wrapper of activation checkpointing
        # What a block does outside its submodules (residual adds) is a part of its own, `residual`.
        for name, module in [(f"{block_name}.residual", block), *((part_name(f"{block_name}.{n}"), m) for n, m in parts_of(block))]:
            # A recomputed layer ends with an exception as soon as it has all that backward needs.
            handles += [module.register_forward_pre_hook(enter(name)), module.register_forward_hook(leave, always_call=True)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def profiled(cuda: bool, into: list[Event]) -> Iterator[None]:
    """Profiles what runs inside; the events are in `into` afterwards."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as session:
        yield
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "trace.json"
        session.export_chrome_trace(str(path))
        raw = json.loads(path.read_bytes())
    # Without whole days, which are the same for all ranks: as a float, microseconds since 1970 are exact to 1/4 only, and small kernels
    # last two.
    base = float(int(raw.get("baseTimeNanoseconds", 0)) % _DAY) / 1e3
    complete = (e for e in raw["traceEvents"] if e.get("ph") == "X" and isinstance(e.get("tid"), int))
    into += [Event(e["name"], e.get("cat", ""), base + float(e["ts"]), float(e["dur"]), e["tid"], e.get("args", {})) for e in complete]


def spans_of(events: list[Event], rank: int, comm: str = "comm", cuda: bool = False) -> list[Span]:
    """Spans of one rank, in seconds of the profiler's clock (the caller shifts all ranks together). `comm`: class of its collectives;
    `cuda`: the rank computes on a GPU, even if the profiler saw no kernel."""
    # The device's copy of a range (a step's or gloo's) begins later than the launches in it, and is not another range.
    events = [e for e in events if e.cat != "gpu_user_annotation"]
    steps = sorted((e for e in events if e.name.startswith("step:")), key=lambda e: e.ts)
    if not steps:
        return []
    main, device = steps[0].tid, cuda or any(e.cat == "kernel" for e in events)
    # Backward of device tensors runs on autograd's thread of that device, not on the thread that called backward.
    engines = {e.tid for e in events if e.cat == "cpu_op" and e.name.startswith("autograd::engine") and e.tid != main} if device else set()
    host = HostThreads(rank, steps, [e for e in events if e.cat in ("cpu_op", "user_annotation")], (main, *sorted(engines)), device)
    spans = host.spans()
    sent = messages(events, rank, main, host, comm)
    spans += kernels(events, rank, host, comm)
    if not device:
        spans += gaps(spans, sent, host)
    return spans + sent
