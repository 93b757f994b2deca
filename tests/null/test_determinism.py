"""The same input gives the same bytes in another process with another hash seed: sets and dicts of strings decide nothing."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HOME = Path(__file__).parents[2]
SMALL = {"model": {"base": "gpt2-124m", "layers": 4}, "seq_len": 512, "batch": {"micro": 2, "global": 16}}
PLANS: dict[str, tuple[dict[str, Any], str]] = {
    "FSDP with loaders and checkpoints": (
        SMALL | {"parallel": {"dp_shard": 4, "zero": 3}, "data": {"source": "disk", "workers": 2}, "output": {"checkpoint_every": 2}},
        "dgx-h100",
    ),
    "tensor and pipeline parallel": (
        SMALL | {"parallel": {"tp": 2, "pp": 2, "dp_replicate": 2}, "memory": {"recompute": "full"}},
        "2x dgx-a100",
    ),
    "DDP on CPUs": (
        SMALL | {"seq_len": 128, "batch": {"micro": 1, "global": 2}, "parallel": {"dp_replicate": 2}},
        "cpu-host",
    ),
}
SPACE = {"parallel.dp_shard": ("1", "2"), "parallel.tp": ("1", "2"), "batch.micro": ("1", "2")}


def products(folder: Path) -> dict[str, str]:
    """What the tool gives for the plans above -> SHA-256 of its bytes."""
    from reports.pages.prediction import prediction_page
    from reports.pages.sweep import sweep_page
    from reports.scene import scene
    from reports.tables import show
    from sim.files.chrome import to_kineto, write_trace
    from sim.files.planfile import load_plan
    from sim.files.text import show_program
    from sim.planning.explain.explanation import explain
    from sim.planning.sweeps.sweep import sweep
    from sim.predict import predict
    from sim.setting.bind import bind
    from topologies.load import load_topology

    found: dict[str, str | bytes] = {}
    for name, (tree, machine) in PLANS.items():
        topology = load_topology(machine)
        one = predict(load_plan(tree), topology, steps=2)
        found[f"prediction: {name}"] = json.dumps(one.to_dict(), default=str)
        found[f"program: {name}"] = show_program(one.program)
        found[f"trace: {name}"] = json.dumps(to_kineto(one.trace))
        found[f"trace file: {name}"] = write_trace(one.trace, folder / "trace.json.gz").read_bytes()
        seen = scene(one.plan, one.program, one.trace, topology, "predicted.json.gz")
        found[f"page: {name}"] = prediction_page(name, one.to_dict(), one.trace, seen)
    base = load_plan(SMALL | {"parallel": {"zero": 3}})
    rows = sweep(base, SPACE, "dgx-h100", folder / "sweep.sqlite", every="whole")
    found["sweep"] = repr(rows.rows)
    found["page: sweep"] = sweep_page("sweep", rows)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        show({"rows": [{"key": row.key, "step_time": row.step_time} for row in rows.feasible], "counts": rows.counts}, "sweep")
    found["table: sweep"] = printed.getvalue()
    found["explanation"] = str(explain(bind(load_plan(PLANS["FSDP with loaders and checkpoints"][0]), "dgx-h100"), tries=4))
    return {key: hashlib.sha256(value.encode() if isinstance(value, str) else value).hexdigest() for key, value in found.items()}


def _elsewhere(folder: Path, seed: str) -> dict[str, str]:
    """`products` in a fresh process with this hash seed."""
    # The same folder name for both: the path of its results is part of a sweep.
    call = f"import json; from pathlib import Path; from tests.null.test_determinism import products; print(json.dumps(products(Path({str(folder)!r}))))"
    inside = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(HOME)}
    done = subprocess.run([sys.executable, "-c", call], cwd=HOME, env=inside, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    for path in folder.iterdir():
        path.unlink()
    return found


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], dict[str, str]]:
    folder = tmp_path_factory.mktemp("same")
    return _elsewhere(folder, "1"), _elsewhere(folder, "4242")


@pytest.mark.parametrize("kind", ["prediction", "program", "trace", "trace file", "page", "sweep", "table", "explanation"])
def test_bytes_are_the_same_under_another_hash_seed(kind: str, pair: tuple[dict[str, str], dict[str, str]]) -> None:
    one, other = ({key: value for key, value in side.items() if key.split(":")[0] == kind} for side in pair)
    assert one
    assert one == other


def test_products_differ_between_plans(pair: tuple[dict[str, str], dict[str, str]]) -> None:
    """The digests see what they stand for: no two products are alike."""
    assert len(set(pair[0].values())) == len(pair[0])
