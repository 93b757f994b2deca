"""A sweep on a real Dask cluster of several processes gives the rows of a sweep at home; schedulers that do not answer are said."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sim.files.planfile import load_plan
from sim.planning.sweeps.space import parse_space
from sim.planning.sweeps.sweep import sweep
from topologies.errors import BadInput

SPACE = "tp=1,2 zero=1,3 micro=1,2 gpus=8"


def _sweep(path: Path, **options: str):  # type: ignore[no-untyped-def]
    base = load_plan({"model": "gpt2-1.5b", "seq_len": 1024, "framework": "megatron-core", "batch": {"global": 32, "micro": 1}})
    return sweep(base, parse_space(SPACE), "dgx-h100", path, **options)


@pytest.mark.no_cover
def test_dask_gives_the_same_rows(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason='the extra "sweep" is not installed')
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None) as cluster:
        there = _sweep(tmp_path / "there.sqlite", backend="dask", address=cluster.scheduler_address)
    here = _sweep(tmp_path / "here.sqlite")
    assert there.best == here.best
    assert sorted(row.key for row in there.rows) == sorted(row.key for row in here.rows)
    assert [row.key for row in there.front] == [row.key for row in here.front]


@pytest.mark.timeout(120)
def test_ray_gives_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    pytest.importorskip("joblib", reason='the extra "sweep" is not installed')
    from ray.cluster_utils import Cluster  # type: ignore[import-not-found,unused-ignore]

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # its workers find this project where this process does
    with pytest.raises(BadInput, match=r"no ray scheduler answers at 127\.0\.0\.1:9"):
        _sweep(tmp_path / "none.sqlite", backend="ray", address="127.0.0.1:9")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        there = _sweep(tmp_path / "there.sqlite", backend="ray", address=cluster.address)
    finally:
        cluster.shutdown()
    here = _sweep(tmp_path / "here.sqlite")
    assert there.best == here.best
    assert sorted(row.key for row in there.rows) == sorted(row.key for row in here.rows)


def test_no_scheduler_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason='the extra "sweep" is not installed')
    monkeypatch.setattr("sim.planning.sweeps.cluster._PATIENCE", 0.5)
    with pytest.raises(BadInput, match="--address"):
        _sweep(tmp_path / "a.sqlite", backend="dask")
    with pytest.raises(BadInput, match=r"no dask scheduler answers at tcp://127\.0\.0\.1:9"):
        _sweep(tmp_path / "b.sqlite", backend="dask", address="tcp://127.0.0.1:9")
    with pytest.raises(BadInput, match="unknown backend"):
        _sweep(tmp_path / "c.sqlite", backend="slurm", address="x")
