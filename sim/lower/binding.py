"""Binds a plan to its network, framework and mesh for the passes of lowering. Refuses what cannot be combined, and says what to change."""

from __future__ import annotations

import msgspec

from sim.framework.chosen import sharding_of
from sim.framework.framework import Framework
from sim.lower.job import EAGER, Job
from sim.lower.optimizer.adafactor import unknown
from sim.model.parts import Network
from sim.model.stages import Blocks, layout
from sim.plan import Plan
from sim.rules import mesh_of
from sim.schedule import splits
from sim.work import BYTES, activation_dtype
from topologies.errors import Refused


def job_of(plan: Plan, network: Network, framework: Framework, device: str, steps: int, counts: tuple[int, ...] = ()) -> Job:
    """Binds the inputs of lowering; `counts` as in `lower`. Raises `Refused` for combinations that are not supported."""
    mesh = mesh_of(plan)
    zero, reshard = sharding_of(plan, framework)
    job = Job(
        plan=plan,
        network=network,
        framework=framework,
        mesh=mesh,
        device=device,
        steps=steps,
        counts=counts or (plan.microbatches,) * steps,
        zero=zero,
        reshard=reshard,
        train=plan.task != "forward",
        eager=framework.host in EAGER and not framework.cuda_graphs,
        compiled=framework.compile,
        param_bytes=BYTES[framework.precision.param_dtype],
        grad_bytes=BYTES[framework.precision.grad_dtype],
        reduce_bytes=BYTES[framework.precision.reduce_dtype],
        act=activation_dtype(plan.precision),
    )
    refuse(job)
    return msgspec.structs.replace(job, crossings=tuple(_crossing(network, stage) for stage in layout(network, plan)))


def _crossing(network: Network, stage: Blocks) -> tuple[int, int]:
    """Bytes that the stage's first block receives, and bytes of the gradients that it sends back. They differ by stage: feature maps of
    images get smaller, and deeper, on the way."""
    block = stage[0][1]
    back = (block.saved_input or network.boundary) + block.beside
    return back + block.chosen, back


def refuse(job: Job) -> None:
    """Raises `Refused` with the reason for what cannot be combined."""
    p = job.plan.parallel
    inside = job.size("fsdp") * job.mesh.copies
    if job.size("ep") > 1 and job.zero and inside % job.size("ep"):
        raise Refused(
            f"ep = {p.ep} does not divide dp_shard x cp{' x tp / etp' if job.mesh.copies > 1 else ''} = {inside}: sharded experts (zero = {job.zero}) need whole expert groups "
            "inside one sharding group. Use a smaller ep, a larger dp_shard, or zero = 0"
        )
    _refuse_tables(job)
    _refuse_parts_of_a_batch(job)
    _refuse_offload(job)
    _refuse_kept(job)
    _refuse_muon(job)
    _refuse_adafactor(job)
    _refuse_states(job)
    _refuse_reduction(job)
    _refuse_whole(job)
    if p.pp > 1 and job.zero > job.framework.pipeline.zero:
        raise Refused(
            f"{job.framework.name} runs pipelines with zero = {job.framework.pipeline.zero} at most, not {job.zero}: its engine sums whole "
            f"gradients over the micro-batches. Use zero = {job.framework.pipeline.zero}, pp = 1, or another framework"
        )
    if job.plan.memory.offload == "activations" and p.pp > 1 and job.schedule != "dualpipe" and splits(job.schedule):
        raise Refused(f'memory.offload = "activations" needs whole backward passes; {p.schedule} splits them. Use schedule = "1f1b"')
    if job.plan.update.aggregate != "gpu" and (job.zero or p.tp * p.pp * p.cp * p.ep > 1):
        raise Refused(
            f'update.aggregate = "{job.plan.update.aggregate}" sums whole gradients in one place: use it with tp = pp = cp = ep = 1 and zero = 0'
        )
    if not job.train and p.pp > 1 and job.schedule not in ("gpipe", "1f1b"):
        raise Refused(f'task = "forward" has no backward to schedule: use schedule = "gpipe", not "{p.schedule}"')


def _refuse_offload(job: Job) -> None:
    """Refuses offloading on a CPU, where device memory is host memory, and offloading of parameters that are not gathered block by
    block."""
    offload = job.plan.memory.offload
    said = 'optimizer.on = "cpu"' if offload == "none" and job.plan.optimizer.on == "cpu" else f'memory.offload = "{offload}"'
    if job.device == "cpu" and (offload != "none" or job.plan.optimizer.on == "cpu"):
        raise Refused(f"{said} moves device memory to the host; on a CPU they are the same. Leave it out")
    if offload != "parameters":
        return
    habits = job.framework.data_parallel
    if not habits.offloads_parameters:
        raise Refused(
            f'{job.framework.name} keeps parameters on the devices; {said} is what FSDP2 and DeepSpeed do. Use framework = "torchtitan", "pytorch" '
            'or "deepspeed", or offload = "optimizer"'
        )
    if job.zero != 3 or not job.reshard:
        raise Refused(
            f"{said} is for shards, which are gathered and freed with each block. Set zero = 3 (on a single GPU, too), reshard_after_forward = true "
            'and pp = 1, or offload = "optimizer"'
        )


def _refuse_kept(job: Job) -> None:
    """Refuses parameters that stay sharded over a smaller mesh between forward and backward, where the framework cannot do that, or not
    with such parameters."""
    if not job.keeps_among:
        return
    said, instead = f"parallel.reshard_after_forward = {job.mesh.inner}", "Use reshard_after_forward = true"
    if not job.framework.data_parallel.keeps_among:
        raise Refused(
            f'{job.framework.name} frees what it gathers, or keeps it whole; {said} is what FSDP2 and DeepSpeed do. {instead}, or framework = "torchtitan", '
            '"pytorch" or "deepspeed"'
        )
    if job.fsdp2 and job.size("tp") > 1:  # torch 2.13, _fsdp_param.py: to_sharded_post_forward
        raise Refused(
            f"{said} with tp = {job.size('tp')}: FSDP2 does not keep a part of what tensor parallelism splits. {instead}, or tp = 1"
        )
    if job.mesh.apart:
        raise Refused(f"{said} with experts in groups of their own (ep = {job.size('ep')}) is not supported. {instead}")
    if job.plan.parameters_offloaded:
        raise Refused(f'{said} keeps parameters on the devices, and memory.offload = "parameters" on the host. Leave one of them out')
    if job.framework.data_parallel.quantises_gathered == "shards" and BYTES[job.plan.precision] < 2:
        raise Refused(f"{said}: shards that travel in 8 bits are not kept so (FSDP2's all_gather_inputs has no such case). {instead}")


def _refuse_muon(job: Job) -> None:
    """Refuses Muon where the host updates, or where the network has no matrices."""
    plan = job.plan
    if plan.optimizer.name != "muon" or not job.train:
        return
    if job.plan.host_updates:
        raise Refused(
            'optimizer.name = "muon" multiplies matrices, which a host that updates is too slow for. Leave optimizer.on, '
            'memory.offload = "optimizer", update.aggregate and update.mode = "async" out, or use "adamw"'
        )
    if not any(part.matrices for _, block in job.network.blocks for part in block.parts):
        raise Refused(
            f'{job.network.name} has no matrices in its layers, which optimizer.name = "muon" needs (an older version\'s capture does not say: '
            'capture it again). Use "adamw"'
        )


def _refuse_adafactor(job: Job) -> None:
    """Refuses Adafactor where the update is not torch's own on the device, where a rank has no whole matrices, or where the network
    does not say how long their sides are."""
    o, said = job.plan.optimizer, 'optimizer.name = "adafactor"'
    if o.name != "adafactor" or not job.train:
        return
    if job.plan.host_updates or job.framework.optimizer.implementation not in ("foreach", "for-loop"):
        raise Refused(
            f'{said} is torch.optim.Adafactor on the device, without fused kernels. Set optimizer.implementation = "foreach", and leave '
            'optimizer.on, memory.offload = "optimizer", update.aggregate and update.mode = "async" out, or use "adamw"'
        )
    if job.zero or job.size("tp") > 1 or (job.size("pp") > 1 and job.network.tied):
        raise Refused(
            f"{said} takes whole matrices, each by its rows and columns. Use zero = 0 and tp = 1, and no pipeline of a tied embedding, "
            'or "adamw"'
        )
    strange = unknown(part for _, block in job.network.blocks for part in block.parts)
    if strange:
        raise Refused(
            f"{said} factors what has two dimensions, and {job.network.name} does not say which of {strange} have. Use a dense decoder, an encoder "
            'or an MLP, or "adamw"'
        )


def _refuse_states(job: Job) -> None:
    """Refuses moments of another dtype than the parameters where the update has no kernels that read both."""
    o = job.plan.optimizer
    if o.states is None or not job.train:
        return
    said = f'optimizer.states = "{o.states}"'
    if o.name == "muon" or job.plan.host_updates:
        raise Refused(f"{said} is for fused updates on the device, not for Muon or a host's. Leave it out")
    if job.framework.optimizer.implementation != "fused":
        raise Refused(
            f"{said}: {job.framework.name} updates by torch's own kernels, whose moments are as wide as the parameters. "
            'Set optimizer.implementation = "fused" (TransformerEngine and bitsandbytes have such kernels), or leave it out'
        )


def _refuse_reduction(job: Job) -> None:
    """Refuses to cast a flat buffer of gradients for its message: it is summed in the dtype that it has."""
    how, dtype = job.framework, job.plan.comm.reduce_dtype
    if dtype is not None and job.flat_gradients and dtype not in ("fp32", how.precision.param_dtype):
        allowed = " or ".join(f'"{one}"' for one in dict.fromkeys(("fp32", how.precision.param_dtype)))
        raise Refused(
            f'comm.reduce_dtype = "{dtype}": {how.name} keeps gradients in one buffer, of fp32 or as its parameters '
            f"(grad_reduce_in_fp32). Use {allowed}, or leave it out"
        )


def _refuse_whole(job: Job) -> None:
    """Refuses FSDP of weights in four bits, and of weights that two passes share: it gathers parameters of one dtype, for the block
    that holds them."""
    if job.zero >= 3 and job.network.stored_apart:
        raise Refused(
            f'lora.base = "nf4" with zero = {job.zero}: weights packed in four bits are supported only whole on each rank. Set zero = 2 at most, or split '
            "the layers (parallel.pp, parallel.tp), or leave lora.base out"
        )
    if job.zero >= 3 and job.network.lent:
        raise Refused(
            f'task = "dpo" beside adapters with zero = {job.zero}: the weights that both passes run on are supported only whole on each rank. Set zero = 2 '
            "at most, or split the layers (parallel.tp), or leave lora out of the [model] table"
        )


def _refuse_parts_of_a_batch(job: Job) -> None:
    """Refuses to split the batch of a contrastive loss, which compares all its samples: no micro-batch has gradients of its own, and no
    rank trains alone."""
    if not job.network.compares:
        return
    if job.plan.asynchronous or job.plan.local:
        raise Refused(
            f'{job.network.name}: its loss compares the samples of all ranks, of which update.mode = "{job.plan.update.mode}" lets each train alone. '
            'Set update.mode = "sync"'
        )
    if job.plan.noise.imbalance != "none":
        raise Refused(
            f"{job.network.name}: its loss compares the samples of all ranks, of which each has as many as the others (torch's all_gather, and SigLIP's "
            "exchanges, take tensors of one size). Leave noise.imbalance out"
        )
    if job.plan.microbatches > 1:
        raise Refused(
            f"{job.network.name}: its loss compares all samples of a batch, which {job.plan.microbatches} micro-batches would part (open_clip's "
            f"accum_freq, which runs forward twice, is not supported). Set batch.micro = {job.plan.batch.micro * job.plan.microbatches}"
        )


def _refuse_tables(job: Job) -> None:
    """Refuses copies or shards of tables that their own backward updates: each such table must lie on one rank."""
    if all(part.own_state is None for _, block in job.network.blocks for part in block.parts):
        return
    if job.size("edp") > 1:
        raise Refused(
            f"{job.network.name}: its tables are updated where they lie, and copies of them would differ. "
            f"Set parallel.ep = dp_replicate x dp_shard = {job.size('grad') * job.mesh.copies}"
        )
    if job.zero:
        raise Refused(f"{job.network.name}: its tables lie on one rank each, and the rest is small: set parallel.zero = 0")
