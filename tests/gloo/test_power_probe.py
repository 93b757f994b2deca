"""The probe of what a GPU draws, on a stand-in that lowers its clock as a board at its power limit does. No GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executor import nvml
from executor.nvml import Meter
from executor.probe import merge
from executor.probes import power as probing
from executor.probes.bench import Bench
from sim.cost.calibration import Calibration, load_calibration, save_calibration
from sim.cost.power import ATTENTION, PASSES, WAITING, draws_of
from sim.work import Attention, Gemm
from tests.gloo.gpu_standin import StandIn, alone

DRAWS = {"product": 1.4, "pass": 0.86, "attention": 0.6, "waiting": 0.2}
SECONDS = {"product": 1.2e-3, "pass": 1e-4, "attention": 3e-4}
WATTS = 700.0


class Board(StandIn):
    """Kernels that draw power, at the clock which the limit leaves the last of them; products draw as the square of the clock."""

    def __init__(self) -> None:
        super().__init__(simulated=True)
        self.ran: list[str] = []
        self.joules = 0.0

    def run(self, what: str, seconds: float) -> None:
        recent = self.ran[-150:]
        share = recent.count("product") * SECONDS["product"]
        rest = sum(SECONDS.get(one, 1e-3) * DRAWS[one] for one in recent if one != "product")
        time = sum(SECONDS.get(one, 1e-3) for one in recent)
        clock = next((at / 1000 for at in range(1000, 500, -1) if share * 1.4 * (at / 1000) ** 2 + rest <= time), 0.5) if time else 1.0
        seconds, drawn = (seconds / clock, DRAWS[what] * clock**2) if what == "product" else (seconds, DRAWS[what])
        self.ran.append(what)
        self.joules += WATTS * drawn * seconds
        self.kernel(5e-6, seconds)

    def hold(self, cycles: int) -> None:
        self.run("waiting", cycles / 3e9)


class _Nvml:
    """The driver of such a board, whose counter goes on with the device's time."""

    def __init__(self, board: Board) -> None:
        self.board = board

    def nvmlDeviceGetHandleByIndex(self, at: int) -> int:
        return at

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: int) -> int:
        return round(1e3 * WATTS)

    def nvmlDeviceGetPowerUsage(self, gpu: int) -> int:
        return 300_000

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: int) -> int:
        return round(1e3 * self.board.joules)


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    found = Board()

    def body(work: Any, arena: object) -> Callable[[], None]:
        what = "product" if isinstance(work, Gemm) else "attention" if isinstance(work, Attention) else "pass"
        return lambda: found.run(what, SECONDS[what])

    monkeypatch.setattr("executor.probes.bench.free_memory", lambda device: 1 << 30)
    monkeypatch.setattr(probing, "body", body)
    monkeypatch.setattr(probing.time, "perf_counter", lambda: found.host)
    monkeypatch.setattr("executor.probes.rest.Rest.hold", lambda self, seconds: found.hold(int(seconds * 3e9)))
    return found


def _bench(board: Board, folder: Path) -> Bench:
    found = Bench(alone(folder, "cuda"), False, board)
    found._timer._clock = board.clock
    return found


def test_loops_tell_what_a_board_draws(board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = _bench(board, tmp_path)
    monkeypatch.setattr(probing, "Meter", lambda at: Meter(at, _Nvml(board)))
    probing.power(bench)
    rows = {(s.name, s.shape): s for kind, s in bench.found if kind == "power"}
    assert rows["product", WAITING].median == pytest.approx(SECONDS["product"], rel=0.01), "at the boost clock"
    assert [rows["watts", turn].median for turn in (WAITING, PASSES, ATTENTION)] == pytest.approx([0.2, 0.86, 0.6], rel=0.03)
    alone_, *beside = sorted((shape for name, shape in rows if name == "product" and shape[0]), key=lambda shape: shape[1])
    assert alone_ == (1, 0, 0) and len(beside) == 2 and all(("pass", shape) in rows for shape in beside)
    assert rows["product", alone_].median == pytest.approx(SECONDS["product"] / (1 / 1.4) ** 0.5, rel=0.02)
    assert 4.0 < board.host < 8.0, "seconds"
    save_calibration(
        Calibration(device="cuda", date="", machine="", cores=1, ranks=1, threads=1, tables=merge([bench.found])), tmp_path / "c.toml"
    )
    found = draws_of(load_calibration(tmp_path / "c.toml"))
    assert found is not None
    assert (found.matrix, found.exponent, found.limit) == (
        pytest.approx(1.4, rel=0.04),
        pytest.approx(2.0, abs=0.3),
        pytest.approx(1.0, abs=0.02),
    )


def test_without_nvml_there_is_no_such_table(board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "library", lambda: None)
    bench = _bench(board, tmp_path)
    with pytest.raises(LookupError, match="nvidia-ml-py"):
        probing.power(bench)
    bench.world.size = 2
    probing.power(bench)
    assert not bench.found and not board.ran


@pytest.mark.parametrize("period", [0.004, 0.05])
def test_a_counter_that_goes_on_in_steps_tells_the_mean(period: float) -> None:
    meter = Meter(0, _Nvml(Board()))
    looks = [(at * 0.01, 350.0 * (at * 0.01 // period) * period) for at in range(50)]
    assert meter.share(looks) == pytest.approx(0.5, rel=0.03)
    assert meter.share([(at, 5.0) for at, _ in looks]) == pytest.approx(300 / 700), "no counter: what the driver says now"


def test_a_driver_that_tells_no_power_says_so() -> None:
    with pytest.raises(LookupError, match=r"NVML tells no power: .*nvmlDeviceGet"):
        Meter(0, object())


def test_a_body_of_each_kind_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real kernels, of small shapes, on the CPU."""
    monkeypatch.setattr("executor.probes.bench.free_memory", lambda device: 1 << 30)
    monkeypatch.setattr("executor.probes.rest.Rest.hold", lambda self, seconds: None)
    for name, value in {
        "_SIDE": 8,
        "_BYTES": 1 << 10,
        "_ATTENDED": Attention(1, 1, 1, 16, 16, 8),
        "_SETTLING": 0.0,
        "_MEASURED": 0.01,
    }.items():
        monkeypatch.setattr(probing, name, value)
    monkeypatch.setattr(probing, "Meter", lambda at: Meter(at, _Nvml(Board())))
    bench = Bench(alone(tmp_path, "cuda"), True, StandIn())
    begin = time.monotonic()
    probing.power(bench)
    assert {s.name for _, s in bench.found} >= {"watts", "product"} and time.monotonic() - begin < 20
