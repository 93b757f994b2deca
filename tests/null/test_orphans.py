"""Workers end with the process that started them, also when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_PARENT = """
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from sim.orphans import end_with_parent

if __name__ == "__main__":
    pool = ProcessPoolExecutor(2, mp_context=get_context(sys.argv[1]), initializer=end_with_parent)
    print(*{pool.submit(os.getpid).result() for _ in range(20)}, flush=True)
    for _ in range(4):
        pool.submit(time.sleep, 300)
    time.sleep(300)
"""


def _alive(pid: int) -> bool:
    """Is there such a process, other than as a zombie?"""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("how", ["fork", "forkserver", "spawn"])
def test_workers_of_a_killed_parent_end(how: str, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(_PARENT)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, str(script), how], stdout=subprocess.PIPE, text=True, env=env) as parent:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert workers and all(_alive(pid) for pid in workers)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        for _ in range(200):
            if not any(_alive(pid) for pid in workers):
                break
            time.sleep(0.05)
        left = [pid for pid in workers if _alive(pid)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert left == []


def test_a_process_without_a_parent_of_ours_goes_on() -> None:
    code = "from sim.orphans import end_with_parent; end_with_parent(); import threading; print(threading.active_count())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=60)
    assert found.stdout.strip() == "1", found.stderr
