"""CPU cores in topology files: hex masks of NCCL, ranges of nvidia-smi; and how NUMA domains make sockets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

MOST = 8192
"""Hardware threads of a machine at most."""


def from_mask(text: str) -> frozenset[int]:
    """`00000000,000fffff` -> hardware threads 0 to 19. Empty for what is no mask."""
    digits = text.replace(",", "").strip()
    if not digits or len(digits) > MOST // 4 or not re.fullmatch(r"[0-9a-fA-F]+", digits):
        return frozenset()
    value = int(digits, 16)
    return frozenset(i for i in range(value.bit_length()) if value >> i & 1)


def from_ranges(text: str) -> frozenset[int]:
    """`0-11,24-35` -> hardware threads. Empty for `N/A` and other texts."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", part)
        if not match:
            return frozenset()
        found.update(range(int(match.group(1)), int(match.group(2) or match.group(1)) + 1))
    return frozenset(found) if len(found) <= MOST else frozenset()


def cores(threads: frozenset[int]) -> int:
    """Cores of these hardware threads: half as many where they are two equal blocks, as two threads per core are numbered."""
    if not threads:
        return 0
    ordered = sorted(threads)
    gaps = [i for i, (a, b) in enumerate(pairwise(ordered), 1) if b != a + 1]
    return len(ordered) // 2 if len(gaps) == 1 and gaps[0] * 2 == len(ordered) else len(ordered)


def count_domains(ids: Iterable[int]) -> int:
    """How many NUMA domains a machine has whose files show these: those without devices are left out of them."""
    largest = max(ids, default=0)
    return largest + 1 if largest <= 1 else 1 << largest.bit_length()


def sockets(domains: Iterable[int], each_own: bool = False) -> Mapping[int, int]:
    """NUMA domain -> socket. Two domains are two sockets; more are halves of two sockets, by number (NPS2, NPS4)."""
    ids = sorted(set(domains))
    if each_own or not ids or ids[-1] <= 1:
        return {domain: place for place, domain in enumerate(ids)}
    half = count_domains(ids) // 2
    return {domain: int(domain >= half) for domain in ids}
