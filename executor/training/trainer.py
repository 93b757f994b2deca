"""The training loop, as in PyTorch's examples, on one rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from executor.kernels.bodies import dtype_of
from executor.ranks.world import World, set_precision
from executor.training.examples import Pair
from executor.training.handover import Handover
from executor.training.models.adapters import widen
from executor.training.models.build import loss_of, memory_format, model_for, pack, reads_ids
from executor.training.optimizers import optimizer_of
from executor.training.outer import outer_of
from executor.training.parallelize import clip, device_mesh, expert_mesh, parallel_loss, parallelize, whole
from executor.training.precision import Mixed
from executor.training.samples import Samples, check_shared, loader_of
from executor.training.saving import data_rank, save
from executor.training.unfilled import is_large, without_data
from sim.framework.chosen import framework_of, sharded_alone
from sim.lower.output import due
from sim.model.specs.spec import ModelSpec
from sim.plan import Plan
from sim.rules import mesh_of
from sim.setting.bind import model_of, shape_of

if TYPE_CHECKING:
    from executor.training.pipeline import Pipeline


def sequence_length(plan: Plan, spec: ModelSpec) -> int:
    """Tokens per sample; 1 for vectors."""
    return shape_of(plan, spec).seq if reads_ids(spec) else 1


class Trainer:
    """Everything that one rank needs to take optimizer steps."""

    def __init__(self, world: World, plan: Plan, data: Path, steps: int) -> None:
        self.world, self.plan, self.steps, self.data = world, plan, steps, data
        self.spec = model_of(plan)
        self.seq = sequence_length(plan, self.spec)
        self.habits = framework_of(plan)
        self.data_rank = data_rank(plan, world.rank)
        # Workers are forked before the model exists: each shared page is copied when the rank next writes to it, which lasts dozens of
        # steps.
        self._read = self._reads()
        set_precision(plan.precision == "tf32")
        torch.manual_seed(plan.seed)  # every split starts from the same weights
        with world.device, without_data(is_large(plan, self.habits, world)):  # random weights of a large model take a CPU thread minutes
            model = model_for(self.spec, self.habits, self.seq, plan.parallel.tp)
        pack(model, plan.data.document)
        self.format = memory_format(self.spec, self.habits, world.kind)
        wide = self.habits.precision.wide_adapters and not self.habits.precision.autocast
        dtype = dtype_of(plan.precision if wide else self.habits.precision.param_dtype)
        self.inner = model.to(dtype, memory_format=self.format)  # type: ignore[call-overload]
        if wide:
            widen(model)
        if self.habits.precision.master:  # the optimizer updates fp32; FSDP2 casts the parameters that it gathers, but no buffers
            for parameter in model.parameters():
                parameter.data = parameter.data.float()
        self.mixed = Mixed(plan, self.habits, world.kind)
        self.mesh = device_mesh(plan, world) if world.size > 1 or sharded_alone(plan) else None
        experts = expert_mesh(plan, world)
        self.pipeline: Pipeline | None = None
        if self.mesh is not None and plan.parallel.pp > 1:
            from executor.training.pipeline import Pipeline  # takes seconds to load

            self.pipeline = Pipeline(self.inner, plan, world, self.habits, self.mesh, experts, self.seq)
            self.model: nn.Module = nn.ModuleList(self.pipeline.modules)
            if world.kind == "cuda":
                drop_others(self.inner, self.model)
        else:
            self.model = parallelize(self.inner, plan, world, self.habits, self.mesh, experts)
        self.optimizer = optimizer_of(plan.optimizer.name, self.habits, self.model)
        self.outer = outer_of(plan, self.habits, self.model)
        # One tensor for all steps: a small one kept from each step would split the free memory of its logits, and the next would not fit
        # in.
        self._losses = torch.zeros(steps, device=world.device)
        self._first_buckets: list[int] = []
        self._logs = set[str]()
        self._handover = Handover(plan, world)
        if world.kind == "cuda":  # weights were made in fp32, whose peak of memory is not that of training
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(world.device)

    def _reads(self) -> Iterator[Pair]:
        """The rank's micro-batches on the host. Starts the loader's workers."""
        samples = Samples(self.plan, self.spec, self.seq, self.data, self.steps * self.plan.microbatches * self.plan.batch.micro)
        check_shared(self.plan, samples, self.world.local_size)
        return iter(loader_of(self.plan, samples, self.data_rank, self.steps, self.world.kind == "cuda"))

    def batches(self) -> Iterator[Pair]:
        """The rank's micro-batches on its device, as many as all steps need."""
        for x, y in self._lying() if self.plan.data.source == "device" else map(self._handover, self._read):
            if self.plan.data.create == "cpu":
                torch.rand(x.shape).to(self.world.device)
            elif self.plan.data.create == "device":
                torch.rand(x.shape, device=self.world.device)
            yield x, y

    def _lying(self) -> Iterator[Pair]:
        """The first micro-batch again and again; it stays on the device."""
        return repeat(self._handover(next(self._read)), self.steps * self.plan.microbatches)

    def step(self, batches: Iterator[Pair], number: int) -> None:
        """One optimizer step: all micro-batches, then the update, then output if it is due."""
        train = self.plan.task != "forward"
        with torch.profiler.record_function(f"step:{number}"), contextlib.nullcontext() if train else torch.no_grad():
            total = self._accumulate(batches) if self.pipeline is None else self._through_pipeline(batches)
            if train:
                if self.habits.optimizer.clip:
                    self.mixed.unscale(self.optimizer)
                    clip(self.model, self.mesh)
                self.mixed.step(self.optimizer)
                self.optimizer.zero_grad(set_to_none=not self.habits.optimizer.zeroes_gradients)
            if self.plan.local and due(self.plan.update.every, number):
                self._average()
            self._losses[number] = total
            self._output(number, total)
        if not self._first_buckets:
            self._first_buckets = self._bucket_sizes("bucket_sizes")

    def _accumulate(self, batches: Iterator[Pair]) -> Tensor:
        count = self.plan.microbatches
        total = torch.zeros((), device=self.world.device)
        for index in range(count):
            last = index == count - 1
            x, y = next(batches)
            if not reads_ids(self.spec):
                x = x.to(dtype_of(self.habits.precision.param_dtype), memory_format=self.format)
            with self._without_sync(last):
                with self.mixed.casts():
                    output = self.model(x)
                    with torch.profiler.record_function("part:head.loss"), parallel_loss(self.plan.parallel.tp > 1):
                        loss = loss_of(self.spec, output, y.to(x.dtype) if y.is_floating_point() else y)
                    del output  # logits are large, and backward needs none (torchtitan's train.py does the same)
                if count > 1:
                    loss = loss / count
                if loss.requires_grad:  # not where the task is forward only
                    with parallel_loss(self.plan.parallel.tp > 1):
                        self.mixed.scaled(loss).backward()  # type: ignore[no-untyped-call]
            value = whole(loss.detach())
            if self.habits.optimizer.reads_losses:
                value.isfinite().item()
            total = value if count == 1 else total + value
        return total

    def _through_pipeline(self, batches: Iterator[Pair]) -> Tensor:
        assert self.pipeline is not None
        pairs = [next(batches) for _ in range(self.plan.microbatches)]
        x, y = torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
        if not reads_ids(self.spec):
            x = x.to(dtype_of(self.habits.precision.param_dtype))
        return self.pipeline.step(x, y.to(x.dtype) if y.is_floating_point() else y)

    def _without_sync(self, last: bool) -> contextlib.AbstractContextManager[None]:
        if isinstance(self.model, DistributedDataParallel) and not last:
            return self.model.no_sync()
        return contextlib.nullcontext()

    def _average(self) -> None:
        """Local updates: parameters averaged over all replicas (torch's PeriodicModelAverager does the same), or an outer step."""
        if self.outer is not None:
            self.outer.step()
            return
        from torch.distributed.algorithms.model_averaging.utils import average_parameters

        average_parameters(self.model.parameters(), torch.distributed.distributed_c10d._get_default_group())

    def _output(self, number: int, loss: Tensor) -> None:
        if any(due(one, number) for one in self.plan.output.periods):
            with torch.profiler.record_function("output"):
                self._write(number, loss)

    @property
    def _knows(self) -> bool:
        """True if this rank has the loss; in a pipeline only the last stage has it."""
        return self.pipeline is None or self.pipeline.last

    def _write(self, number: int, loss: Tensor) -> None:
        """Logs, synchronises and saves, each if it is due at this step."""
        out = self.plan.output
        if self._knows and due(out.log_every, number):
            text = f"step {number} loss {loss.item():.5f}"
            if not any(place for axis, place in mesh_of(self.plan).coordinates(self.world.rank).items() if axis != "pp"):
                self._say("train.log", text)
        if self._knows and due(out.item_every, number):
            loss.item()
        if self._knows and due(out.print_every, number):
            self._say(f"print-{self.world.rank}.log", loss)
        if due(out.sync_every, number):
            self.world.synchronize()
        if due(out.checkpoint_every, number):
            outer = {"outer": self.outer.state_dict()} if self.outer is not None else {}
            save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), **outer}, self.plan, self.world)

    def _say(self, name: str, what: object) -> None:
        """Appends a line to a log in the run's folder; the first line overwrites the log of an earlier run."""
        with (self.world.folder / name).open("a" if name in self._logs else "w") as log:
            print(what, file=log)
        self._logs.add(name)

    def buckets(self) -> tuple[list[int], list[int]]:
        """DDP's bucket sizes in bytes: in the first step, and after DDP has rebuilt them. Empty lists without DDP."""
        return self._first_buckets, self._bucket_sizes("rebuilt_bucket_sizes")

    def _bucket_sizes(self, key: str) -> list[int]:
        if not isinstance(self.model, DistributedDataParallel):
            return []
        text = str(
            self.model._get_ddp_logging_data().get(key, "")  # type: ignore[no-untyped-call]
        )
        return [int(size) for size in text.replace(" ", "").split(",") if size]

    def losses(self) -> list[float]:
        """The loss of every step over this rank's samples; [] on ranks that do not have the loss."""
        return [float(loss) for loss in self._losses.tolist()] if self._knows else []

    def peak_memory(self) -> int:
        """Peak memory in bytes: of the allocator on CUDA, of the process's resident set on a CPU."""
        if self.world.kind == "cuda":
            return int(torch.cuda.max_memory_allocated(self.world.device))
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def drop_others(whole: nn.Module, own: nn.Module) -> None:
    """Frees the device memory of the blocks of other ranks' stages; the modules stay, on "meta"."""
    kept = {id(parameter) for parameter in own.parameters()}
    for block in whole.children():
        if not any(id(parameter) in kept for parameter in block.parameters()):
            block.to("meta")
