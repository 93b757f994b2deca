"""What of a plan cannot run on this machine, said before it is probed for a minute."""

from __future__ import annotations

from executor.play import refuse_servers
from executor.training.limits import check_stock
from sim.bind import Setting, model_of
from sim.lower.step import lower
from sim.result.figures import figures_of_memory
from topologies.errors import NoRoom


def check_runs(setting: Setting, stock: bool, play: bool) -> None:
    """Raises `Refused` where PyTorch's own machinery (`stock`) or the player (`play`) does not do the plan, `NoRoom` where all ranks together
    need more memory than a CPU host has: it would swap, or the system would end something. A GPU says by itself that it is full."""
    if stock:
        check_stock(setting.plan, model_of(setting.plan))
    if play:
        refuse_servers(lower(setting.plan, setting.network, setting.framework, setting.topology.kind, 1))
    missing = figures_of_memory(setting)[1] if setting.topology.kind == "cpu" else None
    if missing is not None:
        raise NoRoom(f"each of {setting.plan.world} ranks {missing}")
