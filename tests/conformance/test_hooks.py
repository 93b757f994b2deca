"""The predicted kernels of gradients that travel in another dtype against what torch's hooks and FSDP2 call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from executor.training.hooks import bf16  # noqa: E402
from tests.conformance.fake import fake_world, need_fake  # noqa: E402
from tests.null.lower.test_reduce_dtype import named, narrowed  # noqa: E402


class Calls(TorchDispatchMode):
    """Operators that make or fill tensors, with bytes of what they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("_to_copy", "div_", "copy_"):
            read = args[1] if name == "copy_" else args[0]
            self.seen.append((name, read.numel() * read.element_size(), found.numel() * found.element_size()))
        return found


def test_a_compress_hook_casts_divides_and_copies_back() -> None:
    need_fake()
    p = narrowed({"dp_replicate": 2}, "bf16")
    ops = [named(p, f"grad/b0.{what}") for what in ("cast", "widen")]
    elements = 1024 * 1024
    with fake_world(0, 2), Calls() as calls:
        bf16(None, SimpleNamespace(buffer=lambda: torch.zeros(elements)))  # type: ignore[arg-type]
    predicted = [(work.read, work.written) for op in ops for work in op.works]  # type: ignore[union-attr]
    assert [name for name, _, _ in calls.seen] == ["_to_copy", "div_", "copy_"]
    assert [(read, written) for _, read, written in calls.seen] == predicted


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 12, 64, 7])
def test_fp16_is_divided_by_torchs_factors(ranks: int) -> None:
    need_fake()
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import _get_gradient_divide_factors

    from sim.files.planfile import load_plan
    from sim.lower.binding import job_of
    from sim.lower.data_parallel.reduced import factors
    from tests.null.lower.test_reduce_dtype import CASTING
    from tests.null.lower.tiny import network

    plan = load_plan({"model": "tiny", "precision": "fp32", "parallel": {"dp_shard": ranks, "zero": 3}})
    job = job_of(plan, network(), CASTING.but(precision={"reduce_dtype": "fp16"}), "cuda", 1)
    group: Any = SimpleNamespace(size=lambda: ranks)
    assert factors(job, ranks) == _get_gradient_divide_factors(group, None, torch.float16)[:2]
    assert _get_gradient_divide_factors(group, None, torch.bfloat16)[:2] == (None, None)
