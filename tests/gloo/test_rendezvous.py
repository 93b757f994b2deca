"""Where ranks meet: on a free port of the loopback interface, whatever other programs hold."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor.environment import place
from executor.launch import launch
from tests.gloo.bodies_for_launch import Order


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
