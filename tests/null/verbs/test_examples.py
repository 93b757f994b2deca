"""Every example in the help of a verb does what it says; what needs PyTorch or minutes is read, and its plan and machine are loaded."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import steptwin
from sim.planning.disturbed import faults
from sim.planning.sweeps.sweep import sweep
from tests.null.topologies.samples import DUMP
from tests.null.verbs.test_help import EVERY
from tests.null.verbs.test_verbs import GPT2, Call, call
from topologies.errors import BadInput

__all__ = ["call"]
EXAMPLES = {verb: command.help.partition("Example: steptwin ")[2] for verb, command in EVERY.items() if "Example: " in command.help}
READ = {"twin", "run", "probe", "here", "accuracy", "plan capture"}
SMALLER = {
    "spread": ("--draws", "3"),
    "validate": ("--limit", "2", "--workers", "1"),
    "sweep": ("--workers", "1"),
    "collective": ("--bytes", "1 MiB"),
}
BEFORE = {
    "compare": (("predict", "my-plan.toml", "--out", "run"),),
    "chakra replay": (("chakra", "export", "gpt2-ddp8", "--out", "runs/chakra"),),
}
"""What must have been called so that the files of an example are there."""
LONG = {"chakra export", "chakra replay", "explain", "jobs"}
"""Examples that run untraced where coverage is measured."""


def words(verb: str) -> list[str]:
    """The example's words behind `steptwin`, without where a shell sends what is printed."""
    return shlex.split(EXAMPLES[verb].partition(" > ")[0])


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 20 and set(EXAMPLES) > READ


@pytest.mark.parametrize("verb", EXAMPLES)
def test_an_example_is_read_as_it_stands(verb: str) -> None:
    given = words(verb)[len(verb.split()) :]
    assert " ".join(words(verb)).startswith(verb)
    found = EVERY[verb].make_context(verb, list(given)).params
    if verb in READ & {"twin", "run"}:
        assert steptwin.plan(found["plan"]).world >= 1


@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=[pytest.mark.no_cover] * (verb in LONG)) for verb in sorted(set(EXAMPLES) - READ)]
)
def test_an_example_runs(verb: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def smaller(plan: Any, space: dict[str, tuple[str, ...]], *rest: Any, **options: Any) -> Any:
        return sweep(
            plan,
            {key: values[-1:] if key in ("zero", "recompute", "tp") else values[:1] for key, values in space.items()},
            *rest,
            **options,
        )

    monkeypatch.setattr("sim.planning.sweeps.sweep.sweep", smaller)
    (tmp_path / "my-plan.toml").write_text(GPT2)
    (tmp_path / "topo.xml").write_text(DUMP)
    for first in BEFORE.get(verb, ()):
        assert call(*first).code == 0
    if verb == "compare":
        (tmp_path / "run" / "predicted.json.gz").rename(tmp_path / "trace.json.gz")
    given, small = words(verb), SMALLER.get(verb, ())
    for option in set(given) & {word for word in small if word.startswith("--")}:  # is given once
        del given[given.index(option) : given.index(option) + 2]
    said = call(*given, *small)
    assert said.code == 0, said.err


def test_a_schema_is_found_by_the_words_that_a_refusal_lists(call: Call) -> None:
    for listed in ("collective --calibrate", "validate --collectives", "chakra replay"):
        assert call("schema", *listed.split()).json["title"] == f"steptwin {listed} --json"
    assert call("schema", "collective", "--calibrat").code == 2


def test_faults_that_help_and_refusal_name_are_there() -> None:
    help_ = next(param.help for param in EVERY["faults"].params if param.name == "fault")
    with pytest.raises(BadInput) as refused:
        faults._read("nonsense")
    named = re.findall(r"(?:fail|slow|flap)=[\w:/.-]+", f"{help_} {refused.value}")
    assert len(named) >= 8
    for one in named:
        edit, _ = faults._read(one.rstrip("."))
        steptwin.topology("2x dgx-h100", edit)


def test_failures_that_help_names_are_there() -> None:
    help_ = next(param.help for param in EVERY["predict"].params if "--fail" in param.opts)
    named = [word.strip() for word in help_.partition(": ")[2].split(",")]
    assert len(named) >= 4
    for one in named:
        steptwin.topology("2x dgx-h100", f"fail={one}")


def test_files_may_begin_with_a_byte_order_mark(call: Call, tmp_path: Path) -> None:
    for name, text in {"marked.toml": GPT2, "machine.toml": 'base = "dgx-h100"\n'}.items():
        (tmp_path / name).write_text(text, "utf-8-sig")
    said = call("predict", "marked.toml", "--on", "machine.toml", "--json")
    assert said.code == 0 and said.json["step_time_s"] == call("predict", "plan.toml", "--json").json["step_time_s"]
