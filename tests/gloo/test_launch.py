"""Ranks that end badly: named, the others ended too, nothing left behind, step times kept."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from executor.ranks.beat import CAPACITY, Beat
from executor.ranks.environment import Process, compute_threads, first_host, place, refuse_dealt
from executor.ranks.launch import launch, partial_steps, time_limit
from tests.gloo.bodies_for_launch import Order
from tests.reliability.faults import processes
from topologies.errors import BadInput, Refused, RunFailed

BODY = "tests.gloo.bodies_for_launch:work"
ROOT = Path(__file__).parents[2]
HANGS = 8.0
"""Seconds without progress: longer than a busy machine takes to import torch."""


def test_values_by_rank(tmp_path: Path) -> None:
    values = launch(BODY, Order(), 2, tmp_path, list[float])
    assert values == [[1.0 + 2 * step for step in range(10)]] * 2
    assert partial_steps(tmp_path)[1] == pytest.approx([0.001 * (step + 1) for step in range(10)])


def test_progress_is_seen_whole_from_the_first(tmp_path: Path) -> None:
    """Whoever looks at a run that begins reads no steps, never half a file."""
    over = threading.Event()

    def begin() -> None:
        for _ in range(300):
            (tmp_path / "rank0.beat").unlink(missing_ok=True)
            Beat(tmp_path / "rank0.beat", create=True)
        over.set()

    thread = threading.Thread(target=begin)
    thread.start()
    seen = set()
    while not over.is_set():
        with suppress(FileNotFoundError):  # taken away between the listing and the reading
            seen.add(tuple(partial_steps(tmp_path).get(0, [-1.0])))
    thread.join()
    assert seen and seen <= {(), (-1.0,)}
    assert partial_steps(tmp_path) == {0: []}


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system takes no room for a file ahead")
def test_progress_has_its_room_on_the_disk_from_the_beginning(tmp_path: Path) -> None:
    """A page of a mapped file that a full disk has no place for ends who touches it by SIGBUS: the rank at its 499th step, or the watcher."""
    Beat(tmp_path / "rank0.beat", create=True)
    found = (tmp_path / "rank0.beat").stat()
    assert 512 * found.st_blocks >= found.st_size > 8 * CAPACITY


@pytest.mark.parametrize("room", [4 << 10, 64 << 10])
def test_a_disk_without_room_for_what_ranks_begin_with(room: int, tmp_path: Path) -> None:
    """Files may not grow past `room` bytes (RLIMIT_FSIZE), as on a full disk. Ranks would end without a word: a full disk takes no log."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(RunFailed, match=r"cannot write what 2 ranks begin with into .*: File too large\. Free space there"):
            launch(BODY, Order(), 2, tmp_path, list[float])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [*tmp_path.glob("*.log")]


@pytest.mark.parametrize(
    ("what", "words", "stall"),
    [
        ("kill", "rank 1 of 2 was killed by SIGKILL", 60.0),
        ("raise", "ValueError", 60.0),
        ("stop", "rank 1 of 2: stopped by a signal", HANGS),
        ("sleep", "no progress for", HANGS),
    ],
)
def test_bad_end_is_explained_and_kept(what: str, words: str, stall: float, tmp_path: Path) -> None:
    with pytest.raises(RunFailed) as caught:
        launch(BODY, Order(what=what), 2, tmp_path, list[float], stall=stall)
    assert words in str(caught.value)
    assert "step 3 (after 3 steps)" in str(caught.value)
    assert caught.value.partial == str(tmp_path)
    assert len(partial_steps(tmp_path)[0]) == 3
    assert processes(tmp_path) == []


def test_an_import_that_takes_long_is_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a file system that all ranks of a cluster read, torch takes minutes to import."""
    (tmp_path / "slow_to_import.py").write_text(f"import time\ntime.sleep({HANGS + 4})\nfrom tests.gloo.bodies_for_launch import work\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert len(launch("slow_to_import:work", Order(), 1, tmp_path / "run", list[float], stall=HANGS)[0]) == 10


@pytest.mark.parametrize(("what", "words"), [("lingers", r".*1 \(hung\)"), ("crashes", r".*1 \(SIGSEGV\)")])
def test_what_goes_wrong_after_all_results_are_there_takes_none_away(
    what: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor.ranks.launch._LEAVING", 1.0)  # on a busy machine the other rank takes longer to go, too
    with pytest.warns(RuntimeWarning, match=f"did not end in order: {words}; the results are kept"):
        values = launch("tests.gloo.bodies_for_launch:leaves_badly", Order(what=what), 2, tmp_path, list[float], stall=HANGS)
    assert values == [[0.0], [1.0]]
    assert processes(tmp_path) == []


def test_torchrun_ranks_join_in_place(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        "from pathlib import Path\nfrom executor.ranks.launch import launch\nfrom tests.gloo.bodies_for_launch import Order\n"
        f"print(launch('{BODY}', Order(), 2, Path({str(tmp_path)!r}), list[float])[1][0], flush=True)\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("1.0") == 2


def test_ranks_find_the_house_from_any_folder(tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom executor.ranks.launch import _HOUSE\nprint(_HOUSE)"
    bare = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path, env=bare, check=True)
    assert (Path(done.stdout.strip()) / "executor" / "ranks" / "worker.py").is_file()


def test_environments_of_launchers() -> None:
    assert place({}) is None
    assert place(
        {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "7"}
    ) == Process(5, 8, 1, 4, "a", 7, "torchrun")
    slurm = {
        "SLURM_PROCID": "9",
        "SLURM_STEP_NUM_TASKS": "16",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
        "SLURM_LOCALID": "1",
    }
    slurm |= {"SLURM_STEP_NODELIST": "gpu[017-018]", "SLURM_JOB_ID": "41007"}
    assert place(slurm) == Process(9, 16, 1, 8, "gpu017", 29507, "slurm")
    assert place({"SLURM_PROCID": "0"}) is None  # a batch script's shell is no rank
    mpi = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    assert place(mpi) == Process(3, 4, 3, 4, "127.0.0.1", 29500, "openmpi")


@pytest.mark.parametrize(
    "local",
    [
        {"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"},
        {"PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "4"},
        {"PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "4"},
        {"PMI_LOCAL_SIZE": "4"},
    ],
)
def test_launchers_of_pmi_tell_hosts_apart_in_words_of_their_own(local: dict[str, str]) -> None:
    """Cray's PALS has other words than MPICH: its eight ranks on two hosts were taken for eight on one."""
    assert place({"PMI_RANK": "5", "PMI_SIZE": "8", "MASTER_ADDR": "a"} | local) == Process(5, 8, 1, 4, "a", 29500, "pmi")
    with pytest.raises(BadInput, match="pmi started 8 ranks on several hosts: export MASTER_ADDR"):
        place({"PMI_RANK": "5", "PMI_SIZE": "8"} | local)


def test_launchers_inside_a_slurm_step() -> None:
    """MPI's daemons are steps of SLURM's, whose variables what they start inherits; srun itself sets PMI's for a shell, too."""
    daemon = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NUM_NODES": "3", "MASTER_ADDR": "a"}
    mpi = {"OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_SIZE": "24", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}
    hydra = {"PMI_RANK": "9", "PMI_SIZE": "24", "MPI_LOCALNRANKS": "8", "MPI_LOCALRANKID": "1"}
    assert place(daemon | mpi) == Process(9, 24, 1, 8, "a", 29500, "openmpi") and place(daemon | hydra) == Process(
        9, 24, 1, 8, "a", 29500, "pmi"
    )
    assert place({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "PMI_RANK": "0", "PMI_SIZE": "1"}) is None
    step = {"SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_TASKS_PER_NODE": "8(x2)", "MASTER_ADDR": "a"}
    assert place(step | {"RANK": "9", "WORLD_SIZE": "16"}) == Process(9, 16, 1, 8, "a", 29500, "torchrun"), (
        "a script that exports two of them"
    )


@pytest.mark.parametrize(("said", "threads"), [(None, 1), ("", 1), ("3", 3), ("2,1", 2), (" 4 , 2 ", 4)])
def test_threads_of_a_rank(said: str | None, threads: int) -> None:
    assert compute_threads({} if said is None else {"OMP_NUM_THREADS": said}) == threads


@pytest.mark.parametrize(("said", "threads"), [(None, 1), ("3,1", 3)])
def test_ranks_of_srun_and_mpirun_have_as_many_threads_as_those_that_are_started_here(
    said: str | None, threads: int, tmp_path: Path
) -> None:
    """They leave OMP_NUM_THREADS unsaid, and every rank would compute on all cores of the host."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    code = (
        "from pathlib import Path\nimport torch\nfrom executor.ranks.launch import launch\nfrom tests.gloo.bodies_for_launch import Order\n"
        f"torch.set_num_threads(7)\nprint(launch('tests.gloo.bodies_for_launch:threads', Order(), 1, Path({str(tmp_path)!r}), list[int]))\n"
    )
    inside = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    inside |= {"PYTHONPATH": str(ROOT), "MASTER_PORT": port, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    inside |= {} if said is None else {"OMP_NUM_THREADS": said}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=inside, check=False)
    assert done.stdout.strip() == f"[[{threads}]]", done.stderr[-2000:]


@pytest.mark.parametrize("said", ["abc", "0", "-1", "2,x", "1.5"])
def test_what_is_no_number_of_threads_is_one_clear_error(said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    with pytest.raises(BadInput, match=f"OMP_NUM_THREADS = '{said}' is no number of threads: export a whole number from 1") as caught:
        launch(BODY, Order(), 1, tmp_path, list[float])
    assert caught.value.exit_code == 2


def test_environments_that_make_no_sense() -> None:
    with pytest.raises(BadInput, match="rank 8 of 8"):
        place({"RANK": "8", "WORLD_SIZE": "8"})
    with pytest.raises(BadInput, match="WORLD_SIZE = 'many'"):
        place({"RANK": "0", "WORLD_SIZE": "many"})
    with pytest.raises(BadInput, match="MASTER_ADDR"):
        place({"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"})
    with pytest.raises(BadInput, match="rank 0 of 0"):
        place({"RANK": "0", "WORLD_SIZE": "0"})
    with pytest.raises(BadInput, match="local rank 0 of 0"):
        place({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "0"})
    with pytest.raises(BadInput, match="rank 2 of 2"):
        place({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "0"})


@pytest.mark.parametrize(
    ("hosts", "wrong"),
    [
        ([[0, 1], [2, 3]], None),
        ([[0, 1, 2], [3]], None),
        ([[0, 1, 2, 3]], None),
        ([[0], [1], [2]], None),
        ([[0, 2], [1, 3]], 1),
        ([[0, 1, 4, 5], [2, 3, 6, 7]], 2),
        ([[0, 2], [1]], 1),
    ],
)
def test_ranks_that_are_dealt_round_the_hosts_are_refused(hosts: list[list[int]], wrong: int | None) -> None:
    """`srun -m cyclic`, `mpirun --map-by node`: rings between neighbours then cross the network each time, and are predicted within a host."""
    places = {rank: (local, len(ranks)) for ranks in hosts for local, rank in enumerate(ranks)}
    with nullcontext() if wrong is None else pytest.raises(Refused, match=f"slurm gave .*: rank {wrong} is number .*--distribution=block"):
        refuse_dealt("slurm", [places[rank] for rank in range(len(places))])


@pytest.mark.parametrize(("nodes", "first"), [("a1", "a1"), ("a1,b2", "a1"), ("n[003,007-9]", "n003"), ("n[1-4]-ib,m2", "n1-ib")])
def test_first_host(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_a_time_limit_ends_the_run(tmp_path: Path) -> None:
    with time_limit(3.0), pytest.raises(RunFailed, match="the time limit was reached") as caught:
        launch(BODY, Order(what="sleep"), 2, tmp_path, list[float])
    assert any(words in str(caught.value) for words in ("Step times kept: 3", "starting", "importing")), "how far it came"
    assert launch(BODY, Order(), 1, tmp_path, list[float])[0][0] == 0.0, "afterwards there is none"
