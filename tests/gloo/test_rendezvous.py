"""Where ranks meet: on a free port of the loopback interface, whatever other programs hold."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor.ranks.environment import place
from executor.ranks.launch import launch
from tests.gloo.bodies_for_launch import Order

ROOT = Path(__file__).parents[2]
LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
"""127.0.0.1, ::1 and ::ffff:127.0.0.1 as proc(5) writes them."""


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A port that another program listens on, and that the environment names as the place to meet."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(port))
        yield port


def test_a_taken_port_is_not_in_the_way(taken: int, tmp_path: Path) -> None:
    """The store asks the system for a free port: none is guessed, so none can be taken."""
    assert place() is None
    values = launch("tests.gloo.bodies_for_launch:work", Order(), 2, tmp_path, list[float])
    assert values[0] == values[1] and len(values[0]) == 10
    assert int((tmp_path / "port").read_text()) != taken


def test_a_taken_port_of_another_launcher_is_one_clear_error(taken: int, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('[model]\nfamily = "mlp"\nname = "m"\nwidths = [32, 32]\n[batch]\nmicro = 2\n')
    inside = {**os.environ, "PYTHONPATH": str(ROOT), "RANK": "0", "WORLD_SIZE": "1"}
    words = [sys.executable, "-m", "steptwin", "run", str(plan), "--out", str(tmp_path / "out"), "--steps", "2"]
    done = subprocess.run(words, cwd=tmp_path, env=inside, capture_output=True, text=True, timeout=60)
    assert done.returncode == 4
    assert f"port {taken}" in done.stderr and "in use" in done.stderr and "MASTER_PORT" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="sockets are read from /proc")
def test_nothing_is_heard_off_loopback(tmp_path: Path) -> None:
    """The store of rank 0 and gloo's own sockets, as the kernel lists them."""
    found = launch("tests.gloo.bodies_for_launch:heard", Order(), 2, tmp_path, list[str])
    assert found[0] and found[1]
    assert {address for one in found for address in one} <= LOOPBACK
