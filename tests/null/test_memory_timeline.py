"""Memory over time: its peak is the peak that is reported, and each schedule holds what it has begun."""

from __future__ import annotations

from typing import Any

import pytest

from sim.memory.activations import widest
from sim.memory.report import memory_of, memory_of_stages
from sim.memory.timeline import Line, memory_timelines
from sim.predict import predict
from sim.setting.bind import bind
from sim.setting.rooms import smallest_devices

GPT = {
    "model": {"family": "decoder", "name": "gpt", "layers": 8, "hidden": 256, "heads": 4, "vocab": 1024, "activation": "gelu"},
    "seq_len": 128,
}


def lines(tree: dict[str, Any]) -> tuple[dict[int, Line], list[int], int]:
    """Lines by rank, each stage's reported peak, and the prediction's."""
    setting, found = bind(tree, "dgx-h100"), predict(tree, "dgx-h100")
    assert found.trace is not None
    reports = memory_of_stages(setting.plan, setting.network, setting.framework, setting.topology.device(0))
    drawn = memory_timelines(setting, found.trace)
    return drawn, [report.peak for report in reports], found.peak_memory_bytes


PLANS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"batch": {"global": 4}},
    "sgd": {"optimizer": {"name": "sgd"}},
    "fsdp": {"parallel": {"dp_shard": 4, "zero": 3}},
    "zero-1": {"parallel": {"dp_shard": 4, "zero": 1}},
    "math": {"attention": "math"},
    "selective": {"attention": "math", "memory": {"recompute": "selective"}},
    "full": {"memory": {"recompute": "full"}},
    "some layers": {"memory": {"recompute": "full", "recompute_layers": 3}},
    "offload": {"memory": {"offload": "activations"}},
    "offload some": {"memory": {"offload": "activations", "offload_layers": 3}, "batch": {"global": 4}},
    "megatron": {"framework": "megatron-lm", "batch": {"global": 2}},
    "forward": {"task": "forward"},
    "cnn": {"model": "resnet18", "seq_len": 1, "precision": "fp32"},
    "uneven": {"noise": {"imbalance": "r0: 1.5x"}},
    "uneven forward": {"task": "forward", "noise": {"imbalance": "r0: 1.5x"}},
}


@pytest.mark.no_cover
@pytest.mark.parametrize("name", PLANS)
def test_the_line_peaks_where_the_report_does(name: str) -> None:
    drawn, reports, peak = lines(GPT | PLANS[name])
    (line,) = drawn.values()
    assert max(used for _, used in line) == reports[0] == peak
    assert line[-1][1] == line[0][1] == min(used for _, used in line)  # all that moves is given back
    assert [time for time, _ in line] == sorted({time for time, _ in line})


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("dualpipe", 1), ("zb-v", 1), ("zb-h1", 2), ("looped-bfs", 2)],
)
def test_every_stage_of_a_pipeline_peaks_as_reported(schedule: str, chunks: int) -> None:
    """Interleaving: within a permille, for micro-batches change places between a rank's chunks."""
    plan = GPT | {"batch": {"global": 12}, "parallel": {"pp": 4, "schedule": schedule, "virtual_stages": chunks}}
    drawn, reports, peak = lines(plan)
    peaks = [max(used for _, used in line) for line in drawn.values()]
    assert peaks == pytest.approx(reports, rel=1e-3 if chunks > 1 else 1e-12)
    assert max(peaks) == pytest.approx(peak, rel=1e-3)
    assert all(line[-1][1] == line[0][1] for line in drawn.values())


@pytest.mark.no_cover
@pytest.mark.parametrize("schedule", ["zb-h1", "zb-v", "1f1b"])
@pytest.mark.parametrize(
    "plan",
    [
        {"model": "vgg16", "seq_len": 1},  # the fullest block is not the last of its stage
        {"task": "lora"},  # what has no gradients of weights does not wait for them
    ],
    ids=["pictures", "adapters"],
)
def test_what_waits_for_gradients_of_weights_is_counted_until_then(plan: dict[str, Any], schedule: str) -> None:
    drawn, reports, _ = lines(GPT | plan | {"batch": {"global": 4}, "parallel": {"pp": 2, "schedule": schedule}})
    assert [max(used for _, used in line) for line in drawn.values()] == pytest.approx(reports, rel=1e-4)


@pytest.mark.no_cover
def test_kernels_that_read_twice_hold_what_they_read_once() -> None:
    """Of a batch norm's backward: the gradients of its result and of its input."""
    part = next(
        part
        for _, block in bind({"model": "resnet18", "batch": {"micro": 4}}, "dgx-h100").network.blocks
        for part in block.parts
        if part.cls == "norm"
    )
    assert part.backward[-1].read > 2 * part.backward[-1].written  # type: ignore[union-attr]
    assert widest(part) == pytest.approx(2 * part.backward[-1].written, rel=1e-3)  # type: ignore[union-attr]


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "plan",
    [
        {"memory": {"offload": "activations"}, "batch": {"global": 16, "micro": 16}},
        {
            "framework": "megatron-core",
            "batch": {"global": 32},
            "memory": {"recompute": "full"},
            "parallel": {"pp": 4, "dp_shard": 2, "zero": 3},
        },
    ],
    ids=["offload", "gathered"],
)
def test_a_block_that_others_are_prepared_beside_runs_alone(plan: dict[str, Any]) -> None:
    """The device is told to fetch the next block's tensors beside the head's backward, the widest."""
    model = GPT["model"] | {"vocab": 65536}  # type: ignore[operator]
    drawn, reports, _ = lines(GPT | {"model": model} | plan)
    assert [max(used for _, used in line) for line in drawn.values()] == reports


@pytest.mark.parametrize("update", [{"mode": "async"}, {"aggregate": "cpu"}], ids=["server", "summed on the CPU"])
def test_gradients_that_others_update_with_are_not_piled_up(update: dict[str, str]) -> None:
    drawn, reports, peak = lines(GPT | {"batch": {"global": 2}, "parallel": {"dp_replicate": 2}, "update": update})
    for line in drawn.values():
        assert max(used for _, used in line) == reports[0] == peak
        assert line[-1][1] == line[0][1]


@pytest.mark.no_cover
def test_a_1f1b_stage_holds_as_many_micro_batches_as_stages_follow() -> None:
    plan = GPT | {"batch": {"global": 12}, "parallel": {"pp": 4, "schedule": "1f1b"}}
    drawn, _, _ = lines(plan)
    tops = [max(used for _, used in line) - line[0][1] for line in drawn.values()]
    assert tops[0] > tops[1] > tops[2]
    gpipe, _, _ = lines(GPT | {"batch": {"global": 12}, "parallel": {"pp": 4, "schedule": "gpipe"}})
    assert max(used for _, used in gpipe[0]) > max(used for _, used in drawn[0])


def test_selective_recomputation_frees_the_scores() -> None:
    """5 a s^2 b bytes a layer are dropped (2 of softmax, 2 + 1 of dropout in bf16; Korthikanti et al. 2022, section 5); one layer's
    come back while it runs backward."""
    model = GPT["model"] | {"dropout": 0.1}  # type: ignore[operator]
    kept, freed = (
        bind(GPT | {"model": model, "attention": "math", "memory": {"recompute": how}, "batch": {"micro": 16, "global": 32}}, "dgx-h100")
        for how in ("none", "selective")
    )
    none, selective = (memory_of(s.plan, s.network, s.framework) for s in (kept, freed))
    scores = 5 * 4 * 128 * 128 * 16
    core = next(part for part in dict(kept.network.blocks)["L0"].parts if part.name == "attn.core")
    assert core.dropped == scores
    # at none's fullest moment all 8 layers' scores are there; the head's loss needs no scores back
    assert none.activations - selective.activations == 8 * scores
    assert selective.working == none.working


def test_every_rank_has_its_own_line() -> None:
    setting = bind(
        {"model": "gpt2-124m", "seq_len": 64, "batch": {"global": 4, "micro": 1}, "parallel": {"pp": 2, "schedule": "1f1b"}}, "dgx-h100"
    )
    trace = predict(setting.plan, "dgx-h100", steps=2).trace
    assert trace is not None
    lines = memory_timelines(setting, trace)
    assert set(lines) == {0, 1}
    assert max(used for _, used in lines[0]) != max(used for _, used in lines[1])


def test_no_spans_make_no_line() -> None:
    setting = bind(GPT, "dgx-h100")
    from sim.trace import Trace

    assert memory_timelines(setting, Trace(spans=[])) == {}


def test_stages_on_other_devices_peak_where_their_own_reports_do() -> None:
    """What the allocator holds beside tensors is given back where room is short: on 24 GiB more of it than on 80."""
    plan = {
        "model": {"base": "llama3.2-1b", "layers": 8}, "seq_len": 8192, "framework": "megatron-core",
        "parallel": {"pp": 2, "dp_replicate": 8, "zero": 0}, "batch": {"micro": 2, "global": 64},
    }  # fmt: skip
    setting = bind(plan, "dgx-h100 + rtx-4090-x8")
    found = predict(plan, "dgx-h100 + rtx-4090-x8")
    assert found.trace is not None
    drawn = memory_timelines(setting, found.trace)
    reports = memory_of_stages(setting.plan, setting.network, setting.framework, smallest_devices(setting))
    assert {max(used for _, used in drawn[rank]) for rank in (0, 8)} == {report.peak for report in reports}
    alike = memory_of_stages(setting.plan, setting.network, setting.framework, setting.topology.device(0))
    assert reports[0] == alike[0] and reports[1].peak < alike[1].peak


def test_gathers_of_a_cpu_open_no_window_of_a_layer() -> None:
    """There what a gather is laid into is copied by the cores, while the layer before it still runs backward."""
    tree = GPT | {"precision": "fp32", "batch": {"global": 2, "micro": 1}, "parallel": {"dp_shard": 2, "zero": 3}}
    found = predict(tree | {"data": {"source": "memory", "workers": 0}}, "2x cpu-host")
    assert found.trace is not None
    assert max(held for line in found.trace.memory.values() for _, held in line) == pytest.approx(found.peak_memory_bytes, rel=1e-6)
