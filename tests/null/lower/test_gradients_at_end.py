"""A compiler that takes the whole backward hands its gradients over at the end: their sums hide behind nothing."""

import pytest
from msgspec.structs import replace

from sim.framework.chosen import framework_of
from sim.lower.step import lower
from sim.plan import Plan
from sim.predict import predict, predict_setting
from sim.sections import Batch, Parallel
from sim.setting.bind import bind
from sim.work import MemoryBound

MODEL = {"family": "encoder", "layers": 4, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 30528, "positions": 512}


def _plan(framework: str, compiled: bool | None, ranks: int = 8) -> Plan:
    return Plan(
        model=MODEL,
        framework=framework,
        seq_len=128,
        precision="fp16",
        compile=compiled,
        batch=Batch(global_=32 * ranks, micro=32),
        parallel=Parallel(dp_replicate=ranks),
    )


@pytest.mark.parametrize(
    ("framework", "compiled", "beside"),
    [
        ("tf1-horovod", None, True),
        ("tf1-horovod", True, False),
        ("maxtext", None, True),  # its sums are part of what XLA compiles
        ("pytorch", True, True),  # DDP splits the compiled graph at its buckets
    ],
)
def test_only_sums_outside_of_the_compiled_graph_wait(framework: str, compiled: bool | None, beside: bool) -> None:
    assert framework_of(_plan(framework, compiled)).data_parallel.overlap_grad is beside


def test_the_sum_begins_where_backward_ends() -> None:
    """Spans of the last step: without a compiler the first sum begins in backward, with one after all of its kernels."""
    for compiled in (None, True):
        found = predict(_plan("tf1-horovod", compiled), "dgx1-v100")
        assert found.trace is not None
        spans = [span for span in found.trace.spans if span.rank == 0 and span.end > span.start]
        last = max(span.step for span in spans)
        spans = [span for span in spans if span.step == last]
        first = min(span.start for span in spans if span.kind == "collective")
        backward = max(span.end for span in spans if "/bwd/" in span.id or "/wgrad/" in span.id)
        assert (first >= backward) is bool(compiled)


def test_what_does_not_hide_is_added_to_the_step() -> None:
    """More ranks cost a compiled step all of their sum's time; one that hides it pays less."""
    added = {}
    for compiled in (None, True):
        one, eight = (predict(_plan("tf1-horovod", compiled, ranks), "dgx1-v100").step_time_s for ranks in (1, 8))
        added[compiled] = eight - one
    assert added[True] > 1.2 * added[None] > 0.0


@pytest.mark.parametrize("compiled", [None, True])
def test_the_last_gradients_wait_for_horovod_s_thread(compiled: bool | None) -> None:
    """Half a turn of 5 ms in the mean, once a step however many messages there are; a rank alone sends none."""
    longer = {}
    for ranks in (1, 8):
        setting = bind(_plan("tf1-horovod", compiled, ranks), "dgx1-v100")
        at_once = replace(setting, framework=setting.framework.but(data_parallel={"cycle": 0.0}))
        longer[ranks] = predict_setting(setting).step_time_s - predict_setting(at_once).step_time_s
    assert longer[1] == 0.0
    assert longer[8] == pytest.approx(2.5e-3, rel=0.1)


@pytest.mark.parametrize(("framework", "compiled", "width"), [("tf1-horovod", None, 4), ("tf1-horovod", True, 0), ("tf2-horovod", True, 2)])
def test_horovod_divides_sums_in_a_pass_of_its_own(framework: str, compiled: bool | None, width: int) -> None:
    """By an operator, which XLA fuses with what reads it; since 2020 by a kernel over the fusion buffer, in what travels."""
    for ranks in (1, 8):
        setting = bind(_plan(framework, compiled, ranks), "dgx1-v100")
        ops = lower(setting.plan, setting.network, setting.framework, "cuda").ops(0)
        works = [work for call, op in ops if call.step == 1 and op.id.endswith(".mean") for work in op.works]
        divided = sum(work.read for work in works if isinstance(work, MemoryBound))
        assert divided == (width * setting.network.parameters if ranks > 1 else 0)


@pytest.mark.parametrize(("zero", "hidden"), [(0, False), (1, True), (2, True)])
def test_deepspeed_hides_the_gradients_of_shards_alone(zero: int, hidden: bool) -> None:
    """Stage 0 sets no hooks: engine.py's allreduce_gradients sums whole gradients after the last backward, in flat buffers of 5e8 elements."""
    split = {"dp_shard": 8, "zero": zero} if zero else {"dp_replicate": 8}
    wide = MODEL | {"hidden": 4096, "ffn": 16384}
    plan = Plan(
        model=wide, framework="deepspeed", seq_len=128, precision="fp16", batch=Batch(global_=64, micro=8), parallel=Parallel(**split)
    )  # fmt: skip
    setting = bind(plan, "dgx1-v100")
    ops = [op for call, op in lower(setting.plan, setting.network, setting.framework, "cuda").ops(0) if call.step == 1]
    sums = [at for at, op in enumerate(ops) if op.kind == "collective" and op.id.startswith("grad/")]
    backward = max(at for at, op in enumerate(ops) if op.kind == "compute" and op.id.startswith(("bwd/", "wgrad/")))
    assert (sums[0] < backward) is hidden
    if not zero:
        sent, whole = sum(ops[at].bytes for at in sums), setting.network.parameters * 2
        assert sent == pytest.approx(whole, rel=0.01) and len(sums) == 1 + whole // 10**9
        assert not any(op.id.endswith((".hooks", ".bucket", ".step")) for op in ops if op.id.startswith("grad/"))  # those are DDP's
