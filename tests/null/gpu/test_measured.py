"""What GPUs have given (`reports/measured`): it is read as it lies there, and predictions from it stay as good as they are."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import msgspec
import pytest

from executor.validation.gpu_cases import cases
from executor.validation.gpu_rows import Row
from sim.cost.calibration import load_calibration
from sim.cost.power import draws_of
from sim.predict import predict_setting
from sim.setting.bind import bind

PLACE = Path(__file__).parents[3] / "reports" / "measured"
PACED = ("gpt2-124m", "llama3-8b-4", "llama3.2-1b-8", "llama3-70b-1", "gpt2-autocast", "gpt2-124m-fp32")
"""Plans of which the GPU itself, not its host, sets the pace of a step."""


def rows(gpu: str) -> dict[str, Row]:
    found: dict[str, Any] = json.loads((PLACE / gpu / "summary.json").read_bytes())
    return {row.plan: row for row in msgspec.convert(found["rows"], list[Row]) if row.stock is not None}


def test_each_summary_has_its_calibration() -> None:
    found = [path.parent for path in PLACE.glob("*/summary.json")]
    assert found
    for folder in found:
        calibration = load_calibration(folder / "calibration.toml")
        assert calibration.device == "cuda" and not calibration.quick and calibration.entries > 1000
        assert len(rows(folder.name)) >= 15


def test_an_h200_draws_most_when_it_multiplies() -> None:
    draws = draws_of(load_calibration(PLACE / "h200-sxm" / "calibration.toml"))
    assert draws is not None
    assert 1.2 < draws.matrix < 1.7 and draws.waiting < 0.3 < draws.memory < 1.0 and 1.0 <= draws.exponent <= 3.0


@pytest.mark.parametrize(("calibrated", "most"), [(True, 0.045), (False, 0.06)])
def test_steps_that_an_h200_paces_are_predicted(calibrated: bool, most: float) -> None:
    """Of the table's plans, from its calibration and from the catalog alone. Others wait for a host that is twice as slow as the catalog's."""
    stock, errors = rows("h200-sxm"), []
    for name in PACED:
        setting = bind(cases(1)[name].plan, "dgx-h200")
        setting = msgspec.structs.replace(setting, framework=setting.framework.but(attention={"kernels": "cudnn"}))
        path = PLACE / "h200-sxm" / "calibration.toml" if calibrated else None
        found, measured = predict_setting(setting, calibration=path).step_time_s, stock[name].stock
        assert measured is not None
        errors.append(abs(found / measured.median - 1.0))
    assert statistics.fmean(errors) < most, dict(zip(PACED, errors, strict=True))
