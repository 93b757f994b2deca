"""Experts' exchanges beside another micro-batch: which kernels cover them, and what a step sees of them."""

from __future__ import annotations

import msgspec
import pytest

from sim.cost.price import carried
from sim.lower.binding import job_of
from sim.lower.blocks import lower_block
from sim.lower.model_parallel.expert import CLS
from sim.predict import predict_setting
from sim.program import Op
from sim.setting.bind import Setting, bind
from sim.setting.pricer import pricer_for
from sim.work import Work

PLAN = {
    "model": "qwen3-30b-a3b",
    "framework": "megatron-bridge-overlapped",
    "seq_len": 4096,
    "batch": {"global": 64, "micro": 1},
    "parallel": {"dp_shard": 16, "ep": 8},
}


def _setting(machine: str = "2x dgx-h100", **changes: object) -> Setting:
    return bind(PLAN | changes, machine)


def _block(setting: Setting) -> tuple[dict[str, Op], dict[str, tuple[Work, ...]]]:
    """The exchanges of a layer by phase and part, and the kernels of its parts."""
    job = job_of(setting.plan, setting.network, setting.framework, "cuda", 2)
    made = lower_block(job, "L0", setting.network.blocks[1][1])
    exchanges = {op.id: op for part in made.parts for op in (*part.forward, *part.joint) if op.cls == CLS}
    kernels = {
        f"{way}/{part.part.name}": tuple(work for op in ops if op.kind == "compute" for work in op.works)
        for part in made.parts
        for way, ops in (("fwd", part.forward), ("bwd", part.joint))
    }
    return exchanges, kernels


def test_experts_cover_what_goes_to_them_and_attention_what_comes_back() -> None:
    exchanges, kernels = _block(_setting())
    there, back, gone, came = (
        exchanges[f"{name}.all_to_all"].works for name in ("fwd/L0.moe.up", "fwd/L0.moe.down", "bwd/L0.moe.up", "bwd/L0.moe.down")
    )
    assert set(kernels["bwd/moe.up"]) <= set(there) and set(kernels["bwd/moe.down"]) <= set(there)
    assert sum("gemm" in str(work) for work in there) == 2 * sum("gemm" in str(work) for work in gone), "gradients of inputs and weights"
    assert set(kernels["bwd/attn.qkv"]) <= set(back) and not set(kernels["bwd/moe.up"]) & set(back)
    assert set(kernels["fwd/moe.down"]) <= set(gone)
    assert set(kernels["fwd/attn.qkv"]) <= set(came)


def test_frameworks_without_that_overlap_leave_exchanges_alone() -> None:
    exchanges, _ = _block(_setting(framework="megatron-bridge-deepep"))
    assert len(exchanges) == 4 and not any(op.works for op in exchanges.values())


@pytest.mark.parametrize(
    ("framework", "schedule", "recompute", "covers"),
    [
        ("torchtitan", "dualpipe", "none", True),
        ("torchtitan", "dualpipe", "full", False),
        ("torchtitan", "1f1b", "none", False),
        ("torchtitan-2025", "dualpipe", "none", False),
    ],
)
def test_torchtitan_covers_them_in_the_pairs_of_dualpipe(framework: str, schedule: str, recompute: str, covers: bool) -> None:
    """overlap_callback of distributed/dual_pipe_v.py, which takes no activation checkpoints."""
    parallel = {"dp_shard": 8, "ep": 8, "pp": 2, "schedule": schedule}
    exchanges, _ = _block(_setting(framework=framework, parallel=parallel, memory={"recompute": recompute}))
    assert exchanges and any(op.works for op in exchanges.values()) is covers


def test_one_micro_batch_has_none_beside_it() -> None:
    exchanges, _ = _block(_setting(batch={"global": 16, "micro": 1}))
    assert len(exchanges) == 4 and not any(op.works for op in exchanges.values())


@pytest.mark.parametrize("machine", ["2x dgx-h100", "gb200-nvl72"])
def test_a_step_sees_what_its_cover_does_not_hide(machine: str) -> None:
    """max(what is longer than the cover, the cover's loss by the SMs that the exchange holds), worked out from the parts' own prices."""
    setting = _setting(machine, parallel={"dp_shard": 16, "ep": 16 if machine.startswith("2x") else 8})
    pricer, (exchanges, _) = pricer_for(setting), _block(setting)
    members = tuple(range(16 if machine.startswith("2x") else 8))
    compute = pricer.slowdown(0)
    for op in exchanges.values():
        alone = pricer.collective(msgspec.structs.replace(op, works=()), members, 1).seconds
        cover = pricer.local(Op("cover", "compute", "compute", op.works), 0).seconds
        seen = pricer.collective(op, members, 1).seconds
        assert seen == pytest.approx(max(alone - cover, alone * (1 - 1 / compute)))
        assert seen < alone


@pytest.mark.no_cover
def test_a_slow_network_shows_where_a_fast_one_hides() -> None:
    """Slower NICs: beside other kernels the step grows by less than by itself, until the exchange is longer than they are."""
    spread = {"parallel": {"dp_shard": 16, "ep": 16}}

    def step(framework: str, nics: float) -> float:
        setting = bind(PLAN | spread | {"framework": framework}, "2x dgx-h100", (f"nic.rate={nics} Gbit/s",))
        return predict_setting(setting, steps=2, detail=False).step_time_s

    for nics in (400, 25):
        beside, alone = (step(f"megatron-bridge-{name}", nics) for name in ("overlapped", "deepep"))
        slower, later = (step(f"megatron-bridge-{name}", nics / 2) for name in ("overlapped", "deepep"))
        assert beside < alone and slower < later
        assert slower - beside < (1 - 1e-3) * (later - alone) if nics == 400 else slower - beside == pytest.approx(later - alone, rel=0.05)


@pytest.mark.parametrize(("machine", "ranks", "link"), [("dgx-h100", 8, "n0/gpu0>n0/nvswitch"), ("2x dgx-h100", 16, "n0/nic0>net/leaf0.0")])
def test_links_carry_what_a_cover_hides_too(machine: str, ranks: int, link: str) -> None:
    setting = _setting(machine, batch={"global": 2 * ranks, "micro": 1}, parallel={"dp_shard": ranks, "ep": ranks})
    pricer, (exchanges, _) = pricer_for(setting), _block(setting)
    for op in exchanges.values():
        seen, bare = (pricer.collective(one, tuple(range(ranks)), 1) for one in (op, msgspec.structs.replace(op, works=())))
        assert seen.seconds < bare.seconds and dict(carried(seen))[link] == pytest.approx(dict(carried(bare))[link])
