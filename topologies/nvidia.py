"""This computer's NVIDIA GPUs, as the driver's own tool tells them: names, and who hangs on what.

`nvidia-smi` is asked twice: for the names of the devices, and for the matrix `topo -m` that `topologies.readers` turns into a tree. A
computer without it, or with CUDA_VISIBLE_DEVICES set to nothing, has no GPUs here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from topologies.devices import shelf
from topologies.errors import BadInput

_PATIENCE = 20.0
_BRAND = re.compile(r"^(nvidia|tesla|geforce|quadro)\s+", re.I)


def document() -> dict[str, object] | None:
    """The machine's TOML document; None where there is no GPU. Raises `BadInput` for GPUs that the catalog lacks."""
    tool = shutil.which("nvidia-smi")
    if tool is None or os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return None
    lines = _ask(tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits").strip().splitlines()
    if not lines:
        return None
    name, _, memory = lines[0].partition(",")
    from topologies.readers import read_text

    found = read_text(_ask(tool, "topo", "-m"), "this-machine", catalog_key(name.strip(), _mib(memory)))
    return {**found.document, "name": "this-machine", "source": "nvidia-smi"}


def catalog_key(name: str, mib: int) -> str:
    """The catalog's key of a device that the driver calls `NVIDIA H100 80GB HBM3`, with so much memory. Raises `BadInput`."""
    plain = name.strip()
    while _BRAND.match(plain):
        plain = _BRAND.sub("", plain)
    words = set(re.findall(r"[a-z0-9]+", plain.lower().replace("rtx pro", "rtx-pro").replace("-", " ")))
    chip = next((key for key in shelf("gpus") if key.split("-")[0] in words), "")
    number = next((word for word in words if re.fullmatch(r"[a-z]{0,2}\d{1,4}[a-z]?", word)), "")
    known = {number, chip} - {""}
    scored = [(len(words & set(key.split("-"))), -_off(key, mib), key) for key in shelf("gpus") if set(key.split("-")) & known]
    if not scored:
        raise BadInput(
            f"the GPU '{name}' is not in the catalog: describe the machine in a TOML file (steptwin topology import) and give it with --on"
        )
    preferred = "pcie" if "pcie" in words else "nvl" if "nvl" in words else "sxm"
    return max(scored, key=lambda one: (preferred in one[2].split("-")[1:], one[0], one[1], -len(one[2])))[2]


def _off(key: str, mib: int) -> float:
    """How far the key's memory, where it names one, is from what the driver says; GB."""
    size = re.search(r"(\d+)gb$", key)
    return abs(int(size.group(1)) - mib / 1000) if size else 0.0


def _mib(text: str) -> int:
    digits = re.sub(r"\D", "", text)
    return int(digits[:9]) if digits else 0


def _ask(tool: str, *words: str) -> str:
    try:
        done = subprocess.run([tool, *words], capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadInput(f"nvidia-smi {' '.join(words)} does not answer ({error}). Set CUDA_VISIBLE_DEVICES= to use the CPU alone") from None
    if done.returncode:
        return ""
    return done.stdout
