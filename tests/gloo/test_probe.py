"""The quick probe on two ranks: a file that loads, with every table that prices read."""

from __future__ import annotations

import pytest
import torch

from executor.probe import merge
from executor.probes.mill import Between, Mill
from sim.cost.calibration import SHAPES, Calibration, Sample, load_calibration
from sim.cost.cpu_pricer import cpu_cost
from sim.work import Attention, Conv, Gemm, HostWork, MemoryBound
from tests.gloo.conftest import Probed


@pytest.fixture(scope="module")
def calibration(probed: Probed) -> Calibration:
    return load_calibration(probed.file)


def test_the_file_says_who_and_when(calibration: Calibration) -> None:
    assert calibration.quick and calibration.ranks == 2 and calibration.device == "cpu"
    assert calibration.date and {"torch", "python"} <= calibration.versions.keys()
    assert set(calibration.tables) == set(SHAPES) - {"power"}, "a GPU's alone"
    for rows in calibration.tables.values():
        assert all(s.p10 <= s.median <= s.p90 and s.n >= 2 for s in rows)


def test_every_host_kind_that_lowering_names_is_there_and_none_that_nobody_reads(calibration: Calibration) -> None:
    kinds = {
        "kernel",
        "module",
        "autograd",
        "accumulate",
        "optimizer",
        "optimizer_step",
        "cpu_optimizer",
        "ddp_step",
        "ddp_bucket",
        "ddp_parameter",
    }
    kinds |= {"collate", "loader", "log", "collective", "checkpoint", "stretch", "apart"}
    kinds |= {"checkpointed", "packed", "fsdp_unit", "fsdp_parameter", "dtensor_linear", "dtensor_norm", "dtensor_adam", "dtensor_sgd"}
    assert kinds == {s.name for s in calibration.rows("host")}


def test_sharding_costs_the_host_more_than_a_plain_module(calibration: Calibration) -> None:
    spent = {s.name: s.median for s in calibration.rows("host")}
    assert spent["fsdp_unit"] > spent["module"], "hooks and views of a unit, beyond one call"
    assert spent["dtensor_linear"] > spent["module"]
    assert spent["dtensor_adam"] > spent["dtensor_sgd"], "Adam has more ops to dispatch"


def test_collectives_are_timed_after_work_and_after_each_other(calibration: Calibration) -> None:
    after, again = ({(s.name, s.shape) for s in calibration.rows(kind)} for kind in ("collective", "again"))
    assert again and again == {(name, shape) for name, shape in after if name != "send"}


def test_costs_rest_on_measurements(calibration: Calibration) -> None:
    for work in (Gemm(256, 256, 256, "fp32"), MemoryBound("add", 1 << 20, 1 << 19, "fp32"), HostWork("module")):
        assert cpu_cost(work, calibration).source == "measured"
    for other in (Attention(2, 4, 4, 512, 512, 64, dtype="fp32", backward=True), Conv(8, 3, 32, 32, 32, 3, 3, dtype="fp32", role="wgrad")):
        assert cpu_cost(other, calibration).source == "measured"


def test_ranks_are_merged_point_by_point() -> None:
    one, two = Sample("add", "fp32", (8,), 1.0, 0.5, 2.0, 3, 0.2), Sample("add", "fp32", (8,), 3.0, 1.0, 4.0, 5, 0.4)
    (found,) = merge([[("memory", one)], [("memory", two)]])["memory"]
    assert (found.median, found.p10, found.p90, found.n) == (2.0, 0.5, 4.0, 8)
    assert found.cpu == pytest.approx(0.3)


def test_what_lies_between_two_blocks_changes_neither_of_them() -> None:
    """It hands on values and gradients, and its mill's parameters are nobody's: FSDP2 would gather them, an optimizer update them."""
    between, x = Between(Mill(torch.device("cpu"))), torch.randn(4, 8, requires_grad=True)
    assert not list(between.parameters()) and not list(between.modules())[1:]
    (2.0 * between(x)).sum().backward()
    assert torch.equal(between(x), x) and x.grad is not None and torch.equal(x.grad, torch.full_like(x, 2.0))
