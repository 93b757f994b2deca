"""Plans of every kind, lowered and played on four ranks: no hang, one span for every op."""

from __future__ import annotations

import gzip
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from executor.play import RankResult, Request, run_play
from executor.ranks.launch import launch
from sim.files.planfile import load_plan
from sim.framework.chosen import framework_of
from sim.lower.step import lower
from sim.program import Program, full_id
from sim.setting.bind import network_of
from tests.gloo.bodies_for_play import Many
from topologies.errors import BadInput, Refused

pytestmark = pytest.mark.usefixtures("forked")
DENSE = {"family": "decoder", "layers": 4, "hidden": 32, "heads": 4, "vocab": 64, "ffn": 64}
MOE = {**DENSE, "moe": {"experts": 4, "top_k": 2, "ffn": 32}}
VIDEO = {
    "family": "wan", "layers": 2, "hidden": 32, "heads": 4, "ffn": 64, "frames": 5, "height": 32, "width": 64, "text": 16, "context": 32,
}  # fmt: skip
PAIRS = {
    "family": "clip", "layers": 2, "hidden": 32, "heads": 4, "image": 32, "patch": 8, "text_layers": 2, "text_hidden": 32, "text_heads": 2,
    "vocab": 64, "text": 16, "width": 32,
}  # fmt: skip
SIGMOID = {**PAIRS, "loss": "sigmoid"}
OWN = [",".join(f"{stage}{kind}{m + i}" for m in (0, 4) for kind in "FB" for i in range(4)) for stage in range(4)]
"""GPipe for four micro-batches, twice."""
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ddp": (DENSE, {"dp_replicate": 4}),
    "fsdp": (DENSE, {"dp_shard": 4, "zero": 3}),
    "zero2": (DENSE, {"dp_shard": 4, "zero": 2}),
    "zero1": (DENSE, {"dp_shard": 4, "zero": 1}),
    "hsdp": (DENSE, {"dp_replicate": 2, "dp_shard": 2, "zero": 3}),
    "tp": (DENSE, {"tp": 2, "dp_replicate": 2}),
    "tp-whole": (DENSE, {"tp": 4, "sequence_parallel": False}),
    "gpipe": (DENSE, {"pp": 4, "schedule": "gpipe"}),
    "1f1b": (DENSE, {"pp": 2, "dp_shard": 2, "zero": 3}),
    "interleaved": (DENSE, {"pp": 2, "tp": 2, "schedule": "interleaved", "virtual_stages": 2}),
    "zb-h1": (DENSE, {"pp": 4, "schedule": "zb-h1"}),
    "zb-v": (DENSE, {"pp": 2, "tp": 2, "schedule": "zb-v"}),
    "looped-bfs": (DENSE, {"pp": 2, "dp_shard": 2, "zero": 3, "schedule": "looped-bfs", "virtual_stages": 2, "framework": "torchtitan"}),
    "written": (DENSE, {"pp": 4, "schedule": "csv", "actions": OWN}),
    "ring": (DENSE, {"cp": 4}),
    "ulysses": (DENSE, {"cp": 2, "cp_kind": "all_to_all", "dp_replicate": 2}),
    "usp": (DENSE, {"cp": 4, "cp_kind": "all_to_all+p2p", "cp_ulysses": 2}),
    "video-ring": (VIDEO, {"cp": 2, "pp": 2}),
    "video-ulysses": (VIDEO, {"cp": 2, "cp_kind": "all_to_all", "dp_shard": 2, "zero": 3}),
    "video-gathered": (VIDEO, {"cp": 4, "cp_kind": "all_gather"}),
    "pairs": (PAIRS, {"dp_replicate": 4, "batch": {"micro": 2, "global": 8}}),
    "pairs-fsdp": (PAIRS, {"dp_replicate": 2, "dp_shard": 2, "zero": 3, "batch": {"micro": 2, "global": 8}}),
    "pairs-ring": (SIGMOID, {"dp_replicate": 4, "batch": {"micro": 2, "global": 8}}),
    "pairs-ring-fsdp": (SIGMOID, {"dp_shard": 4, "zero": 3, "batch": {"micro": 2, "global": 8}}),
    "experts": (MOE, {"dp_shard": 4, "ep": 4, "zero": 3}),
    "fsdp-tp": (DENSE, {"dp_shard": 2, "tp": 2, "zero": 3}),
    "fsdp-interleaved": (DENSE, {"pp": 2, "dp_shard": 2, "zero": 3, "schedule": "interleaved", "virtual_stages": 2}),
    "whole-stages": (
        DENSE,
        {"pp": 2, "dp_shard": 2, "zero": 3, "schedule": "interleaved", "virtual_stages": 2, "framework": "torchtitan"},
    ),
    "dualpipe": (DENSE, {"pp": 2, "dp_replicate": 2, "schedule": "dualpipe"}),
    "recompute": (DENSE, {"dp_shard": 2, "tp": 2, "zero": 3, "memory": {"recompute": "full"}}),
    "selective": (DENSE, {"tp": 4, "memory": {"recompute": "selective"}}),
    "narrow-ddp": (DENSE, {"dp_replicate": 4, "comm": {"reduce_dtype": "bf16"}}),
    "narrow-fsdp": (DENSE, {"dp_shard": 4, "zero": 3, "comm": {"reduce_dtype": "fp16"}}),
    "local": (DENSE, {"dp_replicate": 4, "update": {"mode": "local", "every": 2}}),
    "outer": (DENSE, {"dp_replicate": 4, "update": {"mode": "local", "every": 2, "outer": "nesterov"}}),
    "lion": (DENSE, {"dp_replicate": 4, "optimizer": {"name": "lion", "implementation": "fused"}}),
    "ademamix": (DENSE, {"dp_replicate": 4, "optimizer": {"name": "ademamix"}}),
    "adagrad": (DENSE, {"dp_replicate": 4, "optimizer": {"name": "adagrad", "implementation": "fused"}}),
    "lars": (DENSE, {"dp_replicate": 4, "optimizer": {"name": "lars"}}),
    "adafactor": (DENSE, {"dp_replicate": 4, "optimizer": {"name": "adafactor"}}),
    "muon": (DENSE, {"dp_replicate": 4, "optimizer": {"name": "muon"}}),
    "muon-owners": (MOE, {"dp_shard": 4, "ep": 2, "zero": 1, "optimizer": {"name": "muon"}}),
    "muon-pieces": (DENSE, {"dp_shard": 4, "zero": 3, "optimizer": {"name": "muon"}}),
    "on-host": (DENSE, {"dp_replicate": 4, "update": {"aggregate": "cpu"}}),
    "saved": (DENSE, {"dp_replicate": 4, "output": {"checkpoint_every": 1, "checkpoint_mode": "async"}}),
}
_SECTIONS = ("batch", "comm", "memory", "optimizer", "update", "output", "framework")


def _program(model: dict[str, Any], axes: dict[str, Any]) -> Program:
    parallel = {name: value for name, value in axes.items() if name not in _SECTIONS}
    # Two micro-batches where one would do, eight where a pipeline must be filled.
    copies = parallel.get("dp_replicate", 1) * parallel.get("dp_shard", 1)
    plan = load_plan(
        {
            "model": model,
            "seq_len": 32,
            "precision": "fp32",
            "batch": {"micro": 1, "global": 8 if "pp" in parallel else 2 * copies},
            "parallel": parallel,
            "data": {"workers": 1},
            **{name: axes[name] for name in _SECTIONS if name in axes},
        }
    )
    framework = framework_of(plan)
    return lower(plan, network_of(plan, framework), framework, "cpu", 2)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_parameter_server_takes_gradients_updates_and_answers(tmp_path: Path, ranks: int) -> None:
    """Each worker's thread beside rank 0 does in its order what the program says, and a step is what all ranks together take for one each."""
    program = _program(DENSE, {"dp_replicate": ranks, "update": {"mode": "async"}})
    played = run_play(program, {}, tmp_path, 4)
    spans = {span.id: span for span in played.trace.spans}
    ops = [op for rank in range(ranks) for thread in program.threads(rank) for op in program.ops(rank, thread)]
    assert len(spans) == len(played.trace.spans) == len(ops)
    for worker in range(1, ranks):
        for step in range(program.steps):
            served = [spans[f"r0/s{step}/worker{worker}/server/{what}"] for what in ("gradients", "update", "parameters")]
            assert all(before.end <= after.start for before, after in pairwise(served))
            assert served[1].end > served[1].start
            pulled = spans[f"r{worker}/s{step}/server/pull"]
            assert pulled.end >= served[2].start
    own = spans["r0/s0/worker0/server/update"], spans["r0/s0/server/pulled"]
    assert own[0].end <= own[1].end, "rank 0 goes on when its own thread has updated"
    assert min(map(min, played.by_rank)) <= statistics.fmean(played.step_times) <= max(map(max, played.by_rank))


def test_a_parameter_server_beside_gpus_is_refused_before_anything_starts(tmp_path: Path) -> None:
    program = msgspec.structs.replace(_program(DENSE, {"dp_replicate": 2, "update": {"mode": "async"}}), device="cuda")
    with pytest.raises(Refused, match=r"parameter server.*not played on GPUs"):
        run_play(program, {}, tmp_path, 1)


def test_a_program_that_would_hang_is_refused_before_anything_starts(tmp_path: Path) -> None:
    program = _program(DENSE, {"pp": 4, "schedule": "gpipe"})
    lame = {name: tuple(op for op in ops if op.kind != "send") for name, ops in program.segments.items()}
    with pytest.raises(BadInput, match="recv"):
        run_play(msgspec.structs.replace(program, segments=lame), {}, tmp_path, 1)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Program, list[RankResult]]]:
    """All programs, played in one launch."""
    folder = tmp_path_factory.mktemp("play")
    (folder / "read.bin").write_bytes(bytes(1 << 16))
    programs = {name: _program(model, parallel) for name, (model, parallel) in CASES.items()}
    requests = []
    for name, program in programs.items():
        path = folder / f"{name}.json.gz"
        path.write_bytes(gzip.compress(msgspec.json.encode(program), 1))
        requests.append(Request(str(path), {}, 2, str(folder / "read.bin")))
    found = launch("tests.gloo.bodies_for_play:spans", Many(requests), 4, folder / "run", list[RankResult], stall=60)
    return {name: (program, [rank[i] for rank in found]) for i, (name, program) in enumerate(programs.items())}


@pytest.mark.parametrize("name", CASES)
def test_every_op_has_one_span(name: str, played: dict[str, tuple[Program, list[RankResult]]]) -> None:
    program, ranks = played[name]
    assert program.world == 4
    for rank, result in enumerate(ranks):
        wanted = [full_id(rank, call, op) for thread in program.threads(rank) for call, op in program.ops(rank, thread)]
        assert sorted(span.id for span in result.spans) == sorted(wanted)
        assert all(span.end >= span.start for span in result.spans)
        assert len(result.step_times) >= 1
