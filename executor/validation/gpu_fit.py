"""A plan of the GPU table as it fits here: on its machine, with as many layers as the device's memory holds, and what that changes."""

from __future__ import annotations

from executor.validation.gpu_cases import Case, shared_machine, slow
from executor.validation.gpu_plans import fewer_layers
from executor.validation.gpu_site import Site
from sim.bind import Setting, bind
from sim.plan import Plan
from sim.predict import predict_setting
from topologies.errors import BadInput

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
        return bind(plan, shared_machine(plan.world, site.machine.device(0).name, site.folder), (*slow(plan.world), "without=p2p"))
    return bind(plan, site.machine)


def notes(case: Case, plan: Plan) -> tuple[str, ...]:
    """What one must know of a row to read its figures."""
    found = []
    if plan != case.plan:
        found.append(f"{case.plan.model_name} does not fit here: run as {plan.model_name}")
    if case.where == "shared":
        found.append("predicted on a stand-in: each rank on a GPU of its own with its share of the speed, without peer-to-peer (assumed)")
    if plan.world == 1 and plan.parallel.zero:
        found.append(
            "stock shards over a mesh of one rank; the prediction has no sharding there: the difference is what FSDP2 itself costs"
        )
    if plan.output.checkpoint_every > 1:
        found.append("played without checkpoints, which do not come with every step")
    return tuple(found)
