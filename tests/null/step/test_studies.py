"""The shipped stories say what they are shipped for."""

from __future__ import annotations

import itertools

import pytest

from sim.files.planfile import load_plan, presets
from sim.planning.studies import STUDIES, Row, run_study
from topologies.errors import UnknownName


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Row]]:
    return {name: {row.variant: row for row in run_study(name)} for name in STUDIES}


def test_every_study_is_a_preset() -> None:
    assert set(STUDIES) <= set(presets())
    with pytest.raises(UnknownName):
        run_study("copy-compute")


@pytest.mark.no_cover
def test_workers_help_until_compute_is_the_limit(rows: dict[str, dict[str, Row]]) -> None:
    on_cpu = [rows["cifar10-two-workers"][f"{n} worker{'s' if n > 1 else ''}"] for n in (1, 2, 4, 8)]
    times = [row.step_s for row in on_cpu]
    assert all(more <= fewer * (1 + 1e-9) for fewer, more in itertools.pairwise(times)) and times[0] > times[2]
    assert on_cpu[0].bottleneck == "data" and on_cpu[-1].bottleneck == "compute"
    gpus = [rows["cifar10-two-workers"][f"two GPUs, {n} worker{'s' if n > 1 else ''} each"].step_s for n in (1, 2, 4, 8)]
    assert gpus[0] / gpus[1] == pytest.approx(2, rel=0.1)


def test_a_copy_hides_only_where_nothing_holds_the_host(rows: dict[str, dict[str, Row]]) -> None:
    of = rows["copy-compute-overlap"]
    best = of["pinned, own stream, event"].step_s
    assert of["pinned, on the compute stream"].step_s > best * 1.2
    assert of["pinned, stray .item() each step"].step_s > best * 1.2
    assert of["pageable, stray .item() each step"].step_s > of["pinned, stray .item() each step"].step_s * 1.2
    assert of["pinned, no event (a race)"].step_s <= best
    assert of["noise made on the CPU, then moved"].step_s > of["noise made on the device"].step_s
    assert of["pageable"].sync_s > 0 and of["pinned, own stream, event"].sync_s == 0


def test_a_million_gradients(rows: dict[str, dict[str, Row]]) -> None:
    from sim.predict import predict

    assert predict("nccl-two-gpus", "dgx-h100").parameters == 1048576
    of = rows["nccl-two-gpus"]
    for ranks in (2, 4, 8):
        assert of[f"{ranks} GPUs, dgx-h100: alone"].step_s < of[f"{ranks} GPUs, h100-pcie-x8: alone"].step_s
        hidden = of[f"{ranks} GPUs, h100-pcie-x8: in a step, 4 layers"]
        assert hidden.exposed_comm_s < hidden.comm_s
        plain = of[f"{ranks} GPUs, h100-pcie-x8: 4 layers, no overlap"]
        assert plain.exposed_comm_s == pytest.approx(plain.comm_s, rel=1e-6)


def test_nvlink_beats_pcie(rows: dict[str, dict[str, Row]]) -> None:
    of = rows["two-gpus-six-stages"]
    for kind in ("16 workers", "no overlap", "gradients summed on the CPU"):
        assert of[f"NVLink: {kind}"].step_s < of[f"PCIe: {kind}"].step_s
    assert all(0 <= row.cpu_busy <= 1 for rows_ in rows.values() for row in rows_.values())


def test_the_same_work_in_a_longer_step_keeps_fewer_cores_busy(rows: dict[str, dict[str, Row]]) -> None:
    of = rows["copy-compute-overlap"]
    plain = of["pinned, own stream, event"]
    for label in ("pinned, on the compute stream", "pinned, stray .item() each step", "synchronize each step"):
        assert of[label].cpu_busy * of[label].step_s == pytest.approx(plain.cpu_busy * plain.step_s, rel=0.01)
    of = rows["two-gpus-six-stages"]
    assert of["PCIe: log and save every step"].cpu_busy < of["PCIe: as shipped"].cpu_busy < of["PCIe: 16 workers"].cpu_busy


def test_steps_with_many_workers_wait_for_the_mean() -> None:
    from sim.predict import predict

    times = [predict(load_plan("cifar10-two-workers", (f"data.workers={n}",)), "h100-pcie-x8").step_time_s for n in (1, 2, 3)]
    assert times[0] / times[1] == pytest.approx(2, rel=0.03)
    assert times[0] / times[2] == pytest.approx(3, rel=0.05)
