"""torchtitan's recomputation operator by operator: results of fused attention and of every second product are kept, all else runs again."""

from __future__ import annotations

import pytest

from sim.framework.framework import load_framework
from sim.memory.report import memory_of
from sim.memory.timeline import memory_timelines
from sim.model.layers.redo import Redone, redone
from sim.model.load import load_model
from sim.model.network import describe
from sim.model.parts import Block, Shape
from sim.predict import predict
from sim.setting.bind import bind
from sim.work import Attention, Gemm
from topologies.errors import BadInput

H, KV, FFN, HEADS = 4096, 1024, 14336, 32
"""Llama 3 8B."""


def layer(compiled: bool, tp: int = 1) -> tuple[Block, Redone]:
    framework = load_framework("torchtitan-2024").but(compile=compiled)
    shape = Shape(micro=1, seq=1024, tp=tp, sequence_parallel=tp > 1)
    block = dict(describe(load_model("llama3-8b"), shape, framework).blocks)["L0"]
    return block, redone(block, ("op",), compiled)


def kept(block: Block, some: Redone) -> float:
    """Bytes for each token from forward to backward."""
    return (sum(part.saved for part in block.parts) - sum(some.dropped)) / 1024


def test_what_torch_keeps_in_eager_mode() -> None:
    """The input, q, v, attention's result with a number for each row, the gate, and the last product, which nothing reads (2,192 bytes a token of a
    layer of 64 columns, 4 heads and 224 inner ones in fp32, as torch 2.13 kept on a CPU)."""
    assert kept(*layer(False)) == 2 * (H + H + KV + H + FFN + H) + 4 * HEADS


def test_a_compiler_keeps_nothing_that_is_not_read() -> None:
    assert kept(*layer(True)) == 2 * (H + H + KV + H + FFN) + 4 * HEADS


@pytest.mark.parametrize(("compiled", "products"), [(False, 3), (True, 2)])
def test_sums_over_ranks_are_kept(compiled: bool, products: int) -> None:
    """k, what follows attention (which the kept sum alone reads), and the MLP's second product run again; inputs are gathered again."""
    block, some = layer(compiled, tp=8)
    (run,) = some.runs.values()
    assert sum(isinstance(work, Gemm) for part in run for work in part.forward) == products
    assert not any(isinstance(work, Attention) for part in run for work in part.forward)
    assert [part.seam for part in run if part.seam] == ["tp.gather"] * 2
    scattered = 2 if not compiled else 1  # of attention, and of the MLP, which no gradient needs
    assert kept(block, some) == 2 * (H + 2 * H + KV + FFN + (not compiled) * H * 8) / 8 + 4 * HEADS / 8 + scattered * 2 * H / 8


def test_the_line_peaks_where_the_report_does() -> None:
    memory = {"recompute": "selective", "recompute_modules": ["op"]}
    plan = {
        "model": "llama3.2-1b",
        "framework": "torchtitan",
        "seq_len": 8192,
        "batch": {"micro": 1, "global": 2},
        "parallel": {"dp_shard": 2},
    }
    setting, plain = bind({**plan, "memory": memory}, "dgx-h100"), bind(plan, "dgx-h100")
    found = predict(setting.plan, "dgx-h100", steps=2)
    assert found.trace is not None
    line = next(iter(memory_timelines(setting, found.trace).values()))
    report, without = (memory_of(one.plan, one.network, one.framework, one.topology.device(0)) for one in (setting, plain))
    assert max(used for _, used in line) == report.peak < without.peak
    assert found.step_time_s > predict(plain.plan, "dgx-h100", steps=2).step_time_s


def test_rows_that_travelled_to_experts_and_back_are_kept() -> None:
    """No all_to_all runs twice; nor does the host read the counts again: what it got is kept as well."""
    framework = load_framework("torchtitan")
    shape = Shape(micro=1, seq=1024, ep=8)
    block = dict(describe(load_model("qwen3-30b-a3b"), shape, framework).blocks)["L0"]
    (run,) = redone(block, ("op",)).runs.values()
    assert not any(part.seam for part in run)
    assert not any(part.reads for part in run)
    alone = dict(describe(load_model("qwen3-30b-a3b"), Shape(micro=1, seq=1024), framework).blocks)["L0"]
    assert kept(block, redone(block, ("op",))) == kept(alone, redone(alone, ("op",))) + 2 * 8 * 2 * 2048


def test_it_is_of_whole_layers() -> None:
    memory = {"recompute": "selective", "recompute_modules": ["op", "layernorm"]}
    with pytest.raises(BadInput, match="op is of whole layers"):
        bind({"model": "llama3.2-1b", "batch": {"micro": 1, "global": 1}, "memory": memory}, "dgx-h100")
