"""Devices as their manufacturers specify them: frozen values, read from `catalog/*.toml`.

Rates are bytes per second in one direction, FLOP/s are dense, memory is bytes. Each description carries the
`source` of its figures. What was *measured* on a device (efficiencies, latencies) is not part of it: see `sim/cost`.
"""

from __future__ import annotations

import msgspec


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator as a program sees it (an MI250X counts as two)."""

    name: str
    """Catalog key, e.g. `h100-sxm`."""
    arch: str
    """sm37 sm60 sm61 sm70 sm75 sm80 sm86 sm89 sm90 sm100 sm103 sm107 sm120 gfx908 gfx90a gfx942."""
    flops: dict[str, float]
    """Peak dense FLOP/s by dtype: fp32 tf32 bf16 fp16 fp8 fp4. A missing dtype is not supported."""
    memory: int
    bandwidth: float
    """Peak device memory bandwidth (read + write together)."""
    l2: int
    sms: int
    clock: float
    """Boost clock in Hz."""
    power: float = 0.0
    """Board power limit in watts; 0 = not known."""
    vboost: int = 0
    """Level of `nvidia-smi boost-slider --vboost`: with 1, the clock of the cores gets more of the power, memory and L2 less."""
    copy_engines: int = 2
    nvlink: float = 0.0
    """All NVLink (or xGMI) links together, one direction."""
    nvlink_links: int = 0
    pcie: float = 0.0
    """Usable host link rate, one direction."""
    c2c: float = 0.0
    """Rate to the CPU on the same board (NVLink-C2C), one direction; 0 = PCIe only."""
    source: str = ""

    @property
    def kind(self) -> str:
        return "cuda"


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """One CPU socket (or all of a small host): cores, and the memory that they share."""

    name: str
    cores: int
    clock: float = 0.0
    flops: dict[str, float] = {}
    """FLOP/s of ONE core by dtype, where known (measured by `probe` for `this-machine`)."""
    bandwidth: float = 0.0
    """DRAM bandwidth of the socket."""
    memory: int = 0
    numa: int = 1
    interconnect: float = 0.0
    """Rate to the other socket (UPI, xGMI), one direction."""
    pcie: float = 0.0
    """Bytes per second of one of its x16 ports in one direction; 0: the port is as fast as the device in it."""
    source: str = ""

    @property
    def kind(self) -> str:
        return "cpu"


class Nic(msgspec.Struct, frozen=True, kw_only=True):
    """A network port, or `count` equal ports that serve the same GPUs and are used as one."""

    name: str
    rate: float
    """All ports together, one direction."""
    latency: float = 0.0
    """From the NIC to the first switch: NIC, cable and half of the switch."""
    count: int = 1
    source: str = ""


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """A node's own disk: batches are read from it and checkpoints are written to it. Rates in bytes per second, latency in seconds."""

    name: str = "disk"
    read: float = 2e9
    write: float = 1e9
    latency: float = 1e-4
    source: str = "assumed: one NVMe drive"


class Store(msgspec.Struct, frozen=True, kw_only=True):
    """Storage that all nodes of a cluster share: a parallel file system, an object store, a database server.

    The defaults are the middle column ("better") of the storage table of NVIDIA's DGX SuperPOD reference architecture (RA-11333-001, 2023).
    """

    name: str = "shared file system"
    read: float = 8e9
    """Bytes per second that one node reads."""
    write: float = 4e9
    stream: float = 2e9
    """Bytes per second of one connection (assumed; 85-90 MB/s for Amazon S3)."""
    latency: float = 1e-3
    """Seconds until the first byte of one sample (assumed; 0.1-0.2 s for Amazon S3)."""
    total_read: float = 0.0
    """Bytes per second for all nodes together; 0: 40 GB/s for each 32 nodes or part of them."""
    total_write: float = 0.0
    """The same for writing; 0: 20 GB/s."""
    source: str = "DGX SuperPOD reference architecture, storage: better"

    def total(self, write: bool, nodes: int) -> float:
        """Bytes per second of the store for a cluster of `nodes` nodes; `write`: of writing, else of reading."""
        units = -(-nodes // 32)
        return (self.total_write or 20e9 * units) if write else (self.total_read or 40e9 * units)
