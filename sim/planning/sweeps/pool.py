"""Where the chunks of a sweep run: in this process, in processes of this machine, or on a cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Protocol, TypeVar

from sim.arguments import check_whole
from topologies.errors import BadInput

T = TypeVar("T")
R = TypeVar("R")


class Pool(Protocol):
    """Runs a function over chunks; results come as they are ready."""

    def map(self, function: Callable[[T], R], chunks: Iterable[T]) -> Iterator[R]: ...


class Here:
    """One after the other, in this process."""

    def map(self, function: Callable[[T], R], chunks: Iterable[T]) -> Iterator[R]:
        return (function(chunk) for chunk in chunks)


@contextmanager
def _nameless() -> Iterator[None]:
    """Workers that start now do not import the script that asks for them, which would ask again: they need nothing of it, and so it needs
    no `if __name__ == "__main__":`."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


@contextmanager
def _processes(workers: int) -> Iterator[Pool]:
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    from sim.orphans import end_with_parent

    # Forked workers would inherit whatever threads and locks the calling script holds. Their server imports what they need once for all,
    # while the sweep still enumerates.
    context = get_context("forkserver" if os.name == "posix" else "spawn")
    if os.name == "posix":
        from multiprocessing.forkserver import ensure_running

        context.set_forkserver_preload(["sim.planning.sweeps.judge"])
        ensure_running()
    with ProcessPoolExecutor(workers, mp_context=context, initializer=end_with_parent) as executor:

        class Processes:
            def map(self, function: Callable[[T], R], chunks: Iterable[T]) -> Iterator[R]:
                with _nameless():
                    futures = [executor.submit(function, chunk) for chunk in chunks]
                for future in as_completed(futures):
                    yield future.result()

        try:
            yield Processes()
        finally:
            executor.shutdown(cancel_futures=True)  # who is interrupted waits for what runs, not for all that was asked for


@contextmanager
def _here() -> Iterator[Pool]:
    yield Here()


def pool(workers: int, backend: str, address: str) -> AbstractContextManager[Pool]:
    """`backend` "" for this machine, "dask" or "ray" for the cluster at `address`."""
    check_whole("workers", workers, "processes")
    if backend:
        from sim.planning.sweeps.cluster import cluster

        return cluster(backend, address)
    if address:
        raise BadInput(f"--address {address} is of a cluster's scheduler: say which with --backend dask or --backend ray")
    count = min(workers, os.cpu_count() or 1)
    return _processes(count) if count > 1 else _here()
