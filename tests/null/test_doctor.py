"""What `steptwin doctor` advises can be followed: an extra that it names installs what is missing."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from executor import doctor as room
from executor.doctor import doctor

HOME = Path(__file__).parents[2]
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text("utf-8"))["project"]


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~ \[;]", one)[0] for one in requirements}


def test_each_module_comes_with_the_extra_that_is_named_or_with_the_package_itself() -> None:
    extras = {name: _names(listed) for name, listed in PROJECT["optional-dependencies"].items()}
    for module in (module for modules in room._NEEDS.values() for module in modules):
        distribution = room._DISTRIBUTION.get(module, module)
        within = extras[room._EXTRA[module]] if module in room._EXTRA else _names(PROJECT["dependencies"])
        assert distribution in within, module


def test_extras_that_errors_advise_exist() -> None:
    said = {
        name
        for folder in ("sim", "executor", "topologies", "reports")
        for path in (HOME / folder).rglob("*.py")
        for words in re.findall(r"steptwin\[([\w,]+)\]", path.read_text("utf-8"))
        for name in words.split(",")
    }
    assert {"torch", "sweep", "search", "tables"} <= said <= set(PROJECT["optional-dependencies"])


def test_what_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "optuna" else real(name))
    row = next(row for row in doctor()["rows"] if row["for"] == "search")
    assert (row["ready"], row["missing"], row["remedy"]) == (False, ["optuna"], 'pip install "steptwin[search]"')


@pytest.mark.parametrize(
    "raised", ["OSError('libcudart.so.12: cannot open it')", "ImportError('libtorch.so')", "RuntimeError('no device')"]
)
def test_a_torch_that_cannot_be_imported_is_told_with_the_reason(raised: str, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f"raise {raised}")
    inside = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(HOME)])}
    words = [sys.executable, "-m", "steptwin", "doctor", "--json"]
    done = subprocess.run(words, cwd=tmp_path, env=inside, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found, kind = json.loads(done.stdout), raised.partition("(")[0]
    assert f"torch is installed and cannot be imported: {kind}: " in found["devices"][0] and raised.split("'")[1] in found["devices"][0]
    row = next(row for row in found["rows"] if row["for"] == "run, play, probe")
    assert (row["ready"], row["missing"]) == (False, ["torch"]) and "--force-reinstall" in row["remedy"]


def test_what_programs_read_has_keys_of_one_word_and_values_of_their_kind() -> None:
    found = doctor()
    assert all(re.fullmatch(r"[a-z_]+", key) for key in found)
    assert all(isinstance(row["ready"], bool) and isinstance(row["missing"], list) for row in found["rows"])
