"""What authors report of a whole run, which is no row of the published table: nothing was fitted on it."""

from __future__ import annotations

import pytest

from sim.files.planfile import load_plan
from sim.planning.sweeps.judge import confirmed
from sim.setting.bind import bind


@pytest.mark.no_cover
def test_deepseek_v3_took_180_000_hours_of_h800_for_a_trillion_tokens() -> None:
    """arXiv 2412.19437, section 1 and table 1: 3.7 days on 2,048 H800, whose 80 GB held it."""
    setting = bind(load_plan("deepseek-v3-2k"), "256x hgx-h800")
    tokens = setting.plan.global_batch * setting.plan.seq_len
    assert confirmed(setting) == pytest.approx(180_000 * 3600 * tokens / 1e12 / 2048, rel=0.08)
