"""Damaged and hostile input is refused by one clear message, at once (`make reliability` runs a hundred thousand of these)."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.files.planfile import load_plan
from sim.setting.bind import bind
from tests.reliability.fuzz import fuzz
from tests.reliability.readers import READERS, Reader
from topologies.errors import BadInput
from topologies.load import load_topology

HOSTILE = {
    "a thousand million ranks": 'model = "gpt2-124m"\n[parallel]\ndp_replicate = 1000000000\n',
    "more ranks than memory": 'model = "gpt2-124m"\n[parallel]\ndp_replicate = 99999999999999999999\n',
    "deep nesting": 'model = "gpt2-124m"\nname = ' + "[" * 1_000_000,
    "a line of ten megabytes": 'model = "' + "x" * 10_000_000 + '"\n',
    "a path for a name": f'model = "{"a/" * 3000}config.json"\n',
}


@pytest.mark.no_cover
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_damaged_input_never_ends_in_a_traceback(reader: Reader) -> None:
    found = fuzz(reader, 120, seed=7)
    assert found.crashes == ()
    assert found.taken + found.refused == 120
    assert found.refused > 0, "these damages should not all pass"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_plans_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(HOSTILE[name])
    with pytest.raises(BadInput) as told:
        bind(load_plan(path), "16x dgx-h100")
    assert len(str(told.value)) < 2000


@pytest.mark.parametrize(
    "text",
    ["999999999x dgx-h100", "1000000000000000000000x dgx-h100", "8x " * 5000, "a" * 100_000 + ".toml"],
    ids=["many", "more", "words", "long path"],
)
def test_hostile_machines_are_refused(text: str) -> None:
    with pytest.raises(BadInput) as told:
        load_topology(text)
    assert len(str(told.value)) < 2000
