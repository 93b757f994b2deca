"""A plan's own framework: a table of a shipped one and what differs from it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sim.files.fullplan import full_plan
from sim.files.planfile import dump_plan, load_plan
from sim.framework import framework
from sim.framework.chosen import framework_of
from sim.framework.framework import load_framework
from sim.predict import predict
from topologies.errors import BadInput

BASE = {"model": "gpt2-124m", "seq_len": 128, "parallel": {"dp_replicate": 8}}
OWN = {"base": "torchtitan", "optimizer": {"implementation": "fused"}, "data_parallel": {"zero": 2, "wraps_ends": False}}


def test_what_it_does_not_say_is_as_in_its_base() -> None:
    found, base = load_framework(OWN), load_framework("torchtitan")
    assert found == base.but(
        name="torchtitan (changed)", optimizer={"implementation": "fused"}, data_parallel={"zero": 2, "wraps_ends": False}
    )
    assert load_framework(OWN | {"name": "ours"}).name == "ours"


def test_the_plans_own_words_win_over_it() -> None:
    plan = load_plan(BASE | {"framework": OWN, "optimizer": {"implementation": "foreach"}})
    assert framework_of(plan).optimizer.implementation == "foreach" and plan.framework_name == "torchtitan (changed)"


@pytest.mark.parametrize("form", [dump_plan, full_plan])
def test_it_is_kept_in_a_plans_file(form: Any, tmp_path: Path) -> None:
    plan = load_plan(BASE | {"framework": OWN})
    path = tmp_path / "plan.toml"
    path.write_text(form(plan))
    assert load_plan(path) == plan


@pytest.mark.parametrize(
    ("framework", "override", "table"),
    [
        (None, "framework.optimizer.clip=true", {"base": "pytorch", "optimizer": {"clip": True}}),
        ("maxtext", "framework.loss.fused=true", {"base": "maxtext", "loss": {"fused": True}}),
        (OWN, "framework.optimizer.clip=false", OWN | {"optimizer": {"implementation": "fused", "clip": False}}),
        (OWN, "framework=nemo", "nemo"),
        (OWN, "framework.base=nemo", OWN | {"base": "nemo"}),
    ],
)
def test_one_of_its_keys_on_the_command_line(framework: object, override: str, table: object) -> None:
    said = BASE if framework is None else BASE | {"framework": framework}
    assert load_plan(said, (override,)).framework == table


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"optimizer": {"clip": True}}, ('no base. Add e.g. base = "pytorch"', "torchtitan")),
        ({"base": "torchtitn"}, ("torchtitan",)),
        ({"base": 3}, ("no base",)),
        ({"base": "pytorch", "optimizr": {}}, ("framework.optimizr", "optimizer")),
        ({"base": "pytorch", "optimizer": {"clipp": True}}, ("framework.optimizer.clipp", "framework.optimizer.clip")),
        ({"base": "pytorch", "clip": True}, ("optimizer.clip",)),
        ({"base": "pytorch", "optimizer": 3}, ("framework.optimizer", "section")),
        (
            {"base": "pytorch", "optimizer": {"implementation": "fast"}},
            ('framework.optimizer.implementation = "fast"', "Allowed:", "fused"),
        ),
        ({"base": "pytorch", "data_parallel": {"bucket": -1}}, ("framework.data_parallel.bucket = -1", "at least 0")),
        ({"base": "pytorch", "precision": {"grad_dtype": "fp8"}}, ("framework.precision.grad_dtype", "Allowed: fp32, bf16, fp16")),
        ({"base": "pytorch", "compile": "yes"}, ("framework.compile", "true or false")),
    ],
)
def test_what_no_framework_does_is_refused(table: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(BadInput) as refused:
        load_plan(BASE | {"framework": table})
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_it_changes_the_step() -> None:
    """Without overlap a framework sums gradients after backward; what names the framework in a result is the table's."""
    own = {"base": "pytorch", "data_parallel": {"overlap_grad": False}}
    large = BASE | {"seq_len": 1024, "batch": {"micro": 8, "global": 64}}
    beside, after = (predict(large | {"framework": how}, "dgx-h100") for how in ("pytorch", own))
    assert after.step_time_s > beside.step_time_s and after.breakdown.exposed_comm_s > beside.breakdown.exposed_comm_s
    assert json.loads(json.dumps(after.to_dict()))["plan"]["framework"] == own


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Adds a file to those that are shipped."""
    shipped = framework.frameworks()
    monkeypatch.setattr(framework, "frameworks", lambda: shipped)
    framework._shipped.cache_clear()

    def add(name: str, text: str) -> None:
        shipped[name] = tmp_path / f"{name}.toml"
        shipped[name].write_text(text)

    yield add
    framework._shipped.cache_clear()


def test_a_file_that_is_added_is_called_as_it_is(added: Callable[[str, str], None]) -> None:
    """It had its base's name, under which its predictions stood."""
    added("ours", 'base = "torchtitan"\nhost = "light"')
    assert load_framework("ours") == load_framework("torchtitan").but(name="ours", host="light")
    assert all(load_framework(name).name == name for name in framework.frameworks())


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ("ours", r"known/theirs.toml: base = \"ours\" leads back to it"),
        ("torchtitn", r"in sim/framework/known/theirs.toml. Did you mean torchtitan"),
    ],
)
def test_a_base_that_is_none(added: Callable[[str, str], None], base: str, words: str) -> None:
    added("ours", 'base = "theirs"')
    added("theirs", f'base = "{base}"')
    with pytest.raises(BadInput, match=words):
        load_framework("ours")


def test_every_shipped_one_has_a_source() -> None:
    """Its base's would stand for habits that the base has not; a second name for a framework needs none."""
    trees = {name: tomllib.loads(path.read_text("utf-8")) for name, path in framework.frameworks().items()}
    assert [name for name, tree in trees.items() if not tree.get("source") and tree.keys() - {"name", "base"}] == []
