"""What the command line says of a sweep."""

from __future__ import annotations

import shlex
from collections.abc import Container, Mapping
from typing import Any

from sim.files.planfile import load_plan
from sim.plan import Plan
from sim.planning.sweeps.space import named, settings_of
from sim.planning.sweeps.store import Row
from sim.planning.sweeps.sweep import Sweep
from sim.planning.sweeps.tables import MOST, said_row, split_of, unit_of
from sim.result.idle import untouched
from sim.setting.bind import bind
from topologies.edits import is_edit
from topologies.errors import BadInput
from topologies.unfelt import unfelt
from topologies.verbs import Desk


def batch(base: Plan, space: Mapping[str, tuple[str, ...]], found: Sweep) -> dict[str, str]:
    """The global batch that all sensible plans had, where the space says none: it bounds data parallelism, and what fills a pipeline."""
    assert found.best is not None
    if "auto" not in space or "global" in space or "batch.global" in space:
        return {}
    if not base.batch.global_:
        return {"batch": "micro x data-parallel ranks, without accumulation; another: --set batch.global=1024"}
    tokens = f" ({base.batch.global_ * found.best.seq:,} tokens)" if found.best.seq > 1 else ""
    return {"batch": f"{base.batch.global_:,} samples{tokens} a step, as the plan says; another: --set batch.global=1024"}


def changes(space: Mapping[str, tuple[str, ...]], prices: Container[str] | None) -> list[str]:
    """What the space changes about machines, key by key; a key that the prices know has said what each of its values costs."""
    each = [[f"{key}={value}" for value in values] for key, values in space.items() if is_edit(key)]
    return [edit for edits in each if prices is not None and not any(edit in prices for edit in edits) for edit in edits]


def tell(desk: Desk, found: Sweep, edits: tuple[str, ...], more: dict[str, str], again: list[str], as_json: bool) -> None:
    """The best plans, what became of the others, points that are none, and the calls that predict the best and, where that is nearly full,
    the best with room (`again`; empty: none)."""
    refusals = [{"plans": count, "such_as": reason} for count, reason in found.refusals]
    told: dict[str, Any] = {"counts": found.counts, "best": found.best.key if found.best else "", "file": found.path}
    if as_json:
        told |= {
            "again": again[0],
            "roomy": found.roomy.key if found.roomy else "",
            "roomy_again": again[1],
            "alike": found.alike,
            "front": [said_row(row) for row in found.front],
            "refusals": refusals,
        }
        told |= {"rows": [said_row(row) for row in found.ranked], "by_machine": [said_row(row) for row in found.by_machine]}
        desk.show(told, True, "sweep")
        return
    told = {"machine changed by": ", ".join(edits)} | told if edits else told
    told |= faster(found) | ({"best with room in memory": found.roomy.key} if found.roomy else {})
    told |= {"alike": f"{found.alike:,} more points mean the same plan as one of these"} if found.alike else {}
    desk.show(_few(found) | more | told, False, "sweep")
    if len(found.by_machine) > 1:
        desk.show({"rows": _machines(found)}, False, "the best on each machine")
    for text in unfelt_by_all(found, edits):
        desk.say(f"warning: {text}")
    if refusals:
        desk.show({"rows": refusals[:3]}, False, "points that are no plan")
    full = ", nearly full" if found.best and found.best.nearly_full else ""
    for what, call in zip((f"the best plan{full}", "the best with room in memory"), again, strict=True):
        if call:
            desk.say(f"{what}: {call}")


def faster(found: Sweep) -> dict[str, str]:
    """The plan that trains fastest, where more GPUs make it another than the best."""
    fast = max(found.ranked, key=lambda row: (row.rate or 0.0) * (row.flops or 1.0), default=None)
    if fast is None or fast is found.best:
        return {}
    worth = "model FLOPs for their money" if fast.cost else "model FLOPs per second and GPU"
    return {"best by": worth, "fastest": fast.key}


def unfelt_by_all(found: Sweep, edits: tuple[str, ...]) -> list[str]:
    """A sentence for each what-if, of all machines or a key of the space, that no machine's best plan feels."""
    told: dict[str, str] = {}
    values: dict[str, dict[str, None]] = {}
    felt: set[str] = set()
    for row in found.by_machine:
        setting = bind(found.plan(row), row.on, (*edits, *row.edits))
        texts = {
            text.partition(" has no effect: ")[0]: text for text in (*untouched(setting), *unfelt(setting.topology, setting.plan.world))
        }
        for edit in setting.topology.cluster.edits:
            key, _, value = edit.partition("=")
            felt |= set() if edit in texts else {key}
            told.setdefault(key, texts.get(edit, "").removeprefix(edit))
            values.setdefault(key, {})[value] = None
    return [f"{key}={','.join(values[key])}{text}" for key, text in told.items() if key not in felt]


def again_by(source: str, overrides: tuple[str, ...], edits: tuple[str, ...], found: Sweep, row: Row | None) -> str:
    """The call that predicts the plan of a row, with what `gpus` left to data parallelism; empty where keys alone do not make it of `source`, or there is no row."""
    if row is None or found.base is None:
        return ""
    made, varied = found.plan(row), settings_of(row.key)
    words = [*overrides, *(word for word in named(found.base, row.key)[0].overrides if not word.startswith("gpus="))]
    if "gpus" in varied:
        words += [
            f"parallel.{axis}={getattr(made.parallel, axis)}" for axis in ("dp_replicate", "dp_shard") if f"parallel.{axis}" not in varied
        ]
    try:
        same = load_plan(source, tuple(words)) == made
    except BadInput:
        return ""
    sets = [word for one in (*words, *edits, *row.edits) for word in ("--set", one)]
    return shlex.join(["steptwin", "predict", source, "--on", row.on, *sets]) if same else ""


def _few(found: Sweep) -> dict[str, Any]:
    """Plans that fit, the best first: a few for a terminal, which says so."""
    columns = {"key": "key", "step_time_s": "step_time_s", "mfu": "mfu", "memory": "memory", "gpus": "gpus"} | _cost(found)
    rows = found.ranked
    shown = {"rows": [{name: said[at] for name, at in columns.items()} for said in map(_said, rows[:MOST])]}
    return shown | ({"shown": f"the best {MOST} of {len(rows):,} simulated; --json and the file have all"} if len(rows) > MOST else {})


def _said(row: Row) -> dict[str, Any]:
    """A row with its memory in words."""
    return said_row(row) | {"memory": f"{row.fill}"}


def _machines(found: Sweep) -> list[dict[str, Any]]:
    """The best plan of each machine and number of GPUs, the best first."""
    columns = {"gpus": "gpus", "step_time_s": "step_time_s", "samples/s": "samples_per_s", "mfu": "mfu", "memory": "memory"} | _cost(found)
    rows = [(row, _said(row)) for row in found.by_machine]
    return [{"machine": row.machine, "plan": split_of(row)} | {name: said[at] for name, at in columns.items()} for row, said in rows]


def _cost(found: Sweep) -> dict[str, str]:
    """The column of money, where prices are known."""
    return {f"cost/M {unit_of(found.ranked)}": "cost"} if any(row.cost is not None for row in found.ranked) else {}
