"""Chakra traces run here: a plan that goes out and comes back takes as long as it did, and other people's graphs what they must."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sim.cost.collective import collective_cost
from sim.engine.run import simulate
from sim.exchange.attributes import Attr
from sim.exchange.chakra import Coll, Kind, Node, encode
from sim.exchange.export import export_plan
from sim.exchange.replay import replay, run_traces
from sim.exchange.tracefile import write
from sim.exchange.workload import load_traces
from sim.lower.step import lower
from sim.program import HOST, Role
from sim.sections import Output
from sim.setting.bind import Setting, bind
from sim.setting.pricer import pricer_for
from sim.steady.detail import STEPS
from topologies.errors import BadInput, Refused
from topologies.load import load_topology

BASE: dict[str, Any] = {"model": "gpt2-124m", "seq_len": 256, "framework": "pytorch", "batch": {"global": 8, "micro": 1}}
SPLITS: list[dict[str, Any]] = [
    {"parallel": {"dp_replicate": 8}},
    {"parallel": {"dp_shard": 2, "tp": 2}, "batch": {"global": 2, "micro": 1}},
    {"parallel": {"pp": 4, "dp_shard": 2}},
    {"parallel": {"pp": 2, "dp_replicate": 2}, "framework": "megatron-core"},
    {
        "parallel": {"pp": 2, "tp": 2, "tp_overlap": True},
        "model": {"base": "llama3-8b", "layers": 2},
        "seq_len": 2048,
        "framework": "megatron-core",
        "batch": {"global": 2, "micro": 1},
    },
    {"parallel": {"cp": 2, "zero": 3}, "batch": {"global": 1, "micro": 1}},
    {"parallel": {"cp": 4, "cp_kind": "all_to_all+p2p", "cp_ulysses": 2}, "batch": {"global": 1, "micro": 1}},
    {"model": "siglip-vit-b-16", "seq_len": None, "batch": {"micro": 4, "global": 16}, "parallel": {"dp_replicate": 4}},
    {"parallel": {"dp_replicate": 1}, "data": {"source": "disk", "sample": "1 MiB", "stream": "copy", "handover": "synchronize"}},
]


def _alone(setting: Setting) -> float:
    """The last step of the plan by itself, without input workers: what is exported."""
    plan = msgspec.structs.replace(setting.plan, output=Output())
    program = lower(plan, setting.network, setting.framework, setting.topology.kind, STEPS)
    roles = {
        name: Role({HOST: tuple(call for call in role.threads[HOST] if call.step == STEPS - 1)}) for name, role in program.roles.items()
    }
    return simulate(msgspec.structs.replace(program, roles=roles, steps=1), pricer_for(setting), symmetry=False).end


@pytest.mark.no_cover
@pytest.mark.parametrize("split", SPLITS, ids=lambda split: "-".join([*split["parallel"], *(key for key in split if key == "data")]))
def test_there_and_back_takes_as_long(split: dict[str, Any], tmp_path: Path) -> None:
    setting = bind(BASE | split, "dgx-h100")
    out = export_plan(setting, tmp_path)
    found = replay(out.prefix, "dgx-h100")
    assert found.nodes == out.nodes and found.ranks == setting.plan.world
    assert found.seconds == pytest.approx(_alone(setting), rel=1e-9)
    assert found.breakdown.total == pytest.approx(found.seconds, rel=1e-6)
    assert sum(spent for _, spent in found.critical_path) == pytest.approx(found.seconds, rel=1e-6)


def test_input_workers_are_left_out_and_servers_refused(tmp_path: Path) -> None:
    """A CPU for each device is all that ASTRA-sim has: batches are there when they are asked for."""
    split = {"parallel": {"dp_replicate": 2}, "batch": {"global": 2, "micro": 1}}
    lazy = {"source": "disk", "workers": 2, "sample": "150 KiB", "preprocess": "1 s"}
    busy, idle = (export_plan(bind(BASE | split | more, "dgx-h100"), tmp_path / str(len(more))) for more in ({"data": lazy}, {}))
    assert replay(busy.prefix, "dgx-h100").seconds == pytest.approx(replay(idle.prefix, "dgx-h100").seconds, rel=0.1)
    with pytest.raises(Refused, match="asynchronous"):
        export_plan(bind(BASE | split | {"update": {"mode": "async"}}, "dgx-h100"), tmp_path)


@pytest.mark.no_cover
def test_a_slower_network_slows_a_trace(tmp_path: Path) -> None:
    out = export_plan(bind(BASE | {"parallel": {"dp_replicate": 2}, "batch": {"global": 2, "micro": 1}}, "dgx-h100"), tmp_path)
    fast = replay(out.prefix, "dgx-h100").seconds
    assert replay(out.prefix, "dgx-h100", edits=("link.nvlink.rate=1 GB/s",)).seconds > 2 * fast


def _files(folder: Path, ranks: list[list[Node]], groups: dict[str, list[int]] | None = None) -> str:
    for rank, nodes in enumerate(ranks):
        write(folder / f"w.{rank}.et", map(encode, nodes))
    if groups is not None:
        (folder / "w.groups.json").write_text(json.dumps(groups))
    return str(folder / "w")


def _node(number: int, kind: Kind, after: tuple[int, ...] = (), micros: int = 0, **attrs: Attr) -> Node:
    return Node(number, f"node{number}", int(kind), data=after, duration=micros, attrs=dict(attrs))


def test_kernels_follow_their_graph_and_share_their_lane(tmp_path: Path) -> None:
    """Two branches of 10 and 30 us after 5 us on the CPU: kernels run one by one; the CPU runs beside them."""
    nodes = [
        _node(0, Kind.COMP, (), 5, is_cpu_op=True),
        _node(1, Kind.COMP, (0,), 10, is_cpu_op=False),
        _node(2, Kind.COMP, (0,), 30, is_cpu_op=False),
        _node(3, Kind.COMP, (1,), 100, is_cpu_op=True),
        _node(4, Kind.METADATA, (2, 3)),
        _node(5, Kind.COMP, (4,), 1, is_cpu_op=False),
    ]
    trace = run_traces(load_traces(_files(tmp_path, [nodes])), "dgx-h100")
    assert {s.id.split("/")[-1]: (round(s.start * 1e6, 6), round(s.end * 1e6, 6)) for s in trace.spans if "node" in s.id} == {
        "n0.node0": (0, 5),
        "n1.node1": (5, 15),
        "n2.node2": (15, 45),
        "n3.node3": (15, 115),
        "n5.node5": (115, 116),
    }


def test_copies_have_lanes_of_their_own(tmp_path: Path) -> None:
    """Up and down at the same time, and beside kernels; one after the other in each direction."""
    kinds = [Kind.MEM_LOAD, Kind.MEM_STORE, Kind.COMP, Kind.MEM_LOAD]
    nodes = [_node(number, kind, (), 10, is_cpu_op=False) for number, kind in enumerate(kinds)]
    trace = run_traces(load_traces(_files(tmp_path, [nodes])), "dgx-h100")
    ends = {span.lane: round(span.end * 1e6, 6) for span in trace.spans if "node" in span.id}
    assert ends == {"copy.h2d": 20, "copy.d2h": 10, "compute": 10}


def test_collectives_are_priced_and_wait_for_the_last(tmp_path: Path) -> None:
    """ASTRA-sim's bytes: of an all_gather what one rank gives."""
    coll: dict[str, Attr] = {"is_cpu_op": False, "comm_size": 1 << 20, "pg_name": "7"}
    ranks = [
        [_node(0, Kind.COMP, (), 10 * rank, is_cpu_op=False), _node(1, Kind.COLL, (0,), comm_type=int(Coll.all_gather), **coll)]
        for rank in (1, 2)
    ]
    found = replay(_files(tmp_path, ranks, {"7": [0, 1]}), "dgx-h100")
    cost = collective_cost("all_gather", 2 << 20, (0, 1), load_topology("dgx-h100"))
    assert found.seconds == pytest.approx(20e-6 + cost.seconds, rel=1e-9)


def test_an_exchange_of_no_bytes_waits_for_nobody(tmp_path: Path) -> None:
    """Beside others on the same links."""
    colls = [(Coll.all_reduce, 1 << 28), (Coll.all_reduce, 1 << 28), (Coll.all_to_all, 0)]
    nodes = [
        _node(at, Kind.COLL, is_cpu_op=False, comm_type=int(kind), comm_size=size, pg_name=str(at)) for at, (kind, size) in enumerate(colls)
    ]
    found = [replay(_files(tmp_path, [one] * 16, {str(at): [*range(16)] for at in range(3)}), "2x dgx-h100") for one in (nodes, nodes[:2])]
    assert found[0].seconds == pytest.approx(found[1].seconds, rel=1e-3)


def test_a_kernel_of_no_time_is_not_slowed(tmp_path: Path) -> None:
    node = _node(0, Kind.COMP, is_cpu_op=False, **{"steptwin.seconds": 0.0, "steptwin.slowed": 1.0})
    assert replay(_files(tmp_path, [[node]]), "dgx-h100").seconds == pytest.approx(0.0, abs=1e-3)


def test_a_kernel_without_a_time_takes_the_roofline(tmp_path: Path) -> None:
    device: Any = load_topology("dgx-h100").device(0)
    nodes = [_node(0, Kind.COMP, is_cpu_op=False, num_ops=10**12, tensor_size=8)]
    assert replay(_files(tmp_path, [nodes]), "dgx-h100").seconds == pytest.approx(1e12 / device.flops["bf16"])


SEND: dict[str, Attr] = {"is_cpu_op": False, "comm_src": 0, "comm_dst": 1, "comm_tag": 3}
REDUCE: dict[str, Attr] = {"is_cpu_op": False, "comm_type": 0, "comm_size": 8}


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        ([[Node(0, "a", 4, data=(1,)), Node(1, "b", 4, data=(0,))]], "cycle"),
        ([[_node(0, Kind.COLL, **REDUCE, pg_name="5")], []], "'5' is not known"),
        ([[_node(0, Kind.COLL, **REDUCE)], [_node(0, Kind.COMP, micros=1)]], r"ranks \[1\] do not take part"),
        ([[_node(0, Kind.COLL, **REDUCE)], [_node(0, Kind.COLL, **(REDUCE | {"comm_type": 6}))]], "disagree what it is"),
        ([[_node(0, Kind.COLL, **(REDUCE | {"comm_type": 3}))], [_node(0, Kind.COMP, micros=1)]], "type 3 is not simulated"),
        ([[_node(0, Kind.COLL, is_cpu_op=False, comm_size=8)], [_node(0, Kind.COMP, micros=1)]], "needs the attribute comm_type"),
        ([[_node(0, Kind.SEND, **SEND, comm_size=8)], [_node(0, Kind.RECV, **SEND, comm_size=9)]], "differ in tag, bytes or order"),
        ([[_node(0, Kind.SEND, **(SEND | {"comm_dst": 9}), comm_size=8)], []], "sends 1 messages to rank 9, which receives 0"),
        ([[Node(0, "disk", 8)]], "has type 8"),
    ],
)
def test_workloads_that_cannot_run_are_refused(ranks: list[list[Node]], says: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=says):
        replay(_files(tmp_path, ranks), "dgx-h100")


def test_who_takes_part_and_is_no_member_is_named(tmp_path: Path) -> None:
    ranks = [[_node(0, Kind.COLL, **REDUCE, pg_name="5")] for _ in range(3)]
    with pytest.raises(BadInput, match=r"ranks \[2\] take part and are no members of \(0, 1\)"):
        replay(_files(tmp_path, ranks, {"5": [0, 1]}), "dgx-h100")


def test_groups_come_from_pytorchs_metadata(tmp_path: Path) -> None:
    values = str(['[{"pg_name": "1", "ranks": [0, 1]}, {"pg_name": "0", "ranks": []}]'])
    ranks = [[Node(0, "pg", int(Kind.METADATA), inputs=values), _node(1, Kind.COLL, (0,), **REDUCE, pg_name="1")] for _ in range(2)]
    assert load_traces(_files(tmp_path, ranks)).groups == {"1": (0, 1), "0": (0, 1)}
    assert replay(_files(tmp_path, ranks), "dgx-h100").seconds > 0


def test_files_and_machines_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no"):
        load_traces(tmp_path / "none")
    prefix = _files(tmp_path, [[_node(0, Kind.COMP, micros=1)] for _ in range(3)], {"1": [0, 9]})
    with pytest.raises(BadInput, match="members"):
        load_traces(prefix)
    (tmp_path / "w.groups.json").write_text("[1, 2]")
    with pytest.raises(BadInput, match="groups"):
        load_traces(prefix)
    (tmp_path / "w.groups.json").unlink()
    with pytest.raises(BadInput, match="traces are of 3 ranks"):
        replay(prefix, "dgx-h100", edits=("ranks_per_node=2",))
    with pytest.raises(BadInput, match="no file"):
        load_traces(prefix, tmp_path / "groups.json")
    part = export_plan(bind(BASE | SPLITS[0], "dgx-h100"), tmp_path, ranks=(0, 1))
    with pytest.raises(BadInput, match="its program has 8 ranks"):
        load_traces(part.prefix)
