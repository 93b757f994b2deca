"""Experts that one rank of FSDP2's alone holds (ep = dp_shard): they travel to nobody, and are copied, divided and cast all the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.tensor import DTensor  # noqa: E402

from sim.framework.chosen import framework_of  # noqa: E402
from sim.lower.step import lower  # noqa: E402
from sim.plan import Plan  # noqa: E402
from sim.setting.bind import network_of  # noqa: E402
from sim.work import MemoryBound  # noqa: E402
from tests.conformance.calls import Calls  # noqa: E402
from tests.conformance.fake import fake_world, need_fake  # noqa: E402
from tests.conformance.plans import MOE, plan  # noqa: E402

ONE = MOE | {"layers": 1, "vocab": 96}
UP, DOWN = 4 * 2 * 64 * 32, 4 * 32 * 64
"""Elements of the two weights of 4 of 8 experts."""


class Local(Calls):
    """What local tensors go through."""

    def __torch_dispatch__(self, func: object, types: tuple[type, ...], args: object = (), kwargs: object = None) -> object:
        return NotImplemented if any(issubclass(kind, DTensor) for kind in types) else super().__torch_dispatch__(func, types, args, kwargs)


def called(given: Plan) -> Counter[tuple[str, int]]:
    """Kernels by the largest tensor that each goes through, in one step of training."""
    from executor.training.trainer import Trainer

    with fake_world(0, given.world) as world:
        trainer = Trainer(world, given, Path(), 1)
        batches = trainer.batches()
        with Local() as calls:
            trainer._accumulate(batches)
    return Counter(zip(calls.names, calls.sizes, strict=True))


def predicted(given: Plan) -> Counter[tuple[str, float]]:
    """What works on a layer's experts and moves no rows, by the elements of 4 bytes that it writes."""
    habits = framework_of(given)
    program = lower(given, network_of(given, habits), habits, "cpu", 1)
    works = [work for _, op in program.ops(0) if "L0.experts" in op.id or op.id.endswith("L0.copy_out") for work in op.works]
    return Counter((work.what, work.written / 4) for work in works if isinstance(work, MemoryBound))


@pytest.mark.parametrize(("zero", "passes"), [(3, 2), (2, 1)])
def test_what_nobody_shares_is_copied_as_torch_copies_it(zero: int, passes: int) -> None:
    """Parameters in each pass that gathers them; gradients into one tensor, which is divided, and out of it."""
    need_fake()
    given = plan(ONE, dp_shard=2, ep=2, zero=zero)
    torchs, ours = called(given), predicted(given)
    assert [torchs["copy_", size] for size in (UP, DOWN)] == [passes] * 2
    assert sum(count for (what, size), count in ours.items() if what == "copy" and size > UP + DOWN) == passes, "with the layer's own"
    assert (torchs["div_", UP + DOWN], torchs["copy_", UP + DOWN]) == (1, 1) == (ours["scale", UP + DOWN], ours["copy", UP + DOWN] - 1)
    assert torchs["chunk_cat", UP] == 1, "the other copy"


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter"])
def test_they_are_sent_to_nobody(name: str) -> None:
    given = plan(ONE, dp_shard=2, ep=2, zero=3)
    habits = framework_of(given)
    ops = [op for _, op in lower(given, network_of(given, habits), habits, "cuda", 1).ops(0) if op.kind == "collective" and op.name == name]
    assert ops and {op.group for op in ops} == {"fsdp"}


@pytest.mark.parametrize(("framework", "casts"), [("torchtitan", 2), ("pytorch", 0)])
def test_wide_shards_are_cast_before_they_are_copied(framework: str, casts: int) -> None:
    """fp32 to bf16, in each of two passes."""
    given = plan(ONE, dp_shard=2, ep=2, zero=3, framework=framework, precision="bf16")
    habits = framework_of(given)
    ops = [op for _, op in lower(given, network_of(given, habits), habits, "cuda", 1).ops(0) if op.id.endswith("L0.copy_out")]
    found = [(work.read, work.written) for op in ops for work in op.works if isinstance(work, MemoryBound) and work.what == "cast"]
    assert found == [(4 * (UP + DOWN), 2 * (UP + DOWN))] * casts
    freed = {op.free - op.alloc for op in ops}
    assert freed == {-2 * (UP + DOWN)}, "there is no buffer to free, as that of the gathered ones"
