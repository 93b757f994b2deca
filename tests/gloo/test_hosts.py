"""Ranks that a launcher started, on one host or several: they join more than once, write their input once, and one speaks for all."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import socket
import subprocess
import sys
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from executor.files import write_samples
from executor.ranks import clocks
from executor.ranks.environment import hosts, leads
from executor.ranks.launch import partial_steps
from executor.twin import machines
from sim.files.planfile import load_plan
from sim.imported import read_measured
from sim.trace import Span
from topologies.errors import BadInput
from topologies.load import load_topology

ROOT = Path(__file__).parents[2]
PLAN = """
model = {family = "mlp", widths = [32, 64, 32]}
precision = "fp32"
batch = {micro = 4, global = 8}
parallel = {dp_replicate = 2}
data = {source = "database", workers = 1, sample = "4 KiB"}
"""
JOIN = """
from pathlib import Path
from executor.ranks.launch import launch
from tests.gloo.bodies_for_launch import Order
for turn in range(3):
    launch("tests.gloo.bodies_for_launch:work", Order(), 2, Path({folder!r}) / str(turn), list[float], stall=20)
"""


OTHERS = """
import os
from pathlib import Path
from executor.ranks.launch import launch
from tests.gloo.bodies_for_launch import Name, Order
name, argument = ("work", Order()) if os.environ["RANK"] == "0" else ("surroundings", Name("RANK"))
launch("tests.gloo.bodies_for_launch:" + name, argument, 2, Path({folder!r}), list[float], stall=20)
"""


def _ranks(words: list[str], folder: Path, local: int, numbers: tuple[int, ...] = ()) -> list[subprocess.CompletedProcess[str]]:
    """Two ranks as torchrun's variables describe them, `local` on each host, or as many as there are `numbers` on their hosts; rank 0 holds the store
    itself."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started = []
    numbers = numbers or (0, 1 % local)
    for rank, number in enumerate(numbers):
        own = {"RANK": str(rank), "WORLD_SIZE": str(len(numbers)), "LOCAL_RANK": str(number), "LOCAL_WORLD_SIZE": str(local)}
        own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": str(ROOT)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([sys.executable, *words], cwd=folder, env={**os.environ, **own}, **pipes))  # type: ignore[call-overload]
    said = [one.communicate(timeout=100) for one in started]
    return [subprocess.CompletedProcess(words, one.returncode, *texts) for one, texts in zip(started, said, strict=True)]


def test_spans_of_another_host_come_to_rank_0s_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not known of a span stays so: a profile's ops have no launch."""
    monkeypatch.setattr(clocks, "offset", lambda *_: 5.0)
    world: Any = SimpleNamespace(one_host=False)
    spans = [Span(0, "host", "a", 1.0, 2.0, issued=0.5), Span(0, "host", "b", 1.0, 2.0)]
    clocks.align(world, spans, time.time)
    assert [(span.start, span.end, span.issued) for span in spans] == [(6.0, 7.0, 5.5), (6.0, 7.0, -1.0)]


def test_ranks_join_as_often_as_there_are_runs(tmp_path: Path) -> None:
    """A probe and then a run: keys of the first joining are still in the store."""
    done = _ranks(["-c", JOIN.format(folder=str(tmp_path))], tmp_path, 2)
    assert [one.returncode for one in done] == [0, 0], done[0].stderr[-800:]
    assert all(len(partial_steps(tmp_path / str(turn))[1]) == 10 for turn in range(3))


@pytest.mark.timeout(150)
def test_a_run_on_two_hosts_leaves_one_folder_and_says_it_once(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    out = tmp_path / "a run"
    first, second = _ranks(["-m", "steptwin", "run", "plan.toml", "--steps", "3", "--json", "--out", str(out)], tmp_path, 1)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr[-800:]
    assert len(json.loads(first.stdout)["steps_s"]) == 3 and second.stdout == ""
    assert {"plan.toml", "topology.toml", "environment.json", "summary-stock.json", "stock.json.gz"} <= {
        path.name for path in out.iterdir()
    }
    assert load_plan(out / "plan.toml") == load_plan(tmp_path / "plan.toml")
    assert json.loads((out / "summary-stock.json").read_text())["how"] == "stock"
    trace = read_measured(out / "stock.json.gz")
    assert trace.ranks == [0, 1], "compare reads it elsewhere"
    assert trace.timed == json.loads(first.stdout)["steps_s"], "not those beside the profiler"
    assert [path.name for path in (out / "data").iterdir()] == ["samples.sqlite"]


@pytest.mark.parametrize("verb", ["run", "twin"])
def test_a_run_overwrites_nobodys_plan_and_says_so_first(verb: str, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    (said,) = _ranks(["-m", "steptwin", verb, "plan.toml", "--steps", "3", "--out", "."], tmp_path, 1)[:1]
    assert said.returncode == 2 and "would overwrite it" in said.stderr and "Traceback" not in said.stderr
    assert (tmp_path / "plan.toml").read_text() == PLAN and [path.name for path in tmp_path.iterdir()] == ["plan.toml"]


def _write(source: str, folder: Path, begin: Barrier) -> None:
    plan = load_plan({"model": {"family": "mlp", "widths": [8, 8]}, "data": {"source": source, "sample": "4 KiB"}})
    begin.wait()
    write_samples(plan, folder)


@pytest.mark.parametrize("source", ["disk", "database"])
def test_hosts_that_share_a_folder_write_the_same_files(source: str, tmp_path: Path) -> None:
    context = mp.get_context("spawn")
    begin = context.Barrier(3)
    writers = [context.Process(target=_write, args=(source, tmp_path, begin)) for _ in range(3)]
    for one in writers:
        one.start()
    for one in writers:
        one.join(60)
    assert [one.exitcode for one in writers] == [0, 0, 0]
    assert len(list(tmp_path.iterdir())) == (128 if source == "disk" else 1)


def test_ranks_that_would_do_different_work_all_say_so(tmp_path: Path) -> None:
    """One host has a calibration and plays, the other has none and probes: together they would wait for ever."""
    for said in _ranks(["-c", OTHERS.format(folder=str(tmp_path))], tmp_path, 1):
        assert "rank 0 is to run tests.gloo.bodies_for_launch:work, rank 1 tests.gloo.bodies_for_launch:surroundings" in said.stderr
        assert said.returncode == 1


def test_ranks_that_are_dealt_round_the_hosts_all_say_so(tmp_path: Path) -> None:
    code = JOIN.format(folder=str(tmp_path)).replace(", 2, ", ", 3, ")
    for said in _ranks(["-c", code], tmp_path, 2, (0, 0, 1)):
        assert "torchrun gave the 3 ranks to the hosts in turn: rank 1 is number 0 on its host" in said.stderr
        assert said.returncode == 1


def test_a_launcher_that_shows_each_rank_one_gpu_hides_how_they_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    step = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "MASTER_ADDR": "a", "CUDA_VISIBLE_DEVICES": "3"}
    for name, value in step.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadInput, match=r"srun --gpus-per-node 8"):
        machines()


def test_only_the_first_rank_of_a_host_writes_its_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = load_plan({"model": {"family": "mlp", "widths": [8, 8]}, "data": {"source": "disk", "sample": "4 KiB"}})
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    write_samples(plan, tmp_path / "data")
    assert not (tmp_path / "data").exists()
    assert (hosts(), leads(), machines()) == (2, False, "2x this-machine:4")
    assert load_topology(machines()).gpus == 8, "as many ranks of each as were started there"
    monkeypatch.setenv("LOCAL_RANK", "0")
    write_samples(plan, tmp_path / "data")
    assert (tmp_path / "data" / "127.bin").stat().st_size == 4096
    monkeypatch.delenv("RANK")
    assert (hosts(), leads(), machines()) == (1, True, "this-machine")
