"""What Chakra's schema has no field for comes back all the same: the host's time before its own collectives, and what ranks share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from sim.cost.calibration import Calibration, Sample, save_calibration
from sim.engine.run import simulate
from sim.exchange.attributes import Attr
from sim.exchange.chakra import Kind, Node, encode
from sim.exchange.export import export_plan
from sim.exchange.replay import replay, run_traces
from sim.exchange.tracefile import write
from sim.exchange.workload import load_traces
from sim.lower.step import lower
from sim.predict import predict
from sim.program import HOST, Role
from sim.sections import Output
from sim.setting.bind import Setting, bind
from sim.setting.pricer import pricer_for
from sim.steady.detail import STEPS
from topologies.errors import Refused
from topologies.load import load_topology

BASE: dict[str, Any] = {
    "model": "gpt2-124m",
    "seq_len": 64,
    "framework": "pytorch",
    "batch": {"global": 4, "micro": 1},
    "parallel": {"dp_replicate": 4},
    "data": {"source": "memory", "workers": 0},
}
READ: dict[str, Any] = {"workers": 0, "sample": "100 MiB"}
EXACT = 1e-9
"""What `sim.exchange.export` promises for one step by itself on the machine that it was priced for."""


def _alone(setting: Setting, calibration: Path | None = None) -> float:
    """The last step of the plan by itself, without input workers, each rank simulated."""
    program = lower(setting.plan, setting.network, setting.framework, setting.topology.kind, STEPS)
    roles = {
        name: Role({HOST: tuple(call for call in role.threads[HOST] if call.step == STEPS - 1)}) for name, role in program.roles.items()
    }
    return simulate(msgspec.structs.replace(program, roles=roles, steps=1), pricer_for(setting, calibration), symmetry=False).end


@pytest.mark.no_cover
@pytest.mark.parametrize("edits", [(), ("cpu.cores=1",)], ids=["112 cores", "2 cores"])
@pytest.mark.parametrize(
    "said",
    [
        {},
        {"parallel": {"dp_replicate": 2, "pp": 2}},
        {"parallel": {"dp_shard": 4}},
        {"data": READ | {"source": "disk"}},
        {"update": {"aggregate": "cpu"}},
        {"output": {"checkpoint_every": 1, "log_every": 1}},
    ],
    ids=["ddp", "pipeline", "fsdp", "disk", "server", "checkpoint"],
)
def test_on_cpus_a_step_that_comes_back_takes_as_long(said: dict[str, Any], edits: tuple[str, ...], tmp_path: Path) -> None:
    """gloo's collectives hold the training thread, and the ranks of a machine share its cores."""
    setting = bind(BASE | said, "cpu-host", edits)
    found = replay(export_plan(setting, tmp_path).prefix, setting.topology)
    assert found.seconds == pytest.approx(_alone(setting), rel=EXACT)
    assert found.breakdown.total == pytest.approx(found.seconds, rel=1e-6)


@pytest.mark.no_cover
def test_on_cpus_that_is_the_predicted_step(tmp_path: Path) -> None:
    """Where nothing runs ahead, one step by itself is the step that `predict` reports."""
    out = export_plan(bind(BASE, "cpu-host"), tmp_path)
    assert replay(out.prefix, "cpu-host").seconds == pytest.approx(predict(BASE, "cpu-host").step_time_s, rel=1e-6)


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "said",
    [
        {"update": {"aggregate": "cpu"}},
        {"data": READ | {"source": "disk"}},
        {"data": READ | {"source": "object-store"}},
        {"data": READ | {"source": "memory", "pinned": False}, "model": "resnet50", "batch": {"global": 512, "micro": 128}},
        {"data": READ | {"source": "memory"}, "model": "resnet50", "batch": {"global": 512, "micro": 128}},
        {"output": {"checkpoint_every": 1, "log_every": 1}},
        {"output": {"checkpoint_every": 1, "checkpoint_mode": "full", "checkpoint_to": "store"}},
        {"data": READ | {"source": "disk"}, "framework": "megatron", "parallel": {"tp": 4}},
        {"memory": {"offload": "optimizer"}},
    ],
    ids=["server", "disk", "store", "pageable", "pinned", "checkpoint", "full-checkpoint", "one reads for all", "host's update"],
)
def test_on_gpus_what_ranks_share_comes_back(said: dict[str, Any], tmp_path: Path) -> None:
    """A disk that four ranks read, the switches above their GPUs, and the host's time before collectives of its own."""
    setting = bind(BASE | said, "rtx-4090-x8")
    assert replay(export_plan(setting, tmp_path).prefix, "rtx-4090-x8").seconds == pytest.approx(_alone(setting), rel=EXACT)


@pytest.mark.no_cover
def test_output_that_does_not_come_with_every_step_is_left_out(tmp_path: Path) -> None:
    rare = bind(BASE | {"output": {"checkpoint_every": 2, "log_every": 10}}, "dgx-h100")
    never = msgspec.structs.replace(rare, plan=msgspec.structs.replace(rare.plan, output=Output()))
    assert replay(export_plan(rare, tmp_path).prefix, "dgx-h100").seconds == pytest.approx(_alone(never), rel=EXACT)


@pytest.mark.no_cover
def test_an_exchange_beside_other_kernels_stays_hidden(tmp_path: Path) -> None:
    """The kernels that cover an exchange stand in the trace."""
    moe = {"model": "mixtral-8x7b", "framework": "megatron-bridge-overlapped", "seq_len": 4096, "parallel": {"dp_shard": 4, "ep": 4}}
    moe |= {"batch": {"global": 8, "micro": 1}}
    setting = bind(BASE | moe, "dgx-h100")
    assert setting.framework.experts.exchange_overlap
    out = export_plan(setting, tmp_path)
    assert replay(out.prefix, "dgx-h100").seconds == pytest.approx(_alone(setting), rel=EXACT)
    without = bind(BASE | moe | {"framework": "megatron-bridge-deepep"}, "dgx-h100")
    assert _alone(without) > 1.01 * _alone(setting)


@pytest.mark.parametrize(
    ("attrs", "seconds"),
    [
        ({"steptwin.share": "disk.read"}, 2.0),
        ({"steptwin.share": "disk.read", "steptwin.latency": 0.25}, 1.75),
        ({"steptwin.share": "disk.read", "steptwin.latency": 7.0}, 1.0),
        ({"steptwin.share": "disk.read", "tensor_size": 0}, 1.0),
        ({"steptwin.share": "store.read"}, 2.0),
        ({"steptwin.share": "moon"}, 1.0),
        ({}, 1.0),
    ],
)
def test_two_ranks_read_from_one_disk(attrs: dict[str, Attr], seconds: float, tmp_path: Path) -> None:
    """Each alone takes a second and all of the disk; latency is nobody else's; without a store its node's disk is read."""
    machine = load_topology("cpu-host")
    assert machine.store(0) is None
    alone: dict[str, Attr] = {"is_cpu_op": True, "steptwin.seconds": 1.0, "tensor_size": int(machine.disk(0).read)}
    late = 1.0 - float(str(attrs.get("steptwin.latency", 0.0)))
    if 0 < late < 1:
        alone["tensor_size"] = int(machine.disk(0).read * late)
    for rank in range(2):
        write(tmp_path / f"w.{rank}.et", [encode(Node(0, "read", int(Kind.COMP), attrs=alone | attrs))], {"steptwin.durations": "alone"})
    workload = load_traces(tmp_path / "w")
    assert run_traces(workload, machine).end == pytest.approx(seconds)
    measured = msgspec.structs.replace(workload, alone=False)
    assert run_traces(measured, machine).end == pytest.approx(1.0), "what was measured was shared already"


def test_measured_collectives_of_cpus_are_those_of_the_calibration(tmp_path: Path) -> None:
    rows = tuple(Sample("all_reduce", "", (4, size), seconds, seconds, seconds, 9) for size, seconds in ((1 << 10, 1e-3), (1 << 30, 9.0)))
    path = tmp_path / "slow.toml"
    save_calibration(
        Calibration(machine="m", device="cpu", date="2026-01-01", cores=112, ranks=4, threads=1, seconds=1.0, tables={"collective": rows}),
        path,
    )
    setting = bind(BASE, "cpu-host")
    out = export_plan(setting, tmp_path, calibration=path)
    assert replay(out.prefix, "cpu-host", calibration=path).seconds == pytest.approx(_alone(setting, path), rel=EXACT)
    assert replay(out.prefix, "cpu-host").seconds < 0.9 * _alone(setting, path)
    with pytest.raises(Refused, match=r"dgx-h100 has GPUs.*leave --calibration out"):
        replay(out.prefix, "dgx-h100", calibration=path)
