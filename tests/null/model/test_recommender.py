"""DLRM by hand: what is looked up, sent and updated on one rank of several, what the optimizer never sees, and what is refused."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from msgspec.structs import replace

from sim.files.planfile import load_plan
from sim.framework.framework import Framework
from sim.memory.report import memory_of
from sim.model import Network, Part, Shape, describe, load_model
from sim.model.specs.spec import Dlrm
from sim.model.stages import layout
from sim.plan import Plan
from sim.predict import predict
from sim.program import Program
from sim.sections import Batch, Optimizer, Parallel
from sim.work import Gemm, HostWork, MemoryBound
from tests.null.lower.tiny import QUIET, messages, program
from topologies.errors import BadInput, Refused

PLAIN = Framework(name="plain", source="test")
ROWS = (1000, 3, 200_000)
SMALL = Dlrm(name="small", tables=ROWS, dim=16, hot=(1, 1, 4), bottom=(32, 16), top=(24, 1))
SIZES = {"micro": 64, "global": 512}


def of(ep: int = 1, micro: int = 64, framework: Framework = PLAIN) -> Network:
    return describe(SMALL, Shape(micro=micro, seq=1, ep=ep, precision="fp32"), framework)


def part(network: Network, block: str, name: str) -> Part:
    return next(p for p in dict(network.blocks)[block].parts if p.name == name)


def lowered(ep: int, **parallel: Any) -> Program:
    plan = {"batch": SIZES, "parallel": {"dp_replicate": 8, "ep": ep} | parallel, "optimizer": {"name": "sgd"}}
    return program(plan, of(ep, framework=QUIET))


def test_each_rank_holds_its_share_and_looks_up_for_all() -> None:
    one, eight = (part(of(ep), "embed", "tables") for ep in (1, 8))
    assert one.tensors == (sum(ROWS) * 16,)
    assert eight.tensors == (-(-sum(ROWS) * 16 // 8),)
    asked = 64 * 6  # of 64 samples' ids, whoever looks them up
    rows = 512 + 3 + 4 * 512  # of 512 samples: all rows of the small table, at most one each of the others
    assert one.forward[0].bytes == (64 + 3 + 256) * 64 + 8 * asked + 64 * 3 * 64
    assert eight.forward[0].bytes == rows // 8 * 64 + 8 * asked + 64 * 3 * 64


def test_backward_updates_the_rows_that_were_looked_up() -> None:
    sort, update = part(of(), "embed", "tables").wgrad
    assert isinstance(sort, MemoryBound) and isinstance(update, MemoryBound)
    rows, asked = (64 + 3 + 256) * 64, 64 * 6
    assert (update.read, update.written) == (rows + asked * 64 + 8 * asked, rows)
    assert sort.bytes == 2 * 4 * 8 * asked


def test_ids_go_out_and_sums_come_back_and_gradients_go_the_same_way() -> None:
    exchanged = [(name, size) for name, group, size in messages(lowered(8)) if group == "ep"]
    ids, sums = 8 * 64 * 6, 64 * 3 * 16 * 4
    assert exchanged == [("all_to_all", ids), ("all_to_all", sums), ("all_to_all", sums)]


def test_the_dense_half_alone_is_averaged_and_stepped() -> None:
    dense = 13 * 32 + 32 + 32 * 16 + 16 + (6 + 16) * 24 + 24 + 24 + 1
    made = lowered(8)
    assert sum(size for name, group, size in messages(made) if group == "dp" and name == "all_reduce") == 4 * dense
    stepped = [w for call, op in made.ops(0) if call.step == 1 and op.cls == "optimizer" for w in op.works if isinstance(w, MemoryBound)]
    assert sum(w.written for w in stepped) == 4 * dense


def test_tables_are_held_without_gradients_or_state() -> None:
    plan = Plan(model="small", precision="fp32", batch=Batch(micro=64), optimizer=Optimizer(name="adam"))
    found = memory_of(plan, of(framework=QUIET), QUIET)
    dense = of().parameters - sum(ROWS) * 16
    assert found.parameters == 4 * of().parameters
    assert found.optimizer == 8 * dense
    assert 0 < found.gradients <= 4 * dense


@pytest.mark.parametrize(("rule", "numbers"), [("adagrad", 16), ("rowwise-adagrad", 1)])
def test_tables_that_adagrad_updates_keep_a_state(rule: Literal["adagrad", "rowwise-adagrad"], numbers: int) -> None:
    """Read and written beside the rows, held for all of them, and in checkpoints."""
    network = describe(replace(SMALL, table_optimizer=rule), Shape(micro=64, seq=1, ep=8, precision="fp32"), QUIET)
    update, plain = part(network, "embed", "tables").wgrad[1], part(of(8), "embed", "tables").wgrad[1]
    touched = (512 + 3 + 4 * 512) // 8
    assert update.bytes - plain.bytes == 2 * 4 * numbers * touched
    plan = {"batch": SIZES, "parallel": {"dp_replicate": 8, "ep": 8}, "optimizer": {"name": "sgd"}, "output": {"checkpoint_every": 1}}
    state = 4 * -(-sum(ROWS) * numbers // 8)
    found = memory_of(load_plan({"model": "tiny", "precision": "fp32", **plan}), network, QUIET)
    made, before = program(plan, network), program(plan, of(8, framework=QUIET))
    assert found.optimizer == made.resident["optimizer"] == state
    written, less = (next(op.bytes for ops in one.segments.values() for op in ops if op.id == "output/write") for one in (made, before))
    assert written - less == state


@pytest.mark.parametrize("mode", ["full", "sharded", "async"])
def test_checkpoints_hold_the_tables(mode: str) -> None:
    """All of them once, and the dense half with its state: in one file of the first rank (whose name is `full`), or each rank's own."""
    plan = {"batch": SIZES, "parallel": {"dp_replicate": 8, "ep": 8}, "output": {"checkpoint_every": 1, "checkpoint_mode": mode}}
    made = program({**plan, "optimizer": {"name": "adam"}}, of(8, framework=QUIET))
    written = next(op.bytes for ops in made.segments.values() for op in ops if op.id == "output/write")
    dense, tables = of().parameters - sum(ROWS) * 16, -(-sum(ROWS) * 16 // 8) * 8
    assert abs(written - (12 * dense + 4 * tables if mode == "full" else (12 * dense + 4 * tables) / 8)) <= 1


def test_a_sample_passes_through_the_rows_that_it_looks_up() -> None:
    network = of()
    assert network.parameters - network.active_parameters == (sum(ROWS) - 6) * 16
    assert (network.sample_unit, network.sample_bytes) == ("samples", 4 * 14 + 8 * 6)


def test_pairs_are_one_product_a_sample() -> None:
    products = part(of(), "head", "pairs.products")
    assert products.forward == (Gemm(4, 4, 16, "fp32", 64),)
    assert part(of(), "head", "mlp0").tensors == ((6 + 16) * 24, 24)
    assert part(of(), "bottom", "mlp0").backward == ()  # numbers need no gradient


CROSSED = replace(SMALL, cross=2, rank=8)


def test_a_cross_network_takes_all_vectors_side_by_side() -> None:
    """x = x0 (W V x + b) + x: two products and three kernels over 4 vectors of 16."""
    network = describe(CROSSED, Shape(micro=64, seq=1, precision="fp32"), PLAIN)
    n = 64 * 64
    for at in (0, 1):
        assert part(network, "head", f"cross{at}.v").forward == (Gemm(64, 8, 64, "fp32"),)
        assert part(network, "head", f"cross{at}.w").forward == (Gemm(64, 64, 8, "fp32"),)
        joined = part(network, "head", f"cross{at}")
        assert [work.bytes for work in joined.forward] == [8 * n, 12 * n, 12 * n] and [work.bytes for work in joined.backward] == [
            12 * n
        ] * 4
        assert (joined.tensors, joined.saved) == ((64,), 4 * n)
    assert part(network, "head", "mlp0").tensors == (64 * 24, 24)


def test_autocast_carries_32_bits_through_a_cross_network() -> None:
    """What V and the MLP on top read is cast; the first layer keeps x0 itself, too."""
    network = describe(CROSSED, Shape(micro=64, seq=1, precision="bf16"), PLAIN.but(precision={"autocast": True}))
    n = 64 * 64
    assert [part(network, "head", f"cross{at}").saved for at in (0, 1)] == [8 * n, 4 * n]
    for name in ("cross0.v", "cross1.v", "mlp0"):
        assert [work.bytes for work in part(network, "head", name).forward if getattr(work, "what", "") == "cast"][-1] == 6 * n
        assert part(network, "head", name).saved == 2 * n
    compiled = describe(CROSSED, Shape(micro=64, seq=1, precision="bf16"), PLAIN.but(precision={"autocast": True}, compile=True))
    assert [len(works) for works in (part(compiled, "head", "cross1").forward, part(compiled, "head", "cross1").backward)] == [1, 2]


def test_dcnv2_is_mlperf_s() -> None:
    """recommendation_v2/torchrec_dlrm/README.MD: its tables, 214 ids of a sample, 16 million parameters beside them."""
    spec = load_model("dlrm-dcnv2")
    assert isinstance(spec, Dlrm)
    assert (sum(spec.tables), sum(spec.lookups), spec.vectors * spec.dim) == (204_184_588, 214, 3456)
    plan = load_plan("dlrm-dcnv2-8")
    one, four = (
        predict(replace(plan, parallel=Parallel(dp_replicate=n, ep=n), batch=Batch(global_=65536, micro=65536 // n)), where)
        for n, where in ((8, "dgx-h100"), (32, "4x dgx-h100"))
    )
    assert one.fits and four.fits and one.step_time_s > four.step_time_s > one.step_time_s / 4
    assert one.memory.optimizer == one.memory.parameters > 204_184_588 * 128 * 4 / 8


def test_a_batch_is_read_at_once() -> None:
    """A slice of one file; samples are not put together one by one."""
    plan = {"batch": SIZES, "parallel": {"dp_replicate": 8, "ep": 8}, "data": {"source": "disk", "preprocess": "1 us"}}
    for net, pieces in ((of(8), 1), (replace(of(8), whole_batches=False), 64)):
        works = [w for call, op in program(plan, net).ops(0) if call.step == 1 and op.cls == "data" for w in op.works]
        counts = {w.what: w.count for w in works if isinstance(w, HostWork)}
        assert (counts["file"], counts["collate"], counts["preprocess"]) == (pieces, pieces, 64)


def test_autocast_looks_up_in_32_bits_and_multiplies_in_16() -> None:
    network = describe(SMALL, Shape(micro=64, seq=1, precision="bf16"), PLAIN.but(precision={"autocast": True}))
    assert part(network, "embed", "tables").forward[0].bytes == part(of(), "embed", "tables").forward[0].bytes
    assert part(network, "head", "pairs.products").saved == 64 * 4 * 16 * 2


def test_terabyte_is_mlperf_s() -> None:
    spec = load_model("dlrm-terabyte")
    assert isinstance(spec, Dlrm)
    assert (len(spec.tables), sum(spec.tables), spec.pairs) == (26, 187_767_399, 351)


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(Refused, match=r"copies of them would differ\. Set parallel\.ep = dp_replicate x dp_shard = 8"):
        lowered(4)
    with pytest.raises(Refused, match=r"the rest is small: set parallel\.zero = 0"):
        lowered(8, dp_replicate=1, dp_shard=8, zero=3)
    with pytest.raises(Refused, match="a recommender's tables are split by ep, all else by data parallelism; set tp = cp = 1"):
        describe(SMALL, Shape(micro=1, seq=1, tp=2), PLAIN)
    with pytest.raises(Refused, match="so no pipeline can cut it"):
        layout(of(), Plan(model="small", batch=Batch(micro=1), parallel=Parallel(pp=2)))
    with pytest.raises(BadInput, match="hot has 2 numbers for 3 tables"):
        replace(SMALL, hot=(1, 1))
    with pytest.raises(BadInput, match="bottom ends with 8, but its products with the tables need dim = 16"):
        replace(SMALL, bottom=(32, 8))
    with pytest.raises(BadInput, match="top ends with 2; a click is one number"):
        replace(SMALL, top=(24, 2))
    assert load_plan({"model": "dlrm-kaggle", "batch": {"global": 8}}).model_name == "dlrm-kaggle"
