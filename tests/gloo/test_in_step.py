"""How much longer host work takes in a step than in loops of its own: what is timed, and what it is held against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor.probes import in_step as probe
from executor.probes.bench import Bench
from sim.cost.calibration import Sample
from tests.gloo.gpu_standin import alone

APART = {"kernel": 1e-5, "launch": 2e-6, "module": 3e-6, "autograd": 5e-6, "accumulate": 4e-6, "optimizer": 7e-6}


@pytest.fixture(autouse=True)
def thin(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many parts as the probe's models have in a layer, and hardly any arithmetic: a CPU takes minutes over what keeps a GPU at work."""
    whole = probe._plan

    def narrow(name: str, layers: int) -> dict[str, Any]:
        tree = whole(name, layers)
        return tree | {"model": tree["model"] | {"hidden": 48}, "seq_len": 16, "batch": {"micro": 1}}

    monkeypatch.setattr(probe, "_plan", narrow)
    monkeypatch.setattr(probe, "_DEPTHS", (1, 3))


def test_layers_are_held_against_their_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step twice as long as all of its parts by themselves, and a second beside them that no layer takes."""
    bench = Bench(alone(tmp_path), quick=True)
    bench.found += [("host", Sample(what, "", (), seconds, seconds, seconds, 9)) for what, seconds in APART.items()]
    monkeypatch.setattr(
        probe._Training, "seconds", property(lambda self: 1.0 + 2.0 * sum(self.units[what] * seconds for what, seconds in APART.items()))
    )
    probe.in_step(bench)
    kind, row = bench.found[-1]
    assert (kind, row.name) == ("host", "in_step") and row.median == pytest.approx(2.0) and row.n == len(probe._MODELS)


def test_whole_steps_are_timed_and_the_first_ones_are_not_counted(tmp_path: Path) -> None:
    one = probe._Training(Bench(alone(tmp_path), quick=True), probe._plan("probe-llama", 2))
    weights = [parameter.detach().clone() for parameter in one._model.parameters()]
    one.run()
    assert len(one._times) == probe._STEPS - probe._WARM and one.seconds > 0
    assert any((old != new).any() for old, new in zip(weights, one._model.parameters(), strict=True)), "it trains"
    assert all(parameter.grad is None for parameter in one._model.parameters())
    assert one.units["kernel"] > 40 and one.units["module"] > 20 and one.units["optimizer"] == len(weights)
