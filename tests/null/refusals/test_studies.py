"""Studies with draws, pools and resources that do not exist."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sim.cost.place import Capacity
from sim.files.planfile import load_plan
from sim.planning.montecarlo import Jitter, spread
from sim.planning.sweeps.pool import pool
from sim.planning.sweeps.store import Row, Store
from topologies.errors import BadInput
from topologies.load import load_topology

PLAN = load_plan({"model": "gpt2-124m", "seq_len": 64, "batch": {"global": 2}, "parallel": {"dp_replicate": 2}})


@pytest.mark.parametrize(
    ("jitter", "draws", "told"),
    [
        (Jitter(rank=3.0), 4, "jitter.rank"),
        (Jitter(slow_link=0.5), 4, "slow_link"),
        (Jitter(), 0, "draws = 0"),
        (Jitter(), 10**7, "draws x ranks are at most 10000000, 5000000 draws of 2 ranks"),
        (Jitter(rank="x"), 4, "jitter.rank = x"),
    ],  # type: ignore[arg-type]
)
def test_draws(jitter: Jitter, draws: int, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        spread(PLAN, "dgx-h100", draws, jitter=jitter)


def test_jitter_is_one_of_ours() -> None:
    for jitter in (1, 0, {"rank": 0.1}):
        with pytest.raises(BadInput, match=r"write steptwin.Jitter\(rank="):
            spread(PLAN, "dgx-h100", 4, jitter=jitter)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("column", "cell"),
    [("step_time", "soon"), ("memory", 1.5), ("mfu", b"?"), ("rate", -1.0), ("gpus", 0), ("detail", "{"), ("detail", "[]"), ("outcome", "good"),
     ("step_time", None), ("rate", float("inf")), ("flops", 0), ("detail", "[" * 100_000)],
)  # fmt: skip
def test_cells_that_somebody_has_edited(tmp_path: Path, column: str, cell: object) -> None:
    path = tmp_path / "found.sqlite"
    with Store(path, {}) as store:
        store.add([Row("tp=1 on=dgx-h100", "done", "", 1.0, 2**30, 0.5, 8.0, 8)])
        assert [row.rate for row in store.rows()] == [8.0]
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"UPDATE results SET {column} = ?", (cell,))
    with Store(path, {}) as store, pytest.raises(BadInput, match=r"found\.sqlite cannot be used \(row 'tp=1 on=dgx-h100'"):
        list(store.rows())


def test_clusters_need_a_known_backend_and_an_address(tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    with pytest.raises(BadInput, match="Allowed: local, dask, ray"), pool(2, "slurm", ""):
        pass
    with pytest.raises(BadInput, match="needs --address"), pool(2, "dask", ""):
        pass


def test_work_runs_here_or_in_processes() -> None:
    with pool(1, "", "") as here:
        assert sorted(here.map(abs, [-1, -2, 3])) == [1, 2, 3]
    with pool(2, "", "") as there:
        assert sorted(there.map(abs, [-1, -2, 3])) == [1, 2, 3]


def test_capacities_are_links_cores_and_disks() -> None:
    machine = load_topology("2x dgx-h100")
    found = Capacity(machine)
    assert found["n1.cores"] == machine.cores(1)
    assert found["n0.disk.read"] == machine.disk(0).read and found["n0.disk.write"] == machine.disk(0).write
    link = next(iter(found))
    assert found[link] == machine.rates[link] > 0 and len(found) == len(machine.rates)
    with pytest.raises(KeyError):
        found["n0.wheels"]
