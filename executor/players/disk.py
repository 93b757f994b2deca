"""Ops that read and write files: samples of a dataset, checkpoints.

What the training thread writes is written by torch.save, which binds it (the archive it makes is summed and copied) and whose seconds the probe
gives; what a thread beside it writes, as plain bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from sim.program import FILED, HOST, Op
from topologies.errors import RunFailed
from topologies.units import show_size


def copy_file(op: Op, file: Path, writer: int) -> None:
    """A copy op without a device: output is written, to a file of this writer's own, all else is read."""
    if op.cls == "output":
        write(file.with_name(f"written{writer}"), op.bytes, save_bytes if op.lane == HOST else write_bytes)
    else:
        read_bytes(file, op.bytes, op.how)


def read_bytes(file: Path, size: int, how: str) -> None:
    """Real bytes: from the file where they lie in one (`FILED`), else from memory to memory."""
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
    """Writes the bytes, then drops the file. Raises `RunFailed` where the disk does not take all of them."""
    try:
        how(path, size)
    except (OSError, RuntimeError) as error:  # torch.save says of a full disk that its archive failed
        why = (isinstance(error, OSError) and error.strerror) or str(error).splitlines()[0]
        raise RunFailed(
            f"cannot write {show_size(size)} into {path.parent}: {why}. Free space, or set output.checkpoint_every = 0"
        ) from None
    finally:
        path.unlink(missing_ok=True)


def write_bytes(path: Path, size: int) -> None:
    """As many zeros, block by block."""
    block = memoryview(bytes(min(size, 4 << 20)))
    with path.open("wb", buffering=0) as file:
        at = 0
        while at < size:
            at += file.write(block[: size - at])  # a disk that is nearly full takes a part, and the rest is refused


def save_bytes(path: Path, size: int) -> None:
    """A tensor of so many bytes, as the probe saves one (`executor.probes.input.files`)."""
    torch.save(torch.empty(size, dtype=torch.uint8), path)
