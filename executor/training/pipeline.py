"""Pipelines by torch.distributed.pipelining: the model cut as the simulator cuts it, run by PyTorch's schedules."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from executor.kernels.bodies import dtype_of
from executor.ranks.world import World
from executor.training.models.build import Model, loss_of
from executor.training.parallelize import parallel_loss, parallelize, whole
from sim.framework import Framework
from sim.model.specs.decoder import Decoder
from sim.model.specs.spec import Mlp, ModelSpec
from sim.plan import Plan
from topologies.errors import BadInput, Refused


def cuts(plan: Plan, blocks: list[str]) -> list[list[str]]:
    """Names of each stage's blocks: layers shared out evenly or as `parallel.stages` says, the ends on the ends."""
    p = plan.parallel
    count = p.pp * p.virtual_stages
    layers = [name for name in blocks if name.startswith("L")]
    if len(layers) < count:
        raise BadInput(f"the model has {len(layers)} layers for {count} stages (pp x virtual_stages). Use fewer stages")
    shares = p.stages or tuple(len(layers) // count + (i < len(layers) % count) for i in range(count))
    stages, at = [], 0
    for share in shares:
        stages.append(layers[at : at + share])
        at += share
    stages[0] = [name for name in blocks if name == "embed"] + stages[0]
    stages[-1] = stages[-1] + [name for name in blocks if name == "head"]
    return stages


class Pipeline:
    """One rank's stages and the schedule that runs them."""

    def __init__(self, model: Model, plan: Plan, world: World, habits: Framework, mesh: DeviceMesh, seq: int) -> None:
        p = plan.parallel
        names = cuts(plan, [name for name, _ in model.named_children()])
        axis = mesh["pp"]
        self.rank, self.size = axis.get_local_rank(), p.pp
        mine = [i for i in range(len(names)) if i % p.pp == self.rank]
        self.modules: list[nn.Module] = []
        self._tp = mesh["tp"] if p.tp > 1 else None
        stages = []
        dtype = dtype_of(habits.param_dtype)
        for index in mine:
            part = nn.Sequential(OrderedDict((name, model.get_submodule(name)) for name in names[index]))
            self.modules.append(parallelize(part, plan, world, habits, mesh))
            before = names[index - 1][-1] if index else ""
            given, made = (activation(model.spec, plan, seq, end, dtype) for end in (before, names[index][-1]))
            stage = PipelineStage(
                self.modules[-1], index, len(names), world.device, input_args=given, output_args=made, group=axis.get_group()
            )
            stages.append(stage)
        self.last = self.rank == p.pp - 1
        spec, tp = model.spec, self._tp

        def loss(output: Tensor, target: Tensor) -> Tensor:
            return loss_of(spec, output if tp is None else _split_vocabulary(output, tp), target)

        self._schedule = _schedule(plan)(stages[0] if len(stages) == 1 else stages, n_microbatches=plan.microbatches, loss_fn=loss)

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
    """What leaves block `after` on one rank for one micro-batch, without data: stages then need not tell each other."""
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
    """This rank's columns as a part of all: the loss then sums over `tp` by itself."""
    from torch.distributed.tensor import DTensor, Shard

    return DTensor.from_local(logits, mesh, (Shard(-1),), run_check=False)


def _schedule(plan: Plan) -> type:
    p = plan.parallel
    if p.virtual_stages > 1 or p.schedule == "interleaved":
        return ScheduleInterleaved1F1B
    known = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
    if p.schedule not in known:
        raise Refused(f'stock training does not do schedule = "{p.schedule}". Use gpipe, 1f1b or interleaved, or --how play')
    return known[p.schedule]
