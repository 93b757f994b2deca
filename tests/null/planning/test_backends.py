"""Where chunks run: in this process, in others of this machine, and on a cluster that a test plays."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from sim.planning.sweeps.cluster import cluster
from sim.planning.sweeps.pool import pool
from topologies.errors import BadInput

JOBLIB = 'the extra "sweep" is not installed'


def squared(number: int) -> tuple[int, int]:
    """The square, and the process that found it."""
    return number * number, os.getpid()


def test_here_and_in_processes_the_same_is_found() -> None:
    with pool(1, "", "") as here, pool(2, "", "") as there:
        one, two = list(here.map(squared, range(6))), list(there.map(squared, range(6)))
    assert [value for value, _ in one] == sorted(value for value, _ in two) == [0, 1, 4, 9, 16, 25]
    assert {process for _, process in one} == {os.getpid()}
    assert os.cpu_count() == 1 or os.getpid() not in {process for _, process in two}


def slow(number: int) -> int:
    """The number, after a while."""
    time.sleep(0.5)
    return number


def test_who_is_interrupted_does_not_wait_for_all_that_was_asked_for() -> None:
    if os.cpu_count() == 1:
        pytest.skip("one core has one process")
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt), pool(2, "", "") as there:
        for _ in there.map(slow, range(200)):
            raise KeyboardInterrupt
    assert time.monotonic() - begun < 25.0, "200 chunks on two processes take 50 s"


def test_a_script_that_sweeps_in_processes_needs_no_guard(tmp_path: Path) -> None:
    script = tmp_path / "plan.py"
    script.write_text("""
import steptwin
plan = {"model": "gpt2-124m", "framework": "megatron-core", "batch": {"global": 16}}
print(len(steptwin.sweep(plan, "tp=1,2 micro=1,2", on="1x dgx-h100", workers=2).rows))
""")
    home = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=os.environ | {"PYTHONPATH": home}, capture_output=True, text=True
    )
    assert (done.stdout.splitlines()[-1:], done.returncode) == (["4"], 0), done.stderr


class Ray(SimpleNamespace):
    """What of ray is used; its workers are threads of this process."""

    def __init__(self) -> None:
        super().__init__(joined=[], left=0)

    def init(self, address: str, **_: object) -> None:
        """Notes who is joined."""
        self.joined.append(address)

    def shutdown(self) -> None:
        """Notes that it is left."""
        self.left += 1


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ray]:
    joblib = pytest.importorskip("joblib", reason=JOBLIB)
    from joblib._parallel_backends import ThreadingBackend
    from joblib.parallel import BACKENDS

    found, bridge = Ray(), ModuleType("ray.util.joblib")
    bridge.register_ray = lambda: joblib.register_parallel_backend("ray", ThreadingBackend)  # type: ignore[attr-defined]
    for name, module in (("ray", found), ("ray.util", ModuleType("ray.util")), ("ray.util.joblib", bridge)):
        monkeypatch.setitem(sys.modules, name, module)
    known = dict(BACKENDS)
    yield found
    BACKENDS.clear()
    BACKENDS.update(known)


def test_results_of_ray_come_wave_by_wave(ray: Ray) -> None:
    """What is computed is kept although the next chunk fails."""
    begun: list[int] = []

    def noted(number: int) -> int:
        if number == 10_000:
            raise RuntimeError("a worker died")
        begun.append(number)
        return number

    with cluster("ray", "auto") as there:
        waves = 4 * (os.cpu_count() or 1)
        results = there.map(noted, (i if i < 3 * waves else 10_000 for i in range(4 * waves)))
        found = [next(results) for _ in range(3 * waves)]
        assert sorted(found) == list(range(3 * waves))
        with pytest.raises(RuntimeError, match="a worker died"):
            next(results)
        assert ray.left == 0
    assert (ray.joined, ray.left) == (["auto"], 1)


def test_ray_is_left_when_the_sweep_fails(ray: Ray) -> None:
    with pytest.raises(KeyError), cluster("ray", "auto"):
        raise KeyError("x")
    assert ray.left == 1


def test_a_scheduler_of_ray_must_listen(ray: Ray) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"ray://127.0.0.1:{server.getsockname()[1]}"
        with cluster("ray", address):
            assert ray.joined == [address]
    with pytest.raises(BadInput, match=rf"no ray scheduler answers at {address}"), cluster("ray", address):
        pass
    assert ray.joined == [address]


def test_the_local_backend_needs_no_address() -> None:
    pytest.importorskip("joblib", reason=JOBLIB)
    with cluster("local", "") as there:
        assert sorted(value for value, _ in there.map(squared, range(4))) == [0, 1, 4, 9]


@pytest.mark.parametrize(
    ("backend", "package", "said"), [("dask", "joblib", r'pip install "steptwin\[sweep\]"'), ("ray", "ray", r"\(ray\)")]
)
def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, backend: str, package: str, said: str, tmp_path: Path) -> None:
    if package != "joblib":
        pytest.importorskip("joblib", reason=JOBLIB)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BadInput, match=said), cluster(backend, "localhost:1"):
        pass
