"""Refuses plans that cannot run on this machine, before a minute is spent on probing it."""

from __future__ import annotations

from executor.play import refuse_servers
from executor.training.limits import PLAY, check_quiet, check_stock
from sim.result.figures import figures_of_memory
from sim.setting.bind import Setting, model_of
from sim.setting.program import program_for
from topologies.errors import NoRoom, Refused


def check_runs(setting: Setting, stock: bool, play: bool) -> None:
    """Raises `Refused` if PyTorch's own machinery (`stock`) or the player (`play`) cannot run the plan, or if it cannot be lowered to a
    program (PyTorch would then train something else: Muon without matrices is AdamW). Raises `NoRoom` if all ranks together need more
    memory than a CPU host has, which would swap or kill a process; a GPU reports by itself that it is full."""
    check_quiet(setting.plan)
    program = program_for(setting, 1)  # first, as neither runs what it refuses
    if stock:
        check_stock(setting.plan, model_of(setting.plan))
    if play:
        refuse_servers(program)
    missing = figures_of_memory(setting)[1] if setting.topology.kind == "cpu" else None
    if missing is not None:
        raise NoRoom(f"each of {setting.plan.world} ranks {missing}")


def without_stock(setting: Setting) -> str:
    """Why a twin of the plan is only played; "" if PyTorch's own machinery can train it too. Raises as `check_runs` if it cannot be
    played."""
    check_runs(setting, stock=False, play=True)
    try:
        check_stock(setting.plan, model_of(setting.plan))
    except Refused as error:
        return str(error).removesuffix(PLAY).removesuffix(", or: ").rstrip(". ")
    return ""
