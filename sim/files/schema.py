"""The published form of what the verbs print with `--json`, as JSON Schema (draft 2020-12).

A verb may print more keys than stand here; those that stand here stay, with their meaning and unit: `_s` seconds, `_bytes`
bytes, `_per_s` per second.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sim.files.forms import accuracy, exchange, listing, measuring, planning, prediction
from sim.files.forms.planform import PlanFile
from topologies.errors import BadInput, UnknownName

FORMS: dict[str, Any] = {
    "predict": prediction.Predict,
    "compare": measuring.Compare,
    "twin": measuring.Twin,
    "run": measuring.Run,
    "here": measuring.Here,
    "here --gpu": measuring.HereGpu,
    "probe": measuring.Probe,
    "doctor": measuring.Doctor,
    "study": prediction.Study,
    "spread": prediction.Spread,
    "explain": planning.Explain,
    "sweep": planning.Sweep,
    "capacity": planning.Capacity,
    "faults": planning.Faults,
    "jobs": planning.Jobs,
    "collective": accuracy.Collective,
    "collective --calibrate": accuracy.CalibrateCollective,
    "validate": accuracy.Validate,
    "validate --collectives": accuracy.ValidateCollectives,
    "accuracy": accuracy.Tables,
    "plan list": listing.Catalog,
    "plan show": PlanFile,
    "topology list": listing.Machines,
    "topology show": listing.Machine,
    "chakra export": exchange.Exported,
    "chakra replay": exchange.Replay,
}
"""Verb -> the form of its JSON."""


def schema(verb: str) -> dict[str, Any]:
    """The JSON Schema of a verb's output. Raises `UnknownName` for a verb without a published form."""
    if verb not in FORMS:
        raise UnknownName("verb", verb, FORMS)
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(FORMS[verb])))  # defaults that are tuples too
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"steptwin {verb} --json", **found}


def check(verb: str, text: str | bytes) -> None:
    """Raises `BadInput` with the path where a verb's output is not as published."""
    if verb not in FORMS:
        raise UnknownName("verb", verb, FORMS)
    try:
        msgspec.json.decode(text, type=FORMS[verb])
    except msgspec.MsgspecError as error:
        raise BadInput(f"the output of {verb} is not as published: {error}") from None
