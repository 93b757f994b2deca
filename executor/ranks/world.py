"""One rank inside a run: who it is, its device, its process group, and its progress."""

from __future__ import annotations

import datetime
import itertools
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from executor.needs import needs_torch, unusable
from executor.ranks.beat import Beat
from executor.ranks.environment import ON_GPUS, SHARED, Process, own_gpu
from topologies.errors import RunFailed
from topologies.thismachine import cores

# Code that runs on devices imports this module before any other one that needs torch.
try:
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore, TCPStore
except ModuleNotFoundError:
    needs_torch("running plans and probing devices")
    raise


NCCL = "cpu:gloo,cuda:nccl"
"""Backends of ranks that have a GPU each; gloo is for host memory: gathered objects, and the timestamps of `executor.ranks.clocks`."""
_HEAP = 256 << 20
"""Bytes by which a CPU rank's heap grows at most, until small tensors no longer split the free blocks of large ones (measured on the plans
of `here`: some 4 to 50 MiB)."""


class World:
    """One rank, as passed to the function that runs on every rank."""

    def __init__(self, place: Process, folder: Path, stall: float, beat: Beat) -> None:
        self.rank, self.size, self.local_rank = place.rank, place.world, place.local_rank
        self.one_host, self.local_size = place.local_world == place.world, place.local_world
        self.folder, self.stall, self.beat = folder, stall, beat
        # Twice the watcher's limit: then the watcher names the rank that hangs, before a rank that waits for it gives up.
        self.limit = datetime.timedelta(seconds=2 * stall + 5)
        """Timeout of every process group (torch's default for groups after the first one is half an hour)."""
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        self.shared = bool(os.environ.get(SHARED)) and count > 0
        """All ranks of this host share one GPU."""
        self.device = torch.device("cpu")
        bound = count == 1 and own_gpu(place)
        if self.shared or bound or count >= place.local_world:
            self.device = torch.device("cuda", 0 if self.shared or bound else place.local_rank)
            torch.cuda.set_device(self.device)
        elif os.environ.get(ON_GPUS):
            raise RunFailed(
                f"torch {torch.__version__} finds {count} GPUs for the {place.local_world} ranks of this host: {unusable() or 'too few'}"
            )

    @property
    def kind(self) -> str:
        """cuda | cpu."""
        return self.device.type

    @property
    def crowded(self) -> bool:
        """On a CPU: the ranks of this host have more compute threads than it has cores."""
        return self.kind == "cpu" and self.local_size * torch.get_num_threads() > cores()

    @property
    def backend(self) -> str:
        """The backend of collectives on device tensors: nccl, or gloo (on CPUs, and where ranks share a GPU, which NCCL refuses)."""
        return "nccl" if self.kind == "cuda" and not self.shared else "gloo"

    def group(self, ranks: Sequence[int], backend: str | None = None) -> dist.ProcessGroup:
        """A new process group of `ranks`; all ranks must call this. `backend`: None for that of the default group."""
        made: dist.ProcessGroup = dist.new_group(list(ranks), timeout=self.limit, backend=backend)
        return made

    def touch_memory(self) -> None:
        """To be called before steps are timed: a CPU rank writes once to the memory that its heap will grow into over dozens of steps. The
        first touch of a page costs up to 14 us in a virtual machine; freed memory stays with the process (`launch.KEEP_MEMORY`). The heap
        of a large model grows by more than `_HEAP`: half of the most memory that the process has had."""
        if self.kind == "cpu" and sys.platform == "linux":
            import resource  # only on Unix

            from executor.arena import free_memory  # needs torch; if it is missing, the module's top has said so

            grown = max(_HEAP, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 2)
            touched = b"\1" * min(grown, free_memory(self.device) // (4 * self.local_size))
            del touched

    def synchronize(self) -> None:
        """Waits for the device; nothing to do on a CPU."""
        if self.kind == "cuda":
            torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        """Waits until all ranks have called this."""
        if self.size > 1:
            self.synchronize()
            dist.barrier(device_ids=[self.device.index]) if self.kind == "cuda" and not self.shared else dist.barrier()
        self.beat.touch()


def set_precision(tf32: bool) -> None:
    """Runs fp32 GEMMs and convolutions in TF32 on tensor cores, or in full fp32. torch's defaults: TF32 for convolutions, fp32 for
    GEMMs."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32


@contextmanager
def joined(place: Process, folder: Path, stall: float, beat: Beat, port_file: Path | None = None) -> Iterator[World]:
    """A world with an initialised process group, which is destroyed at the end.

    Ranks on one machine communicate over the loopback interface only. With `port_file`, rank 0 opens its store on a free port
    and writes the number into that file, so that no port is guessed.
    """
    world = World(place, folder, stall, beat)
    beat.phase("joining the process group")
    limit = world.limit
    local = place.local_world == place.world
    if local:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = _meeting(place, limit, stall, port_file)
    nccl = world.backend == "nccl"
    backend = NCCL if nccl else "cpu:gloo,cuda:gloo" if world.shared else "gloo"
    # With a device, NCCL connects at once, group by group in the same order on all ranks. A single rank has no peer: most of its plans
    # never call NCCL, and should not fail where NCCL cannot start.
    device = world.device if nccl and place.world > 1 else None
    dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.world, timeout=limit, device_id=device)
    try:
        yield world
        world.barrier()
    except BaseException:
        if nccl:
            # An orderly end of NCCL needs all ranks of a host (its manual, ncclCommDestroy): the rank that failed would wait for the others
            # and never report why.
            with suppress(Exception):
                dist.distributed_c10d._abort_process_group()
        else:
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


_joins = itertools.count()
_stores: dict[tuple[str, int], TCPStore] = {}
"""(address, port) -> store, of ranks that a launcher started: one process joins several times (probe, then play) at the same port."""


def _meeting(place: Process, limit: datetime.timedelta, stall: float, port_file: Path | None) -> PrefixStore:
    """The store through which the ranks join this time. Every joining has its own key prefix, as the keys of the one before are still in
    the store; so has every restart by torchrun."""
    first, port = place.rank == 0, place.port
    if port_file is not None:
        port = 0 if first else _read_port(port_file, stall)
    # torchrun's agent already holds a store at MASTER_PORT; its workers are all clients.
    master = first and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = _stores.get((place.address, port)) if port_file is None else None
    if store is None:
        store = _store(place, port, limit) if master else TCPStore(place.address, port, place.world, False, limit, wait_for_workers=False)
    if port_file is None:
        _stores[place.address, port] = store
    elif first:
        _publish(port_file, store.port)
    store.set_timeout(limit)
    return PrefixStore(f"steptwin/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(_joins)}", store)


def _store(place: Process, port: int, limit: datetime.timedelta) -> TCPStore:
    """Rank 0's store, through which all ranks join (port 0: a free port). On one host it listens only on `place.address`, which is loopback
    unless the launcher says otherwise; torch's own socket would listen on every address. Raises `RunFailed` if the port is taken."""
    try:
        own = None
        if place.local_world == place.world:
            kind, _, _, _, address = socket.getaddrinfo(place.address, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(kind) as bound:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                bound.bind(address)
                port, own = bound.getsockname()[1], bound.detach()  # the store listens on it, and closes it
        return TCPStore(place.address, port, place.world, True, limit, wait_for_workers=False, master_listen_fd=own)
    except (OSError, dist.DistNetworkError) as error:
        told = f"{error}".splitlines()[0].rstrip(".")
        raise RunFailed(
            f"rank 0 cannot meet the others at {place.address}, port {port}: {told}. Export a free MASTER_PORT to all ranks"
        ) from None


def _publish(path: Path, port: int) -> None:
    part = path.with_suffix(".part")
    part.write_text(str(port))
    part.replace(path)


def _read_port(path: Path, stall: float) -> int:
    end = time.monotonic() + stall
    while not path.exists():
        if time.monotonic() > end:
            raise RunFailed(f"rank 0 opened no store within {stall:.0f} s")
        time.sleep(0.01)
    return int(path.read_text())
