"""Functions that the launch tests run on every rank."""

import atexit
import os
import signal
import sys
import time
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from executor.ranks.world import World


class Order(msgspec.Struct):
    """What a test asks the ranks to do."""

    what: str = "sum"
    rank: int = 1
    at: int = 3


def work(world: World, order: Order) -> list[float]:
    """Ten all_reduces; one rank may misbehave at step `at`."""
    values = []
    for step in range(10):
        world.beat.phase(f"step {step}")
        if world.rank == order.rank and step == order.at:
            _misbehave(order.what)
        tensor = torch.full((4,), float(world.rank + step))
        dist.all_reduce(tensor)
        values.append(float(tensor[0]))
        world.beat.step(0.001 * (step + 1))
    return values


def _misbehave(what: str) -> None:
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "sleep":
        time.sleep(600)
    if what == "full":
        sys.stderr = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")  # its log takes no more, either
    if what in ("raise", "full"):
        raise ValueError("a batch has no samples")


def leaves_badly(world: World, order: Order) -> list[float]:
    """A value; then, while the process ends, one rank hangs or crashes."""
    if world.rank == order.rank:
        atexit.register(time.sleep, 600) if order.what == "lingers" else atexit.register(os.kill, os.getpid(), signal.SIGSEGV)
    return [float(world.rank)]


class Skew(msgspec.Struct):
    """Seconds by which each rank's clock is ahead of the rank's before it."""

    seconds: float


def skewed(world: World, skew: Skew) -> list[float]:
    """What the handshake finds for this rank's wrong clock."""
    from executor.ranks.clocks import offset

    return [offset(world, lambda: time.perf_counter() + skew.seconds * world.rank)]


def heard(world: World, order: Order) -> list[str]:
    """Addresses (hexadecimal, without the port) on which this rank's process listens after a collective."""
    dist.all_reduce(torch.ones(4))
    mine = {os.readlink(path) for path in Path("/proc/self/fd").iterdir() if os.path.lexists(path)}
    lines = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{kind}").read_text().splitlines()[1:]]
    # proc(5): fields are local address, remote address, state (0A: listening), ..., inode.
    found = [words[1].partition(":")[0] for words in lines if words[3] == "0A" and f"socket:[{words[9]}]" in mine]
    dist.barrier()
    return found


def threads(world: World, order: Order) -> list[int]:
    """With how many threads this rank computes."""
    return [torch.get_num_threads()]


class Name(msgspec.Struct):
    """A variable of the environment."""

    name: str


def surroundings(world: World, name: Name) -> dict[str, str]:
    """What this rank's process finds."""
    print("a rank speaks", flush=True)
    if name.name == "raise":
        raise KeyError(name.name)
    asked = (name.name, "STEPTWIN_SHARED_GPU", "OMP_NUM_THREADS")
    return {"pid": str(os.getpid()), "parent": str(os.getppid())} | {one: os.environ.get(one, "") for one in asked}
