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
    """0-3; 0 also where there is nobody to share with, 3 where the framework's ZeRO-2 is an FSDP that keeps its parameters."""
    reshard: bool
    """zero = 3: gathered parameters are freed after forward, which no stage of a pipeline does."""
    train: bool
    """Backward, gradients and an update; false for task = "forward"."""
    eager: bool
    """Python modules and autograd run on the host beside the launches."""
    compiled: bool
    """One compiled call for each block in place of its modules."""
    param_bytes: float
    """Bytes of one parameter as forward reads it."""
    grad_bytes: float
    reduce_bytes: float
    """Bytes of one gradient element on the wire."""
    act: str
    """dtype of activations."""
    crossings: tuple[tuple[int, int], ...] = ()
    """Bytes that go into each stage of a pipeline for one micro-batch, and that come back as gradients."""

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
        return self.plan.comm.overlap and self.framework.data_parallel.overlap_grad and not self.sums_at_end

    @property
    def sums_at_end(self) -> bool:
        return self.zero == 0 and self.framework.data_parallel.replicas_at_end

    @property
    def flat_gradients(self) -> bool:
        """Gradients live in one flat buffer (Megatron) in place of one tensor each."""
        return self.framework.linears.accumulates

    @property
    def casts_buckets(self) -> bool:
        """A full bucket is cast for its message, and back."""
        return self.framework.precision.casts and self.zero < 3

    @property
    def fsdp2(self) -> bool:
        """Sharded gradients go through torch's FSDP2, which casts and divides them in passes of its own."""
        return self.zero == 3 and is_fsdp2(self.framework)

    @property
    def keeps_among(self) -> bool:
        """From forward to backward gathered parameters lie with neighbours, each with a part."""
        return keeps_among(self.plan, self.framework)

    @property
    def dtensor(self) -> bool:
        """Linears are modules of DTensors, split by `parallelize_module`, each call of which Python dispatches."""
        return self.framework.tensor_parallel.style == "dtensor" and self.size("tp") > 1 and self.eager and not self.compiled

    @property
    def readers(self) -> float:
        """Of the ranks of a tensor parallel group, the share whose loaders read its batches. What trains on a CPU is PyTorch's own machinery,
        where each of them does."""
        one = self.framework.tensor_parallel.reads == "first" and self.device != "cpu"
        return 1.0 / self.size("tp") if one else 1.0

    @property
    def reduces_apart(self) -> bool:
        """A stage's gradients of FSDP are reduced apart from its passes."""
        return self.zero == 3 and self.train and self.size("pp") > 1 and self.framework.pipeline.actions

    @property
    def unshards(self) -> bool:
        """So are its parameters gathered and freed, as the schedule says."""
        return self.reduces_apart and by_actions(self.schedule, self.plan.parallel.virtual_stages)

    @property
    def schedule(self) -> Name:
        """The order of a pipeline's work. A file that says what a schedule with a name does is that one, but for torch's 1F1B and GPipe: these
        have code of their own, which waits for its messages, and files go to its runtime of actions (`_PipelineScheduleRuntime`)."""
        name = name_of(self.plan.parallel)
        if isinstance(name, str) or (self.framework.pipeline.actions and not by_actions(name.known, name.chunks)):
            return name
        return name.known or name

    @property
    def owns_tensors(self) -> bool:
        """A rank of ZeRO-1 updates whole tensors."""
        return owns_tensors(self.plan, self.framework, self.zero)

    @property
    def gathers_ahead(self) -> bool:
        """ZeRO-1 and -2: updated parameters are gathered beside the next forward, not after the update. What owners broadcast is not
        (Megatron-Core's LayerWiseDistributedOptimizer wants overlap_param_gather off)."""
        return self.train and self.zero in (1, 2) and self.framework.data_parallel.overlap_param and not self.owns_tensors

    def gathered_bytes(self, elements: int, narrow: int) -> int:
        """Of so many parameters on their way to who gathers them: one for each of the `narrow` ones, of linears in 8 bits, where these travel so."""
        habits = self.framework.data_parallel
        few = narrow if habits.quantises_gathered == "shards" or self.plan.precision in habits.sends_narrow else 0
        return round((elements - few) * self.param_bytes) + few

    def shards(self, part: Part) -> int:
        """Ranks that share one copy of the part's parameters (ZeRO)."""
        return max(1, self.size(self.mesh.shard_axis(part.expert)))
