"""Ops that read and write files: samples of a dataset, checkpoints.

The training thread writes with torch.save, which keeps the thread busy (it checksums and copies the archive); the probe measures these
seconds. Other threads write plain bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from sim.program import FILED, HOST, Op
from topologies.errors import RunFailed
from topologies.units import show_size


def copy_file(op: Op, file: Path, writer: int) -> None:
    """Runs a copy op that needs no device: class `output` writes a file, one for each `writer`; all other classes read `file`."""
    if op.cls == "output":
        write(file.with_name(f"written{writer}"), op.bytes, save_bytes if op.lane == HOST else write_bytes)
    else:
        read_bytes(file, op.bytes, op.how)


def read_bytes(file: Path, size: int, how: str) -> None:
    """Moves `size` real bytes: reads them from `file`, again and again, if `how` is one of `FILED`; else copies from memory to memory."""
    if how in FILED:
        left = size
        with file.open("rb", buffering=0) as source:
            while left > 0:
                piece = source.read(min(left, 8 << 20))
                if not piece:
                    source.seek(0)
                left -= len(piece)
    else:
        bytearray(memoryview(bytes(size)))


def write(path: Path, size: int, how: Callable[[Path, int], None]) -> None:
    """Writes `size` bytes by `how`, then deletes the file. Raises `RunFailed` if the disk does not take all of them."""
    try:
        how(path, size)
    except (OSError, RuntimeError) as error:  # on a full disk torch.save raises a RuntimeError about its archive
        why = (isinstance(error, OSError) and error.strerror) or str(error).splitlines()[0]
        raise RunFailed(
            f"cannot write {show_size(size)} into {path.parent}: {why}. Free space, or set output.checkpoint_every = 0"
        ) from None
    finally:
        path.unlink(missing_ok=True)


def write_bytes(path: Path, size: int) -> None:
    """Writes `size` zero bytes, block by block."""
    block = memoryview(bytes(min(size, 4 << 20)))
    with path.open("wb", buffering=0) as file:
        at = 0
        while at < size:
            at += file.write(block[: size - at])  # a nearly full disk takes a part of a block, and the next write raises


def save_bytes(path: Path, size: int) -> None:
    """Saves a tensor of `size` bytes, as the probe does (`executor.probes.input.files`)."""
    torch.save(torch.empty(size, dtype=torch.uint8), path)
