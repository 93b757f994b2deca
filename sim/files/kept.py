"""A plan as the folder of a run keeps it: it can be run again from any place."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from sim.model.captured import Captured
from sim.model.load import model_from
from sim.plan import Plan


def kept(plan: Plan) -> Plan:
    """Where the plan's model is a file, what that holds stands in its place; a captured model is too long for that: its full path."""
    named = plan.model if isinstance(plan.model, str) else plan.model.get("base")
    if not isinstance(named, str) or not os.path.exists(named):
        return plan
    spec = model_from(plan.model)
    model = os.path.abspath(named) if isinstance(spec, Captured) else _said(msgspec.to_builtins(spec))
    return msgspec.structs.replace(plan, model=model)


def _said(tree: dict[str, Any]) -> dict[str, Any]:
    """Without fields that are None, which no TOML file can say."""
    return {key: _said(value) if isinstance(value, dict) else value for key, value in tree.items() if value is not None}
