"""The pictures in README are small PNGs of pages that the command line makes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.browser.devtools import Browser, chromium
from tests.browser.gallery import COMMANDS, GALLERY, LARGEST, made, picture

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def size(path: Path) -> tuple[int, int]:
    """Width and height of a PNG, from its first chunk."""
    data = path.read_bytes()
    assert data.startswith(SIGNATURE)
    width, height = struct.unpack(">II", data[16:24])
    return width, height


@pytest.mark.parametrize("kind", [*COMMANDS, "comparison"])
def test_a_picture_of_each_kind_is_there_and_small(kind: str) -> None:
    path = GALLERY / f"{kind}.png"
    assert path.stat().st_size < LARGEST
    assert min(size(path)) >= 300


def test_a_picture_is_taken_of_a_real_page(tmp_path: Path) -> None:
    program = chromium()
    if program is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    page = made("topology", tmp_path / "topology")
    with Browser(program, tmp_path / "browser") as browser:
        path = picture(browser, page, 1000, tmp_path / "topology.png")
    assert path.stat().st_size < LARGEST
    assert size(path) == (720, 600)
