"""Other figures for the parts of a machine: `gpu.memory=96 GiB`, `cpu.cores=8`, `nic.rate=200 Gbit/s`, `disk.read=2 GB/s`,
`store.read=8 GB/s`."""

from __future__ import annotations

import msgspec

from topologies.devices import STORE_RATES, overlay, read_disk, read_store
from topologies.errors import BadInput
from topologies.hardware import Store
from topologies.machine import Link, Machine

_WHOLE = ("sms", "cores", "vboost")
_NUMBER = ("clock", "power")
"""Fields that may also be bare: MHz and watts, as data sheets print them."""
_FIXED = ("name", "base", "copy_engines", "nvlink", "nvlink_links", "pcie", "c2c", "interconnect", "numa", "count")
"""Fields that are links of the graph: they are edited as links."""


def refit(machine: Machine, part: str, field: str, value: str) -> Machine:
    """`machine` with one figure of its GPUs, CPU, NICs or disk replaced, or of the shared store. Raises `BadInput`."""
    if field in _FIXED:
        raise BadInput(f"{part}.{field} is part of the graph. Use link.nvlink.rate, link.pcie.rate, link.upi.rate ... for the links")
    item: object = value
    if field in _WHOLE or field in _NUMBER:
        try:
            item = int(value) if field in _WHOLE else float(value)
        except ValueError:
            if field in _WHOLE:
                raise BadInput(f"{part}.{field}={value[:40]}: must be a whole number") from None
    first, dot, dtype = field.partition(".")
    table: dict[str, object] = {first: {dtype: value}} if dot and first == "flops" else {field: item}
    where = f"the edit {part}.{field}"
    if part == "disk":
        d = machine.disk
        base = {"name": d.name, "read": f"{d.read!r} B/s", "write": f"{d.write!r} B/s", "latency": f"{d.latency!r} s"}
        return msgspec.structs.replace(machine, disk=read_disk(base | table, where))
    if part == "store":
        return msgspec.structs.replace(machine, store=_store(machine.store or Store(), table, where))
    if part == "cpu":
        return _cpu(machine, table, where)
    if not (machine.gpus if part == "gpu" else machine.nics):
        raise BadInput(f"{where}: {machine.name} has no {part.upper()}")
    if part == "gpu":
        return msgspec.structs.replace(machine, gpus={name: overlay(gpu, table, where) for name, gpu in machine.gpus.items()})
    return msgspec.structs.replace(machine, nics={name: overlay(nic, table, where) for name, nic in machine.nics.items()})


def _store(store: Store, table: dict[str, object], where: str) -> Store:
    rates = {name: f"{getattr(store, name)!r} B/s" for name in STORE_RATES}
    rest = {"name": store.name, "latency": f"{store.latency!r} s", "source": store.source}
    return read_store({name: rate for name, rate in (rates | rest).items() if rate != "0.0 B/s"} | table, where)


def _cpu(machine: Machine, table: dict[str, object], where: str) -> Machine:
    """Memory bandwidth is a bus of the graph too: its rate follows."""
    cpu = overlay(machine.cpu, table, where)
    links = machine.links
    if "bandwidth" in table:
        domains = sum(link.kind == "dram" for link in links.values()) // len(machine.sockets)
        rate = cpu.bandwidth / domains
        links = {n: Link(link.kind, rate, link.latency) if link.kind in ("dram", "numa") else link for n, link in links.items()}
    return msgspec.structs.replace(machine, cpu=cpu, links=links)
