"""Memory of FSDP where gathered parameters, or whole gradients, outlive their block; of what is frozen; and of an optimizer kept elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from sim.memory.report import MemoryReport, memory_of, memory_of_stages
from sim.setting.bind import bind

GIB = 2**30


def report(on: str = "dgx-h100", **plan: Any) -> MemoryReport:
    setting = bind({"model": "llama3-8b", "seq_len": 8192, "framework": "torchtitan", **plan}, on)
    return memory_of(setting.plan, setting.network, setting.framework, setting.topology.device(0), remedies=False)


PARAMETERS = 8_030_261_248


def test_parameters_that_are_not_freed_after_forward_are_whole_in_backward() -> None:
    freed = report(parallel={"dp_shard": 8, "zero": 3})
    kept = report(parallel={"dp_shard": 8, "zero": 3, "reshard_after_forward": False})
    largest = 128256 * 4096 + 4096  # the head with its norm
    assert kept.gathered == 2 * PARAMETERS + 4 * largest, "bf16 parameters, and one unit's gradients in fp32"
    layer = (PARAMETERS - 2 * largest + 4096) // 32
    assert freed.gathered == 2 * (largest + layer) + 4 * largest, "the head, and the layer that is fetched meanwhile: there is one head"
    assert report(parallel={"dp_shard": 8, "zero": 2}) == kept, "the same by another name"


@pytest.mark.parametrize(("framework", "sums"), [("pytorch", 2), ("torchtitan-2024", 4), ("torchtitan-2025", 4)])
def test_ends_that_are_the_root_stay_gathered_through_backward(framework: str, sums: int) -> None:
    """With two layers beside them; the head's gradient waits for the root's reduction while a layer's travels."""
    embed = 128256 * 4096
    head = embed + 4096
    layer = (PARAMETERS - embed - head) // 32
    sharded = {"dp_shard": 8, "zero": 3}
    assert report(framework=framework, parallel=sharded).gathered == 2 * (embed + head) + 2 * 2 * layer + 2 * head + sums * layer
    assert report(framework=framework, parallel=sharded, task="lora").gathered >= 2 * (embed + head) + 2 * 2 * layer
    assert report(framework=framework, parallel=sharded, task="forward").gathered == 2 * (embed + head) + 2 * 2 * layer
    assert (
        report(framework=framework, parallel=sharded | {"reshard_after_forward": False}).gathered
        == 2 * PARAMETERS + 2 * head + sums * layer
    )


def test_ends_that_share_a_table_are_the_root_everywhere() -> None:
    """Llama 3.2 1B: its table is gathered once, and stays."""
    found = {
        name: report(model="llama3.2-1b", framework=name, parallel={"dp_shard": 8, "zero": 3}) for name in ("torchtitan", "torchtitan-2025")
    }
    table, layer = 128256 * 2048, (1_235_814_400 - 128256 * 2048 - 2048) // 16
    assert {one.gathered for one in found.values()} == {2 * (table + 2048) + 2 * 2 * layer + 2 * (table + 2048) + 4 * layer}


def test_a_pipelines_fsdp_holds_whole_parameters_and_gradients_of_its_stages() -> None:
    """torch's pipelining/stage.py: set_reshard_after_backward(False), set_requires_gradient_sync(False) until the last backward."""
    stage = report(parallel={"dp_shard": 4, "pp": 2, "zero": 3}, batch={"global": 32})
    assert stage.gathered >= (2 + 4) * PARAMETERS / 2
    half = report(parallel={"dp_shard": 4, "pp": 2, "zero": 3}, batch={"global": 32}, framework="pytorch")
    assert half.gathered == pytest.approx(stage.gathered * 4 / 6, rel=0.03), "gradients of 16 bits"
    forward = report(parallel={"dp_shard": 4, "pp": 2, "zero": 3, "schedule": "gpipe"}, batch={"global": 32}, task="forward")
    assert forward.gathered < stage.gathered / 10, "freed after each block"


@pytest.mark.parametrize(("schedule", "chunks", "measured"), [("1f1b", 1, 82.5), ("interleaved", 2, 72.7)])
def test_torchtitans_405b_on_512_gpus(schedule: str, chunks: int, measured: float) -> None:
    """torchtitan's benchmarks/llama3_h100_202412_torchtitan.md, table 5: FSDP 8, TP 8, PP 8, local batch 32, full recomputation, float8.
    GiB reserved by the allocator; without what the pipeline's FSDP keeps whole it would be half."""
    parallel = {"dp_shard": 8, "tp": 8, "pp": 8, "zero": 3, "schedule": schedule, "virtual_stages": chunks}
    found = report(
        "64x dgx-h100", model="llama3.1-405b", precision="fp8", compile=True, memory={"recompute": "full"}, batch={"micro": 4, "global": 256},
        parallel=parallel,
    )  # fmt: skip
    assert found.peak / GIB == pytest.approx(measured, rel=0.15)


def test_no_room_for_gradients_of_what_is_frozen() -> None:
    plan = {"parallel": {"dp_shard": 8, "zero": 3}, "framework": "pytorch"}
    trained, frozen = report(**plan), report(**plan, task="lora")
    layer = (PARAMETERS - 2 * 128256 * 4096) // 32
    assert trained.gathered - frozen.gathered == pytest.approx(2 * (128256 * 4096 + layer), rel=0.01), "the head's and a layer's in bf16"


def test_an_offloaded_optimizer_takes_its_fp32_shards_along() -> None:
    sharded = {"dp_shard": 8, "zero": 3}
    for away in ({"memory": {"offload": "optimizer"}}, {"optimizer": {"on": "cpu"}}):
        found = report(parallel=sharded, **away)
        assert (found.parameters, found.optimizer) == (2 * PARAMETERS // 8, 0)


def test_a_v_shaped_pipeline_has_one_tied_table() -> None:
    """The first and the last stage of DualPipe-V are on one rank."""
    plan: dict[str, Any] = {"model": "gpt2-124m", "seq_len": 1024, "batch": {"global": 8}}
    table = 50257 * 768 * 2
    ends = {}
    for schedule in ("interleaved", "dualpipe"):
        setting = bind(plan | {"parallel": {"pp": 2, "schedule": schedule, "virtual_stages": 2}}, "dgx-h100")
        ends[schedule] = [r.parameters for r in memory_of_stages(setting.plan, setting.network, setting.framework)]
    assert sum(ends["interleaved"]) - sum(ends["dualpipe"]) == table


def test_two_stages_hold_a_tied_table_twice_that_is_not_the_first_part_of_its_block() -> None:
    """The projector of Qwen2.5-VL stands before it."""
    totals = []
    for stages in (1, 2):
        setting = bind({"model": "qwen2.5-vl-3b", "seq_len": 1024, "batch": {"global": 8}, "parallel": {"pp": stages}}, "dgx-h100")
        totals.append(sum(r.parameters for r in memory_of_stages(setting.plan, setting.network, setting.framework)))
    assert totals[1] - totals[0] == 151936 * 2048 * 2


@pytest.mark.parametrize(
    ("framework", "buckets"),
    [
        ("pytorch", 2 * PARAMETERS),  # all of DDP's buckets, beside the gradients
        ("tf2-horovod", 2 * PARAMETERS),  # travel in 16 bits
        ("tf1-horovod", 64 * 2**20),  # one fusion buffer (horovod, docs/tensor-fusion.rst)
        ("deepspeed", 954 * 2**20),  # one flat bucket (runtime/engine.py, allreduce_no_retain)
        ("oneflow-bert", 0),  # nccl_fusion_all_reduce_use_buffer(False)
        ("maxtext", 0),  # XLA sums buffers where they are
        ("megatron-lm", 0),  # gradients live in what travels
    ],
)
def test_replicas_hold_the_buckets_that_their_framework_fills(framework: str, buckets: int) -> None:
    alone, replicas = report(framework=framework), report(framework=framework, parallel={"dp_replicate": 8})
    assert replicas.gathered - alone.gathered == buckets


@pytest.mark.parametrize(
    ("framework", "buckets"), [("tf1-horovod", 16 * 2**20), ("deepspeed", 16 * 2**20), ("pytorch", 2 * PARAMETERS), ("megatron-lm", 0)]
)
def test_who_fills_one_buffer_again_has_one_as_large_as_the_plan_says(framework: str, buckets: int) -> None:
    alone, replicas = (report(framework=framework, parallel={"dp_replicate": n}, comm={"bucket": "16 MiB"}) for n in (1, 8))
    assert replicas.gathered - alone.gathered == buckets


@pytest.mark.parametrize(("framework", "zero", "buffers"), [("deepspeed", 1, 0), ("deepspeed", 2, 2), ("pytorch", 2, 0), ("nemo", 3, 0)])
def test_deepspeed_packs_sharded_gradients_into_buckets(framework: str, zero: int, buffers: int) -> None:
    """Of the size that is asked for, or of reduce_bucket_size = 5e8; two where one is filled while another travels."""
    sharded = {"framework": framework, "parallel": {"dp_shard": 8, "zero": zero}}
    usual, small, one = (report(**sharded, comm=said) for said in ({}, {"bucket": "16 MiB"}, {"bucket": "16 MiB", "overlap": False}))
    assert usual.gathered - small.gathered == buffers * (954 - 16) * 2**20
    assert small.gathered - one.gathered == max(0, buffers - 1) * 16 * 2**20


def test_deepspeeds_third_level_has_one_bucket() -> None:
    sharded = {"parallel": {"dp_shard": 8, "zero": 3}}
    assert report(framework="deepspeed", **sharded).gathered - report(framework="paxml", **sharded).gathered == 954 * 2**20
    forward = [report(framework=name, task="forward", **sharded).gathered for name in ("deepspeed", "paxml")]
    assert forward[0] == forward[1]


@pytest.mark.parametrize(
    ("framework", "zero", "bytes_"), [("deepspeed", 2, 14), ("deepspeed", 3, 14), ("megatron-core", 3, 14), ("torchtitan", 3, 12)]
)
def test_who_keeps_16_bits_beside_the_fp32_copy(framework: str, zero: int, bytes_: int) -> None:
    """Rajbhandari et al. 2020, section 5: 2 + 12 bytes for a parameter, and its gradient, with ZeRO-3 over 8; FSDP has its fp32 shard alone."""
    plan = {"model": "gpt2-1.5b", "seq_len": 512, "framework": framework, "parallel": {"dp_shard": 8, "zero": zero}}
    setting = bind(plan, "dgx-h100")
    report = memory_of(setting.plan, setting.network, setting.framework)
    own = report.parameters / (8 if zero < 3 else 1) + report.optimizer
    assert own * 8 / setting.network.parameters == pytest.approx(bytes_, rel=2e-3)
