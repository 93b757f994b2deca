"""A plan with every default filled in: as values in the file's form, and as a plan file to start from."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from sim.files.planfile import SIZES, TIMES, toml_value
from sim.framework.chosen import framework_of, sharding_of
from sim.framework.framework import Framework
from sim.model import ModelSpec
from sim.plan import Plan
from sim.setting.bind import attention_of, model_of, usual_length
from sim.wrongvalue import options
from topologies.errors import SteptwinError

_BYTES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_SECONDS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))


_READ = ("parallel.schedule", "csv")
"""What a schedule's file becomes when it is read; nobody writes it."""


def full_tree(plan: Plan) -> dict[str, Any]:
    """Every key of the plan in the file's form, quantities with units: `load_plan` of it gives the same plan. What the framework or the model
    decides is None."""
    tree: dict[str, Any] = msgspec.to_builtins(plan)
    for paths, said in ((SIZES, said_size), (TIMES, said_time)):
        for path in paths:
            section, key = path.split(".")
            if tree[section][key] is not None:
                tree[section][key] = said(tree[section][key])
    return tree


def said_size(count: int) -> str:
    """Bytes with the largest unit that divides them: `26214400` -> `"25 MiB"`. Exact."""
    unit, size = next(((unit, size) for unit, size in _BYTES if count and count % size == 0), ("B", 1))
    return f"{count // size} {unit}"


def said_time(seconds: float) -> str:
    """Seconds with a unit that makes them one or more: `0.002` -> `"2 ms"`. Exact."""
    if not seconds:
        return "0 s"
    for unit, scale in _SECONDS:
        text = f"{seconds / scale:.12g}"
        if seconds >= scale and float(text) * scale == seconds:
            return f"{text} {unit}"
    return f"{seconds!r} s"


def full_plan(plan: Plan) -> str:
    """A plan file with every key, and beside it which words are allowed; what is left open stands in a comment with what it comes to.
    `load_plan` of the text gives the same plan."""
    tree, open_ = full_tree(plan), _unsaid(plan)
    lines = [line for key, value in tree.items() if not isinstance(value, dict) for line in _line(Plan, key, key, value, open_)]
    hints = typing.get_type_hints(Plan)
    for section, values in tree.items():
        if isinstance(values, dict):
            path = f"{section}."
            lines += ["", f"[{section}]"]
            lines += [line for key, value in values.items() for line in _line(hints[section], path + key, key, value, open_)]
    return "\n".join(lines) + "\n"


def _line(struct: Any, path: str, key: str, value: Any, open_: dict[str, tuple[Any, str]]) -> Iterator[str]:
    """`key = value  # what is allowed`, or the comment for a key that is left open. A table of one's own ([model]) has no words to allow."""
    own = isinstance(struct, type) and issubclass(struct, msgspec.Struct)
    words = " ".join(str(word) for word in (_allowed(struct, key) if own else ()) if (path, word) != _READ)
    if value is not None:
        yield f"{key} = {toml_value(value)}" + (f"  # {words}" if words else "")
    elif path in open_:
        found, why = open_[path]
        said = f"{key} = {toml_value(found)}  # not set: {why}" if found is not None else f"{key}: not set, {why}"
        yield f"# {said}" + (f" ({words})" if words else "")


def _allowed(struct: type[msgspec.Struct], key: str) -> tuple[str | int, ...]:
    """The words (or levels) that a key may have; () where they are not a few."""
    names = dict(zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True))
    return options(typing.get_type_hints(struct)[names[key]])


def _unsaid(plan: Plan) -> dict[str, tuple[Any, str]]:
    """Keys that may be left open: what each comes to here (None where that is no value of one key), and why."""
    framework, p, model = framework_of(plan), plan.parallel, _model(plan)
    zero, _ = sharding_of(plan, framework)
    habit = f"{plan.framework_name}'s default"
    return {
        "seq_len": (model and usual_length(model), "the model's usual length, where it reads sequences"),
        "attention": (model and attention_of(framework, model), habit),
        "compile": (framework.compile, habit),
        "cuda_graphs": (framework.cuda_graphs, habit),
        "batch.global": (plan.global_batch, "micro x dp_replicate x dp_shard"),
        "parallel.zero": (zero, habit if p.dp_shard > 1 else "dp_shard = 1: nothing is split"),
        "parallel.tp_overlap": (framework.tensor_parallel.overlap, habit),
        "parallel.stages": (None, "layers are shared out evenly; [9, 8, 8, 7] says how many each stage has"),
        "parallel.cp_ulysses": (p.ulysses, "cp with all_to_all, else 1"),
        "parallel.etp": (p.expert_tp, "1 with ep > 1, else tp"),
        "optimizer.implementation": (framework.optimizer.implementation, habit),
        "optimizer.states": (None, "moments are kept in what they update"),
        "optimizer.clip": (framework.optimizer.clip, habit),
        "comm.bucket": (None, _buckets(framework)),
        "comm.reduce_dtype": (framework.precision.reduce_dtype, habit),
    }


def _buckets(framework: Framework) -> str:
    """How gradients are cut where the plan does not say it: no one size is the same as torch's rule, whose first bucket is smaller."""
    if framework.data_parallel.bucket:
        return f"{framework.name}'s {framework.data_parallel.bucket} MiB"
    if framework.linears.accumulates:
        return "Megatron's 40 million elements, or a million for each data-parallel rank where that is more"
    return "DDP's 25 MiB, and 1 MiB for the first"


def _model(plan: Plan) -> ModelSpec | None:
    """None for a model whose file is not here: a plan can be shown without it."""
    try:
        return model_of(plan)
    except SteptwinError:
        return None
