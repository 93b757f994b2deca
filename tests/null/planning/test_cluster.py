"""A sweep on a real Dask cluster of several processes gives the rows of a sweep at home; schedulers that do not answer are said."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.planfile import load_plan
from sim.planning.space import parse_space
from sim.planning.sweep import sweep
from topologies.errors import BadInput

SPACE = "tp=1,2 zero=1,3 micro=1,2 gpus=8"


def _sweep(path: Path, **options: str):  # type: ignore[no-untyped-def]
    base = load_plan({"model": "gpt2-1.5b", "seq_len": 1024, "framework": "megatron-core", "batch": {"global": 32, "micro": 1}})
    return sweep(base, parse_space(SPACE), "dgx-h100", path, **options)


def test_dask_gives_the_same_rows(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason='the extra "sweep" is not installed')
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None) as cluster:
        there = _sweep(tmp_path / "there.sqlite", backend="dask", address=cluster.scheduler_address)
    here = _sweep(tmp_path / "here.sqlite")
    assert there.best == here.best
    assert sorted(row.key for row in there.rows) == sorted(row.key for row in here.rows)
    assert [row.key for row in there.front] == [row.key for row in here.front]


def test_no_scheduler_there(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason='the extra "sweep" is not installed')
    with pytest.raises(BadInput, match="--address"):
        _sweep(tmp_path / "a.sqlite", backend="dask")
    with pytest.raises(BadInput, match=r"no dask scheduler answers at tcp://127\.0\.0\.1:9"):
        _sweep(tmp_path / "b.sqlite", backend="dask", address="tcp://127.0.0.1:9")
    with pytest.raises(BadInput, match="unknown backend"):
        _sweep(tmp_path / "c.sqlite", backend="slurm", address="x")
