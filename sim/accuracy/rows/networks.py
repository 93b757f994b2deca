"""The network between nodes, where a row states its rate: what adapters of the machine that stands in then carry.

A machine's own network stays where the row gives no rate, or the machine's own; a cloud's is its own too, and so is a cluster's that has a machine here.
"""

from __future__ import annotations

import re

from sim.accuracy.row import Row
from topologies.load import load_topology

_OWN = r"^(aws|azure|gcp)-|eos|selene|jean-zay|mosaic|internevo|leonardo|alps|frontier|whitefiber|grand-teton|dlperf|nvl72"
"""Machines whose network is known better than a row says it."""
_NUMBER = r"(?:(\d+) ?[x×*] ?(?:[a-zA-Z-]+ )?)?(\d+(?:\.\d+)?) ?([GgTt])((?:i?B|b|b[ip]ts?|be|b?ps|[Bb][Pp]S|i[gG]?E|BE|bE)?)(?![a-z]{3})"
_EACH = r"per (gpu|nic|card|port|rank|device|accelerator)|/ ?(gpu|nic)|each (gpu|nic)"
_WHOLE = r"per (node|server|host|machine|instance)|/ ?(node|server|host)|one nic|single nic|\b1 nic|aggregate|total"
_SHARED = r"ether|gb?e\b|gige|tcp|\bvpc\b|\befa\b"
"""Words of networks of which a server's rate is told, where nothing says whose it is; of others it is each adapter's."""
_SAME = 0.15
"""Share by which two rates may differ and be the same one, spoken of with or without overheads."""


def network_of(row: Row, machine: str, assumed: list[str]) -> tuple[str, ...]:
    """What-ifs that give the machine's adapters the rate that the row states of its network; () where they have it, or it states none."""
    name = machine.partition("x ")[2].partition(":")[0]
    if not name or re.search(_OWN, name):
        return ()
    own = [nic.rate * 8e-9 for nic in load_topology(name).cluster.runs[0].machine.nics.values()]
    stated = _stated(row.inter_net, len(own), row.gpus_per_node or 8)
    if not stated or not own or abs(stated / sum(own) - 1) <= _SAME:
        return ()
    assumed.append(f"network of {stated:g} Gbit/s a node, as the row says, in place of the {sum(own):g} of {name}")
    return (f"nic.rate={stated / len(own):.6g} Gbit/s",)


def _stated(text: str, adapters: int, gpus: int) -> float:
    """Gbit/s of a node; 0 where the text gives none."""
    found = re.search(_NUMBER, text)
    if not found:
        return 0.0
    each = float(found[2]) * (1000 if found[3] in "tT" else 1) * (8 if found[4] in ("B", "iB") else 1)
    words = text.lower()
    if found[1]:
        return int(found[1]) * each
    if of := re.search(_EACH, words):
        return each * (gpus if {"gpu", "rank", "device", "accelerator"} & set(of.groups()) else adapters)
    return each if re.search(f"{_WHOLE}|{_SHARED}", words) else each * adapters
