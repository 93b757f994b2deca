"""The help of every verb: each option is explained, the same option means the same everywhere, and verbs that run something show an example."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

import steptwin
from tests.null.verbs.test_verbs import Call, call

__all__ = ["call"]
SAME = ("--json", "--on", "--report", "--fail", "--without", "--workers", "--prices")
"""Options that mean one thing wherever they stand."""


def verbs(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """(words, command) of every verb below a click group."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from verbs(command, f"{before}{name} ")
        else:
            yield before + name, command


EVERY = dict(verbs(typer.main.get_command(steptwin._app())))


def test_the_names_that_collective_offers_are_those_that_it_knows() -> None:
    from sim.cost.collective.nccl import ALGORITHMS, NAMES

    said = {param.name: param.help for param in EVERY["collective"].params}
    assert set(said["name"].split()) == {*NAMES, "send"} and tuple(said["algorithm"].split()) == ALGORITHMS


@pytest.mark.parametrize("verb", EVERY)
def test_every_word_of_a_verb_is_explained(verb: str) -> None:
    command = EVERY[verb]
    assert command.help
    silent = [param.name for param in command.params if not param.help and param.name != "help"]
    assert not silent
    assert not any(param.secondary_opts for param in command.params), "--no-x: none of the flags is on by itself"
    if any(param.required for param in command.params):
        assert "Example: steptwin " in command.help


@pytest.mark.parametrize("option", SAME)
def test_an_option_means_the_same_everywhere(option: str) -> None:
    said = {param.help for command in EVERY.values() for param in command.params if option in param.opts}
    assert len(said) == 1


def test_set_names_what_a_verb_takes() -> None:
    said = {verb: param.help for verb, command in EVERY.items() for param in command.params if "--set" in param.opts}
    assert "of the machine" not in said["run"] + said["twin"] + said["plan show"]
    assert "of the plan" not in said["topology show"] + said["collective"] + said["chakra replay"]
    assert "of the plan" in said["predict"] and "of the machine" in said["predict"]


def test_help_names_the_exit_codes(call: Call) -> None:
    said = call("--help")
    assert said.code == 0 and "0 done, 2 bad input, 3 does not fit into memory, 4 a run failed" in " ".join(said.out.split())


def test_a_schema_is_found_by_the_words_of_its_verb(call: Call) -> None:
    assert call("schema", "plan", "list").json["title"] == "steptwin plan list --json"
    refused = call("schema", "plan", "lst")
    assert refused.code == 2 and "plan list" in refused.err


@pytest.mark.no_cover
def test_a_comparison_takes_what_a_prediction_takes(call: Call) -> None:
    said = call("predict", "plan.toml", "--out", "run")
    assert said.code == 0
    words = ("compare", "plan.toml", "--measured", "run/predicted.json.gz", "--json")
    same, slower = call(*words), call(*words, "--without", "nvswitch")
    assert slower.json["prediction"]["step_time_s"] > same.json["prediction"]["step_time_s"]
    refused = call(*words, "--calibration", "missing.toml")
    assert refused.code == 2 and "missing.toml" in refused.err


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("steptwin pred", {"predict"}),
        ("steptwin predict llama3-8b", {"llama3-8b-fsdp8"}),
        ("steptwin capacity gpt2-ddp8 --on dgx-h", {"dgx-h100", "dgx-h200"}),
        ("steptwin run my-", set()),
    ],
)
def test_a_shell_completes_verbs_plans_and_machines(
    words: str, offered: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing offered: the shell goes on with files."""
    for name, value in (("_STEPTWIN_COMPLETE", "complete_bash"), ("COMP_WORDS", words), ("COMP_CWORD", str(len(words.split()) - 1))):
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        steptwin._app()(prog_name="steptwin")
    assert set(capsys.readouterr().out.split()) == offered
