"""Prices of GPU-hours by machine, and what a training run costs by them."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

from sim.planning.capacity.goodput import Reliability
from topologies.cluster import parse
from topologies.errors import BadInput
from topologies.load import Topology, load_topology
from topologies.table import read_toml

_CLUSTER = re.compile(r"\d+\s*[xX*]\s*([^\s+:=]+)")


def load_prices(source: Mapping[str, float] | str | Path) -> dict[str, float]:
    """Money per GPU-hour by machine, from a TOML file or a mapping: `dgx-h100 = 2.5`. A user's machine file is listed by the `name` in it.

    A key with "=", such as `"oversubscription=2" = -0.2`, is what that change of the machine adds to the price; it may be negative.
    Raises `BadInput` for what is not a table of such prices.
    """
    where = "prices" if isinstance(source, Mapping) else f"price file {source}"
    table: Mapping[str, object] = source if isinstance(source, Mapping) else read_toml(Path(source), "price file")
    prices = table.get("per_gpu_hour", table)
    if not isinstance(prices, Mapping):
        raise BadInput(f"{where}: per_gpu_hour must be a table of prices by machine")
    for name, price in prices.items():
        if isinstance(price, bool) or not isinstance(price, (int, float)) or not (-1e12 if "=" in name else 0) <= price < 1e12:
            raise BadInput(f"{where}: {name} = {repr(price)[:40]} is no price per GPU-hour (a bare number that is not negative)")
        if found := _CLUSTER.match(name):
            raise BadInput(f'{where}: "{name}" is a cluster, and prices are per GPU-hour of one machine: write "{found[1]}" = {price:g}')
    return {name: float(price) for name, price in prices.items()}


def price_of(prices: dict[str, float], on: str, gpus: int = 0, edits: tuple[str, ...] = ()) -> float:
    """Money per GPU-hour on the machine or cluster `on`, plus what the prices say that `edits` add; edits without a price add nothing.

    For a mixture of machines it is the mean over the first `gpus` GPUs (0: all of them). Raises `BadInput` if the price of a machine or of
    an edit of `gpu` is missing, and if the sum is negative.
    """
    for edit in edits:
        if edit.partition("=")[0].strip() == "gpu" and edit not in prices:
            raise BadInput(f'no price for {edit}: say what it adds to a GPU-hour of {on}, e.g. "{edit}" = 0.8')
    found = _machines_price(prices, on, gpus) + sum(prices.get(edit, 0.0) for edit in edits)
    if found < 0:
        raise BadInput(
            f"a GPU-hour of {on} with {', '.join(edits)} would cost {found:.4g}, less than nothing. Raise the machine's price, or what the changes subtract from it"
        )
    return found


_FREE = ("fail", "slow", "order", "ranks_per_node", "p2p")
"""Edits that do not change the price: faults of the machine, and how it is used."""


def unpriced(prices: Container[str] | None, edits: Iterable[str]) -> tuple[str, ...]:
    """The `edits` that change the machine but have no price, so that a GPU-hour costs the same as without them. Empty if `prices` is None."""
    return tuple(one for one in edits if prices is not None and one not in prices and one.partition("=")[0].strip() not in _FREE)


def _machines_price(prices: dict[str, float], on: str, gpus: int) -> float:
    terms = parse(on)
    named = {term.name: _priced(term.name, prices) for term in terms}
    missing = [name for name in named.values() if name not in prices]
    if missing:
        there = ", ".join(sorted(prices)) or "nothing"
        raise BadInput(
            f"no price for {', '.join(missing)}; there are prices for {there}. Give the price of a GPU-hour by machine: {missing[0]} = 2.5"
        )
    if len(named) == 1:
        return prices[named[terms[0].name]]
    left, spent, taken = gpus or 1 << 62, 0.0, 0
    for term in terms:
        here = min(left, term.count * (term.ranks or load_topology(term.name).ranks_per_node))
        left, taken, spent = left - here, taken + here, spent + here * prices[named[term.name]]
    return spent / taken


def _priced(name: str, prices: dict[str, float]) -> str:
    """The key of a machine among the prices: the text given to --on, or the `name` in its file (without one, the file's stem)."""
    if name in prices or not name.endswith(".toml"):
        return name
    return str(read_toml(Path(name)).get("name", Path(name).stem))


def paid_gpus(gpus: int, how: Reliability, topology: Topology) -> int:
    """The number of GPUs that a job on `gpus` pays for during the whole run.

    Spare nodes cost as much as working nodes; an unlimited number of spares (None) counts as 0. A node with more GPUs than the job uses
    on it (`ranks_per_node`, "dgx-h100:4") is paid for whole.
    """
    whole = len(topology.machine(0).gpus) or topology.ranks_per_node
    used = topology.ranks_per_node
    return (topology.nodes_of(gpus) * whole if used < whole else gpus) + (how.spares or 0) * whole


def money(prices: dict[str, float] | None, on: str, gpus: int, paid_hours: float, edits: tuple[str, ...]) -> float | None:
    """The cost of `paid_hours` GPU-hours of a job on `gpus` GPUs; None if `prices` is None."""
    return None if prices is None else price_of(prices, on, gpus, edits) * paid_hours
