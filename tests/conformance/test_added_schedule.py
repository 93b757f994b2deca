"""A schedule that somebody adds, of which torch has no class: stock training runs its actions."""

from __future__ import annotations

from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.pipelining import PipelineStage  # noqa: E402

from executor.training.pipeline import schedule_of  # noqa: E402
from sim.plan import Plan  # noqa: E402
from sim.schedule import SCHEDULES, schedule  # noqa: E402
from sim.sections import Batch, Parallel  # noqa: E402
from tests.conformance.torch_schedules import need_torch_schedules  # noqa: E402
from tests.null.schedule.test_added import eager  # noqa: E402


def test_torchs_runtime_runs_the_actions_of_a_schedule_that_torch_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    need_torch_schedules()
    monkeypatch.setitem(SCHEDULES, "eager", eager)
    pp, microbatches = 2, 4
    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.submod, stage.num_stages = 0, pp, None, pp
    plan = Plan(model="gpt2-124m", batch=Batch(global_=microbatches), parallel=Parallel(pp=pp, schedule="eager"))  # type: ignore[arg-type]
    run = schedule_of(plan, [stage], torch.nn.functional.mse_loss)
    for rank in range(pp):
        made = [str(action) for action in run.pipeline_order_with_comms[rank] if str(action)[1] in "FIW" and len(str(action)) == 3]
        assert made == [str(action) for action in schedule("eager", pp, rank, microbatches)]
