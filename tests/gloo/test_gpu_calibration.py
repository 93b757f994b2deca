"""What the probe would find on a GPU that is exactly the fitted model, fed back: predictions stay, and rest on it. No GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.probes import device as probe_device
from executor.probes.kernels import variants
from executor.validation.gpu_cases import cases
from sim.cost.calibration import Calibration, Sample, save_calibration
from sim.cost.cpu import variant
from sim.cost.kernel import kernel_cost
from sim.predict import predict
from sim.work import Gemm, Work
from topologies.load import load_topology

MACHINE = "dgx-h200"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    gpu = load_topology(MACHINE).device(0)

    def sample(name: str, work: Work, dtype: str, shape: tuple[int, ...]) -> Sample:
        seconds = kernel_cost(work, gpu, "flash2", False).seconds  # type: ignore[arg-type]
        return Sample(name, dtype, shape, seconds, seconds, seconds, 9)

    gemms = [
        sample(role, Gemm(m, n, k, "bf16", 1, role), "bf16", (m, n, k))
        for role in ("fwd", "dgrad", "wgrad")
        for m, n, k in probe_device.shapes(probe_device.SIZES, probe_device._MOST)
    ]
    memory = {
        (variant(work), dtype, work.read + work.written): sample(variant(work), work, dtype, (work.read + work.written,))
        for dtype in ("bf16", "fp32")
        for total in probe_device._BYTES
        for work in variants(total, dtype)
    }
    path = tmp_path_factory.mktemp("gpu") / "calibration.toml"
    save_calibration(
        Calibration(
            device="cuda", date="", machine="", cores=1, ranks=1, threads=1, tables={"gemm": tuple(gemms), "memory": tuple(memory.values())}
        ),
        path,
    )
    return path


def test_the_file_is_small_enough_to_commit(file: Path) -> None:
    assert 50_000 < file.stat().st_size < 200_000


@pytest.mark.parametrize("name", ["gpt2-124m", "gpt2-1.5b", "llama3-8b-4", "llama3.2-1b-8", "bert-base", "accumulation"])
def test_a_prediction_rests_on_it_and_stays(name: str, file: Path) -> None:
    plan = cases(1)[name].plan
    plain = predict(plan, MACHINE)
    calibrated = predict(plan, MACHINE, calibration=file)
    assert calibrated.sources["measured"] > 0.5
    assert calibrated.step_time_s == pytest.approx(plain.step_time_s, rel=0.03)
