"""One run at a time in a folder: two would take each other's ranks, beats and results for their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from topologies.errors import BadInput


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Holds the folder while the body runs; the system lets go of it also where this process is killed.

    Raises `BadInput` where another process holds it. Where the system knows no such locks nobody is kept out.
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
