"""What runs beside the host thread of a profiled rank: kernels and copies on streams, gloo's collectives on gloo's threads."""

from __future__ import annotations

from executor.profiles.classes import GRADIENTS, kernel_kind
from executor.profiles.event import Event
from executor.profiles.host import HostThreads
from sim.trace import Span

_MESSAGES = {"gloo:send": "send", "gloo:recv": "recv"}


def messages(events: list[Event], rank: int, main: int, host: HostThreads, comm: str) -> list[Span]:
    """Spans of gloo's collectives, which run on gloo's threads, and of messages, which start in the thread that waits for them. A
    collective of device tensors first waits for the copy to the host, which is a span of its own (AsyncAllreduceCUDAWork in torch's
    ProcessGroupGloo.cpp): its span starts at the end of that copy."""
    ran = sorted((e for e in events if e.name.startswith("gloo:")), key=lambda e: e.ts)
    calls = [e for e in ran if e.name not in _MESSAGES and e.tid != main]
    come = _come(events, host)
    begins = [e.ts for e in calls]
    if len(come) == len(calls):  # gloo runs them in the order of issue
        begins = [min(e.end, max(e.ts, at)) for e, at in zip(calls, come, strict=True)]
    found = []
    for e, begin in [*zip(calls, begins, strict=True), *((e, e.ts) for e in ran if e.name in _MESSAGES)]:
        step = host.step(e.ts)
        if step is not None:
            name, kind = e.name.removeprefix("gloo:"), _MESSAGES.get(e.name, "collective")
            found.append(Span(rank, "comm", host.name(step, "comm", name), begin * 1e-6, e.end * 1e-6, kind, comm, step, name=name))
    return found


def _come(events: list[Event], host: HostThreads) -> list[float]:
    """The ends of gradients' copies to the host in microseconds, in the order in which these copies were launched."""
    launches = _launches(events)
    copies = [
        (launch, e) for e in events if e.cat == "gpu_memcpy" and "DtoH" in e.name and (launch := launches.get(e.args.get("correlation")))
    ]
    ours = [(launch, e) for launch, e in copies if launch.tid not in host.threads or host.inside(launch.ts, launch.tid)[2] == GRADIENTS]
    return [e.end for _, e in sorted(ours, key=lambda pair: pair[0].ts)]


def _launches(events: list[Event]) -> dict[object, Event]:
    return {e.args["correlation"]: e for e in events if e.cat in ("cuda_runtime", "cuda_driver") and "correlation" in e.args}


def kernels(events: list[Event], rank: int, host: HostThreads, comm: str) -> list[Span]:
    """Spans of device kernels and copies, each in the part that launched it. Launches from threads other than the host's are gloo's."""
    launches, found, gloo = _launches(events), [], any(e.name.startswith("gloo:") for e in events)
    for e in events:
        if e.cat not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        launch = launches.get(e.args.get("correlation"))
        part, direction, cls = host.inside(launch.ts, launch.tid) if launch else ("other", "fwd", "")
        step = host.step(launch.ts if launch else e.ts)
        if step is None:
            continue
        kind, cls = kernel_kind(e, part, cls if launch is None or launch.tid in host.threads else GRADIENTS, comm, gloo)
        lane = "comm" if kind == "collective" else f"stream.{e.args.get('stream', 0)}"
        found.append(Span(rank, lane, host.name(step, direction, f"{part}/k"), e.ts * 1e-6, e.end * 1e-6, kind, cls, step, name=e.name))
    return found
