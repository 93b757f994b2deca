"""Makes a plan of the GPU table fit this machine: reduces layers to the device's memory, and prefetched batches to the shared memory of
loader workers; and says what was changed."""

from __future__ import annotations

import os

from msgspec.structs import replace

from executor.training.samples import shared_room
from executor.validation.gpu_cases import Case, shared_machine, slow
from executor.validation.gpu_plans import fewer_layers
from executor.validation.gpu_site import Site
from sim.framework.chosen import framework_of
from sim.memory.report import memory_of
from sim.plan import Plan
from sim.setting.bind import Setting, bind
from sim.work import Attention
from topologies.errors import BadInput
from topologies.hardware import Gpu
from topologies.units import show_size

_SAFE = 0.85
"""Largest share of the device's memory that a plan may need as predicted: predictions of memory are some percent off."""


def fitting(case: Case, site: Site) -> tuple[Setting, Plan]:
    """The plan and its setting on the machine, with as many prefetched batches as shared memory holds, and as many layers as the device's
    memory holds. Raises `BadInput` if it does not fit even with the fewest layers."""
    plan = case.plan
    if plan.data.workers and (free := shared_room()) is not None:
        plan = handed(plan, _bound(plan, case, site).network.sample_bytes, free)
    while True:
        setting = _bound(plan, case, site)
        if site.device == "cpu":
            return setting, plan
        device = setting.topology.device(0)
        safe = replace(device, memory=int(device.memory * _SAFE / (plan.world if case.where == "shared" else 1)))
        lacking = memory_of(setting.plan, setting.network, setting.framework, safe, remedies=False).check(safe, remedies=False)
        if lacking is None:
            return setting, plan
        smaller = fewer_layers(plan)
        if smaller is None:
            raise BadInput(f"needs {show_size(lacking.needed)} of the {show_size(lacking.available)} that this GPU has for it")
        plan = smaller


_ROOMY = 0.9
"""Share of the free shared memory that batches may fill: each batch, and each tensor of labels, is a file of whole pages."""
_LOADERS = 4
"""Least number of loader workers: with fewer, a step on a fast GPU might wait for its pictures."""


def handed(plan: Plan, sample: int, room: int) -> Plan:
    """The plan, changed so that the batches of its loader workers, of `sample` bytes per sample, fit into `room` bytes: first one
    prefetched batch for each worker, then fewer workers, then smaller batches. Containers have 64 MiB of shared memory by default, less
    than two batches of 64 pictures."""
    while plan.batch.micro * sample * (plan.data.workers * plan.data.prefetch + 1) * plan.world > room * _ROOMY:  # one more batch is in use
        data, batch = plan.data, plan.batch
        if data.prefetch > 1:
            plan = replace(plan, data=replace(data, prefetch=1))
        elif data.workers > _LOADERS:
            plan = replace(plan, data=replace(data, workers=max(_LOADERS, data.workers // 2)))
        elif batch.micro > 1:
            whole = max(1, batch.global_ // 2) if batch.global_ else None
            plan = replace(plan, batch=replace(batch, micro=batch.micro // 2, global_=whole))
        else:
            break
    return plan


def _bound(plan: Plan, case: Case, site: Site) -> Setting:
    if case.where == "shared" and site.device == "cuda":
        machine = shared_machine(plan.world, site.machine.device(0).name, site.folder)
        return _attending(bind(plan, machine, (*slow(plan.world), "without=p2p")))
    return _attending(bind(plan, site.machine))


_CUDNN = 91500
"""torch prefers cuDNN's attention if cuDNN is newer than this version (check_prefer_cudnn_attention,
aten/src/ATen/native/transformers/cuda/sdp_utils.cpp of 2.10 to 2.14): the wheels of 2.11 contain such a version, some for CUDA 12 an older
one."""
_PREFERS = ("sm90", "sm100")
"""Architectures on which torch prefers cuDNN: compute capability 9.0 and 10.0."""


_NARROW = ("bf16", "fp16")
"""Dtypes of cuDNN's attention; fp32 runs in torch's memory-efficient kernels."""


def _attending(setting: Setting) -> Setting:
    """The setting, with the attention kernels that this machine's torch chooses. The description of plain PyTorch has the kernels of
    earlier versions, which take half as long again on an H100."""
    device, habits = setting.topology.device(0), setting.framework
    if not isinstance(device, Gpu) or device.arch not in _PREFERS or habits.attention.kernels != "flash2" or _cudnn() <= _CUDNN:
        return setting
    works = (work for _, block in setting.network.blocks for part in block.parts for work in part.forward)
    if not any(isinstance(work, Attention) and work.dtype in _NARROW for work in works):
        return setting
    return replace(setting, framework=habits.but(attention={"kernels": "cudnn"}))


def _cudnn() -> int:
    """Version of the cuDNN that torch has loaded, 91901 for 9.19.1; 0 without cuDNN, or if the environment tells torch not to prefer it."""
    import torch

    if os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1":
        return 0
    try:
        return int(torch.backends.cudnn.version() or 0)  # type: ignore[no-untyped-call]
    except RuntimeError:  # torch was built with another version
        return 0


def notes(case: Case, setting: Setting) -> tuple[str, ...]:
    """Sentences that are needed to read a row's figures: what was changed or assumed."""
    found, plan = [], setting.plan
    if plan.model_name != case.plan.model_name:
        found.append(f"{case.plan.model_name} does not fit here: run as {plan.model_name}")
    if plan.data != case.plan.data or plan.batch != case.plan.batch:
        micro, workers, ahead = plan.batch.micro, plan.data.workers, plan.data.prefetch
        found.append(
            f"shared memory (/dev/shm, {show_size(shared_room() or 0)}) does not hold the loaders' batches: run with batches of {micro}, "
            f"{workers} loader workers and {ahead} ready of each"
        )
    if framework_of(plan).attention.kernels != setting.framework.attention.kernels:
        found.append(f"attention by {setting.framework.attention.kernels}'s kernels, which this torch chooses on such a GPU")
    if case.where == "shared":
        found.append("predicted on a stand-in: each rank on a GPU of its own with its share of the speed, without peer-to-peer (assumed)")
    if plan.output.checkpoint_every > 1:
        found.append("played without checkpoints, which do not come with every step")
    return tuple(found)
