"""Reads GPUs, CPUs, NICs, disks and stores: from their catalog key, or from a table in a machine's file.

A file `catalog/gpus/KEY.toml` holds one device. A machine's file names a key, or gives a table: either all fields,
or `base = "KEY"` and the fields that differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

from topologies.errors import BadInput, UnknownName
from topologies.hardware import Cpu, Disk, Gpu, Nic, Store
from topologies.table import Table, positive, read_toml
from topologies.units import frequency, power

CATALOG = Path(__file__).parent / "catalog"
Part = TypeVar("Part", Gpu, Cpu, Nic)


@cache
def shelf(kind: str) -> tuple[str, ...]:
    """Keys of `gpus`, `cpus`, `nics` or `machines`, sorted."""
    return tuple(sorted(path.stem for path in (CATALOG / kind).glob("*.toml")))


def document(kind: str, name: str) -> dict[str, object]:
    """The TOML document of a catalog entry. Raises `UnknownName`, which offers the nearest key, or `BadInput` for a file name."""
    what = {"gpus": "GPU", "cpus": "CPU", "nics": "NIC"}.get(kind, "machine")
    if name not in shelf(kind):
        if name.endswith(".toml") and what != "machine":
            example = f'[{kind[:-1]}] with base = "{shelf(kind)[0]}" and what differs'
            raise BadInput(f"{what} '{name[:80]}': one of your own is a table in the file of its machine, {example}")
        raise UnknownName(what, name, shelf(kind), "the catalog")
    return read_toml(CATALOG / kind / f"{name}.toml")


@cache
def gpu(name: str) -> Gpu:
    """The GPU with this catalog key."""
    return _gpu(document("gpus", name), f"GPU '{name}'", name)


@cache
def cpu(name: str) -> Cpu:
    """The CPU socket with this catalog key."""
    return _cpu(document("cpus", name), f"CPU '{name}'", name)


@cache
def nic(name: str) -> Nic:
    """The NIC with this catalog key."""
    return _nic(document("nics", name), f"NIC '{name}'", name)


def read_gpu(value: object, where: str) -> Gpu:
    """A GPU from a key or a table."""
    return _either(value, where, gpu, _gpu, "gpu")


def read_cpu(value: object, where: str) -> Cpu:
    """A CPU from a key or a table."""
    return _either(value, where, cpu, _cpu, "cpu")


def read_nic(value: object, where: str) -> Nic:
    """A NIC from a key or a table."""
    return _either(value, where, nic, _nic, "nic")


def overlay(part: Part, fields: Mapping[str, object], where: str) -> Part:
    """Returns `part` with the values of `fields` in place of its own. Raises `BadInput`."""
    make: Callable[..., Part] = {Gpu: _gpu, Cpu: _cpu, Nic: _nic}[type(part)]  # type: ignore[assignment]
    return make(fields, where, part.name, part)


def _either(value: object, where: str, by_key: Callable[[str], Part], by_table: Callable[..., Part], noun: str) -> Part:
    if isinstance(value, str):
        return by_key(value)
    if not isinstance(value, Mapping):
        raise BadInput(f"{where} must be a catalog key in quotes or a table, got {str(value)[:40]!r}")
    base = value.get("base")
    if base is None:
        return by_table(value, where, str(value.get("name", f"own-{noun}")))
    if not isinstance(base, str):
        raise BadInput(f"{where}, base must be a catalog key in quotes")
    fields = {key: item for key, item in value.items() if key != "base"}
    return by_table(fields, where, str(value.get("name", base)), by_key(base))


_GPU: tuple[str, ...] = ("name", "arch", "flops", "memory", "bandwidth", "l2", "sms", "clock", "power", "vboost", "copy_engines")
_GPU += ("nvlink", "nvlink_links", "pcie", "c2c", "source")


def _clock(table: Table, known: float) -> float:
    """The clock of a table in Hz: a text has a unit, a bare number is in MHz, as in data sheets. Without the key, returns `known`. 0 means
    not known. Raises `BadInput` for a bare number below 100, which is likely in GHz."""
    if "clock" not in table:
        return known
    value = table.raw("clock")
    if isinstance(value, str):
        return frequency(value, table.at("clock"))
    if isinstance(value, (int, float)) and 0 < value < 100:
        raise BadInput(f'{table.at("clock")} is in MHz, as data sheets print it (1980), or a text with its unit ("1.98 GHz"), got {value}')
    return table.number("clock", 0.0) * 1e6


def _arch(table: Table, known: str) -> str:
    """The architecture, which is the key of the fitted costs. Raises `BadInput` for any other form than `sm90` or `gfx942`: no costs would
    be found."""
    arch = table.text("arch", known)
    if not re.fullmatch(r"sm\d+|gfx\d+[a-f]?", arch):
        raise BadInput(
            f'{table.at("arch")} is what compilers call the architecture, "sm90" (NVIDIA\'s Hopper) or "gfx942" (AMD\'s CDNA 3), got {arch[:40]!r}'
        )
    return arch


def _gpu(data: object, where: str, name: str, base: Gpu | None = None) -> Gpu:
    """Makes a GPU from its table. Bare numbers of `clock` are in MHz and those of `power` in watts, as in data sheets. Peak FLOP/s belong
    to all SMs at `clock`: where the table changes the clock or the number of SMs of its base and gives no peak, the peaks change in
    proportion."""
    table = Table(data, where, _GPU)
    missing = [key for key in ("arch", "flops", "memory", "bandwidth", "sms") if key not in table]
    if base is None and missing:
        raise BadInput(f'{where} lacks {", ".join(missing)}. Give them, or start from a known GPU with base = "h100-sxm"')
    b = base or Gpu(name=name, arch="", flops={}, memory=0, bandwidth=0.0, l2=0, sms=0, clock=0.0)
    clock, sms = _clock(table, b.clock), table.whole("sms", b.sms, least=1)
    faster = (clock / b.clock if b.clock else 1.0) * (sms / b.sms if b.sms else 1.0)
    return msgspec.structs.replace(
        b,
        name=table.text("name", name),
        arch=_arch(table, b.arch),
        flops={dtype: rate * faster for dtype, rate in b.flops.items()} | table.flops("flops"),
        memory=table.size("memory", b.memory),
        bandwidth=table.rate("bandwidth", b.bandwidth),
        l2=table.size("l2", b.l2),
        sms=sms,
        clock=clock,
        power=power(table.raw("power"), table.at("power")) if isinstance(table.raw("power"), str) else table.number("power", b.power),
        vboost=table.whole("vboost", b.vboost, most=1),
        copy_engines=table.whole("copy_engines", b.copy_engines, least=1, most=64),
        nvlink=table.rate("nvlink", b.nvlink),
        nvlink_links=table.whole("nvlink_links", b.nvlink_links, most=64),
        pcie=table.rate("pcie", b.pcie),
        c2c=table.rate("c2c", b.c2c),
        source=table.text("source", b.source),
    )


def _cpu(data: object, where: str, name: str, base: Cpu | None = None) -> Cpu:
    table = Table(data, where, ("name", "cores", "clock", "flops", "bandwidth", "memory", "numa", "interconnect", "pcie", "source"))
    if base is None and "cores" not in table:
        raise BadInput(f"{where} lacks cores (of one socket)")
    b = base or Cpu(name=name, cores=1)
    return msgspec.structs.replace(
        b,
        name=table.text("name", name),
        cores=table.whole("cores", b.cores, least=1, most=4096),
        clock=_clock(table, b.clock),
        flops=b.flops | table.flops("flops"),
        bandwidth=table.rate("bandwidth", b.bandwidth),
        memory=table.size("memory", b.memory),
        numa=table.whole("numa", b.numa, least=1, most=64),
        interconnect=table.rate("interconnect", b.interconnect),
        pcie=table.rate("pcie", b.pcie),
        source=table.text("source", b.source),
    )


def _nic(data: object, where: str, name: str, base: Nic | None = None) -> Nic:
    """Makes a NIC from its table. In the table `rate` is that of one port; the NIC gets the rate of all `count` ports together."""
    table = Table(data, where, ("name", "rate", "latency", "count", "source"))
    if base is None and "rate" not in table:
        raise BadInput(f'{where} lacks rate, e.g. rate = "400 Gbit/s"')
    b = base or Nic(name=name, rate=1.0)
    count = table.whole("count", b.count, least=1, most=256)
    return msgspec.structs.replace(
        b,
        name=table.text("name", name),
        rate=positive(table.rate("rate", b.rate / b.count) * count, where),
        latency=table.duration("latency", b.latency),
        count=count,
        source=table.text("source", b.source),
    )


STORE_RATES = ("read", "write", "stream", "total_read", "total_write")
"""Fields of a `Store` that are in bytes per second."""


def read_store(value: object, where: str) -> Store:
    """A shared store from a table; absent fields keep the defaults of `Store`."""
    table = Table({} if value is None else value, where, ("name", *STORE_RATES, "latency", "source"))
    b = Store()
    return Store(
        name=table.text("name", b.name),
        latency=table.duration("latency", b.latency),
        source=table.text("source", "" if value else b.source),
        **{rate: table.rate(rate, getattr(b, rate)) for rate in STORE_RATES},
    )


def read_disk(value: object, where: str) -> Disk:
    """A disk from a table; absent fields keep the defaults of `Disk`."""
    table = Table({} if value is None else value, where, ("name", "read", "write", "latency", "source"))
    b = Disk()
    return Disk(
        name=table.text("name", b.name),
        read=table.rate("read", b.read),
        write=table.rate("write", b.write),
        latency=table.duration("latency", b.latency),
        source=table.text("source", "" if value else b.source),
    )
