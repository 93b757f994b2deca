"""Multi-token prediction: what its modules hold, where they stand, and what they share with the embedding and the head."""

from __future__ import annotations

from typing import Any

import pytest

from sim.engine.run import simulate
from sim.framework.framework import load_framework
from sim.lower.step import lower
from sim.memory.static import static_bytes
from sim.model import Shape, describe, load_model
from sim.model.load import model_from
from sim.model.stages import held, layout
from sim.predict import predict_setting
from sim.setting.bind import Setting, bind
from sim.setting.pricer import pricer_for
from sim.timeline.metrics import step_time
from topologies.errors import BadInput

SMALL = {"base": "gpt2-124m", "layers": 4, "tied": False, "dropout": 0.0, "vocab": 50304}
TABLE = 50304 * 768


def _setting(model: dict[str, Any], on: str = "dgx-h100", framework: str = "megatron-core", **parallel: Any) -> Setting:
    plan = {"model": model, "seq_len": 128, "batch": {"global": 8, "micro": 1}, "framework": framework, "parallel": parallel}
    return bind(plan, on)


def _held(setting: Setting, rank: int) -> int:
    """Bytes of parameters on a pipeline's rank."""
    chunks = held(layout(setting.network, setting.plan), setting.plan, rank)
    return static_bytes(setting.plan, setting.network, setting.framework, chunks)["parameters"]


def _network(mtp: int, model: str = "deepseek-v3") -> Any:
    spec = model_from({"base": model, "mtp": mtp})
    return describe(spec, Shape(micro=1, seq=4096), load_framework("megatron-bridge"))


def test_flops_of_deepseek_v3_are_those_that_nvidia_counts() -> None:
    """Megatron-Bridge's performance summary of 25.11: 961 TFLOP/s at 3,848 tokens/s without, 557 at 2,139 with one module."""
    without, one = (_network(mtp).flops_per_sample / 4096 / 1e12 for mtp in (0, 1))
    assert one / without == pytest.approx((557 / 2139) / (961 / 3848), rel=0.002)


def test_a_module_has_a_layer_of_its_own_and_shares_the_ends() -> None:
    """DeepSeek-V3's repository: 671 billion parameters, 11.5 billion more for the module beside its embedding and head."""
    found = _network(2)
    assert [name for name, _ in found.blocks][-6:] == ["L60", "mtp0", "mtp0.head", "mtp1", "mtp1.head", "head"]
    own = _network(1).parameters - _network(0).parameters
    layer = dict(found.blocks)["L60"].params
    assert own == layer + 2 * 7168 * 7168 + 3 * 7168 and own == pytest.approx(11.5e9, rel=0.01)
    assert found.parameters - _network(0).parameters == 2 * own


@pytest.mark.parametrize(("pp", "schedule", "copies"), [(1, "1f1b", 0), (2, "1f1b", 1), (4, "1f1b", 1), (2, "dualpipe", 0)])
def test_the_last_stage_has_a_copy_of_the_table_where_it_is_another_rank(pp: int, schedule: str, copies: int) -> None:
    setting = _setting(SMALL | {"mtp": 1}, pp=pp, schedule=schedule)
    made = lower(setting.plan, setting.network, setting.framework, "cuda")
    for rank in range(pp):
        traded = {op.id: op.bytes for _, op in made.ops(rank) if op.id.startswith("grad/embedding") and op.kind in ("send", "recv")}
        assert len(traded) == 2 * copies * (rank in (0, pp - 1)) and set(traded.values()) <= {4 * TABLE}
    bare = _setting(SMALL, pp=pp, schedule=schedule)
    last = 0 if schedule == "dualpipe" else pp - 1
    kept = [_held(one, last) for one in (setting, bare)]
    module = setting.network.parameters - bare.network.parameters
    assert kept[0] - kept[1] == pytest.approx(2 * (module + copies * TABLE), rel=1e-6)


def test_a_tied_model_has_one_copy_for_head_and_module() -> None:
    sizes = []
    for mtp in (0, 1):
        setting = _setting(SMALL | {"tied": True, "mtp": mtp}, pp=2)
        made = lower(setting.plan, setting.network, setting.framework, "cuda")
        step = [op for call, op in made.ops(1) if call.step == 1]
        sizes.append([op.bytes for op in step if op.id.startswith("grad/embedding") and op.kind in ("send", "recv")])
    assert sizes[0] == sizes[1] == [4 * TABLE] * 2


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "parallel",
    [
        {"dp_replicate": 8},
        {"dp_shard": 8, "zero": 3},
        {"tp": 4, "dp_shard": 2},
        {"tp": 2, "pp": 2, "dp_shard": 2, "zero": 1},
        {"pp": 2, "schedule": "interleaved", "virtual_stages": 2},
        {"pp": 2, "cp": 2},
    ],
    ids=str,
)
def test_steps_with_a_module_are_longer_and_folding_changes_nothing(parallel: dict[str, Any]) -> None:
    steps = []
    for mtp in (0, 1, 2):
        setting = _setting(SMALL | {"mtp": mtp}, **parallel)
        made, pricer = lower(setting.plan, setting.network, setting.framework, "cuda", 2), pricer_for(setting)
        whole, folded = (step_time(simulate(made, pricer, fold, detail=False)) for fold in (False, True))
        assert folded == pytest.approx(whole, rel=1e-9)
        steps.append(whole)
    assert steps[0] < steps[1] < steps[2]


def test_full_recomputation_repeats_the_module_and_not_its_head() -> None:
    plan = {"model": SMALL | {"mtp": 1}, "seq_len": 128, "batch": {"global": 2, "micro": 1}, "framework": "megatron-core"}
    setting = bind(plan | {"parallel": {"pp": 2}, "memory": {"recompute": "full"}}, "dgx-h100")
    made = lower(setting.plan, setting.network, setting.framework, "cuda")
    again = {op.id for _, op in made.ops(1) if op.id.startswith("recompute/")}
    assert any(name.startswith("recompute/mtp0.attn.qkv") for name in again)
    assert not any("head" in name for name in again)
    kept = predict_setting(setting, steps=2).peak_memory_bytes
    assert kept < predict_setting(bind(plan | {"parallel": {"pp": 2}}, "dgx-h100"), steps=2).peak_memory_bytes


@pytest.mark.parametrize("more", [{"mtp": 1, "pattern": "****"}, {"mtp_pattern": "*"}, {"mtp": 1, "mtp_pattern": "*"}])
def test_a_hybrids_module_is_said_and_no_others(more: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="it goes with mtp and pattern"):
        model_from(SMALL | more)
    with pytest.raises(BadInput, match="mtp_pattern has 2 letters"):
        model_from(SMALL | {"mtp": 1, "pattern": "****", "mtp_pattern": "*Q"})


def test_a_hybrids_module_holds_the_layers_that_it_names() -> None:
    """Nemotron 3 Super: attention, then experts, both as in the model."""
    spec = model_from({"base": "nemotron3-super", "mtp": 2, "mtp_pattern": "*E"})
    found = describe(spec, Shape(micro=1, seq=4096), load_framework("megatron-bridge"))
    assert [name for name, _ in found.blocks][-7:] == ["mtp0", "mtp0.1", "mtp0.head", "mtp1", "mtp1.1", "mtp1.head", "head"]
    blocks = dict(found.blocks)
    bare = describe(load_model("nemotron3-super"), Shape(micro=1, seq=4096), load_framework("megatron-bridge"))
    own = blocks["L7"].params + blocks["L1"].params + 2 * 4096 * 4096 + 3 * 4096
    assert found.parameters - bare.parameters == 2 * own
    setting = _setting(SMALL | {"pattern": "*-*-", "mtp": 1, "mtp_pattern": "*-"}, pp=2, dp_replicate=2)
    assert predict_setting(setting).step_time_s > predict_setting(_setting(SMALL | {"pattern": "*-*-"}, pp=2, dp_replicate=2)).step_time_s


def test_adapters_train_in_a_module_and_nothing_else() -> None:
    model = {"base": "llama3-8b", "layers": 2, "lora": {"rank": 8}}
    sizes = {}
    for mtp in (0, 1):
        network = _setting(model | {"mtp": mtp}).network
        sizes[mtp] = [sum(part.params for part in block.parts if not part.frozen) for _, block in network.blocks]
    assert sizes[1] == [0, *sizes[0][1:3], sizes[0][2], 0, 0]


@pytest.mark.parametrize("sequence", [True, False])
def test_columns_of_the_projection_are_gathered(sequence: bool) -> None:
    """Megatron-Core gathers the output of its ColumnParallelLinear (gather_from_tensor_model_parallel_region), then each rank keeps its tokens:
    the gradient of these is gathered in backward."""
    setting = _setting(SMALL | {"mtp": 1}, tp=2, sequence_parallel=sequence)
    made = lower(setting.plan, setting.network, setting.framework, "cuda")
    found = {op.id: (op.name, op.bytes) for _, op in made.ops(0) if "eh_proj.whole" in op.id and op.kind == "collective"}
    size = 128 * 768 * 2
    forward = {"fwd/mtp0.eh_proj.whole.all_gather": ("all_gather", size)}
    assert found == forward | ({"bwd/mtp0.eh_proj.whole.all_gather": ("all_gather", size)} if sequence else {})


def test_rows_of_deepseek_v3_say_whether_they_ran_with_it() -> None:
    from sim.accuracy.architecture.mixtures import predictions
    from sim.accuracy.published import published_rows

    found = {row.row_id: predictions(row) for row in published_rows() if predictions(row) or "DeepSeek-V3" in row.model_name}
    assert found["megatron-bridge-perf-0256"] == 1 and found["megatron-bridge-perf-0238"] == 0  # "w/ MTP", "w/o MTP"
    assert sum(found.values()) == 30 and not any(many for name, many in found.items() if "bridge" not in name)


def test_a_shipped_model_trains_without_unless_told() -> None:
    assert getattr(load_model("deepseek-v3"), "mtp", None) == 0
