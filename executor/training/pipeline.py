"""Pipelines by torch.distributed.pipelining: the model cut as the simulator cuts it, run by PyTorch's schedules."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from executor.kernels.bodies import dtype_of
from executor.ranks.world import World
from executor.training.models.build import Model, loss_of
from executor.training.parallelize import parallel_loss, parallelize, whole
from sim.framework.framework import Framework
from sim.model.specs.decoder import Decoder
from sim.model.specs.spec import Mlp, ModelSpec
from sim.model.stages import dealt
from sim.plan import Plan
from sim.schedule import Name, rank_of, schedule
from sim.schedule.reading import name_of
from topologies.errors import BadInput


def cuts(plan: Plan, blocks: list[str], ends: int = 0) -> list[list[str]]:
    """The names of each stage's blocks: layers divided as `parallel.stages` says, or by `dealt` (which `ends` is for); the embedding is in
    the first stage, the head in the last. Raises `BadInput` for fewer layers than stages."""
    p = plan.parallel
    count = p.pp * p.chunks
    layers = [name for name in blocks if name.startswith("L")]
    if len(layers) < count:
        raise BadInput(f"the model has {len(layers)} layers for {count} stages (pp x stages a rank). Use fewer stages")
    shares = p.stages or dealt(len(layers), count, ends)
    stages, at = [], 0
    for share in shares:
        stages.append(layers[at : at + share])
        at += share
    stages[0] = [name for name in blocks if name == "embed"] + stages[0]
    stages[-1] = stages[-1] + [name for name in blocks if name == "head"]
    return stages


class Pipeline:
    """One rank's stages and the schedule that runs them."""

    def __init__(
        self, model: Model, plan: Plan, world: World, habits: Framework, mesh: DeviceMesh, experts: DeviceMesh | None, seq: int
    ) -> None:
        p = plan.parallel
        names = cuts(plan, [name for name, _ in model.named_children()], habits.pipeline.ends_as_layers)
        axis = mesh["pp"]
        self.rank, self.size = axis.get_local_rank(), p.pp
        order = name_of(p)
        holders = [rank_of(order, p.pp, i) for i in range(len(names))]
        mine = [i for i, holder in enumerate(holders) if holder == self.rank]
        self.modules: list[nn.Module] = []
        self._tp = mesh["tp"] if p.tp > 1 else None
        stages = []
        dtype = dtype_of(habits.precision.param_dtype)
        for index in mine:
            part = nn.Sequential(OrderedDict((name, model.get_submodule(name)) for name in names[index]))
            self.modules.append(parallelize(part, plan, world, habits, mesh, experts))
            before = names[index - 1][-1] if index else ""
            given, made = (activation(model.spec, plan, seq, end, dtype) for end in (before, names[index][-1]))
            stage = PipelineStage(
                self.modules[-1], index, len(names), world.device, input_args=given, output_args=made, group=axis.get_group()
            )
            stages.append(stage)
        self.last = self.rank == holders[-1]
        spec, tp = model.spec, self._tp

        def loss(output: Tensor, target: Tensor) -> Tensor:
            return loss_of(spec, output if tp is None else _split_vocabulary(output, tp), target)

        self._schedule = schedule_of(plan, stages, loss)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """Forward and backward of all micro-batches; the mean loss on the last stage, zero elsewhere."""
        losses: list[Tensor] = []
        inputs = (x,) if self.rank == 0 else ()
        with parallel_loss(self._tp is not None):
            if self.last:
                self._schedule.step(*inputs, target=y, losses=losses, return_outputs=False)
            else:
                self._schedule.step(*inputs)
        return torch.stack([whole(loss.detach()) for loss in losses]).mean() if losses else torch.zeros((), device=x.device)


def activation(spec: ModelSpec, plan: Plan, seq: int, after: str, dtype: torch.dtype) -> Tensor:
    """The output of block `after` ("": the model's input) on one rank for one micro-batch, on "meta", without data. With it, stages need
    not send each other their shapes."""
    micro, p = plan.batch.micro, plan.parallel
    if isinstance(spec, Mlp):
        width = spec.widths[0] if not after else spec.widths[int(after[1:]) + 1]
        return torch.empty(micro, width, dtype=dtype, device="meta", requires_grad=bool(after))
    assert isinstance(spec, Decoder)
    if not after:
        return torch.empty(micro, seq, dtype=torch.int64, device="meta")
    if after == "head":
        return torch.empty(micro, seq, spec.vocab // p.tp, dtype=dtype, device="meta", requires_grad=True)
    rows = seq // p.tp if p.tp > 1 and p.sequence_parallel else seq
    return torch.empty(micro, rows, spec.hidden, dtype=dtype, device="meta", requires_grad=True)


def _split_vocabulary(logits: Tensor, mesh: DeviceMesh) -> Tensor:
    """The logits of this rank's slice of the vocabulary as a DTensor, so that the loss reduces over `tp` by itself."""
    from torch.distributed.tensor import DTensor, Shard

    return DTensor.from_local(logits, mesh, (Shard(-1),), run_check=False)


_SINGLE: dict[Name, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_SEVERAL: dict[Name, Any] = {
    "interleaved": ScheduleInterleaved1F1B,
    "looped-bfs": ScheduleLoopedBFS,
    "zb-h1": ScheduleInterleavedZeroBubble,
    "zb-v": ScheduleZBVZeroBubble,
    "dualpipe": ScheduleDualPipeV,
}
"""Schedules whose classes take a list of the rank's stages, even of a single one."""


def schedule_of(plan: Plan, stages: list[PipelineStage], loss: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """torch's schedule of the plan's name. If torch has none, or the plan has its own actions, torch's runtime with the actions of each
    rank."""
    p, name = plan.parallel, name_of(plan.parallel)
    more: dict[str, Any] = {"n_microbatches": plan.microbatches, "loss_fn": loss}
    if name in _SINGLE:
        return _SINGLE[name](stages[0], **more)
    if name in _SEVERAL:
        return _SEVERAL[name](stages, **more)
    runtime = _PipelineScheduleRuntime(stages, **more)  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as folder:  # torch reads actions only from files
        path = Path(folder) / "schedule.csv"
        lines = (schedule(name, p.pp, rank, plan.microbatches, p.virtual_stages) for rank in range(p.pp))
        path.write_text("".join(f"{','.join(map(str, line))}\n" for line in lines))
        runtime._load_csv(str(path))
    return runtime
