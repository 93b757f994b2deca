"""The progress of each rank, in a small file that both the rank and the watcher map into memory.

A beat costs one memory store, so it may be inside a timed loop. The file survives the rank's death, so the step
times until then are kept.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from pathlib import Path

_PHASE = 96
_HEAD = struct.Struct(f"<qq{_PHASE}s")
CAPACITY = 1 << 16
"""Step times that one file holds."""


class Beat:
    """One rank's progress: a counter, a phase in words, the step times so far."""

    def __init__(self, path: Path, create: bool = False) -> None:
        """`create`: makes a new file; otherwise opens the one that is there. Raises `OSError` if the disk has no room for it."""
        size = _HEAD.size + 8 * CAPACITY
        if create:
            new = path.with_name(f"{path.name}.new")
            with new.open("wb") as file:
                _take_room(file.fileno(), size)
            new.replace(path)  # whoever looks at a run sees a whole file or none
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self._count, self._steps, self._phase = 0, 0, b""

    def phase(self, words: str) -> None:
        """Notes in words what the rank does now."""
        self._phase = words.encode()[:_PHASE]
        self._write()

    def touch(self) -> None:
        """Notes that the rank is still making progress in the same phase."""
        self._write()

    def step(self, seconds: float) -> None:
        """Notes that one more step has ended, and how many seconds it took."""
        if self._steps < CAPACITY:
            struct.pack_into("<d", self._map, _HEAD.size + 8 * self._steps, seconds)
            self._steps += 1
        self._write()

    def _write(self) -> None:
        self._count += 1
        _HEAD.pack_into(self._map, 0, self._count, self._steps, self._phase)

    def read(self) -> tuple[int, int, str]:
        """(beats, steps, phase) as the rank last wrote them."""
        count, steps, phase = _HEAD.unpack_from(self._map, 0)
        return count, steps, phase.rstrip(b"\0").decode(errors="replace")

    def step_times(self) -> list[float]:
        """Seconds of each step that has ended."""
        return list(struct.unpack_from(f"<{self.read()[1]}d", self._map, _HEAD.size))


def _take_room(file: int, size: int) -> None:
    """Gives an empty file its size and reserves the space on the disk. Without that, touching a mapped page on a full disk would kill the
    process with SIGBUS, rank or watcher."""
    try:
        os.posix_fallocate(file, 0, size)
    except AttributeError:  # not on macOS
        os.truncate(file, size)
    except OSError as error:
        if error.errno not in (
            errno.EOPNOTSUPP,
            errno.EINVAL,
        ):  # file systems that cannot reserve space, if the C library does not write zeros instead
            raise
        os.truncate(file, size)
