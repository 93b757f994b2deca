"""A plan of the GPU table as it fits here: on its machine, with as many layers as the device's memory holds, and what that changes."""

from __future__ import annotations

import os

from msgspec.structs import replace

from executor.validation.gpu_cases import Case, shared_machine, slow
from executor.validation.gpu_plans import fewer_layers
from executor.validation.gpu_site import Site
from sim.bind import Setting, bind
from sim.framework import framework_of
from sim.plan import Plan
from sim.predict import predict_setting
from topologies.errors import BadInput
from topologies.hardware import Gpu

_SAFE = 0.85
"""Share of the device's memory that a predicted peak may fill: the caching allocator rounds up, and CUDA has its own context."""


def fitting(case: Case, site: Site) -> tuple[Setting, Plan]:
    """The plan on its machine, with as many layers as the device's memory holds. Raises `BadInput` where not even one fits."""
    plan = case.plan
    while True:
        setting = _bound(plan, case, site)
        if site.device == "cpu":
            return setting, plan
        found = predict_setting(setting, fold=True, detail=False)
        room = setting.topology.device(0).memory * _SAFE / (plan.world if case.where == "shared" else 1)
        if found.peak_memory_bytes <= room:
            return setting, plan
        smaller = fewer_layers(plan)
        if smaller is None:
            raise BadInput(f"needs {found.peak_memory_bytes / 2**30:.1f} GiB of the {room / 2**30:.1f} that this GPU has for it")
        plan = smaller


def _bound(plan: Plan, case: Case, site: Site) -> Setting:
    if case.where == "shared" and site.device == "cuda":
        machine = shared_machine(plan.world, site.machine.device(0).name, site.folder)
        return _attending(bind(plan, machine, (*slow(plan.world), "without=p2p")))
    return _attending(bind(plan, site.machine))


_CUDNN = 91500
"""torch takes cuDNN's attention first where that is newer (check_prefer_cudnn_attention, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp
of 2.10 to 2.14): the wheels of 2.11 bring such a one, some for CUDA 12 an older."""
_PREFERS = ("sm90", "sm100")
"""Architectures on which it does: compute capability 9.0 and 10.0."""


def _attending(setting: Setting) -> Setting:
    """With the kernels of attention that this torch chooses. What is said of plain PyTorch are those that it had chosen before: an H100 takes half
    as long again by them."""
    device, habits = setting.topology.device(0), setting.framework
    if not isinstance(device, Gpu) or device.arch not in _PREFERS or habits.attention_efficiency != "flash2" or _cudnn() <= _CUDNN:
        return setting
    return replace(setting, framework=replace(habits, attention_efficiency="cudnn"))


def _cudnn() -> int:
    """Version of the cuDNN that torch has loaded, 91901 for 9.19.1; 0 without one, or where attention is not to be cuDNN's first."""
    import torch

    if os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1":
        return 0
    try:
        return int(torch.backends.cudnn.version() or 0)  # type: ignore[no-untyped-call]
    except RuntimeError:  # torch was built with another one
        return 0


def notes(case: Case, setting: Setting) -> tuple[str, ...]:
    """What one must know of a row to read its figures."""
    found, plan = [], setting.plan
    if plan != case.plan:
        found.append(f"{case.plan.model_name} does not fit here: run as {plan.model_name}")
    if framework_of(plan).attention_efficiency != setting.framework.attention_efficiency:
        found.append(f"attention by {setting.framework.attention_efficiency}'s kernels, which this torch chooses on such a GPU")
    if case.where == "shared":
        found.append("predicted on a stand-in: each rank on a GPU of its own with its share of the speed, without peer-to-peer (assumed)")
    if plan.world == 1 and plan.parallel.zero:
        found.append(
            "stock shards over a mesh of one rank; the prediction has no sharding there: the difference is what FSDP2 itself costs"
        )
    if plan.output.checkpoint_every > 1:
        found.append("played without checkpoints, which do not come with every step")
    return tuple(found)
