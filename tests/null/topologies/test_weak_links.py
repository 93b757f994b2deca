"""Machines that are not as their maker built them: links that are down, GPUs of several kinds."""

from __future__ import annotations

import pytest

from tests.null.topologies.samples import DUMP
from topologies.build import build
from topologies.readers import read_text


def matrix(cell: str, weak: str, at: int = 1, gpus: int = 4) -> str:
    """`nvidia-smi topo -m` of GPUs behind switches, of which one prints another number of links."""
    names = [f"GPU{i}" for i in range(gpus)]
    rows = [[("X" if i == j else weak if at in (i, j) else cell) for j in range(gpus)] for i in range(gpus)]
    lines = ["\t".join(["", *names, "CPU Affinity", "NUMA Affinity"])]
    lines += ["\t".join([name, *row, "0-31", "0"]) for name, row in zip(names, rows, strict=True)]
    return "\n".join(lines) + "\n"


def test_a_switch_port_that_is_down_in_a_matrix_does_not_make_a_mesh() -> None:
    """16 of 18 links to switches are 16, not 16 to each of three neighbours."""
    found = read_text(matrix("NV18", "NV16"), "worn")
    machine = build(found.document)
    assert machine.chips == (4, 4, 4, 4)
    assert {link.rate for link in machine.links.values() if link.kind == "nvlink"} == {16 * 25e9}
    assert any("Some GPUs have 16 NVLinks, others 18: some are down" in note for note in found.notes)


def test_a_whole_matrix_says_nothing_of_links_that_are_down() -> None:
    found = read_text(matrix("NV18", "NV18"), "whole")
    assert build(found.document).chips == (5, 4, 4, 5)
    assert not any("down" in note for note in found.notes)


@pytest.mark.parametrize("gpu", [0, 1])
def test_links_that_are_down_in_a_dump_count_whichever_gpu_has_lost_them(gpu: int) -> None:
    first = DUMP.index('<nvlink target="0000:f0:00.0" count="9"')
    second = DUMP.rindex('<nvlink target="0000:f0:00.0" count="9"')
    at = second if gpu == 0 else first  # the file names GPU 1 first
    found = read_text(DUMP[:at] + DUMP[at:].replace('count="9"', 'count="7"', 1), "worn")
    assert found.document["nvlink"] == {"switch": [9, 7]}
    assert f"gpu{gpu} has 16 NVLinks to switches, others have 18: some of its links are down. Its number is entered for all." in found.notes


def test_a_gpu_without_links_among_others_with_them_is_named() -> None:
    at = DUMP.rindex('<nvlink target="0000:f0:00.0"')
    end = DUMP.index("</gpu>", at)
    found = read_text(DUMP[:at] + DUMP[end:], "worn")
    assert any("1 of 2 GPUs show no NVLink, and are entered with those of the others" in note for note in found.notes)


def test_gpus_of_several_models_keep_their_own() -> None:
    last = DUMP.rindex('device="0x2330"')
    found = read_text(DUMP[:last] + DUMP[last:].replace('device="0x2330"', 'device="0x2335"', 1), "mixed")
    machine = build(found.document)
    assert [machine.gpus[name].name for name in ("gpu0", "gpu1")] == ["h200-sxm", "h100-sxm"]
    assert "GPUs of several models: h100-sxm, h200-sxm; each is entered as what it is, where it has as many NVLinks." in found.notes
