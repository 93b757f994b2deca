"""The reduction of FSDP units' gradients as FSDP2 does it: copied together, scattered, summed over replicas, divided and cast (torch
2.13,
_fsdp_collectives.py, foreach_reduce); and added to those of earlier micro-batches, shard to shard."""

from __future__ import annotations

from sim.lower.accumulate import COPY
from sim.lower.data_parallel import on_host
from sim.lower.data_parallel.gathered import called, holding, hooks, reshard
from sim.lower.data_parallel.reduced import after_message, before_message, in_place_of_message, joined
from sim.lower.data_parallel.replicate import lane_of
from sim.lower.data_parallel.sharded import CLS, replicas
from sim.lower.data_parallel.units import Unit, root_first
from sim.lower.job import Job
from sim.lower.model_parallel.tensor import whole_gradients
from sim.lower.ops import collective, compute, order, record
from sim.lower.template import BlockOps
from sim.program import COMPUTE, Op
from sim.work import MemoryBound


class Reduced:
    """The reductions of one backward, in order. `later`: their results are added to those of earlier micro-batches."""

    def __init__(self, job: Job, blocks: list[BlockOps], units: dict[str, Unit], later: bool) -> None:
        self._job, self._blocks, self._units, self._later = job, blocks, units, later
        self._done: list[Unit] = []

    def late(self, unit: Unit, phase: str) -> list[Op]:
        """What is done to one unit after the last backward of its stage: its parameters are freed, then its gradients are reduced."""
        job = self._job
        return [*hooks(job, phase, unit), *self.partial(unit), reshard(job, phase, unit), *self.reduce(unit)]

    def partial(self, unit: Unit) -> list[Op]:
        """Under DTensor's sequence parallelism, gradients of whole parameters (norms, routers) are summed over tp before they are scattered."""
        if self._job.framework.tensor_parallel.style != "dtensor":
            return []
        return whole_gradients(
            self._job, [part for block in self._blocks if self._units[block.name] == unit for part in block.parts], sharded=True
        )

    def reduce(self, unit: Unit) -> list[Op]:
        """Copy-in (in the dtype of the message) where one buffer holds all gradients, then reduce_scatter, then with replicas the
        all_reduce of the shard."""
        job, ops = self._job, list[Op]()
        if not unit.gradients:
            return ops
        if self._done:  # the buffer of the reduce_scatter before is free
            before = self._done[-1]
            ops += [
                _again(job, f"grad/{unit.name}.room{suffix}.wait", f"grad/{before.name}{suffix}.scattered")
                for suffix, _, _ in before.gradients
            ]
        for suffix, axis, elements in unit.gradients:
            ops += self._message(unit, suffix, axis, elements)
        self._done.append(unit)
        if not job.plan.comm.overlap:
            ops += [_again(job, f"grad/{unit.name}{suffix}.here.wait", self._last(unit, suffix)) for suffix, _, _ in unit.gradients]
        return ops

    def _message(self, unit: Unit, suffix: str, axis: str, elements: int) -> list[Op]:
        job, ops = self._job, list[Op]()
        name, lane, size = f"grad/{unit.name}{suffix}", lane_of(axis), round(elements * job.reduce_bytes)
        full = [*order(job, f"{name}.full", COMPUTE, lane)]
        if job.framework.data_parallel.shard_copies:
            # A pipeline's stages have summed their micro-batches in the dtype that travels (`sim.lower.accumulate`).
            held = job.reduce_bytes if job.size("pp") > 1 else job.param_bytes
            copy = MemoryBound("copy", round(elements * held), size, job.framework.precision.reduce_dtype)
            ops.append(compute(job, f"{name}.copy_in", (copy,), COPY, alloc=size))
        else:
            full[0] = holding(full[0], alloc=size)
        ranks = job.size("grad")  # the rows of all have come to experts
        ops += [*full, *before_message(job, name, lane, elements, ranks)]
        scattered = record(f"{name}.scattered", lane)
        if job.size(axis) > 1:
            message = collective(job, f"{name}.reduce_scatter", lane, "reduce_scatter", size, axis, CLS)
            ops += [called(job, holding(message, free=size)), scattered]
        else:
            ops += [*in_place_of_message(job, name, lane, elements), holding(scattered, free=size)]
        shared = [called(job, op) for op in replicas(job, name, size / job.size(axis), lane)]
        end, shard = shared[-1].lane if shared else lane, elements / job.size(axis)
        tensors = unit.tensors if suffix == unit.gradients[0][0] else 1
        then = [*after_message(job, name, end, shard, ranks), *self._kept(name, end, shard, tensors)]
        return [*ops, *shared, *then, *([record(f"{name}.done", end)] if shared or then else [])]

    def _kept(self, name: str, lane: str, shard: float, tensors: int) -> list[Op]:
        """Puts the reduced shard where the optimizer finds it (host memory if parameters are offloaded), or adds it to what is there."""
        if self._job.plan.parameters_offloaded:
            return on_host.leave(self._job, name, lane, shard, tensors, self._later)
        return joined(self._job, name, lane, shard, tensors) if self._later else []

    def _last(self, unit: Unit, suffix: str) -> str:
        """The event after which a unit's gradients are ready for the optimizer."""
        job = self._job
        kept = self._later or job.plan.parameters_offloaded
        more = job.size("dp_replicate") > 1 or after_message(job, "", "", 1.0, job.size("grad")) or kept
        return f"grad/{unit.name}{suffix}.{'done' if more else 'scattered'}"

    def finish(self, tag: str) -> list[Op]:
        """Waits until the last message of each lane has ended and its gradients are where the optimizer runs."""
        job, last = self._job, dict[str, str]()
        for unit in self._done:
            for suffix, axis, _ in unit.gradients:
                end = "dp_replicate" if job.size("dp_replicate") > 1 else axis
                last[lane_of(end)] = self._last(unit, suffix)
        if job.plan.parameters_offloaded:
            return [on_host.arrived(f"grad/{tag}end.{lane}", event) for lane, event in last.items()]
        return [_again(job, f"grad/{tag}end.{lane}.wait", event) for lane, event in last.items()]


def reduce_stage(job: Job, blocks: list[BlockOps], units: dict[str, Unit], tag: str) -> list[Op]:
    """Reduces all gradients of a stage, which its passes have left whole; compute waits for that (stage.py, perform_reduce_grad)."""
    reduced = Reduced(job, blocks, units, later=False)
    ops = [op for unit in root_first(units, blocks) for op in reduced.late(unit, "grad")]
    return ops + reduced.finish(tag)


def _again(job: Job, id: str, event: str) -> Op:
    return Op(id, "wait", COMPUTE, event=event, blocking=job.device == "cpu")
