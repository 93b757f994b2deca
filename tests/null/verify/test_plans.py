"""Every plan's program keeps the laws: all axes, worlds up to 64, on both kinds of device."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.files.text import parse_program, show_program
from sim.framework.framework import load_framework
from sim.lower.checks.verify import verify
from sim.model.parts import Network
from tests.null.lower.test_laws import plans
from tests.null.lower.tiny import program
from topologies.errors import Refused


@st.composite
def with_pipeline(draw: st.DrawFn) -> tuple[dict[str, Any], Network, str]:
    """The laws' plans, some of them cut into stages."""
    plan, network, framework = draw(plans())
    pp = draw(st.sampled_from([1, 2, 4]))
    layers = sum(block.kind == "layer" for _, block in network.blocks)
    p = plan["parallel"]
    ranks = p["tp"] * p["cp"] * p["dp_replicate"] * p["dp_shard"]
    if pp > 1 and layers >= pp and ranks * pp <= 64:
        p |= {"pp": pp, "virtual_stages": 1, "schedule": draw(st.sampled_from(["gpipe", "1f1b", "zb-h1"]))}
    return plan, network, framework


@pytest.mark.no_cover
@settings(max_examples=120, deadline=None)
@given(with_pipeline(), st.sampled_from(["cuda", "cpu"]))
def test_every_program_keeps_the_laws(drawn: tuple[dict[str, Any], Network, str], device: str) -> None:
    plan, network, framework = drawn
    try:
        made = program(plan, network, load_framework(framework), device, steps=2)
    except Refused:
        return
    verify(made)
    assert parse_program(show_program(made)) == made


@settings(max_examples=60, deadline=None)
@given(
    st.fixed_dictionaries({
        "workers": st.integers(0, 3), "prefetch": st.integers(1, 3), "handover": st.sampled_from(["event", "synchronize", "none"]),
        "pinned": st.booleans(), "create": st.sampled_from(["none", "cpu", "device"]), "source": st.sampled_from(["memory", "disk"]),
    }),
    st.fixed_dictionaries({
        **{key: st.integers(0, 2) for key in ("sync_every", "log_every", "item_every", "print_every", "checkpoint_every")},
        "checkpoint_mode": st.sampled_from(["full", "sharded", "async"]),
    }),
    st.sampled_from([{}, {"mode": "local", "every": 2}, {"mode": "async"}, {"aggregate": "cpu"}, {"aggregate": "primary"}]),
    st.sampled_from(["cuda", "cpu"]),
)  # fmt: skip
def test_input_output_and_updates_keep_the_laws(data: dict[str, Any], output: dict[str, Any], update: dict[str, Any], device: str) -> None:
    """Loaders, writers and servers are threads of their own, for which no synchronisation of the device waits."""
    plan = {"parallel": {"dp_replicate": 2}, "batch": {"micro": 1, "global": 4}, "data": data, "output": output, "update": update}
    made = program(plan, device=device, steps=3)
    verify(made)
    assert parse_program(show_program(made)) == made
