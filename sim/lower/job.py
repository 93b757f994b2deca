"""What every lowering pass reads: the plan with its network, framework and mesh, and what follows from them."""

from __future__ import annotations

import msgspec

from sim.framework.chosen import is_fsdp2, keeps_among, owns_tensors
from sim.framework.framework import Framework
from sim.mesh import Mesh
from sim.model.parts import Network, Part
from sim.plan import Plan
from sim.schedule import Name
from sim.schedule.reading import name_of
from sim.schedule.shards import by_actions

EAGER = ("python", "te", "te-graphs")
"""Hosts that run Python modules and autograd beside the launches."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One plan being lowered. Made by `binding.job_of`."""

    plan: Plan
    network: Network
    framework: Framework
    mesh: Mesh
    device: str
    steps: int
    counts: tuple[int, ...]
    """Micro-batches of each data-parallel rank, step by step."""
    zero: int
    """ZeRO stage that is lowered, 0 to 3: 0 also where no other rank shares the parameters, 3 where the framework implements ZeRO-2 as FSDP that keeps
    gathered parameters until backward (`sim.framework.chosen.sharding_of`)."""
    reshard: bool
    """zero = 3: gathered parameters are freed after forward and gathered again for backward. False in pipelines: these keep them, or free them as
    the schedule says (`unshards`)."""
    train: bool
    """Backward, gradients and an update; false for task = "forward"."""
    eager: bool
    """Python modules and autograd run on the host beside the launches."""
    compiled: bool
    """One compiled call for each block in place of its modules."""
    param_bytes: float
    """Bytes of one parameter as forward reads it."""
    grad_bytes: float
    """Bytes of one gradient element as backward accumulates it and the optimizer reads it."""
    reduce_bytes: float
    """Bytes of one gradient element in the messages between data-parallel ranks."""
    act: str
    """dtype of activations."""
    crossings: tuple[tuple[int, int], ...] = ()
    """For each pipeline stage: bytes of activations that it receives for one micro-batch, and bytes of gradients that it sends back for them."""

    def size(self, axis: str) -> int:
        return self.mesh.size(axis)

    def before(self, step: int) -> int:
        """Micro-batches of all steps before."""
        return sum(self.counts[:step])

    @property
    def data_axis(self) -> str:
        """Mesh axis over which dense gradients are averaged."""
        return self.mesh.data_axis

    @property
    def overlap_grad(self) -> bool:
        """Gradients are reduced while backward still runs."""
        return self.plan.comm.overlap and self.framework.data_parallel.overlap_grad and not self.sums_at_end

    @property
    def sums_at_end(self) -> bool:
        """Replicas (zero = 0) reduce their gradients after backward has ended."""
        return self.zero == 0 and self.framework.data_parallel.replicas_at_end

    @property
    def flat_gradients(self) -> bool:
        """Gradients live in one flat buffer (Megatron) in place of one tensor each."""
        return self.framework.linears.accumulates

    @property
    def casts_buckets(self) -> bool:
        """Gradients of a bucket are cast to the dtype of the message before they are sent, and back after."""
        return self.framework.precision.casts and self.zero < 3

    @property
    def fsdp2(self) -> bool:
        """Sharded gradients go through torch's FSDP2, which casts and divides them in passes of its own."""
        return self.zero == 3 and is_fsdp2(self.framework)

    @property
    def keeps_among(self) -> bool:
        """Between forward and backward the gathered parameters stay sharded over a few neighbours (FSDP2's reshard_after_forward = 8)."""
        return keeps_among(self.plan, self.framework)

    @property
    def dtensor(self) -> bool:
        """Linears are modules of DTensors, split by `parallelize_module`, each call of which Python dispatches."""
        return self.framework.tensor_parallel.style == "dtensor" and self.size("tp") > 1 and self.eager and not self.compiled

    @property
    def readers(self) -> float:
        """Share of the ranks of a tensor-parallel group whose loaders read batches: 1, or 1 / tp where the first rank reads for all of them. On a CPU
        every rank reads, as PyTorch's own training loop does there."""
        one = self.framework.tensor_parallel.reads == "first" and self.device != "cpu"
        return 1.0 / self.size("tp") if one else 1.0

    @property
    def reduces_apart(self) -> bool:
        """FSDP in a pipeline: gradients are reduced by actions of the schedule, not inside the stage's backward."""
        return self.zero == 3 and self.train and self.size("pp") > 1 and self.framework.pipeline.actions

    @property
    def unshards(self) -> bool:
        """FSDP in a pipeline: parameters, too, are gathered and freed by actions of the schedule (UNSHARD, RESHARD)."""
        return self.reduces_apart and by_actions(self.schedule, self.plan.parallel.virtual_stages)

    @property
    def schedule(self) -> Name:
        """The order of a pipeline's work. A schedule file whose actions equal those of a named schedule counts as the named one. Exception: torch's
        1F1B and GPipe, which have code of their own that waits for messages, while torch runs files by `_PipelineScheduleRuntime`."""
        name = name_of(self.plan.parallel)
        if isinstance(name, str) or (self.framework.pipeline.actions and not by_actions(name.known, name.chunks)):
            return name
        return name.known or name

    @property
    def owns_tensors(self) -> bool:
        """ZeRO-1 where each rank updates whole tensors, not equal pieces of each bucket."""
        return owns_tensors(self.plan, self.framework, self.zero)

    @property
    def gathers_ahead(self) -> bool:
        """ZeRO-1 and -2: updated parameters are gathered while the next forward runs, not right after the update. False where owners of whole tensors
        broadcast them (Megatron-Core's LayerWiseDistributedOptimizer requires overlap_param_gather to be off)."""
        return self.train and self.zero in (1, 2) and self.framework.data_parallel.overlap_param and not self.owns_tensors

    def gathered_bytes(self, elements: int, narrow: int) -> int:
        """Bytes that `elements` parameters take in an all_gather. Of these, `narrow` belong to linears that run in 8 bits: they count one byte each
        where the framework sends them in 8 bits, else `param_bytes` as all others."""
        habits = self.framework.data_parallel
        few = narrow if habits.quantises_gathered == "shards" or self.plan.precision in habits.sends_narrow else 0
        return round((elements - few) * self.param_bytes) + few

    def shards(self, part: Part) -> int:
        """Ranks that share one copy of the part's parameters (ZeRO)."""
        return max(1, self.size(self.mesh.shard_axis(part.expert)))
