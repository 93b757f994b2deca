"""Adafactor: a row and a column of each matrix's second moments, the host's reads, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from sim.files.planfile import load_plan
from sim.framework.framework import Framework
from sim.lower.checks.verify import verify
from sim.lower.step import lower
from sim.memory.report import memory_of
from sim.program import Program
from sim.setting.bind import bind
from sim.work import Gemm, MemoryBound
from tests.null.lower.tiny import QUIET, linear, network, norm, program
from topologies.errors import Refused

SHAPE = (64, 32)
SIZE = 64 * 32
NET = network(2, (linear(elements=SIZE, matrices=(SHAPE,)), norm()))
LISTS = QUIET.but(optimizer={"implementation": "foreach"})


def adafactor(framework: Framework = LISTS, net: Any = NET, device: str = "cuda", **more: Any) -> Program:
    return program({"optimizer": {"name": "adafactor"}, **more}, net, framework, device)


def moved(p: Program, id: str) -> list[tuple[str, int, int, int]]:
    """(kernel, bytes read, bytes written, repetitions) of an op."""
    works = next(op for op in p.segments["update"] if op.id == id).works
    return [(w.what, w.read, w.written, w.repeat) for w in works if isinstance(w, MemoryBound)]


def test_the_host_reads_two_norms_of_each_tensor() -> None:
    p = adafactor()
    reads = [op for op in p.segments["update"] if op.kind == "copy"]
    assert len(reads) == 2 * (2 + 4), "two matrices, and two numbers of each norm"
    assert all(op.blocking and op.bytes == 4 for op in reads)
    norms = [moved(p, op.id) for op in p.segments["update"] if ".norm" in op.id and "matrices" in op.id]
    assert norms == [[("norm", 4 * SIZE, 0, 1)]] * 4
    assert not any(op.kind == "copy" for op in adafactor(device="cpu").segments["update"]), "a CPU has nothing to wait for"
    verify(p)


def test_a_matrix_is_estimated_from_a_row_and_a_column() -> None:
    p = adafactor()
    op = next(op for op in p.segments["update"] if op.id == "optimizer/matrices.estimate")
    assert [(w.m, w.n, w.k) for w in op.works if isinstance(w, Gemm)] == [(64, 32, 1)] * 2
    found = moved(p, op.id)
    one = [("norm", 4 * SIZE, 256, 1), ("norm", 4 * SIZE, 128, 1), ("reduce", 256, 4, 1), ("scale", 4 * SIZE, 4 * SIZE, 1)]
    assert found[:8] == one * 2 and found[8] == ("scale", 8, 8, 7)
    lists = [("foreach_scale", 8 * SIZE, 8 * SIZE, 1), ("foreach_sqrt", 8 * SIZE, 8 * SIZE, 1), ("foreach_scale", 16 * SIZE, 8 * SIZE, 1)]
    assert found[9:] == lists
    assert moved(p, "optimizer/matrices.step") == [("foreach_scale", 8 * SIZE, 8 * SIZE, 1), ("foreach_add", 16 * SIZE, 8 * SIZE, 1)]


def test_a_vector_is_copied_to_become_its_update() -> None:
    found = [(what, repeat) for what, _, _, repeat in moved(adafactor(), "optimizer/vectors.estimate")]
    last = [(f"foreach_{what}", 1) for what in ("scale", "sqrt", "scale")]
    assert found == [("foreach_scale", 1), ("foreach_add", 1), *[("copy", 1)] * 4, *last]


def test_a_for_loop_calls_each_for_each() -> None:
    p = adafactor(QUIET.but(host="python", optimizer={"implementation": "for-loop"}))
    assert moved(p, "optimizer/matrices.step") == [("add", 8 * SIZE, 4 * SIZE, 1)] * 2, "alpha scales by itself"
    assert ("scale", 8, 8, 14) in moved(p, "optimizer/matrices.estimate")


@pytest.mark.parametrize("model", ["gpt2-124m", "llama3-8b", "bert-large"])
def test_memory_and_checkpoints_hold_rows_and_columns(model: str) -> None:
    said = {"model": model, "seq_len": 128, "precision": "fp32", "optimizer": {"name": "adafactor"}, "output": {"checkpoint_every": 1}}
    plan = load_plan(said)
    system = bind(plan, "dgx-h100")
    parts = [part for _, block in system.network.blocks for part in block.parts]
    assert sum(part.factored[0] for part in parts) > 0.99 * system.network.parameters
    kept = sum(part.params - part.factored[0] + part.factored[1] for part in parts)
    assert memory_of(plan, system.network, system.framework).optimizer == 4 * kept < 0.01 * 4 * system.network.parameters
    p = lower(plan, system.network, system.framework, "cuda", 1)
    assert p.resident["optimizer"] == 4 * kept
    assert max(op.bytes for ops in p.segments.values() for op in ops if op.id == "output/write") == 4 * (kept + system.network.parameters)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"parallel": {"dp_shard": 2, "zero": 3}}, "whole matrices"),
        ({"parallel": {"tp": 2}}, "whole matrices"),
        ({"update": {"aggregate": "cpu"}, "parallel": {"dp_replicate": 2}}, "on the device"),
    ],
)
def test_refused_where_matrices_are_cut_or_updated_elsewhere(said: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        adafactor(**said)


def test_refused_where_kernels_or_shapes_are_not_there() -> None:
    with pytest.raises(Refused, match="without fused kernels"):
        adafactor(QUIET)
    with pytest.raises(Refused, match="does not say which of linear have"):
        adafactor(net=network())
    with pytest.raises(Refused, match="no pipeline of a tied embedding"):
        adafactor(net=replace(network(4, NET.blocks[0][1].parts), tied=("L0", "head")), parallel={"pp": 2}, batch={"micro": 1, "global": 4})
    adafactor(QUIET, task="forward")


@pytest.mark.parametrize("model", ["resnet50", "vit-b16", "t5-base"])
def test_models_that_do_not_describe_shapes_are_refused(model: str) -> None:
    """Convolutions' kernels; T5's table of relative positions, which is short enough for a bias."""
    plan = load_plan({"model": model, "precision": "fp32", "optimizer": {"name": "adafactor"}})
    system = bind(plan, "dgx-h100")
    with pytest.raises(Refused, match="factors what has two dimensions"):
        lower(plan, system.network, system.framework, "cuda", 1)
