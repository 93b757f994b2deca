"""One run at a time in a folder: two would take each other's ranks, beats and results for their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from executor.ranks.environment import place
from topologies.errors import BadInput

_held: ContextVar[frozenset[Path]] = ContextVar("_held", default=frozenset())
"""Folders of whole runs that this process holds. What a twin trains and plays in its own folder does not count as another run."""


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Holds a lock on the folder while the body runs; the system releases it even if this process is killed.

    Raises `BadInput` if another process holds the lock. On systems and file systems without such locks, nothing is locked.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"another run is at work in {folder}: wait for its end, or name another folder with --out") from None
        except OSError:
            pass  # a file system without locks
        yield


@contextmanager
def alone_among(folder: Path) -> Iterator[None]:
    """Makes the folder of a whole run and locks it before anything is written into it. Inside the body the same folder can be entered
    again; ranks that a launcher started share it without a lock. Raises as `alone_in`."""
    folder.mkdir(parents=True, exist_ok=True)
    own = folder.resolve()
    if place() is not None or own in _held.get():
        yield
        return
    with alone_in(folder):
        before = _held.set(_held.get() | {own})
        try:
            yield
        finally:
            _held.reset(before)
