"""A torch profile as spans: what the stock run really did, in the simulator's words.

The profile's Chrome JSON is read (a public format). A span is an outermost ATen op on the host thread, a device kernel, or
a collective on its own thread. Its part comes from the range that a forward hook opened (`part:L0.attn.qkv`); backward ops
find theirs by the autograd sequence number that they share with the forward op.
"""

from __future__ import annotations

import bisect
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.hooks import RemovableHandle

from executor.training.model import part_name
from sim.trace import Span

CLASSES = (
    ("gemm", ("mm", "addmm", "bmm", "linear", "matmul", "baddbmm", "_grouped_mm")),
    ("attention", ("scaled_dot_product", "flash_attention", "efficient_attention")),
    ("norm", ("layer_norm", "rms_norm", "batch_norm")),
    ("activation", ("gelu", "silu", "relu", "tanh", "threshold")),
    ("embedding", ("embedding",)),
    ("loss", ("cross_entropy", "log_softmax", "nll_loss", "mse_loss")),
    ("conv", ("conv",)),
)
_BY_PART = {
    "qkv": "gemm",
    "proj": "gemm",
    "up": "gemm",
    "down": "gemm",
    "linear": "gemm",
    "logits": "gemm",
    "core": "attention",
    "act": "activation",
}
_BY_PART |= {
    "norm": "norm",
    "norm1": "norm",
    "norm2": "norm",
    "tokens": "embedding",
    "positions": "embedding",
    "loss": "loss",
    "rope": "elementwise",
}
_COLLECTIVES = {"allreduce": "all_reduce", "allgather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all"}


class Event(msgspec.Struct):
    """One complete event of the profile; microseconds."""

    name: str
    cat: str
    ts: float
    dur: float
    tid: int
    args: dict[str, Any]

    @property
    def end(self) -> float:
        return self.ts + self.dur


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

    for block_name, block in model.named_children():
        # What a block does outside its submodules (residual adds) is the block's own part.
        for name, module in [(f"{block_name}.residual", block), *((part_name(f"{block_name}.{n}"), m) for n, m in block.named_children())]:
            handles += [module.register_forward_pre_hook(enter(name)), module.register_forward_hook(leave)]
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
    base = float(raw.get("baseTimeNanoseconds", 0)) / 1e3
    complete = (e for e in raw["traceEvents"] if e.get("ph") == "X" and isinstance(e.get("tid"), int))
    into += [Event(e["name"], e.get("cat", ""), base + float(e["ts"]), float(e["dur"]), e["tid"], e.get("args", {})) for e in complete]


def spans_of(events: list[Event], rank: int, comm: str = "comm") -> list[Span]:
    """Spans of one rank, seconds since the epoch (the caller shifts all ranks together). `comm`: class of its collectives."""
    # A device's copy of the same range is a "gpu_user_annotation": it begins later than the launches that belong to it.
    steps = sorted((e for e in events if e.name.startswith("step:") and e.cat == "user_annotation"), key=lambda e: e.ts)
    if not steps:
        return []
    main, device = steps[0].tid, any(e.cat == "kernel" for e in events)
    # Backward of device tensors is run by autograd's own thread of that device, not by the one that called backward.
    engines = {e.tid for e in events if e.cat == "cpu_op" and e.name.startswith("autograd::engine") and e.tid != main} if device else set()
    reader = _Reader(rank, steps, [e for e in events if e.cat in ("cpu_op", "user_annotation")], (main, *sorted(engines)), device)
    spans = reader.host()
    messages = _communication(events, rank, main, reader, comm)
    spans += _kernels(events, rank, reader, comm)
    if not device:
        spans += _host_time(spans, messages, reader)
    return spans + messages


class _Reader:
    """The host threads of one rank: nesting ranges, parts and directions."""

    def __init__(self, rank: int, steps: list[Event], events: list[Event], threads: tuple[int, ...], device: bool) -> None:
        """`threads`: the training loop's, then those that run backward; `device`: what they do is launching."""
        self.rank, self.threads, self.device = rank, threads, device
        self.steps = [(e.ts, e.end, int(e.name.partition(":")[2])) for e in steps]
        self.events = sorted(events, key=lambda e: (e.ts, -e.dur))
        self.sequence: dict[int, str] = {}
        self.counts: dict[str, int] = {}
        self.owner: dict[int, list[tuple[float, float, str, str, str]]] = {}
        """By thread: (start, end, part, direction, class) of every op found, for kernels launched inside it."""

    def step(self, ts: float) -> int | None:
        i = bisect.bisect_right(self.steps, (ts, float("inf"), 0)) - 1
        return self.steps[i][2] if i >= 0 and ts < self.steps[i][1] else None

    def host(self) -> list[Span]:
        """Outermost ops, the optimizer and the data loader as one span each."""
        return [span for tid in self.threads for span in self._thread(tid)]

    def _thread(self, tid: int) -> list[Span]:
        found: list[Span] = []
        stack: list[Event] = []
        until = 0.0
        for e in self.events:
            if e.tid != tid:
                continue
            while stack and stack[-1].end <= e.ts:
                stack.pop()
            part = next((x.name[5:] for x in reversed(stack) if x.name.startswith("part:")), "")
            number = e.args.get("Sequence number")
            if part and number is not None:
                self.sequence.setdefault(int(number), part)
            if e.ts >= until and (whole := self._whole(e)):
                until = e.end
                span = self._span(e, whole, part, stack)
                if span is not None:
                    found.append(span)
            stack.append(e)
        return found

    @staticmethod
    def _whole(e: Event) -> str:
        """The kind of range that is taken as one span: op, optimizer, data or output; "" to look inside."""
        if e.name.startswith("Optimizer.step"):
            return "optimizer"
        if e.name.startswith("enumerate(DataLoader)"):
            return "data"
        if e.name == "output":
            return "output"
        return "op" if e.cat == "cpu_op" and e.name.startswith("aten::") else ""

    def _span(self, e: Event, whole: str, part: str, stack: list[Event]) -> Span | None:
        step = self.step(e.ts)
        if step is None:
            return None
        direction = "fwd"
        engine = next((x for x in reversed(stack) if x.name.startswith("autograd::engine")), None)
        if engine is not None:
            direction = "bwd"
            part = self.sequence.get(int(engine.args.get("Sequence number", -1)), "")
        cls = whole if whole != "op" else classify(e.name, part)
        if whole == "op" and _moves_gradients(engine, part, e.name):
            cls, part = "grad.copy", "gradients"
        where = part or (whole if whole != "op" else "other")
        self.owner.setdefault(e.tid, []).append((e.ts, e.end, where, direction, cls))
        lane = "host" if e.tid == self.threads[0] else "autograd"
        kind = "compute" if whole in ("op", "optimizer") and not self.device else "host"
        if self.device and whole == "op":
            cls = "host"  # the kernels it launches are of its class
        return Span(self.rank, lane, self._id(step, direction, where), e.ts * 1e-6, e.end * 1e-6, kind, cls, step, name=e.name)

    def _id(self, step: int, direction: str, where: str) -> str:
        name = f"r{self.rank}/s{step}/{direction}/{where}"
        self.counts[name] = self.counts.get(name, -1) + 1
        return f"{name}#{self.counts[name]}"

    def inside(self, ts: float, tid: int) -> tuple[str, str, str]:
        """(part, direction, class) of the op that a thread runs at `ts`."""
        owner = self.owner.get(tid, [])
        i = bisect.bisect_right(owner, (ts, float("inf"), "", "", "")) - 1
        return owner[i][2:] if i >= 0 and ts <= owner[i][1] else ("other", "fwd", "")


def _moves_gradients(engine: Event | None, part: str, op: str) -> bool:
    """Ops between autograd and communication: DDP's copies into buckets and back, sums over micro-batches."""
    if engine is not None:
        return "AccumulateGrad" in engine.name
    return not part and op in ("aten::copy_", "aten::mul_", "aten::div_", "aten::mul", "aten::div")


def classify(op: str, part: str) -> str:
    """Class of an ATen op: by its part where that says it, else by its name."""
    name = op.removeprefix("aten::")
    for cls, words in CLASSES:
        if any(name == word or word in name for word in (words if cls != "gemm" else ())) or (cls == "gemm" and name in words):
            return cls
    return _BY_PART.get(part.rpartition(".")[2], "elementwise")


def _communication(events: list[Event], rank: int, main: int, reader: _Reader, comm: str) -> list[Span]:
    """gloo's collectives, which run on threads of their own."""
    found = []
    for e in sorted((e for e in events if e.name.startswith("gloo:") and e.tid != main), key=lambda e: e.ts):
        step = reader.step(e.ts)
        if step is not None:
            name = e.name.removeprefix("gloo:")
            found.append(Span(rank, "comm", reader._id(step, "comm", name), e.ts * 1e-6, e.end * 1e-6, "collective", comm, step, name=name))
    return found


_WAIT = 2e-4
"""Gaps on the host thread longer than this, while a collective is under way, are waits for it."""


def _host_time(spans: list[Span], messages: list[Span], reader: _Reader) -> list[Span]:
    """Gaps between the host thread's ops: modules, autograd, Python (and what the profiler itself takes)."""
    found = []
    for begin, end, step in reader.steps:
        at = begin * 1e-6
        for span in [*sorted((s for s in spans if s.step == step), key=lambda s: s.start), None]:
            until = span.start if span is not None else end * 1e-6
            waits = until - at > _WAIT and any(m.start < until and m.end > at for m in messages)
            if until > at and not waits:
                found.append(Span(reader.rank, "host", reader._id(step, "host", "python"), at, until, "host", "host", step))
            at = max(at, span.end) if span is not None else at
    return found


def _kernels(events: list[Event], rank: int, reader: _Reader, comm: str) -> list[Span]:
    """Device kernels and copies, each under the part that launched it."""
    launches = {e.args["correlation"]: e for e in events if e.cat in ("cuda_runtime", "cuda_driver") and "correlation" in e.args}
    found = []
    for e in events:
        if e.cat not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        launch = launches.get(e.args.get("correlation"))
        part, direction, cls = reader.inside(launch.ts, launch.tid) if launch else ("other", "fwd", "")
        step = reader.step(launch.ts if launch else e.ts)
        if step is None:
            continue
        kind, cls = _kernel_kind(e, part, cls, comm)
        lane = "comm" if kind == "collective" else f"stream.{e.args.get('stream', 0)}"
        found.append(Span(rank, lane, reader._id(step, direction, f"{part}/k"), e.ts * 1e-6, e.end * 1e-6, kind, cls, step, name=e.name))
    return found


def _kernel_kind(e: Event, part: str, cls: str, comm: str) -> tuple[str, str]:
    """(kind, class) of what ran on the device. Copies inside the device are kernels like others."""
    if "nccl" in e.name.lower():
        return "collective", comm
    if e.cat == "gpu_memcpy" and "HtoD" in e.name:
        return "copy", "data"
    if e.cat == "gpu_memcpy" and "DtoH" in e.name:
        return "copy", "output"
    if not cls and "gemm" in e.name.lower():
        cls = "gemm"
    return "compute", cls or classify(e.name, part)
