"""What of a plan cannot run on this machine, said before it is probed for a minute."""

from __future__ import annotations

from executor.play import refuse_servers
from executor.training.limits import PLAY, check_quiet, check_stock
from sim.result.figures import figures_of_memory
from sim.setting.bind import Setting, model_of
from sim.setting.program import program_for
from topologies.errors import NoRoom, Refused


def check_runs(setting: Setting, stock: bool, play: bool) -> None:
    """Raises `Refused` where PyTorch's own machinery (`stock`) or the player (`play`) does not do the plan, or no program is made of it (the
    former would train another: Muon without matrices is AdamW), `NoRoom` where all ranks together need more memory than a CPU host has: it
    would swap, or the system would end something. A GPU says by itself that it is full."""
    check_quiet(setting.plan)
    program = program_for(setting, 1)  # first: what it refuses is done by neither
    if stock:
        check_stock(setting.plan, model_of(setting.plan))
    if play:
        refuse_servers(program)
    missing = figures_of_memory(setting)[1] if setting.topology.kind == "cpu" else None
    if missing is not None:
        raise NoRoom(f"each of {setting.plan.world} ranks {missing}")


def without_stock(setting: Setting) -> str:
    """Why a twin of the plan is played alone, "" where PyTorch's own machinery trains it too. Raises as `check_runs` where it cannot be played."""
    check_runs(setting, stock=False, play=True)
    try:
        check_stock(setting.plan, model_of(setting.plan))
    except Refused as error:
        return str(error).removesuffix(PLAY).removesuffix(", or: ").rstrip(". ")
    return ""
