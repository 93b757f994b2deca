"""This process's rank and world size, from the environment variables of torchrun, SLURM or MPI, and whether ranks share a GPU.

Sources: PyTorch docs `torchrun (Elastic Launch)`, section Environment Variables; SLURM `srun` man page, section OUTPUT
ENVIRONMENT VARIABLES; Open MPI FAQ "environmental variables that Open MPI sets"; MPICH / Intel MPI's PMI variables; HPE Cray PALS
`mpiexec` man page, section ENVIRONMENT VARIABLES.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import msgspec

from topologies.errors import BadInput, Refused


class Process(msgspec.Struct, frozen=True):
    """One process of a run and its place among all."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    address: str
    """Host of rank 0."""
    port: int
    launcher: str
    """torchrun | slurm | openmpi | pmi."""


_PORT = 29500
"""torchrun's default rendezvous port."""


SHARED = "STEPTWIN_SHARED_GPU"
"""Environment variable. If set, all ranks of this host share its first GPU and communicate through gloo (NCCL refuses two ranks on one
device)."""
ON_GPUS = "STEPTWIN_ON_GPUS"
"""Environment variable. If set, a rank that finds no GPU fails: if a GPU is lost in the middle of a table, a CPU's times must not take the
place of its times."""


@contextmanager
def _set_for_children(name: str) -> Iterator[None]:
    """Sets the variable for ranks that are started inside, and restores it afterwards."""
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def sharing() -> AbstractContextManager[None]:
    """Ranks that are started inside share one GPU."""
    return _set_for_children(SHARED)


def on_gpus() -> AbstractContextManager[None]:
    """Ranks that are started inside compute on GPUs or fail (`ON_GPUS`)."""
    return _set_for_children(ON_GPUS)


def own_gpu(at: Process, variables: Mapping[str, str] = os.environ) -> bool:
    """True if the launcher lets each of several ranks of a host see one GPU only, as `srun --gpus-per-task 1` does."""
    seen = [one for one in variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    return at.local_world > 1 and at.launcher != "steptwin" and len(seen) == 1


def compute_threads(variables: Mapping[str, str] = os.environ) -> int:
    """Compute threads of a rank: the first number of OMP_NUM_THREADS, which may have one for each level of nesting ("4,2"); 1 if it is not
    set, as under torchrun. Raises `BadInput` for a value that OpenMP does not accept."""
    said = variables.get("OMP_NUM_THREADS", "").strip() or "1"
    numbers = [one.strip() for one in said.split(",")]
    if not all(one.isdecimal() and int(one) for one in numbers):
        raise BadInput(
            f"environment variable OMP_NUM_THREADS = {said!r} is no number of threads: export a whole number from 1, or several with commas "
            "between (a level of nesting each), or unset it, which leaves each rank one thread"
        )
    return int(numbers[0])


def leads() -> bool:
    """True for rank 0 of those that a launcher started, which prints and writes for all; True also without a launcher."""
    at = place()
    return at is None or at.rank == 0


def hosts() -> int:
    """Number of hosts on which a launcher started ranks, assuming equally many on each; 1 without a launcher."""
    at = place()
    return -(-at.world // at.local_world) if at is not None else 1


def place(variables: Mapping[str, str] = os.environ) -> Process | None:
    """This process's place, or None when no launcher started it. Raises `BadInput` for variables that contradict each other.

    MPI is checked before SLURM: under SLURM, MPI's daemons are a SLURM step, and the ranks that they start inherit its variables.
    """
    for read in (_torchrun, _openmpi, _pmi, _slurm):
        found = read(variables)
        if found is not None:
            if not 0 <= found.rank < found.world or not 0 <= found.local_rank < found.local_world:
                raise BadInput(
                    f"the environment of {found.launcher} says rank {found.rank} of {found.world}, local rank {found.local_rank} of "
                    f"{found.local_world}: start all ranks with one launcher, or unset its variables"
                )
            return found
    return None


def refuse_dealt(launcher: str, places: Sequence[tuple[int, int]]) -> None:
    """Raises `Refused` if ranks do not fill one host after the other: plans and predictions assume that neighbouring ranks share a host.
    `places`: (local rank, number of ranks on its host) of each rank."""
    first = 0
    for rank, (local, _) in enumerate(places):
        if rank == first + places[first][1]:
            first = rank
        if local != rank - first:
            raise Refused(
                f"{launcher} gave the {len(places)} ranks to the hosts in turn: rank {rank} is number {local} on its host, but would be number "
                f"{rank - first} on that of rank {first}, which holds {places[first][1]}. Predictions assume that ranks fill one host after the other: start "
                "them so (srun --distribution=block, mpirun --map-by slot, mpiexec --ppn N without --rank-by)"
            )


def _number(variables: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = variables.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(str(text).split("(")[0].split(",")[0])  # SLURM writes "4(x2)" for tasks per node
    except ValueError:
        raise BadInput(f"environment variable {name} = {text!r} is no whole number") from None


def _torchrun(v: Mapping[str, str]) -> Process | None:
    if "RANK" not in v or "WORLD_SIZE" not in v:
        return None
    world = _number(v, "WORLD_SIZE")
    rank = _number(v, "RANK")
    local = _number(v, "LOCAL_WORLD_SIZE", min(world, _tasks_of_slurm(v) or world))
    return Process(
        rank,
        world,
        _number(v, "LOCAL_RANK", rank % max(local, 1)),
        local,
        v.get("MASTER_ADDR", "127.0.0.1"),
        _number(v, "MASTER_PORT", _PORT),
        "torchrun",
    )


def _tasks_of_slurm(v: Mapping[str, str]) -> int:
    """Ranks of an srun step on each host, for scripts that export RANK and WORLD_SIZE from SLURM's variables but no LOCAL_WORLD_SIZE; 0 if
    there is no step of that size."""
    return _number(v, "SLURM_STEP_TASKS_PER_NODE", 0) if _number(v, "SLURM_STEP_NUM_TASKS", 0) == _number(v, "WORLD_SIZE", -1) else 0


def _slurm(v: Mapping[str, str]) -> Process | None:
    # A batch script has SLURM_PROCID too; only steps started by srun have SLURM_STEP_NUM_TASKS above one.
    if "SLURM_PROCID" not in v or _number(v, "SLURM_STEP_NUM_TASKS", 1) < 2:
        return None
    world = _number(v, "SLURM_STEP_NUM_TASKS")
    nodes = _number(v, "SLURM_STEP_NUM_NODES", 1)
    local = _number(v, "SLURM_STEP_TASKS_PER_NODE", -(-world // max(nodes, 1)))
    address = v.get("MASTER_ADDR") or first_host(v.get("SLURM_STEP_NODELIST", v.get("SLURM_NODELIST", "127.0.0.1")))
    port = _number(v, "MASTER_PORT", _PORT + _number(v, "SLURM_JOB_ID", 0) % 1000)
    return Process(_number(v, "SLURM_PROCID"), world, _number(v, "SLURM_LOCALID", 0), local, address, port, "slurm")


def _openmpi(v: Mapping[str, str]) -> Process | None:
    if "OMPI_COMM_WORLD_RANK" not in v:
        return None
    world = _number(v, "OMPI_COMM_WORLD_SIZE")
    local = _number(v, "OMPI_COMM_WORLD_LOCAL_SIZE", world)
    return _mpi(v, _number(v, "OMPI_COMM_WORLD_RANK"), world, _number(v, "OMPI_COMM_WORLD_LOCAL_RANK", 0), local, "openmpi")


def _pmi(v: Mapping[str, str]) -> Process | None:
    if "PMI_RANK" not in v or "PMI_SIZE" not in v:
        return None
    world, rank = _number(v, "PMI_SIZE"), _number(v, "PMI_RANK")
    if "MPI_LOCALNRANKS" not in v and "SLURM_PROCID" in v:  # srun --mpi=pmi2: SLURM sets them for every step, a shell's of one task too
        return None
    size, own = (next((name for name in names if name in v), names[0]) for names in (_PMI_SIZES, _PMI_RANKS))
    local = _number(v, size, world)
    return _mpi(v, rank, world, _number(v, own, rank % max(local, 1)), local, "pmi")


_PMI_SIZES = ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE")
_PMI_RANKS = ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID")
"""Variables for the number of ranks on a host and for the local rank: of MPICH's and Intel's launchers, of Cray's PMI, and of Cray's
launcher PALS."""


def _mpi(v: Mapping[str, str], rank: int, world: int, local_rank: int, local: int, launcher: str) -> Process:
    if local < world and "MASTER_ADDR" not in v:
        raise BadInput(
            f"{launcher} started {world} ranks on several hosts: export MASTER_ADDR (the host of rank 0) and MASTER_PORT to all of them"
        )
    return Process(rank, world, local_rank, local, v.get("MASTER_ADDR", "127.0.0.1"), _number(v, "MASTER_PORT", _PORT), launcher)


def first_host(nodes: str) -> str:
    """`gpu[017-032,040],cpu1` -> `gpu017`."""
    match = re.match(r"([^,\[\]]+)(?:\[([^,\-\]]+)[^\]]*\]([^,]*))?", nodes)
    if match is None:
        raise BadInput(f"cannot read the first host of SLURM's node list {nodes!r}: export MASTER_ADDR")
    return match.group(1) + (match.group(2) or "") + (match.group(3) or "")
