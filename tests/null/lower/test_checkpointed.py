"""What torch's checkpoint spends on the host: in eager modules that it wraps, and nowhere else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from sim.predict import predict
from sim.setting.bind import bind
from sim.setting.program import program_for
from sim.work import HostWork


def _plan(**said: Any) -> dict[str, Any]:
    return {"model": "gpt2-124m", "seq_len": 128, "batch": {"micro": 1}, "memory": {"recompute": "full"}} | said


def _spent(**said: Any) -> Counter[str]:
    found = Counter[str]()
    for _, op in program_for(bind(_plan(**said), "dgx-h100"), 1).ops(0):
        for work in op.works:
            if isinstance(work, HostWork) and work.what in ("checkpointed", "packed"):
                found[f"{op.id.split('/')[0]} {work.what}"] += work.count  # type: ignore[assignment]
    return found


def test_a_region_each_way_and_a_tensor_in_three_hooks() -> None:
    spent = _spent()
    assert spent["fwd checkpointed"] == spent["recompute checkpointed"] == 12
    assert spent["recompute packed"] == 2 * spent["fwd packed"] > 12 * 2 * 20


def test_of_layers_that_run_again_alone() -> None:
    assert _spent(memory={"recompute": "full", "recompute_layers": 3})["fwd checkpointed"] == 3
    assert not _spent(memory={"recompute": "none"})


@pytest.mark.parametrize("framework", ["megatron-core", "maxtext", {"base": "pytorch", "compile": True}])
def test_who_has_no_hooks(framework: Any) -> None:
    """Megatron's checkpoint is a function of autograd that keeps the input; a compiler has one call in place of a layer's."""
    assert not _spent(framework=framework)


def test_it_costs_a_step_that_waits_for_the_host() -> None:
    """1.5 ms of hooks and contexts for twelve layers, beside the layers' own launches."""
    plain = {"memory": {"recompute": "full"}, "framework": {"base": "pytorch", "early_stop": False}}
    more = predict(_plan(), "dgx-h100").step_time_s - predict(_plan(**plain), "dgx-h100").step_time_s
    assert 2e-3 < more < 6e-3
