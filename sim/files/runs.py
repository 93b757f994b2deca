"""A run is a folder that anyone can rerun and diff.

It holds the plan, the topology's name and edits, the calibration, the program, the predicted and measured traces, a
summary, the report and the environment. Files are written whole or not at all.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from topologies.errors import BadInput

_PACKAGES = ("steptwin", "torch", "simpy", "networkx", "msgspec", "numpy", "plotly")
_VARIABLES = ("NCCL_", "CUDA_", "OMP_", "MKL_", "TORCH_", "GLOO_", "SLURM_JOB")


@contextmanager
def atomic(path: Path) -> Iterator[IO[bytes]]:
    """A file under a temporary name beside `path`, renamed when all is in it: a reader never sees half a file. Folders are made. What a link names is
    written, and into a device or a pipe (/dev/stdout, /dev/null): a file renamed over it would take its place on the whole machine."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            with path.open("wb") as file:
                yield file
        else:
            with _renamed(path.resolve()) as file:
                yield file
    except OSError as error:
        error.filename = str(path)  # of a full disk it is unsaid, else a temporary one
        raise


@contextmanager
def _renamed(path: Path) -> Iterator[IO[bytes]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_atomic(path: Path, text: str | bytes) -> Path:
    """Writes the whole file or none (`atomic`); returns its path."""
    with atomic(path) as file:
        file.write(text.encode() if isinstance(text, str) else text)
    return path


def refuse_unwritable(path: Path) -> None:
    """Raises `BadInput` where no file can be written at `path`: asked before long work whose result it is to hold."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}. Name a file in a folder that you may write to") from None


def _umask() -> int:
    """The process's mask (reading it means setting it): temporary files are private, results are as any other file."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: Path, value: Any) -> Path:
    """Indented JSON with sorted keys, so that two runs can be diffed."""
    return write_atomic(path, json.dumps(value, indent=1, sort_keys=True, default=str) + "\n")


def environment() -> dict[str, Any]:
    """Versions, host and the variables that change how a run behaves. Imports none of the packages."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "packages": versions,
        "commit": _commit(),
        "variables": {key: value for key, value in sorted(os.environ.items()) if key.startswith(_VARIABLES)},
    }


def _commit() -> str:
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
