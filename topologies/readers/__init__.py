"""Topology files of other tools -> machines: NCCL's XML and `nvidia-smi topo -m`."""

from __future__ import annotations

import re
from pathlib import Path

from topologies.errors import BadInput
from topologies.readers.imported import Imported

__all__ = ["Imported", "read_file", "read_text"]
LARGEST = 1 << 20


def read_file(path: Path | str, gpu: str = "") -> Imported:
    """The machine in a file of NCCL (XML) or nvidia-smi (text). `gpu`: its GPUs' catalog key, where the file has none.

    Raises `BadInput` for a file that is absent, too large, no text, or neither of the two.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise BadInput(f"cannot read the topology file {path}: {error.strerror}") from None
    if len(data) > LARGEST:
        raise BadInput(f"{path} is larger than {LARGEST >> 20} MiB: this is no topology file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not UTF-8 text") from None
    return read_text(text, re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem)[:60] or "machine", gpu)


def read_text(text: str, name: str, gpu: str = "") -> Imported:
    """The machine in a text; its first character tells XML from a matrix. Raises `BadInput`."""
    from topologies.build import build

    if text.lstrip("\ufeff \t\r\n").startswith("<"):
        from topologies.readers.nccl import read_system

        found = read_system(text.lstrip("\ufeff \t\r\n"), name, gpu)
    else:
        from topologies.readers.infer import infer
        from topologies.readers.matrix import read_matrix

        found = infer(read_matrix(text, name), name, gpu)
    build(found.document)
    return found
