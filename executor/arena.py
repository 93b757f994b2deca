"""Buffers of the player and the probe: allocated before anything is timed, reused, and limited to a stated number of bytes.

There are three rings. *Recent* is for what a kernel reads just after another wrote it (activations): it is small, so it stays in the
caches as such data does. *Distant* is for what was last touched a step ago (weights, saved activations): it is large, so that data
comes from memory. *Updated*, as large, is for what optimizers overwrite in fp32: read as bf16, half of such a number is random bits,
sometimes NaN. Neighbouring requests get different bytes; a full ring starts again from its beginning.

The player and the probe of a GPU have the same small ring (`of_gpu`): a kernel that reads 2 MB finds them in L2 in both, as in training.
"""

from __future__ import annotations

import functools
import math

import torch

from topologies.errors import BadInput
from topologies.units import show_size

_FIRST = 4 << 20
_ALIGN = 64
"""Bytes of a cache line: torch's own CPU allocator aligns to it."""
_DRAWN = 1 << 22
"""Random numbers that are drawn once in a process to fill buffers with; they take memory of their own."""
_NEIGHBOURS = 4
"""Requests in a row that get different bytes, however large: a fused Adam update takes parameter, gradient and two moments from one ring."""
RECENT = 8 << 20
"""Bytes of the ring of activations: it fits into the caches of server CPUs, and is a fifth of an A100's L2."""


def too_large(what: str, limit: int) -> BadInput:
    """The error for `what`, which alone needs more than `limit` bytes."""
    return BadInput(
        f"{what} is over the {show_size(limit)} that this device has for it. Use a smaller batch.micro or seq_len, or a device with more memory"
    )


class Ring:
    """A flat buffer that hands out tensors one after the other and wraps around."""

    def __init__(self, device: torch.device, size: int, limit: int, what: str, near: bool = False) -> None:
        """`size`: bytes that the ring grows to without large requests; `limit`: bytes that it never exceeds; `what`: its name in errors;
        `near`: small requests stay within the first `size` bytes of a ring that large ones have made longer."""
        self._device, self._size, self._limit, self._what, self._near = device, size, limit, what, near
        self._flat = torch.empty(0, dtype=torch.uint8, device=device)
        self._at = 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor filled with small numbers. Raises `BadInput` if it alone is larger than the limit."""
        need = max(1, math.prod(shape)) * dtype.itemsize
        if need > self._limit:
            raise too_large(f"a {self._what} buffer of {show_size(need)}", self._limit)
        if self._at + need > self._flat.numel():
            if self._flat.numel() < min(self._limit, max(self._size, _NEIGHBOURS * need)):
                self._grow(need)
            self._at = 0
        elif self._near and self._at + need > max(self._size, _NEIGHBOURS * need):
            self._at = 0
        # A new tensor over the same bytes, not a view: autograd then does not count writes to other tensors as writes to this one.
        piece = torch.empty(0, dtype=dtype, device=self._device)
        piece.set_(self._flat.untyped_storage(), self._at // dtype.itemsize, torch.Size(shape), contiguous(shape))
        self._at += -(-need // _ALIGN) * _ALIGN
        return piece

    def _grow(self, need: int) -> None:
        """Doubles the ring until neighbours fit and `size` is reached, so that small programs touch little memory. Tensors that were handed
        out before keep the old buffers alive, which together are about as large as the new one."""
        twice = max(_FIRST, 2 * self._flat.numel())
        size = min(self._limit, max(need, twice if _NEIGHBOURS * need > self._size else min(self._size, twice)))
        self._flat = torch.empty(-(-size // _ALIGN) * _ALIGN, dtype=torch.uint8, device=self._device)
        # No zeros or denormals: kernels run at another speed on them. bf16, as two bf16 numbers are also a normal fp32 number, while the
        # lower half of an fp32 number is a bf16 of random bits, sometimes NaN: with such data tensor cores draw another power than in
        # training, and run at another clock. The same numbers are repeated: drawing takes many times as long as copying, and a kernel's
        # time depends only on their kind.
        flat = self._flat.view(torch.bfloat16)
        for piece in torch.split(flat, _DRAWN):
            piece.copy_(_numbers(self._device)[: piece.numel()])
        self._at = 0


@functools.cache
def _numbers(device: torch.device) -> torch.Tensor:
    """Small bf16 numbers to fill buffers with. They are drawn as fp32: on CPUs torch 2.11's bf16.normal_ makes one of 170 a zero."""
    return torch.randn(_DRAWN, device=device).mul_(0.02).bfloat16()


def contiguous(shape: tuple[int, ...]) -> torch.Size:
    """Strides of a row-major tensor."""
    return torch.Size(math.prod(shape[i + 1 :]) for i in range(len(shape)))


class Arena:
    """The buffers of one rank. `limit`: bytes that activations and weights may take together; fp32 states may take half of that in
    addition, and old buffers of rings that have grown as much again as all three. `near`: see `Ring`, for activations. `spills`: an array
    larger than the ring of activations is no longer in the cache when it is read, so it comes from memory."""

    def __init__(
        self, device: torch.device, limit: int, recent: int = RECENT, distant: int = 256 << 20, near: bool = False, spills: bool = False
    ) -> None:
        self.device, self.limit = device, limit
        self._cached = recent if spills else limit
        self._recent = Ring(device, min(recent, limit // 2), limit // 2, "activation", near)
        self._distant = Ring(device, min(distant, limit // 2), limit // 2, "weight")
        self._updated = Ring(device, min(distant, limit // 2), limit // 2, "state")
        self._indices: dict[tuple[int, int], torch.Tensor] = {}

    def recent(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor that stands for what the kernel before has just written."""
        fits = math.prod(shape) * dtype.itemsize <= self._cached
        return (self._recent if fits else self._distant).take(shape, dtype)

    def distant(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor that stands for what was last touched long ago."""
        return self._distant.take(shape, dtype)

    def updated(self, *shape: int) -> torch.Tensor:
        """A tensor that stands for fp32 parameters or optimizer states, last touched a step ago."""
        return self._updated.take(shape, torch.float32)

    def indices(self, count: int, below: int) -> torch.Tensor:
        """`count` random row numbers from 0 to `below` - 1, the same at every call."""
        key = (count, below)
        if key not in self._indices:
            generator = torch.Generator().manual_seed(count)
            self._indices[key] = torch.randint(0, below, (count,), generator=generator).to(self.device)
        return self._indices[key]


def of_gpu(device: torch.device, limit: int, distant: int) -> Arena:
    """The arena of both the player and the probe of a GPU. Without `near`, the largest op of the program would decide whether a small
    kernel reads from L2 or from memory: logits of 0.8 GB make a ring of 3 GB, and all later requests would be spread over it."""
    return Arena(device, limit, distant=distant, near=True)


def of_cpu(device: torch.device, ranks: int) -> Arena:
    """The arena of each of a host's `ranks` CPU ranks. Its three rings take up to half the limit each, and their old buffers as much again:
    all ranks together take three quarters of the available memory."""
    return Arena(device, free_memory(device) // (2 * ranks))


def free_memory(device: torch.device) -> int:
    """Bytes that a rank may take now: half of what is free on the device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) // 2
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024 // 2
    return 4 << 30
