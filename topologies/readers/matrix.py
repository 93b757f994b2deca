"""The text of `nvidia-smi topo -m` (and `topo -p2p`) -> a matrix of relations.

Cells: X (self), NV<k> (k NVLinks), PIX, PXB, PHB, NODE, SYS; old drivers print SOC for SYS and have no NODE. Headers
may carry ANSI underline codes; tabs may have become blanks; the affinity columns depend on the driver.
"""

from __future__ import annotations

import re

import msgspec

from topologies.errors import BadInput

LARGEST = 1 << 18
MOST = 160
"""Devices: an NVL72 with four NICs per tray has 144."""
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CELL = re.compile(r"(?:X|NV[1-9]\d?|PIX|PXB|PHB|NODE|SYS|SOC)\Z")
_P2P = re.compile(r"(?:X|OK|CNS|GNS|TNS|NS|U|DR|NV[1-9]\d?)\Z")
_GPU = re.compile(r"GPU\d{1,3}\Z")
_NIC = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,40}\Z")


class Matrix(msgspec.Struct, frozen=True):
    """`nvidia-smi topo -m`, as printed."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    cells: dict[tuple[str, str], str]
    """(row, column) -> relation."""
    cpus: dict[str, str]
    """GPU -> CPU affinity, as printed."""
    numas: dict[str, str]
    """GPU -> NUMA affinity, as printed."""
    legend: dict[str, str]
    """NIC0 -> mlx5_0."""
    p2p: bool = False
    """A matrix of peer access (OK, NS ...), not of distances."""


def read_matrix(text: str, where: str) -> Matrix:
    """The matrix in a text that may have other lines around it. Raises `BadInput` that names the row and the column."""
    if len(text) > LARGEST:
        raise BadInput(f"{where} is larger than {LARGEST >> 10} KiB: this is no output of nvidia-smi topo -m")
    lines = [_ANSI.sub("", line).split() for line in text.splitlines()]
    start = next((i for i, tokens in enumerate(lines) if _is_header(tokens)), None)
    if start is None:
        raise BadInput(
            f"{where}: no header line with GPU0 GPU1 ... found. Expected the output of `nvidia-smi topo -m`, or NCCL's topology XML"
        )
    header = lines[start]
    stop = next((i for i, token in enumerate(header) if token in ("CPU", "NUMA") or (token == "GPU" and i)), len(header))
    names, numa = header[:stop], "NUMA" in header[stop : stop + 4] and header[stop : stop + 1] == ["CPU"]
    _check_names(names, where)
    rows = {tokens[0]: tokens[1:] for tokens in reversed(lines[start + 1 :]) if tokens and tokens[0] in names and _is_row(tokens)}
    cells: dict[tuple[str, str], str] = {}
    cpus: dict[str, str] = {}
    numas: dict[str, str] = {}
    p2p = any(token in ("OK", "CNS", "GNS", "TNS", "NS") for tokens in rows.values() for token in tokens)
    for name in names:
        if name not in rows:
            raise BadInput(f"{where}: the header has {name}, but there is no row for it")
        rest = _row(name, rows[name], names, cells, where, _P2P if p2p else _CELL)
        if name.startswith("GPU") and rest:
            cpus[name] = rest[0]
            if numa and len(rest) > 1:
                numas[name] = rest[1]
    gpus = tuple(name for name in names if _GPU.match(name))
    legend = {t[0].rstrip(":"): t[1] for t in lines[start:] if len(t) == 2 and t[0].endswith(":") and _NIC.match(t[1])}
    return Matrix(gpus, tuple(n for n in names if n not in gpus), cells, cpus, numas, legend, p2p)


def _is_header(tokens: list[str]) -> bool:
    return bool(tokens) and bool(_GPU.match(tokens[0])) and (len(tokens) == 1 or not (_CELL.match(tokens[1]) or _P2P.match(tokens[1])))


def _is_row(tokens: list[str]) -> bool:
    return len(tokens) > 1 and bool(_CELL.match(tokens[1]) or _P2P.match(tokens[1]))


def _check_names(names: list[str], where: str) -> None:
    for name in names:
        if not _NIC.match(name):
            raise BadInput(f"{where}: '{name[:40]}' in the header is no device name")
        if names.count(name) > 1:
            raise BadInput(f"{where}: the header has {name} twice")
    if len(names) > MOST:
        raise BadInput(f"{where}: {len(names)} devices in one matrix; at most {MOST} are read")


def _row(
    name: str, tokens: list[str], names: list[str], cells: dict[tuple[str, str], str], where: str, allowed: re.Pattern[str]
) -> list[str]:
    """Enters a row's cells; what follows them. Raises `BadInput` for a missing or unknown cell."""
    for place, column in enumerate(names):
        token = tokens[place] if place < len(tokens) else ""
        if not allowed.match(token):
            found = f"'{token[:20]}'" if token else "nothing"
            raise BadInput(
                f"{where}: row {name} lacks the cell below {column}: found {found} where X, NV#, PIX, PXB, PHB, NODE or SYS is allowed"
            )
        if token.startswith("NV") and not (_GPU.match(name) and _GPU.match(column)):
            raise BadInput(f"{where}: row {name}, column {column} is '{token}': NVLink joins GPUs only")
        cells[name, column] = "SYS" if token == "SOC" else token
        if (token == "X") != (name == column):
            raise BadInput(
                f"{where}: row {name}, column {column} is '{token}': X stands on the diagonal and nowhere else; a cell is missing or moved"
            )
    return tokens[len(names) :]
