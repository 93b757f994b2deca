"""What runs beside the host thread of a profiled rank: kernels and copies on streams, gloo's collectives on threads of their own."""

from __future__ import annotations

from executor.profiles.classes import GRADIENTS, kernel_kind
from executor.profiles.event import Event
from executor.profiles.host import HostThreads
from sim.trace import Span

_MESSAGES = {"gloo:send": "send", "gloo:recv": "recv"}


def messages(events: list[Event], rank: int, main: int, host: HostThreads, comm: str) -> list[Span]:
    """gloo's collectives, which run on threads of their own, and messages, which the thread that waits for them begins. Of device tensors each
    collective begins with a wait for the copy to the host, a span of its own (AsyncAllreduceCUDAWork in torch's ProcessGroupGloo.cpp): what is
    left begins where that has come."""
    ran = sorted((e for e in events if e.name.startswith("gloo:")), key=lambda e: e.ts)
    calls = [e for e in ran if e.name not in _MESSAGES and e.tid != main]
    come = _come(events, host)
    begins = [e.ts for e in calls]
    if len(come) == len(calls):  # gloo takes them in the order of issue
        begins = [min(e.end, max(e.ts, at)) for e, at in zip(calls, come, strict=True)]
    found = []
    for e, begin in [*zip(calls, begins, strict=True), *((e, e.ts) for e in ran if e.name in _MESSAGES)]:
        step = host.step(e.ts)
        if step is not None:
            name, kind = e.name.removeprefix("gloo:"), _MESSAGES.get(e.name, "collective")
            found.append(Span(rank, "comm", host.name(step, "comm", name), begin * 1e-6, e.end * 1e-6, kind, comm, step, name=name))
    return found


def _come(events: list[Event], host: HostThreads) -> list[float]:
    """When gradients had been copied to the host, in the order in which these copies were launched."""
    launches = _launches(events)
    copies = [
        (launch, e) for e in events if e.cat == "gpu_memcpy" and "DtoH" in e.name and (launch := launches.get(e.args.get("correlation")))
    ]
    ours = [(launch, e) for launch, e in copies if launch.tid not in host.threads or host.inside(launch.ts, launch.tid)[2] == GRADIENTS]
    return [e.end for _, e in sorted(ours, key=lambda pair: pair[0].ts)]


def _launches(events: list[Event]) -> dict[object, Event]:
    return {e.args["correlation"]: e for e in events if e.cat in ("cuda_runtime", "cuda_driver") and "correlation" in e.args}


def kernels(events: list[Event], rank: int, host: HostThreads, comm: str) -> list[Span]:
    """Device kernels and copies, each under the part that launched it. Threads beside the host's that launch are gloo's."""
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
