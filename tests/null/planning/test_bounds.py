"""What a sweep knows of a plan before it simulates it: bounds that no step is below, floors that no memory is below, and reasons."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sim.files.planfile import about, load_plan, presets
from sim.plan import Plan
from sim.planning import progress
from sim.planning.sweeps.bound import Bounds
from sim.planning.sweeps.floor import Floor
from sim.planning.sweeps.judge import Depth, Work, evaluate, evaluate_chunk, screen_chunk
from sim.planning.sweeps.space import candidates, parse_space, point
from sim.planning.sweeps.sweep import sweep
from sim.predict import predict_setting
from sim.result.figures import figures_of_memory
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.steady.rounds import whole_step
from sim.steady.shortened import Run
from topologies.errors import BadInput
from topologies.load import load_topology

BASE: dict[str, Any] = {"model": "gpt2-124m", "seq_len": 512, "framework": "pytorch", "batch": {"global": 16, "micro": 2}}
PLAN = load_plan(BASE | {"parallel": {"dp_replicate": 8}})
TP = ("parallel.tp=2", "parallel.dp_replicate=4")


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("task=forward",),
        ("compile=true",),
        ("cuda_graphs=true",),
        ("memory.recompute=full",),
        ("memory.recompute=full", "memory.recompute_layers=4"),
        TP,
        (*TP, "parallel.sequence_parallel=false"),
        (*TP, "parallel.placement=dp,tp,cp,pp"),
        ("parallel.pp=2", "parallel.dp_replicate=4", "parallel.schedule=1f1b"),
        ("memory.recompute=selective", "attention=math"),
        ("memory.recompute=selective", 'memory.recompute_modules=["core_attn", "layernorm", "mlp"]'),
        ("parallel.pp=2", "parallel.dp_replicate=4", "parallel.schedule=zb-h1"),
        ("parallel.pp=2", "parallel.dp_replicate=4", "parallel.schedule=zb-v"),
    ],
    ids=" ".join,
)
def test_no_step_is_below_its_bound(changes: tuple[str, ...]) -> None:
    setting = bind(load_plan(PLAN, changes), "dgx-h100")
    bound = Bounds().step(setting, pricer_for(setting))
    assert 0.05 < bound / predict_setting(setting, steps=2, detail=False).step_time_s <= 1.0


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "said",
    [
        {"framework": "nemo", "parallel": {"pp": 8, "schedule": "1f1b"}},
        {"framework": "megatron-bridge", "parallel": {"pp": 4, "dp_replicate": 2, "schedule": "1f1b"}},
        {"framework": "nemo", "parallel": {"pp": 8, "schedule": "interleaved", "virtual_stages": 2}},
        {"task": "forward", "parallel": {"pp": 4, "dp_replicate": 2}},
        {"task": "forward", "parallel": {"dp_replicate": 8}, "memory": {"recompute": "selective"}},
        {"task": "forward", "parallel": {"dp_replicate": 8}, "memory": {"recompute": "selective"}, "attention": "math"},
    ],
    ids=["head put off", "head put off, two stages a node", "head put off, interleaved", "forward", "selective", "selective, math"],
)
def test_no_step_of_a_large_model_is_below_its_bound(said: dict[str, Any]) -> None:
    """Gradients of a head that wait fill the drain; stages without backward run ahead of each other; forward recomputes nothing."""
    setting = bind(load_plan({"model": "llama3-8b", "seq_len": 4096, "batch": {"micro": 1, "global": 16}} | said), "dgx-h100")
    bound = Bounds().step(setting, pricer_for(setting))
    assert 0.5 < bound / predict_setting(setting, detail=False).step_time_s <= 1.001


def test_bounds_know_what_is_not_done() -> None:
    """Without backward, with a few layers recomputed, and with tensor parallel groups on slower links."""

    def bound(on: str, *changes: str) -> float:
        setting = bind(load_plan(PLAN, changes), on)
        return Bounds().step(setting, pricer_for(setting))

    assert bound("dgx-h100", "task=forward") < 0.5 * bound("dgx-h100")
    some, every = (bound("dgx-h100", "memory.recompute=full", f"memory.recompute_layers={layers}") for layers in (4, 0))
    assert bound("dgx-h100") < some < every
    apart = ("parallel.tp=2", "parallel.dp_replicate=8", "batch.micro=16", "batch.global=128", "seq_len=1024")
    assert bound("2x dgx-h100", *apart) < bound("2x dgx-h100", *apart, "parallel.placement=dp,tp,cp,pp")


EXPERTS: dict[str, Any] = {
    "model": {"layers": 8, "hidden": 2048, "heads": 16, "vocab": 32000, "ffn": 4096, "moe": {"experts": 16, "top_k": 4, "ffn": 1024}},
    "seq_len": 2048,
    "framework": "megatron-core",
    "batch": {"global": 64, "micro": 1},
}


@pytest.mark.no_cover
@pytest.mark.parametrize("framework", ["megatron-core", "torchtitan", "megatron-bridge-overlapped"])
@pytest.mark.parametrize(
    "changes",
    [
        ("dp_shard=16", "ep=16", "zero=1"),
        ("dp_shard=16", "ep=8", "zero=3"),
        ("dp_shard=8", "tp=2", "ep=8"),
        ("dp_shard=8", "cp=2", "ep=2"),
        ("dp_shard=8", "cp=2", "cp_kind=all_gather"),
        ("dp_shard=8", "cp=2", "cp_kind=all_to_all"),
        ("dp_shard=4", "pp=4", "ep=4", "zero=3", "schedule=1f1b"),
        ("dp_shard=4", "pp=4", "ep=4", "zero=3", "schedule=interleaved", "virtual_stages=2"),
        ("dp_shard=4", "pp=4", "zero=3", "schedule=zb-h1"),
        ("dp_shard=4", "pp=4", "zero=3", "schedule=zb-v"),
        ("dp_shard=4", "pp=4", "zero=1", "schedule=zb-v"),
        ("dp_shard=4", "pp=4", "zero=1", "schedule=zb-h1", "virtual_stages=2"),
        ("dp_shard=4", "pp=4", "zero=3", "schedule=looped-bfs", "virtual_stages=2"),
        ("dp_shard=4", "pp=4", "ep=2", "zero=3", "schedule=dualpipe"),
    ],
    ids=" ".join,
)
def test_no_step_of_experts_is_below_its_bound(changes: tuple[str, ...], framework: str) -> None:
    """Tokens that travel to experts, keys that travel to queries, parameters that ZeRO-3 gathers: what surely shows is in the bound."""
    overrides = (*(f"parallel.{word}" for word in changes), "memory.recompute=full", f"framework={framework}")
    setting = bind(load_plan(EXPERTS, overrides), "2x dgx-h100")
    bound = Bounds().step(setting, pricer_for(setting))
    assert 0.6 < bound / whole_step(setting) <= 1.0


def test_exchanges_with_experts_elsewhere_are_in_the_bound() -> None:
    """A fourth of the network's rate makes an all_to_all over two nodes four times as long, which nothing hides."""

    def bound(ep: int, *edits: str) -> float:
        changes = ("parallel.dp_shard=16", "parallel.zero=1", f"parallel.ep={ep}", "seq_len=4096")  # long enough for launches not to bind
        setting = bind(load_plan(EXPERTS, changes), "2x dgx-h100", edits)
        return Bounds().step(setting, pricer_for(setting))

    slow = "link.net.rate=12.5 GB/s"
    assert bound(16, slow) > 1.5 * bound(16)
    assert bound(8, slow) == bound(8)


@pytest.mark.no_cover
@pytest.mark.parametrize("straggler", ["r0: 4x", "r3: 4x"])
def test_asynchronous_ranks_have_a_bound_each(straggler: str) -> None:
    """Which of them is slow is all the same: three of full speed and one of a fourth make 13/16 of the steps of four."""
    slow, even = (
        bind(
            load_plan(
                PLAN, ("parallel.dp_replicate=4", "update.mode=async", "batch.micro=8", "batch.global=256", f"noise.stragglers={noise}")
            ),
            "dgx-h100",
        )
        for noise in (straggler, "none")
    )
    bound = Bounds().step(slow, pricer_for(slow))
    assert bound == pytest.approx(Bounds().step(even, pricer_for(even)) * 16 / 13, rel=0.05)
    assert 0.3 < bound / predict_setting(slow, detail=False).step_time_s <= 1.0


@pytest.mark.no_cover
def test_bounds_of_a_mixture_know_each_stage_s_device() -> None:
    """Most layers on the faster machine, which is not the first."""
    changes = ("parallel.pp=2", "parallel.stages=[2,10]", "precision=fp16", "parallel.dp_replicate=8")
    changes += ("batch.micro=16", "batch.global=1024", "seq_len=1024")
    setting = bind(load_plan(PLAN, changes), "1x dgx1-v100 + 1x dgx-h100")
    bound = Bounds().step(setting, pricer_for(setting))
    assert 0.5 < bound / predict_setting(setting, steps=2, detail=False).step_time_s <= 1.0


def test_bounds_price_each_world_by_itself() -> None:
    """The slowest of more boards is slower: what a large world cost must not stand for a small one."""
    shared = Bounds()
    for replicas in (16, 1):
        setting = bind(load_plan(PLAN, (f"parallel.dp_replicate={replicas}", "batch.global=32")), "2x dgx-h100")
        assert shared.step(setting, pricer_for(setting)) == Bounds().step(setting, pricer_for(setting))


def test_bounds_price_each_pipeline_at_its_own_clock() -> None:
    """Of equal worlds whose layers are lowered alike: the last stage, with the head, waits for its own boards alone."""
    shared = Bounds()
    for pp in (1, 4, 2):
        changes = (f"parallel.pp={pp}", f"parallel.dp_replicate={8 // pp}", "batch.global=64", "batch.micro=8")
        setting = bind(load_plan(PLAN, changes), "dgx-h100")
        bound = shared.step(setting, pricer_for(setting))
        assert bound == Bounds().step(setting, pricer_for(setting))
        assert bound <= predict_setting(setting, steps=2, detail=False).step_time_s


def test_an_error_of_one_plan_is_its_row() -> None:
    """The others of its chunk are looked at all the same."""
    machine = "dgx-a100"  # has no units for 4-bit products
    points = [point({"precision": word}, machine) for word in ("nvfp4", "bf16")]
    plans = [(one, load_plan(PLAN, one.overrides)) for one in points]
    rows, fits = screen_chunk(Work(plans, {}))
    assert [(row.key, row.outcome) for row in rows] == [(points[0].key, "refused")] and "no units" in rows[0].reason
    assert [one.candidate for one in fits] == [points[1]]
    depths: tuple[Depth, ...] = ("short", "whole", "split")
    for depth in depths:
        refused, done = evaluate_chunk(Work(plans, {machine: 2.0}, depth=depth))
        assert (refused.outcome, refused.step_time) == ("refused", None) and "no units" in refused.reason
        assert done.outcome == "done" and done.step_time and done.rate
        assert done.cost == pytest.approx(8 * 2.0 / 3600 / (done.rate * done.seq) * 1e6)
        assert fits[0].bound.step_time is not None and fits[0].bound.step_time <= done.step_time
        assert fits[0].bound.memory == done.memory


@pytest.mark.no_cover
def test_thousands_of_microbatches_are_told_by_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a front needs whole must not take minutes: by rounds it is the same."""
    changes = ("parallel.pp=4", "parallel.dp_replicate=2", "parallel.schedule=1f1b", "batch.micro=1")
    few, many = (load_plan(PLAN, (*changes, f"batch.global={count}")) for count in (256, 8192))
    every = whole_step(bind(few, "dgx-h100"))
    assert evaluate(point({}, "dgx-h100"), few, {}, depth="whole").step_time == every, "launches bind: its rounds are not alike"
    simulated: list[int] = []
    times = Run.times
    monkeypatch.setattr(Run, "times", lambda run, counts: [times(run, counts), simulated.extend(counts)][0])
    rate = evaluate(point({}, "dgx-h100"), many, {}, depth="whole").rate
    assert sum(simulated) < 4096
    assert rate is not None and 256 / every < rate < 1.05 * 256 / every, "the bubble is a smaller share of more"


def test_what_does_not_fit_is_a_row_with_its_peak() -> None:
    plan = load_plan({"model": "llama3-8b", "seq_len": 4096, "batch": {"global": 8, "micro": 1}, "parallel": {"dp_replicate": 8}})
    (row,), fits = screen_chunk(Work([(point({}, "dgx-h100"), plan)], {}))
    report, fit = figures_of_memory(bind(plan, "dgx-h100"), remedies=False)
    assert fit is not None and not fits
    assert (row.outcome, row.memory, row.gpus, row.step_time) == ("memory", report.peak, 8, None)


def test_floors_are_left_to_the_simulation_where_bytes_of_a_parameter_vary() -> None:
    """What the space changes, or the plan keeps elsewhere, must not be rejected by arithmetic that does not know it."""
    big = load_plan({"model": "llama3-70b", "seq_len": 1024, "batch": {"global": 8, "micro": 1}})
    space = parse_space("tp=1 gpus=8 zero=0")
    over = Floor(big, space).over({"tp": "1", "gpus": "8", "zero": "0"}, "dgx-h100")
    assert over > 80e9
    for base, more in (
        (big, "precision=fp32,bf16"),
        (big, "model.layers=2,80"),
        (load_plan(big, ("task=forward",)), ""),
        (load_plan(big, ("memory.offload=optimizer",)), ""),
        (load_plan(big, ("optimizer.on=cpu",)), ""),
        (load_plan(big, ("update.aggregate=cpu", "parallel.dp_replicate=8")), ""),
        (load_plan(big, ("update.mode=async", "parallel.dp_replicate=8")), ""),
        (big, "update.aggregate=gpu,cpu"),
        (load_plan("dlrm-dcnv2-8"), ""),  # tables that backward updates
    ):
        floor = Floor(base, space | (parse_space(more) if more else {}))
        assert floor.over({"tp": "1", "gpus": "8", "zero": "0"}, "dgx-h100") == 0
    for at in ({"tp": "x", "gpus": "8"}, {"tp": "0", "gpus": "8"}, {"tp": "1", "gpus": "8.5"}):
        assert Floor(big, space).over(at, "dgx-h100") == 0, "the plan itself says what is wrong"


def test_floors_read_keys_as_they_are_written() -> None:
    """A dotted path says the same as its short form: what fits under one name is not rejected under the other."""
    big = load_plan({"model": "llama3-70b", "seq_len": 1024, "batch": {"global": 8, "micro": 1}})
    short = {"tp": "8", "pp": "2", "ep": "1", "cp": "1", "zero": "1", "gpus": "32"}
    for at in (short, short | {"tp": "1"}, short | {"zero": "3", "pp": "1"}):
        dotted = {key if key == "gpus" else f"parallel.{key}": value for key, value in at.items()}
        floors = [Floor(big, {key: (value,) for key, value in one.items()}).over(one, "rtx-4090-x8") for one in (at, dotted)]
        assert floors[0] == floors[1]
    sized = {"dp_shard": "8", "tp": "1", "zero": "3"}
    over = Floor(big, {}).over
    assert over(sized, "rtx-4090-x8") == over({f"parallel.{key}": n for key, n in sized.items()}, "rtx-4090-x8") > 0


def test_floors_leave_what_the_largest_device_may_hold() -> None:
    plan = load_plan({"model": "llama2-13b", "seq_len": 1024, "framework": "megatron-core", "batch": {"global": 16, "micro": 1}})
    at = {"tp": "2", "pp": "2", "zero": "0", "gpus": "16"}
    assert Floor(plan, {}).over(at, "dgx-a100-40gb") > 0
    for on in ("dgx-a100-40gb + dgx-h100", "dgx-h100 + dgx-a100-40gb"):
        assert Floor(plan, {}).over(at, on) == 0
    one = {"tp": "1", "pp": "1", "zero": "0", "gpus": "1"}
    assert Floor(plan, {}, ("cpu.memory=150 GB",)).over(one, "cpu-host") == 0, "one rank has the memory of both sockets"


def test_floors_are_no_more_than_what_is_counted() -> None:
    """On any split, whatever fits or not."""
    plan = load_plan({"model": "llama3-8b", "seq_len": 1024, "framework": "megatron-core", "batch": {"global": 16, "micro": 1}})
    space = parse_space("tp=1,2 pp=1,2 zero=0,1,3 gpus=8")
    over, seen = Floor(plan, space).over, 0
    for candidate, known in candidates(plan, space, "rtx-4090-x8"):
        if isinstance(known, Plan):
            at = dict(word.split("=") for word in candidate.key.replace("parallel.", "").split(" on=")[0].split())
            needed = over(at, "rtx-4090-x8")
            seen += needed > 0
            assert needed <= figures_of_memory(bind(known, "rtx-4090-x8"), remedies=False)[0].peak
    assert seen > 3


@pytest.mark.no_cover
@pytest.mark.parametrize("name", sorted(presets()))
def test_no_shipped_plan_is_below_its_floor(name: str) -> None:
    """On devices without room for anything, so that the floor is told."""
    plan, on = load_plan(name), about(presets()[name])[1]
    floor = Floor(plan, {}, ("gpu.memory=1 MiB",) if load_topology(on).kind == "cuda" else ("cpu.memory=1 MiB",)).over({}, on)
    assert floor <= figures_of_memory(bind(plan, on), remedies=False)[0].peak


def test_a_missing_price_is_said_before_anything_is_done(tmp_path: Path) -> None:
    file = tmp_path / "s.sqlite"
    with pytest.raises(BadInput, match="no price for dgx-h100"):
        sweep(PLAN, parse_space("micro=1,2"), "dgx-h100", file, prices={"dgx-a100": 1.0})
    with pytest.raises(BadInput, match="no price for dgx-b200"):
        sweep(PLAN, parse_space("micro=1,2 on=dgx-h100,dgx-b200"), "dgx-h100", file, prices={"dgx-h100": 1.0})
    assert not file.exists()


def test_progress_is_told_every_two_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that gains three seconds at each look."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 3.0
        return now

    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=clock))
    said: list[str] = []
    sweep(PLAN, parse_space("micro=1,2"), "dgx-h100", tmp_path / "s.sqlite", say=said.append)
    assert said.pop(0).startswith("2 points of the space to look at")
    assert said[:2] == ["1/2 points looked at, 3 s each, 3 s left", "2/2 points looked at, 3 s each, 0 s left"]
    assert said[2] == "2/2 plans screened, 2 s each, 0 s left"
    assert any(one.startswith("2/2 plans decided, ") and one.endswith(", 0 s left") for one in said)
    assert said[-1].startswith("2/2 plans simulated whole, ")


def test_bounds_that_share_blocks_are_each_their_own() -> None:
    """One process bounds plans of several tasks, layers to recompute and placements: none takes another's price."""
    overrides = (
        ("task=forward",),
        ("memory.recompute=full",),
        ("memory.recompute=full", "memory.recompute_layers=4"),
        TP,
        (*TP, "parallel.placement=dp,tp,cp,pp"),
    )
    shared = Bounds()
    for more in (*overrides, *reversed(overrides)):
        setting = bind(load_plan(PLAN, more), "dgx-h100")
        assert shared.step(setting, pricer_for(setting)) == Bounds().step(setting, pricer_for(setting))


def test_bounds_price_each_cluster_by_itself_whatever_its_name(tmp_path: Path) -> None:
    bounds, found = Bounds(), list[tuple[str, float]]()
    for folder, node in (("old", "dgx-a100"), ("new", "dgx-h100")):
        file = tmp_path / folder / "ours.toml"
        file.parent.mkdir()
        file.write_text(f'nodes = "2x {node}"\n')
        setting = bind(PLAN, file)
        found.append((setting.topology.name, bounds.step(setting, pricer_for(setting))))
        assert found[-1][1] == Bounds().step(setting, pricer_for(setting))
    assert found[0][0] == found[1][0] == "ours"
    assert found[1][1] < found[0][1]
