"""A plan with more ranks than the machine: the message says how many of its nodes are enough, where these have a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.predict import predict
from sim.setting.bind import bind
from topologies.errors import BadInput

PLAN = {"model": "gpt2-124m", "parallel": {"dp_replicate": 64}}


@pytest.mark.parametrize(
    ("machine", "enough"),
    [
        ("dgx-h100", ' ("8x dgx-h100")'),
        ("2 x dgx-h100:4", ' ("16x dgx-h100:4")'),
        ("3*dgx-h100:1", ' ("64x dgx-h100:1")'),
        ("dgx-h100 + dgx-a100", ""),
        ("2x dgx-h100+2x dgx-h100", ""),
    ],
)
def test_how_many_machines_are_enough(machine: str, enough: str) -> None:
    with pytest.raises(BadInput) as said:
        bind(PLAN, machine)
    assert f"Use more machines{enough} or a smaller plan" in str(said.value)


def test_files_of_machines_and_of_clusters(tmp_path: Path) -> None:
    """A machine's file can be multiplied; a cluster's has a name that need be no expression."""
    (tmp_path / "node.toml").write_text('base = "dgx-h100"\nname = "our node"\n')
    (tmp_path / "pod.toml").write_text('name = "our pod, half of it"\nnodes = "2x dgx-h100"\n')
    with pytest.raises(BadInput) as said:
        bind(PLAN, str(tmp_path / "node.toml"))
    assert f'("8x {tmp_path / "node.toml"}")' in str(said.value)
    with pytest.raises(BadInput, match=r"our pod, half of it has 16\. Use more machines or a smaller plan"):
        bind(PLAN, str(tmp_path / "pod.toml"))


@pytest.mark.parametrize(
    ("parallel", "told"),
    [({"pp": 64}, "12 layers do not make 64 stages"), ({"tp": 5, "dp_replicate": 8}, "tp = 5 does not divide mlp width")],
)
def test_what_no_machine_mends_is_said_first(parallel: dict[str, int], told: str) -> None:
    """With more machines, as the message would have it, the plan were refused for another reason."""
    for machine in ("dgx-h100", "8x dgx-h100"):
        with pytest.raises(BadInput, match=told):
            predict({"model": "gpt2-124m", "batch": {"micro": 1, "global": 64}, "parallel": parallel}, machine)
