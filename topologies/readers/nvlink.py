"""`<nvlink>` elements -> the [nvlink] table: switches, or a mesh of pairs."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree.ElementTree import Element

from topologies.devices import gpu as catalog_gpu
from topologies.readers import pci

SWITCH_CLASS = "0x068000"


def nvlink_table(names: Mapping[str, str], gpus: Mapping[str, Element | None], model: str, notes: list[str]) -> dict[str, object]:
    """{"nvlink": ...} from the <gpu> elements by bus id; `names`: bus id -> gpu0. {} where no GPU has a link."""
    to_switch: dict[str, list[int]] = {}
    pairs: dict[tuple[int, int], list[int]] = {}
    for bus, element in gpus.items():
        for link in element.findall("nvlink") if element is not None else ():
            text, target = link.get("count", "0"), link.get("target", "").lower()
            count = int(text) if text.isdecimal() and len(text) < 4 else 0
            if not count or target == bus:
                continue
            if target in names:
                a, b = sorted((int(names[bus][3:]), int(names[target][3:])))
                pairs.setdefault((a, b), []).append(count)
            elif link.get("tclass", "").lower() == SWITCH_CLASS:
                to_switch.setdefault(bus, []).append(count)
    if any(bus == link.get("target", "").lower() for bus, e in gpus.items() if e is not None for link in e.findall("nvlink")):
        notes.append("NVLinks from a GPU to itself are left out (files for virtual machines use them as a switch for NCCL).")
    return fit(_weakest({names[bus]: chips for bus, chips in to_switch.items()}, len(names), notes), pairs, model, notes)


def _weakest(to_switch: Mapping[str, list[int]], gpus: int, notes: list[str]) -> list[int]:
    """The links of the GPU with fewest to switches: a ring, and what the switch adds up, runs at its pace."""
    if not to_switch:
        return []
    least = min(to_switch, key=lambda name: sum(to_switch[name]))
    most = max(sum(chips) for chips in to_switch.values())
    if sum(to_switch[least]) < most:
        notes.append(
            f"{least} has {sum(to_switch[least])} NVLinks to switches, others have {most}: some of its links are down. Its number is entered for all."
        )
    if len(to_switch) < gpus:
        notes.append(
            f"{gpus - len(to_switch)} of {gpus} GPUs show no NVLink, and are entered with those of the others; fail=link:gpu0-nvswitch takes gpu0's away."
        )
    return to_switch[least]


def _spread(links: int, model: str) -> list[int]:
    """So many links over the switch chips that such GPUs usually have."""
    chips = len(pci.SWITCHED.get(links) or pci.SWITCHED.get(catalog_gpu(model).nvlink_links, (links,)))
    return list(pci.SWITCHED.get(links) or (links // chips + (place < links % chips) for place in range(chips)))


def fit(chips: list[int], pairs: Mapping[tuple[int, int], list[int]], model: str, notes: list[str]) -> dict[str, object]:
    """The table; where the GPU has fewer links than the file says, the file counts."""
    table: dict[str, object] = {}
    links = sum(chips)
    if chips:
        table["switch"] = _spread(links, model) if len(chips) == 1 else sorted(chips, reverse=True)
    elif pairs:
        if any(len(set(counts)) > 1 for counts in pairs.values()):
            notes.append("NVLink counts differ by direction; the smaller one is entered.")
        table["mesh"] = [[a, b, min(counts)] for (a, b), counts in sorted(pairs.items())]
        each: dict[int, int] = {}
        for (a, b), counts in pairs.items():
            each[a] = each.get(a, 0) + min(counts)
            each[b] = each.get(b, 0) + min(counts)
        links = max(each.values())
    if not table:
        return {}
    gpu = catalog_gpu(model)
    if links <= gpu.nvlink_links:
        return {"nvlink": table}
    one = gpu.nvlink / gpu.nvlink_links if gpu.nvlink_links else 25e9
    notes.append(
        f"{model} has {gpu.nvlink_links} NVLinks in the catalog, the file shows {links}; the file counts, {one / 1e9:g} GB/s each."
    )
    return {"nvlink": table, "gpu": {"base": model, "nvlink_links": links, "nvlink": f"{one * links / 1e9:g} GB/s"}}
