"""The input path as users build it: real files (or a database) that are written first, a Dataset, a DataLoader.

Sample i is the same however a plan is split over ranks (`executor.training.examples`), so that four ranks see the same batches as one.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from executor.files import POOL
from executor.ranks.worker import die_with_parent
from executor.training.examples import Pair, example_of
from sim.model.specs.spec import ModelSpec
from sim.plan import Plan
from topologies.errors import RunFailed
from topologies.units import show_size


class Samples(Dataset[Pair]):
    """Reads a sample's bytes if the plan stores any, spends its preprocessing time, and returns its tensors."""

    def __init__(self, plan: Plan, spec: ModelSpec, seq: int, folder: Path, count: int) -> None:
        self.data, self.count, self.folder = plan.data, count, folder
        self.ready = [example_of(spec, seq, i) for i in range(POOL)]
        self._database: sqlite3.Connection | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Pair:
        raw = self._read(index % POOL)
        if self.data.preprocess:
            preprocess(raw, self.data.preprocess)
        return self.ready[index % POOL]

    def _read(self, index: int) -> bytes:
        if not self.data.stored or not self.data.sample:
            return b""
        place = f"{self.folder}/samples.sqlite" if self.data.source == "database" else f"{self.folder}/{index}.bin"
        try:
            raw = self._row(place, index) if self.data.source == "database" else Path(place).read_bytes()
        except (OSError, sqlite3.Error) as error:
            raise RunFailed(f"sample {index} cannot be read from {place}: {error}") from None
        if len(raw) != self.data.sample:
            raise RunFailed(
                f"sample {index} in {place} has {len(raw)} bytes instead of {self.data.sample}: the file is damaged, delete its folder and run again"
            )
        return raw

    def _row(self, place: str, index: int) -> bytes:
        if self._database is None:  # one connection per worker process, opened where it is used
            uri = Path(place).absolute().as_uri()  # quotes '#' and '?' of a name, which would end the path of the URI
            self._database = sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=20)
        row = self._database.execute("SELECT bytes FROM samples WHERE id = ?", (index,)).fetchone()
        if row is None:
            raise RunFailed(f"sample {index} is missing in {place}: delete the file and run again")
        return bytes(row[0])


def preprocess(raw: bytes, seconds: float) -> Tensor:
    """Normalises the bytes again and again until this thread has spent `seconds` of CPU time."""
    end = time.thread_time() + seconds
    pixels = torch.frombuffer(bytearray(raw[: 1 << 14] or bytes(1 << 10)), dtype=torch.uint8)
    out = pixels.float()
    while time.thread_time() < end:
        out = (pixels.float() - 127.0) * (1 / 128.0)
    return out


class Order(Sampler[int]):
    """The indices of the samples of one data-parallel rank: its slice of each global micro-batch, in order or shuffled by the plan's
    seed."""

    def __init__(self, plan: Plan, data_rank: int, steps: int) -> None:
        self.micro, self.ranks, self.rank = plan.batch.micro, plan.data_ranks, data_rank
        self.rounds = steps * plan.microbatches
        self.seed = plan.seed if plan.data.shuffle else None

    def __len__(self) -> int:
        return self.rounds * self.micro

    def __iter__(self) -> Iterator[int]:
        for turn in range(self.rounds):
            first = (turn * self.ranks + self.rank) * self.micro
            for i in range(first, first + self.micro):
                yield i if self.seed is None else (i * 7919 + self.seed) % (1 << 30)


def _quiet_worker(_: int) -> None:
    """Makes a loader worker end as soon as its rank does, and compute with one thread."""
    die_with_parent(os.getppid())
    torch.set_num_threads(1)


_SHARED = Path("/dev/shm")
"""Linux's shared memory, where loader workers put their batches."""


def shared_room() -> int | None:
    """Free bytes of shared memory; None if the system has no `_SHARED`."""
    return shutil.disk_usage(_SHARED).free if _SHARED.is_dir() else None


def check_shared(plan: Plan, samples: Samples, ranks: int) -> None:
    """Raises `RunFailed` if the batches that the loader workers of `ranks` ranks prefetch do not fit into shared memory: a worker would die
    of a bus error. Containers have 64 MiB of shared memory by default."""
    need = plan.data.workers * plan.data.prefetch * plan.batch.micro * sum(tensor.nbytes for tensor in samples.ready[0]) * ranks
    room = shutil.disk_usage(_SHARED).total if need and _SHARED.is_dir() else need
    if need > room:
        raise RunFailed(
            f"{ranks * plan.data.workers} loader workers hold batches of {show_size(need)} ready, and {_SHARED} has {show_size(room)}. Start the "
            "container with more shared memory (--shm-size, --ipc=host), or use fewer data.workers"
        )


def loader_of(plan: Plan, samples: Samples, data_rank: int, steps: int, cuda: bool) -> DataLoader[Pair]:
    """The DataLoader that the plan describes."""
    workers = plan.data.workers
    return DataLoader(
        samples,
        batch_size=plan.batch.micro,
        sampler=Order(plan, data_rank, steps),
        num_workers=workers,
        prefetch_factor=plan.data.prefetch if workers else None,
        pin_memory=plan.data.pinned and cuda,
        persistent_workers=False,
        worker_init_fn=_quiet_worker if workers else None,
    )
