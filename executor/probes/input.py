"""Host time of the input path and of output: batches from worker processes, with and without pinning, files read and written."""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from executor.probes.bench import Bench
from executor.training.samples import shared_room
from topologies.errors import RunFailed
from topologies.thismachine import cores


class _Blank(Dataset[Any]):
    """Samples that need no work, so that only the transfer from the worker takes time."""

    def __init__(self, size: int, count: int) -> None:
        self.sample, self.count = torch.zeros(size, dtype=torch.uint8), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.sample


def loader(bench: Bench) -> None:
    """Host seconds to take a batch that a worker process has ready; the mean of two sizes, as the batch's bytes are not touched."""
    bench.phase("data loader")
    taken = []
    for size in (1 << 10, 1 << 16):
        ready = DataLoader(_Blank(size, 8), batch_size=None, num_workers=1, prefetch_factor=8)
        taken.append(bench.add("loader", "take", "", (size,), _take(ready)))
        bench.world.beat.touch()
    bench.add("host", "loader", "", (), taken)


_PINNED = (1 << 10, 1 << 20, 8 << 20, 32 << 20)
"""Bytes of the batches that are pinned; the time of the first size is mainly that of the transfer."""
_PROCESSES = 8
_FEWEST = 4
"""Least number of loader processes: fewer might make batches more slowly than one thread pins them."""


class _Labelled(_Blank):
    """The same samples with a label, as in most data sets: two tensors for each batch."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.sample, index


def pinned(bench: Bench) -> None:
    """The thread that takes batches from loader processes and copies them into pinned memory, by bytes: seconds per batch while it is the
    bottleneck. Batches are collated, so that each has its own shared memory. Sizes for which the machine has too few cores or too little
    shared memory are left out."""
    bench.phase("pinned batches")
    ranks, room = bench.world.local_size, shared_room()
    for size in _PINNED[: 2 if bench.quick else 4]:
        fit = math.inf if room is None else room // (ranks * size) - 2  # one is being pinned, and the pages of another are being freed
        processes = int(min(_PROCESSES, cores() // ranks - 1, fit))
        if processes < _FEWEST:
            break
        source = DataLoader(_Labelled(size, 3 * processes), batch_size=1, num_workers=processes, prefetch_factor=1, pin_memory=True)
        times, last = [], time.perf_counter()
        for _ in source:
            now = time.perf_counter()
            times.append(now - last)
            last = now
            bench.world.beat.touch()
        # In the first round pinned memory is allocated. Batches come in bursts: some together, then one after a while.
        rounds = [times[at : at + processes] for at in range(processes, 3 * processes, processes)]
        bench.add("loader", "pin", "", (size,), [sum(one) / len(one) for one in rounds])
    # More batches than are prefetched: taking one also requests the next one.
    ready = DataLoader(_Labelled(1 << 10, 24), batch_size=1, num_workers=1, prefetch_factor=8, pin_memory=True)
    bench.add("host", "take_pinned", "", (), _take(ready))


def _take(source: DataLoader[Any]) -> list[float]:
    """Seconds of the training process to take a batch that is ready, five times."""
    batches = iter(source)
    next(batches)
    time.sleep(0.15)
    found = []
    for _ in range(5):
        start = time.perf_counter()
        next(batches)
        found.append(time.perf_counter() - start)
    return found


def files(bench: Bench) -> None:
    """Reading a file from the page cache, and torch.save, by bytes. Raises `RunFailed` if files cannot be written."""
    bench.phase("files")
    with tempfile.TemporaryDirectory(dir=bench.world.folder) as place:
        for size in (1 << 12, 1 << 18, 4 << 20, 32 << 20)[: 3 if bench.quick else 4]:
            path = Path(place) / f"{bench.world.rank}-{size}"
            try:
                path.write_bytes(bytes(size))
                bench.add("file", "read", "", (size,), bench.times([path.read_bytes]))
                tensor = torch.zeros(size // 4)
                bench.add("file", "save", "", (size,), bench.times([lambda: torch.save(tensor, path)]))  # noqa: B023
            except OSError as error:
                raise RunFailed(f"the probe cannot write {size} bytes into {place}: {error.strerror}") from None
    saved = [s for kind, s in bench.found if kind == "file" and s.name == "save"]
    bench.add("host", "checkpoint", "", (), [saved[0].median])
