"""The network between nodes, where a row states its rate: what adapters of the machine that stands in then carry.

A machine's own network stays where the row gives no rate, or the machine's own; a cloud's is its own too, and so is a cluster's that has a machine here.
"""

from __future__ import annotations

import re
from functools import cache

from sim.accuracy.row import Row
from topologies.load import load_topology

_OWN = r"^(aws|azure|gcp)-|eos|selene|jean-zay|mosaic|internevo|leonardo|alps|frontier|whitefiber|grand-teton|dlperf|nvl72"
"""Machines whose network is known better than a row says it."""
_NUMBER = r"(?:(\d+) ?[x×*] ?(?:[a-zA-Z-]+ )?)?(\d+(?:\.\d+)?) ?([GgTt])((?:i?B|b|b[ip]ts?|be|b?ps|[Bb][Pp]S|i[gG]?E|BE|bE)?)(?![a-z]{3})"
_EACH = r"per (gpu|nic|card|port|rank|device|accelerator)|/ ?(gpu|nic)|each (gpu|nic)"
_WHOLE = r"per (node|server|host|machine|instance)|/ ?(node|server|host)|one nic|single nic|\b1 nic|aggregate|total"
_SHARED = r"ether|gb?e\b|gige|tcp|\bvpc\b|\befa\b"
"""Words of networks of which a server's rate is told, where nothing says whose it is; of others it is each adapter's."""
_GENERATIONS = {"fdr": 56, "edr": 100, "hdr": 200, "ndr": 400, "xdr": 800}
"""Gbit/s of an InfiniBand adapter of each generation, where no number is behind its name ("HDR100" has half of its lanes)."""
_NAMED = rf"(?:(\d+) ?[x×*] ?|(dual)[- ])?(?:[a-z]+ )?\b({'|'.join(_GENERATIONS)})[- ]?(\d{{2,3}})?\b"
_BARE = r"\b(\d+) ?[x×*] ?(25|40|50|56|100|200|400|800)\b"
"""Adapters and their rate without its unit: "RoCE 8x400"."""
_ALONE = r"\b(one|single)\b"
_FASTER = 1.25
"""Above so many times the rate of the machine's own adapters, which its slots are for, a rate is a server's."""
_SAME = 0.15
"""Share by which two rates may differ and be the same one, spoken of with or without overheads."""


def network_of(row: Row, machine: str, assumed: list[str]) -> tuple[str, ...]:
    """What-ifs that give the adapters that the row's GPUs use the rate that it states of its network; () where they have it, or it states none.

    Who says what a server has may run on a part of its GPUs: then the rate of all its adapters is the machine's own, too.
    """
    name = machine.partition("x ")[2].partition(":")[0]
    if not name or re.search(_OWN, name):
        return ()
    own = [nic.rate * 8e-9 for nic in load_topology(name).cluster.runs[0].machine.nics.values()]
    used = _used(machine)
    stated = _stated(row.inter_net, used, row.gpus_per_node or 8) if used else 0.0
    if not stated or any(abs(stated / sum(rates) - 1) <= _SAME for rates in (used, own)):
        return ()
    assumed.append(f"network of {stated:g} Gbit/s a node, as the row says, in place of the {sum(used):g} of {name}")
    return (f"nic.rate={stated / len(used):.6g} Gbit/s",)


@cache
def _used(machine: str) -> list[float]:
    """Gbit/s of each adapter that the ranks of one of the machine's nodes send by."""
    topology = load_topology(machine.partition("x ")[2])
    uses = [use for rank in range(topology.ranks_per_node) if (use := topology.nic_of(rank))]
    return [nic.rate * 8e-9 for nic in {name: nic for use in uses for name, nic in zip(use.names, use.nics, strict=True)}.values()]


def _stated(text: str, used: list[float], gpus: int) -> float:
    """Gbit/s of a node whose own adapters in use have the rates `used`; 0 where the text gives none."""
    words, adapters = text.lower(), len(used)
    alone = re.search(_ALONE, words) is not None
    if not (found := re.search(_NUMBER, text)):
        if bare := re.search(_BARE, words):
            return int(bare[1]) * float(bare[2])
        named = re.search(_NAMED, words)
        count = int(named[1] or 2 * bool(named[2]) or (1 if alone else adapters)) if named else 0
        return count * float(named[4] or _GENERATIONS[named[3]]) if named else 0.0
    each = float(found[2]) * (1000 if found[3] in "tT" else 1) * (8 if found[4] in ("B", "iB") else 1)
    if found[1]:
        return int(found[1]) * each
    if of := re.search(_EACH, words):
        return each * (gpus if {"gpu", "rank", "device", "accelerator"} & set(of.groups()) else adapters)
    return each if alone or each > _FASTER * max(used) or re.search(f"{_WHOLE}|{_SHARED}", words) else each * adapters
