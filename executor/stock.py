"""Real training of a plan with PyTorch's own machinery: what users run, timed and profiled.

It uses real autograd and optimizers, a real DataLoader over files that are written first, DistributedDataParallel (or FSDP2,
DTensor, pipelining: `executor.training.parallelize`), logging by `.item()`, and checkpoints that are written under a temporary name, then
renamed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from executor.files import write_samples
from executor.ranks.alone import alone_among
from executor.ranks.launch import STALL, launch
from executor.ranks.world import World
from executor.training.limits import check_stock
from executor.usage import watched
from sim.framework.chosen import framework_of, sharding_of
from sim.plan import Plan
from sim.rules import check
from sim.setting.bind import model_of
from sim.trace import Span, Trace, from_zero

if TYPE_CHECKING:
    from executor.training.examples import Pair
    from executor.training.trainer import Trainer

WARMUP = 5
"""Steps before timing: lazy initialisation, DDP's rebuilt buckets, loaders starting."""
PROFILED = 3


class Request(msgspec.Struct, frozen=True):
    """What every rank is told."""

    plan: Plan
    steps: int
    warmup: int = WARMUP
    profile: int = PROFILED
    data: str = ""


class RankResult(msgspec.Struct):
    """What one rank measured: seconds, losses of all steps, bytes of DDP's buckets, peak bytes of memory."""

    step_times: list[float]
    losses: list[float]
    spans: list[Span]
    backend: str
    first_buckets: list[int] = []
    buckets: list[int] = []
    memory: int = 0


class StockResult(msgspec.Struct, kw_only=True):
    """A stock run: seconds of each timed step on rank 0, losses of all steps, a profile of some."""

    step_times: list[float]
    losses: list[float]
    trace: Trace
    first_buckets: list[int]
    """Bytes of DDP's buckets in the first step, in the order of their use; empty without DDP."""
    buckets: list[int]
    """Bytes of the buckets after DDP has rebuilt them."""
    by_rank: list[list[float]]
    memory: int = 0
    """Largest peak of device memory over ranks, in bytes (resident memory on a CPU)."""

    @property
    def warning(self) -> str:
        """A sentence if the loss stops being finite at some step (as it does for a model that is all in fp16); else ""."""
        lost = next((step for step, loss in enumerate(self.losses) if not math.isfinite(loss)), None)
        if lost is None:
            return ""
        return f"the loss is {self.losses[lost]} from step {lost} on: times stand, as kernels take as long with any numbers, but nothing was learned"


def run_stock(
    plan: Plan,
    folder: str | Path,
    steps: int = 30,
    *,
    warmup: int = WARMUP,
    profile: int = PROFILED,
    stall: float = STALL,
) -> StockResult:
    """Trains `plan` for `warmup + steps + profile` optimizer steps on this machine's devices.

    Raises `Refused` for plans that the stock path cannot run, `RunFailed` if a rank dies or hangs; step times until
    then stay in `folder` (`executor.ranks.launch.partial_steps`).
    """
    check_stock(check(plan), model_of(plan))
    folder = Path(folder)
    request = Request(plan, steps, warmup, profile, str(folder / "data"))
    with alone_among(folder), watched(folder / "stock"):
        write_samples(plan, folder / "data")
        found = launch("executor.stock:train", request, plan.world, folder / "stock", RankResult, stall=stall)
    spans = from_zero([span for rank in found for span in rank.spans])
    first = found[0]
    meta = {"plan": plan.name or plan.model_name, "backend": first.backend}
    return StockResult(
        step_times=first.step_times,
        losses=[sum(values) / len(values) for values in zip(*(rank.losses for rank in found if rank.losses), strict=True)],
        trace=Trace(spans, "stock", plan.world, profile, meta=meta, timed=first.step_times),
        first_buckets=first.first_buckets,
        buckets=first.buckets,
        by_rank=[rank.step_times for rank in found],
        memory=max(rank.memory for rank in found),
    )


def train(world: World, request: Request) -> RankResult:
    """One rank: builds the model, warms up, times steps, and profiles some."""
    from executor.players.events import wake
    from executor.profiles.collect import named_parts, profiled, spans_of
    from executor.profiles.event import Event
    from executor.ranks.clocks import align
    from executor.training.trainer import Trainer

    world.beat.phase("building the model")
    trainer = Trainer(world, request.plan, Path(request.data), request.warmup + request.steps + request.profile)
    batches = trainer.batches()
    wake(world.device)
    world.touch_memory()
    world.barrier()
    for step in range(request.warmup):
        world.beat.phase(f"warm-up step {step}")
        trainer.step(batches, step)
    world.touch_memory()  # again, as the process now knows how much memory a step takes
    times = _timed(world, trainer, batches, request)
    events: list[Event] = []
    if request.profile:
        world.touch_memory()  # for the profiler's records
        world.barrier()
        with named_parts(trainer.inner), profiled(world.kind == "cuda", events):
            for step in range(request.warmup + request.steps, request.warmup + request.steps + request.profile):
                world.beat.phase(f"profiled step {step}")
                trainer.step(batches, step)
    first, later = trainer.buckets()
    spans = spans_of(events, world.rank, comm_class(request.plan), world.kind == "cuda")
    align(world, spans, time.time)  # the profiler stamps its events with the host's wall clock
    return RankResult(times, trainer.losses(), spans, world.backend, first, later, trainer.peak_memory())


def comm_class(plan: Plan) -> str:
    """The class of this plan's collectives, named as in the prediction; `comm` if there are several kinds or none."""
    p = plan.parallel
    kinds = [name for name, size in (("comm.tp", p.tp), ("comm.pp", p.pp), ("comm.cp", p.cp), ("comm.ep", p.ep)) if size > 1]
    if plan.data_ranks > 1:
        kinds.append("comm.fsdp" if p.dp_shard > 1 and sharding_of(plan, framework_of(plan))[0] > 0 else "comm.dp")
    return kinds[0] if len(kinds) == 1 else "comm"


def _timed(world: World, trainer: Trainer, batches: Iterator[Pair], request: Request) -> list[float]:
    """Seconds of each step, from the end of one to the end of the next. On CUDA measured by events, so that timing adds no
    synchronisation."""
    if world.kind == "cuda":
        return _timed_cuda(world, trainer, batches, request)
    times = []
    world.barrier()
    last = time.perf_counter()
    for step in range(request.warmup, request.warmup + request.steps):
        world.beat.phase(f"step {step}")
        trainer.step(batches, step)
        now = time.perf_counter()
        times.append(now - last)
        world.beat.step(now - last)
        last = now
    return times


def _timed_cuda(world: World, trainer: Trainer, batches: Iterator[Pair], request: Request) -> list[float]:
    from executor.players.events import cuda_event

    marks = [cuda_event() for _ in range(request.steps + 1)]
    world.barrier()
    marks[0].record()
    times: list[float] = []

    def read(until: int) -> None:
        while len(times) < until and marks[len(times) + 1].query():  # type: ignore[no-untyped-call]
            times.append(marks[len(times)].elapsed_time(marks[len(times) + 1]) * 1e-3)
            world.beat.step(times[-1])

    for i in range(request.steps):
        world.beat.phase(f"step {request.warmup + i}")
        trainer.step(batches, request.warmup + i)
        marks[i + 1].record()
        read(i + 1)  # steps that the device has finished are kept, whatever happens later
    world.synchronize()
    read(request.steps)
    return times
