"""Laws of every lowered program, over drawn plans."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.run import simulate
from sim.framework.framework import load_framework
from sim.lower.checks.verify import verify
from sim.model.parts import Network, Part
from sim.program import Program
from sim.schedule import SCHEDULES
from sim.sections import LOOPS
from sim.work import BYTES
from tests.null.lower.test_context_expert import DOWN, UP, attention
from tests.null.lower.tiny import Constant, linear, network, norm, program, traffic
from topologies.errors import Refused


@st.composite
def plans(draw: st.DrawFn) -> tuple[dict[str, Any], Network, str]:
    tp, cp, replicas, shards = (draw(st.sampled_from([1, 1, 2, 4])) for _ in range(4))
    ep = draw(st.sampled_from([1, 2]))
    if (replicas * shards * cp) % ep:
        ep = 1
    parallel: dict[str, Any] = {"tp": tp, "cp": cp, "dp_replicate": replicas, "dp_shard": shards, "ep": ep, "zero": draw(st.integers(0, 3))}
    parallel |= {
        "sequence_parallel": draw(st.booleans()),
        "tp_overlap": draw(st.booleans()),
        "reshard_after_forward": draw(st.sampled_from([True, False, *([2] if shards * cp > 2 else [])])),
        "prefetch": draw(st.integers(0, 3)),
        "cp_kind": draw(st.sampled_from(["p2p", "all_gather", "all_to_all", "all_to_all+p2p"])),
        "cp_ulysses": draw(st.sampled_from([1, max(1, cp // 2), cp])),
    }
    pp = draw(st.sampled_from([1, 1, 2, 3]))
    schedule = draw(st.sampled_from(sorted(SCHEDULES)))
    virtual = 2 if schedule in LOOPS and pp > 1 else 1
    parallel |= {"pp": pp, "schedule": schedule, "virtual_stages": virtual}
    micro = draw(st.integers(1, 2)) * pp * (2 if schedule == "dualpipe" else 1)
    plan: dict[str, Any] = {
        "parallel": parallel,
        "batch": {"micro": 1, "global": micro * replicas * shards},
        "memory": {
            "recompute": draw(st.sampled_from(["none", "selective", "full"])),
            "offload": draw(st.sampled_from(["none", "optimizer", "activations"])),
        },
        "comm": {"bucket": draw(st.sampled_from(["1 MiB", "25 MiB", "1 GiB"])), "overlap": draw(st.booleans())},
        "data": {"workers": draw(st.integers(0, 2)), "pinned": draw(st.booleans())},
        "output": {"log_every": draw(st.integers(0, 2)), "checkpoint_every": draw(st.integers(0, 2))},
    }
    framework = draw(st.sampled_from(["pytorch", "torchtitan", "megatron-core", "megatron-2021", "llm-foundry"]))
    return plan, _network(draw(st.integers(2 * pp, 2 * pp + 2)), tp, cp, ep), framework


def _network(layers: int, tp: int, cp: int, ep: int) -> Network:
    column: dict[str, Any] = {"seam": "tp.gather", "seam_bytes": 64} if tp > 1 else {}
    row: dict[str, Any] = {"seam": "tp.reduce", "seam_bytes": 64} if tp > 1 else {}
    core: Part = attention(recompute=True, dropped=3)
    core = core if cp > 1 else msgspec.structs.replace(core, seam="", seam_bytes=0, seam_heads=())
    experts = (UP, DOWN) if ep > 1 else ()
    return network(layers, (norm(), linear("qkv", **column), core, linear("proj", **row), *experts))


def lowered(plan: dict[str, Any], net: Network, framework: str) -> Program | None:
    try:
        return program(plan, net, load_framework(framework), steps=2)
    except Refused:
        return None


@pytest.mark.no_cover
@settings(max_examples=60, deadline=None)
@given(plans())
def test_programs_run_to_their_end_and_give_back_what_they_take(drawn: tuple[dict[str, Any], Network, str]) -> None:
    p = lowered(*drawn)
    if p is None:
        return
    trace = simulate(p, Constant())
    for line in trace.memory.values():
        assert line[-1][1] == line[0][1] == sum(p.resident.values())
        assert min(used for _, used in line) >= 0


@pytest.mark.no_cover
@settings(max_examples=60, deadline=None)
@given(plans())
def test_programs_keep_the_laws_and_ids_are_unique(drawn: tuple[dict[str, Any], Network, str]) -> None:
    p = lowered(*drawn)
    if p is None:
        return
    verify(p)
    for rank in {p.role_of.index(role) for role in p.roles}:
        names = [f"{call.at}/{op.id}" for thread in p.threads(rank) for call, op in p.ops(rank, thread)]
        assert len(names) == len(set(names))


@settings(max_examples=40, deadline=None)
@given(plans())
def test_every_gradient_is_averaged_once_a_step(drawn: tuple[dict[str, Any], Network, str]) -> None:
    plan, net, framework = drawn
    plan = plan | {"parallel": plan["parallel"] | {"zero": 0, "ep": 1, "pp": 1, "virtual_stages": 1}}
    p = lowered(plan, net, framework)
    if p is None or p.mesh.size("grad") == 1:
        return
    group = "grad" if p.mesh.size("cp") > 1 else "dp"
    total = sum(block.params for _, block in net.blocks)
    n, width = p.mesh.size(group), BYTES[load_framework(framework).precision.reduce_dtype]
    assert traffic(p, group) == 2 * (n - 1) / n * total * width
