"""ZeRO-1, -2, -3: whole programs and the traffic of Rajbhandari et al. 2020, section 7."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sim.engine.run import simulate
from sim.lower.step import lower
from sim.memory.report import memory_of
from sim.model.parts import Block
from sim.program import Program
from sim.setting.bind import bind
from sim.work import HostWork, MemoryBound
from tests.null.lower.tiny import MIB, QUIET, Constant, linear, messages, network, norm, program, show, traffic
from topologies.errors import Refused

TOTAL = 2 * MIB * 4
"""Bytes of the tiny network's gradients."""


def test_zero1_reduce_scatters_buckets_and_gathers_after_the_update() -> None:
    p = program(
        {"parallel": {"dp_shard": 2, "zero": 1}, "comm": {"bucket": "4 MiB"}}, framework=QUIET.but(data_parallel={"overlap_param": False})
    )
    assert messages(p) == [("reduce_scatter", "fsdp", 4 * MIB)] * 2 + [("all_gather", "fsdp", 4 * MIB)] * 2
    assert show(p.segments["update"]) == [
        "compute: optimizer/step",
        "compute: param/comm.fsdp.updated.record",
        "comm.fsdp: param/comm.fsdp.updated.wait",
        "comm.fsdp: param/b0.all_gather",
        "comm.fsdp: param/b1.all_gather",
        "comm.fsdp: param/comm.fsdp.ready.record",
        "compute: param/comm.fsdp.ready.wait",
    ]


@pytest.mark.parametrize(("ranks", "replicas"), [(2, 1), (2, 4), (64, 1)])
def test_owners_of_whole_tensors_reduce_for_all_and_broadcast_what_they_own(ranks: int, replicas: int) -> None:
    plan = {"parallel": {"dp_shard": ranks, "dp_replicate": replicas, "zero": 1}}
    p = program(plan, framework=QUIET.but(data_parallel={"overlap_param": False, "zero1": "tensors"}))
    sent = [op for call, op in p.ops(0) if call.step == 1 and op.kind == "collective"]
    reduced = [op for op in sent if op.name == "all_reduce"]
    assert {op.group for op in reduced} == {"dp"}
    spread = [op for op in sent if op.name == "broadcast"]
    assert {op.group for op in spread} == {"fsdp"}
    assert len(spread) <= ranks and len({op.bytes for op in spread}) == 1
    assert sum(op.bytes for op in spread) == pytest.approx(sum(op.bytes for op in reduced), rel=0.01)
    assert {op.name for op in sent} == {"all_reduce", "broadcast"}


def test_zero1_of_pytorch_is_ddp_with_owners_of_tensors() -> None:
    """ZeroRedundancyOptimizer: DDP's buckets, copied, all-reduced and kept, then broadcasts. (It reduce-scattered as Megatron does: 7 to 11 % too
    fast.)"""
    model = {"base": "gpt2-124m", "vocab": 50304}
    plain, owned = (
        bind({"model": model, "seq_len": 128, "framework": "pytorch", "parallel": split}, "dgx-h100")
        for split in ({"dp_replicate": 8}, {"dp_shard": 8, "zero": 1})
    )
    sent = []
    for setting in (plain, owned):
        made = lower(setting.plan, setting.network, setting.framework, "cuda", 2)
        ops = [op for call, op in made.ops(0) if call.step == 1]
        sent.append([(op.name, op.bytes) for op in ops if op.kind == "collective"])
        assert any(op.id.startswith("grad/b0") and op.id.endswith(".copy") for op in ops)
    spread = [size for name, size in sent[1] if name == "broadcast"]
    assert [one for one in sent[1] if one[0] == "all_reduce"] == sent[0]
    tensors = sum(len(part.tensors) for _, block in owned.network.blocks for part in block.parts)
    assert len(spread) == tensors and sum(spread) == pytest.approx(2 * owned.network.parameters, rel=1e-3)
    memory = [memory_of(setting.plan, setting.network, setting.framework) for setting in (plain, owned)]
    assert memory[0].gathered == memory[1].gathered and memory[1].optimizer == pytest.approx(memory[0].optimizer / 8, rel=1e-3)


def test_gradients_below_owners_of_tensors_are_looked_at_whole() -> None:
    """As after DDP: every rank has all of them, and nobody need be asked for a norm."""
    looked = []
    for split in ({"dp_replicate": 8}, {"dp_shard": 8, "zero": 1}):
        plan = {"model": "gpt2-124m", "seq_len": 128, "parallel": split, "optimizer": {"clip": True}}
        setting = bind(plan, "dgx-h100")
        ops = lower(setting.plan, setting.network, setting.framework, "cuda", 1).segments["update"]
        assert not any(op.id.startswith("optimizer/norm.") and op.kind == "collective" for op in ops)
        looked.append([op.works for op in ops if op.id in ("optimizer/norm", "optimizer/clip")])
    assert looked[0] == looked[1]


@pytest.mark.parametrize("zero", [1, 2])
def test_buckets_that_are_summed_whole_travel_twice(zero: int) -> None:
    """DeepSpeed's allreduce_bucket, of which each rank keeps its part."""
    framework = QUIET.but(data_parallel={"reduces": "whole"})
    plan = {"parallel": {"dp_shard": 4, "zero": zero}}
    whole, shards = (messages(program(plan, network(1), framework=how)) for how in (framework, QUIET))
    assert {name for name, _, _ in whole} == {"all_reduce", "all_gather"}
    assert sorted(size for _, _, size in whole) == sorted(size for _, _, size in shards)


def test_zero1_gathers_one_bucket_ahead_of_the_next_forward() -> None:
    p = program({"parallel": {"dp_shard": 2, "zero": 1}, "comm": {"bucket": "4 MiB"}})
    assert show(p.segments["fwd.gather"]) == [
        "compute: param/b1.updated.record",
        "comm.fsdp: param/b1.updated.wait",
        "comm.fsdp: param/b1.all_gather",
        "comm.fsdp: param/b1.ready.record",
        "comm.fsdp: param/b0.all_gather",
        "comm.fsdp: param/b0.ready.record",
        "compute: param/b1.ready.wait",
        "compute: fwd/L0.linear",
        "compute: param/b0.ready.wait",
        "compute: fwd/L1.linear",
        "compute: fwd/head.loss",
    ]


def test_zero2_reduces_in_every_micro_batch_and_zero1_only_in_the_last() -> None:
    plan = {"batch": {"micro": 1, "global": 8}, "comm": {"bucket": "1 GiB"}}
    counts = []
    for zero in (1, 2):
        p = program(plan | {"parallel": {"dp_shard": 2, "zero": zero}})
        counts.append([name for name, _, _ in messages(p)].count("reduce_scatter"))
    assert counts == [1, 4]


def test_fsdp_gathers_ahead_in_forward() -> None:
    p = program({"parallel": {"dp_shard": 2, "zero": 3}}, network(3))
    assert show(p.segments["fwd"]) == [
        "compute: comm.fsdp.updated.record",
        "comm.fsdp: comm.fsdp.updated.wait",
        "comm.fsdp: fwd/L0.copy_in",
        "comm.fsdp: fwd/L0.all_gather",
        "comm.fsdp: fwd/L0.gathered.record",
        "compute: fwd/L0.gathered.wait",
        "compute: fwd/L0.copy_out",
        "compute: fwd/L0.out.record",
        "compute: fwd/L0.linear",
        "compute: fwd/L0.reshard",
        "comm.fsdp: fwd/L1.copy_in",
        "comm.fsdp: fwd/L1.all_gather",
        "comm.fsdp: fwd/L1.gathered.record",
        "compute: fwd/L1.gathered.wait",
        "compute: fwd/L1.copy_out",
        "compute: fwd/L1.out.record",
        "compute: fwd/L1.linear",
        "compute: fwd/L1.reshard",
        "comm.fsdp: fwd/L2.room.wait",  # the buffer of L0
        "comm.fsdp: fwd/L2.copy_in",
        "comm.fsdp: fwd/L2.all_gather",
        "comm.fsdp: fwd/L2.gathered.record",
        "compute: fwd/L2.gathered.wait",
        "compute: fwd/L2.copy_out",
        "compute: fwd/L2.out.record",
        "compute: fwd/L2.linear",
        "compute: fwd/L2.reshard",
        "compute: fwd/head.loss",
    ]


def test_fsdp_backward_prefetches_the_next_block_before_it_reduces_this_one() -> None:
    p = program({"parallel": {"dp_shard": 2, "zero": 3}})
    lanes = [line for line in show(p.segments["bwd.sync"]) if line.startswith("comm")]
    assert lanes == [
        "comm.fsdp: bwd/L1.copy_in",
        "comm.fsdp: bwd/L1.all_gather",
        "comm.fsdp: bwd/L1.gathered.record",
        "comm.fsdp: bwd/L0.room.wait",
        "comm.fsdp: bwd/L0.copy_in",
        "comm.fsdp: bwd/L0.all_gather",
        "comm.fsdp: bwd/L0.gathered.record",
        "comm.fsdp: grad/L1.full.wait",
        "comm.fsdp: grad/L1.reduce_scatter",
        "comm.fsdp: grad/L1.scattered.record",
        "comm.fsdp: grad/L0.full.wait",
        "comm.fsdp: grad/L0.reduce_scatter",
        "comm.fsdp: grad/L0.scattered.record",
    ]
    compute = [line for line in show(p.segments["bwd.sync"]) if line.startswith("compute")]
    assert compute[-4:] == [
        "compute: grad/L0.room.wait",
        "compute: grad/L0.copy_in",
        "compute: grad/L0.full.record",
        "compute: grad/end.comm.fsdp.wait",
    ]


def test_collectives_on_the_tensors_themselves_copy_nothing_on_compute() -> None:
    """As XLA runs them: the same messages, and the memory of one copy less while a layer computes."""
    plan = {"parallel": {"dp_shard": 2, "zero": 3}}
    flat, direct = (program(plan, network(3), QUIET.but(data_parallel={"shard_copies": copies})) for copies in (True, False))
    assert messages(flat) == messages(direct)

    def copied(p: Program) -> list[str]:
        return [op.id for call, op in p.ops(0) if op.cls == "grad.copy" and op.lane == "compute" and call.step == 1]

    assert len(copied(flat)) == 3 * 3 and not copied(direct)
    for p in (flat, direct):
        assert sum(op.alloc - op.free for call, op in p.ops(0) if call.step == 1) == 0, "what a step makes it frees"


def test_ends_are_the_root_gathered_first_kept_and_reduced_last() -> None:
    from sim.model.parts import Block

    net = network(2)
    ends = Block(kind="embed", parts=(linear("embed"),))
    net = replace(net, blocks=(("embed", ends), *net.blocks))
    p = program({"parallel": {"dp_shard": 2, "zero": 3}}, net)
    ids = [op.id for call, op in p.ops(0) if call.step == 1 and op.kind == "collective"]
    assert ids == [
        "fwd/root.all_gather",
        "fwd/L0.all_gather",
        "fwd/L1.all_gather",
        "bwd/L1.all_gather",
        "bwd/L0.all_gather",
        "grad/L1.reduce_scatter",
        "grad/L0.reduce_scatter",
        "grad/root.reduce_scatter",
    ]


def test_ends_by_themselves_are_gathered_in_their_turn_and_the_head_is_kept() -> None:
    """As torchtitan wraps them; ends that share their table stay the root."""
    net = network(2)
    ends = [(kind, Block(kind=kind, parts=(linear(f"{kind}.weight"),))) for kind in ("embed", "head")]
    net = replace(net, blocks=(ends[0], *net.blocks[:2], ends[1]))
    apart = QUIET.but(data_parallel={"wraps_ends": True})
    p = program({"parallel": {"dp_shard": 2, "zero": 3}}, net, apart)
    assert [op.id for call, op in p.ops(0) if call.step == 1 and op.kind == "collective"] == [
        *(f"fwd/{name}.all_gather" for name in ("embed", "L0", "L1", "head")),
        "bwd/L1.all_gather",
        "grad/head.reduce_scatter",
        "bwd/L0.all_gather",
        "grad/L1.reduce_scatter",
        "bwd/embed.all_gather",
        "grad/L0.reduce_scatter",
        "grad/embed.reduce_scatter",
    ]
    assert sum(op.alloc - op.free for call, op in p.ops(0) if call.step == 1) == 0
    tied = program({"parallel": {"dp_shard": 2, "zero": 3}}, replace(net, tied=("embed", "head")), apart)
    assert next(op.id for call, op in tied.ops(0) if call.step == 1 and op.kind == "collective") == "fwd/root.all_gather"


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_the_last_layer_may_stay_gathered(prefetch: int) -> None:
    """The layer before it is gathered when its backward begins, at once, as the one before would be in turn."""
    plan = {"parallel": {"dp_shard": 2, "zero": 3, "prefetch": prefetch}}
    freed, kept = program(plan, network(3)), program(plan, network(3), QUIET.but(data_parallel={"keeps_last": True}))
    gathers = [[op.id for call, op in p.ops(0) if call.step == 1 and op.name == "all_gather"] for p in (freed, kept)]
    assert gathers[1] == [id for id in gathers[0] if id != "bwd/L2.all_gather"] and "bwd/L2.all_gather" in gathers[0]
    ids = [op.id for call, op in kept.ops(0) if call.step == 1]
    assert "fwd/L2.reshard" not in ids and "fwd/L1.reshard" in ids and "bwd/L2.copy_out" not in ids
    assert (ids.index("bwd/L1.all_gather") < ids.index("bwd/L2.linear")) == (prefetch > 0)
    assert (ids.index("bwd/L1.all_gather") < ids.index("bwd/head.loss")) == (prefetch > 1)
    for p in (freed, kept):
        assert sum(op.alloc - op.free for call, op in p.ops(0) if call.step == 1) == 0


def test_hybrid_sharding_averages_shards_over_the_replicas() -> None:
    p = program({"parallel": {"dp_replicate": 2, "dp_shard": 4, "zero": 3}}, network(1))
    assert messages(p) == [
        ("all_gather", "fsdp", 4 * MIB),
        ("all_gather", "fsdp", 4 * MIB),
        ("reduce_scatter", "fsdp", 4 * MIB),
        ("all_reduce", "dp_replicate", MIB),
    ]


def test_without_resharding_backward_gathers_nothing() -> None:
    p = program({"parallel": {"dp_shard": 2, "zero": 3, "reshard_after_forward": False}})
    assert [name for name, _, _ in messages(p)] == ["all_gather", "all_gather", "reduce_scatter", "reduce_scatter"]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_zero3_moves_half_as_much_again_as_data_parallel(ranks: int) -> None:
    def sent(parallel: dict[str, int], group: str) -> float:
        return traffic(program({"parallel": parallel}), group)

    plain = sent({"dp_replicate": ranks}, "dp")
    assert sent({"dp_shard": ranks, "zero": 1}, "fsdp") == plain == sent({"dp_shard": ranks, "zero": 2}, "fsdp")
    assert sent({"dp_shard": ranks, "zero": 3}, "fsdp") == 1.5 * plain == 3 * TOTAL * (ranks - 1) / ranks


def test_what_stays_resident_is_divided_stage_by_stage() -> None:
    def held(parallel: dict[str, int]) -> list[int]:
        return list(program({"parallel": parallel}).resident.values())

    assert held({"dp_replicate": 4}) == [TOTAL, TOTAL, 2 * TOTAL]
    assert held({"dp_shard": 4, "zero": 1}) == [TOTAL, TOTAL, 2 * TOTAL // 4]
    assert held({"dp_shard": 4, "zero": 2}) == [TOTAL, TOTAL // 4, 2 * TOTAL // 4]
    assert held({"dp_shard": 4, "zero": 3}) == [TOTAL // 4, TOTAL // 4, 2 * TOTAL // 4]


def test_gathered_parameters_are_given_back() -> None:
    trace = simulate(program({"parallel": {"dp_shard": 2, "zero": 3}}, network(4)), Constant())
    line = trace.memory[0]
    assert line[-1][1] == line[0][1], "all that a step takes it gives back"
    assert max(used for _, used in line) < line[0][1] + 4 * 4 * MIB * 2, "never all blocks at once"


def _seconds(p: Program) -> float:
    return max(span.end for span in simulate(p, Constant()).spans)


def test_fsdp_s_zero2_is_zero3_that_keeps_its_parameters() -> None:
    """FSDP2's reshard_after_forward = False gathers once for each micro-batch; DeepSpeed's ZeRO-2 once a step."""
    fsdp = QUIET.but(data_parallel={"zero2": "layers"})
    two = messages(program({"batch": {"global": 4}, "parallel": {"dp_shard": 2, "zero": 2}}, framework=fsdp))
    kept = messages(program({"batch": {"global": 4}, "parallel": {"dp_shard": 2, "zero": 3, "reshard_after_forward": False}}))
    assert two == kept and [name for name, _, _ in two].count("all_gather") == 2 * 2  # layers x micro-batches


def test_recomputation_stops_at_the_last_saved_tensor() -> None:
    """torch's checkpoint leaves the layer's last product out; Megatron's runs it again."""

    def again(early: bool) -> list[str]:
        made = program({"memory": {"recompute": "full"}}, network(2, (norm(), linear("up"), linear("down"))), QUIET.but(early_stop=early))
        return [op.id for op in made.segments["bwd"] if op.id.startswith("recompute/L1")]

    assert again(False) == ["recompute/L1.norm", "recompute/L1.up", "recompute/L1.down"]
    assert again(True) == ["recompute/L1.norm", "recompute/L1.up"]


def test_prefetch_hides_gathers() -> None:
    seconds = [_seconds(program({"parallel": {"dp_shard": 2, "zero": 3, "prefetch": n}}, network(6))) for n in (0, 1, 2)]
    assert seconds[0] > seconds[1] >= seconds[2]


def test_sharded_experts_that_span_sharding_groups_are_refused() -> None:
    with pytest.raises(Refused, match="ep = 4 does not divide"):
        program({"parallel": {"dp_replicate": 4, "dp_shard": 2, "ep": 4, "zero": 3}})


@pytest.mark.parametrize("host", ["python", "light"])
def test_fsdp2_spends_host_time_on_every_pass_of_every_unit(host: str) -> None:
    framework = QUIET.but(host=host, compile=True, tensor_parallel={"style": "dtensor"})
    p = program({"parallel": {"dp_shard": 2, "zero": 3}}, network(3, (linear(), norm())), framework=framework)
    spent = [w for call, op in p.ops(0) if call.step == 1 and op.kind == "host" for w in op.works if isinstance(w, HostWork)]
    units = sum(w.count for w in spent if w.what == "fsdp_unit")
    assert units == (3 * 2 if host == "python" else 0), "the ends have no parameters here: no root"
    assert sum(w.count for w in spent if w.what == "fsdp_parameter") == 3 * units


@pytest.mark.parametrize("shards", [2, 4])
def test_each_rank_copies_its_own_shard_into_the_gather(shards: int) -> None:
    p = program({"parallel": {"dp_shard": shards, "zero": 3}})
    ops = {op.id: op for call, op in p.ops(0) if call.step == 1}
    gathers = [op for op in ops.values() if op.name == "all_gather"]
    assert gathers
    for gather in gathers:
        (copy,) = ops[gather.id.removesuffix(".all_gather") + ".copy_in"].works
        assert isinstance(copy, MemoryBound)
        assert copy.written * shards == gather.bytes and copy.read >= copy.written
