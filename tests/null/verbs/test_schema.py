"""What the verbs print is what is published."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sim.schema import FORMS, check, schema
from tests.null.verbs.test_verbs import Call, call
from topologies.errors import BadInput, UnknownName

__all__ = ["call"]
CALLS = {
    "predict": ("predict", "plan.toml"),
    "collective": ("collective", "all_gather", "--bytes", "64 KiB"),
    "validate": ("validate", "--limit", "3", "--workers", "1"),
    "sweep": ("sweep", "plan.toml", "tp=1,2", "--workers", "1"),
    "capacity": ("capacity", "plan.toml", "--tokens", "1e9"),
    "plan list": ("plan", "list"),
    "topology list": ("topology", "list"),
}


def test_every_form_is_tested() -> None:
    assert set(CALLS) == set(FORMS)


@pytest.mark.parametrize("verb", CALLS)
def test_outputs_are_as_published(verb: str, call: Call) -> None:
    said = call(*CALLS[verb], "--json")
    assert said.code == 0
    check(verb, said.out)


def test_a_model_without_sequences_counts_samples(call: Call) -> None:
    said = call("predict", "plan.toml", "--set", "model=resnet50", "--set", "parallel.zero=0", "--set", "seq_len=1", "--json")
    check("predict", said.out)
    assert "samples_per_s_per_gpu" in said.json and "tokens_per_s" not in said.json


def _refs(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if "$ref" in value else set()
        return own.union(*map(_refs, value.values()))
    return set().union(*map(_refs, value)) if isinstance(value, list) else set()


@pytest.mark.parametrize("verb", FORMS)
def test_a_schema_is_whole_json(verb: str) -> None:
    found = schema(verb)
    assert json.loads(json.dumps(found)) == found
    names = {f"#/$defs/{name}" for name in found["$defs"]}
    assert _refs(found) <= names
    assert all(one.get("description") for one in found["$defs"].values())


@pytest.mark.parametrize(
    ("change", "told"),
    [({"step_time_s": "1"}, "step_time_s"), ({"fits": None}, "fits"), ({"mark": "sure"}, "mark"), ({"gpus": 1.5}, "gpus")],
)
def test_what_is_not_as_published_is_found(change: dict[str, Any], told: str, call: Call) -> None:
    good = call("predict", "plan.toml", "--json").json
    with pytest.raises(BadInput, match=told):
        check("predict", json.dumps(good | change))
    del good["breakdown"]
    with pytest.raises(BadInput, match="breakdown"):
        check("predict", json.dumps(good))


def test_verbs_without_a_form() -> None:
    for function in (schema, lambda verb: check(verb, "{}")):
        with pytest.raises(UnknownName, match="predict"):
            function("predct")
