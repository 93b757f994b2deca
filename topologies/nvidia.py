"""The NVIDIA GPUs of this computer and how they are connected, as `nvidia-smi` reports them.

`nvidia-smi` is called for the names of the devices and for the matrix `topo -m`, which `topologies.readers` turns into a tree. Without
`nvidia-smi`, or with an empty CUDA_VISIBLE_DEVICES, there are no GPUs. Where the variable lists GPUs, ranks use only these.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from topologies.devices import gpu, shelf
from topologies.errors import BadInput
from topologies.thismachine import TCP, nearest_cpu

_PATIENCE = 20.0
_ALONE = "GPU0\nGPU0 X\n"
_BRAND = re.compile(r"^(nvidia|tesla|geforce|quadro)\s+", re.I)


def document() -> dict[str, object] | None:
    """The machine's TOML document; None where there is no GPU. Raises `BadInput` for GPUs that the catalog lacks."""
    tool = shutil.which("nvidia-smi")
    if tool is None or hidden():
        return None
    lines = _ask(tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits").strip().splitlines()
    if not lines:
        return None
    named = [line.partition(",") for line in lines]
    keys = [catalog_key(name.strip(), _mib(memory)) for name, _, memory in named]
    from topologies.readers import read_text

    if not visible(len(keys)):
        return None
    # In some containers `topo -m` fails; with one GPU the matrix is not needed.
    matrix = _ask(tool, "topo", "-m") or (_ALONE if len(keys) == 1 else "")
    found = read_text(matrix, "this-machine", keys[0])
    # Both lists are in the order of bus ids. With several models of GPUs, each GPU is named.
    mixed = {"gpus": {f"gpu{place}": key for place, key in enumerate(keys)}} if len(set(keys)) > 1 else {}
    own = _with_nic(found.document)
    return {**own, **mixed, "cpu": _own(own.get("cpu")), "name": "this-machine", "source": "nvidia-smi"}


def _with_nic(document: dict[str, object]) -> dict[str, object]:
    """Adds an Ethernet NIC where the matrix shows no NIC (it lists only those of InfiniBand and RoCE), so that hosts are connected."""
    tree = document.get("tree")
    if "nics" in document or "nic" in document or not isinstance(tree, dict):
        return document
    return {**document, "tree": {**tree, "socket0": [*tree.get("socket0", []), "nic0"]}, "nic": TCP}


def _own(cpu: object) -> object:
    """Replaces the assumed CPU of the matrix, which names none, by the one that the operating system names: host times depend on its
    generation."""
    base = nearest_cpu()
    if not base:
        return cpu
    own = {key: value for key, value in cpu.items() if key != "pcie"} if isinstance(cpu, dict) else {}
    return own | {"base": base} if "cores" in own else base


def hidden() -> bool:
    """True if CUDA_VISIBLE_DEVICES hides all GPUs. Unlike `visible`, it does not call the driver, which may not answer."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1")


def visible(count: int) -> tuple[int, ...]:
    """Indices of the GPUs, of `count` in all, that programs started here see, in CUDA's order.

    CUDA_VISIBLE_DEVICES lists indices (in the order of bus ids, as with CUDA_DEVICE_ORDER=PCI_BUS_ID and wherever all GPUs are alike) or
    beginnings of UUIDs; entries after the first invalid one are ignored (CUDA C++ Programming Guide, environment variables). Raises
    `BadInput` for slices of a GPU (MIG).
    """
    words = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")]
    if any(word.startswith("MIG-") for word in words):
        raise BadInput(
            "CUDA_VISIBLE_DEVICES names a slice of a GPU (MIG), whose rates are not in the catalog: describe the machine in a TOML file and give it with --on"
        )
    named = any(word.startswith("GPU-") for word in words)
    known = _ask(shutil.which("nvidia-smi") or "nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader").split() if named else []
    found: list[int] = []
    for word in words:
        fits = [at for at, uuid in enumerate(known) if word.startswith("GPU-") and uuid.startswith(word)]
        at = fits[0] if len(fits) == 1 else int(word) if word.isdigit() else -1
        if not 0 <= at < count or at in found:
            break
        found.append(at)
    return tuple(found)


def of_model(name: str) -> list[str]:
    """Catalog keys that share the model name or number with a driver's name: h200-nvl and h200-sxm for `NVIDIA H200`."""
    known = {word for word in _words(name) if word == "titan" or re.fullmatch(r"[a-z]{0,2}\d{1,4}[a-z]?", word)}
    return [key for key in shelf("gpus") if set(key.split("-")) & known]


def _words(name: str) -> set[str]:
    plain = name.strip()
    while _BRAND.match(plain):
        plain = _BRAND.sub("", plain)
    words = set(re.findall(r"[a-z0-9]+", plain.lower()))
    return words | ({"450w"} if "h" in words else set())  # V100-SXM3-32GB-H: the DGX-2H's, of 450 W


_SAME = 0.12
"""Largest relative difference between the memory that the driver reports and that of the catalog: ECC and the driver take some."""


def catalog_key(name: str, mib: int) -> str:
    """The catalog key of a device with the driver's name (`NVIDIA H100 80GB HBM3`) and `mib` MiB of memory (0: not known).

    A model number is not enough (an RTX 2080 is not a 2080 Ti, a Quadro RTX 6000 not an RTX 6000 Ada): the memory must fit, too.
    Raises `BadInput` for a device that is not in the catalog.
    """
    words, near = _words(name), of_model(name)
    fits = [key for key in near if _off(key, mib) <= _SAME]
    if not fits:
        other = f" (its {near[0]} has {gpu(near[0]).memory >> 20} MiB, this one {mib})" if near else ""
        raise BadInput(
            f"the GPU '{name}' is not in the catalog{other}: describe the machine in a TOML file (steptwin topology import) and give it with --on"
        )
    preferred = "pcie" if "pcie" in words else "nvl" if "nvl" in words else "sxm"

    def alike(key: str) -> tuple[bool, int, float, int]:
        parts = key.split("-")
        return any(part.startswith(preferred) for part in parts[1:]), len(words & set(parts)), -_off(key, mib), -len(key)

    return max(fits, key=alike)


def _off(key: str, mib: int) -> float:
    """Relative difference between the memory of the catalog's GPU and `mib` MiB; 0.0 where `mib` is 0."""
    return abs(gpu(key).memory / (mib << 20) - 1.0) if mib else 0.0


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
