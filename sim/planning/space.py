"""Spaces of plans: a short expression, or all sensible plans for a model and a number of GPUs.

`tp=1,2,4 pp=1..16 zero=1,3 micro=1,2 gpus=64,128 on=dgx-h100,dgx-b200`: values by comma, `a..b` doubles from a to b,
`a..b:s` goes in steps of s. `gpus` fills data parallelism with what the other axes leave. Any other key is a
dotted path of the plan (`memory.recompute=none,full`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from sim.files.planfile import load_plan
from sim.plan import Plan
from topologies.errors import BadInput, SteptwinError, UnknownName

SHORT = {
    "tp": "parallel.tp",
    "pp": "parallel.pp",
    "cp": "parallel.cp",
    "ep": "parallel.ep",
    "zero": "parallel.zero",
    "dp_shard": "parallel.dp_shard",
    "dp_replicate": "parallel.dp_replicate",
    "schedule": "parallel.schedule",
    "virtual_stages": "parallel.virtual_stages",
    "micro": "batch.micro",
    "global": "batch.global",
    "recompute": "memory.recompute",
    "precision": "precision",
    "seq_len": "seq_len",
    "framework": "framework",
}
_LARGEST = 10_000_000


class Candidate(msgspec.Struct, frozen=True):
    """One point of a space: overrides of the base plan, and the machine. `key` names it in a results file."""

    overrides: tuple[str, ...]
    on: str

    @property
    def key(self) -> str:
        return f"{' '.join(self.overrides)} on={self.on}"


def parse_space(text: str) -> dict[str, tuple[str, ...]]:
    """Values by key, in the order written. Raises `BadInput` for what cannot be read, or an empty space."""
    space: dict[str, tuple[str, ...]] = {}
    for word in _words(text):
        key, equals, values = word.partition("=")
        if not equals or not key or not values:
            raise BadInput(f"cannot read '{word}' in the space: write key=value,value e.g. tp=1,2,4 pp=1..8")
        if key in space:
            raise BadInput(f"the space names '{key}' twice; write all its values once, by comma")
        if key not in SHORT and key not in ("gpus", "on") and "." not in key:
            raise UnknownName("key", key, [*SHORT, "gpus", "on"], "the space")
        space[key] = tuple(value for item in values.split(",") for value in _values(item, word))
    if not space:
        raise BadInput("the space is empty: name at least one key, e.g. tp=1,2,4")
    return space


def _words(text: str) -> list[str]:
    """Splits at blanks, but keeps a count with its machine together: `on=16x dgx-h100`."""
    words: list[str] = []
    for word in text.split():
        if "=" in word or not words:
            words.append(word)
        else:
            words[-1] += f" {word}"
    return words


def _values(item: str, word: str) -> Iterator[str]:
    first, dots, rest = item.partition("..")
    if not dots:
        if not item.strip():
            raise BadInput(f"'{word}' has an empty value")
        yield item.strip()
        return
    last, _, step = rest.partition(":")
    try:
        low, high, by = int(first), int(last), int(step) if step else 0
    except ValueError:
        raise BadInput(f"cannot read the range '{item}' in '{word}': write 1..16 (doubling) or 1..16:3 (steps of 3)") from None
    if low < 1 or high < low or by < 0:
        raise BadInput(f"the range '{item}' in '{word}' is empty: the first number must be at least 1 and at most the last")
    while low <= high:
        yield str(low)
        low = low + by if by else low * 2


def size_of(space: dict[str, tuple[str, ...]]) -> int:
    """Points before any is dropped."""
    count = 1
    for values in space.values():
        count *= len(values)
    if count > _LARGEST:
        raise BadInput(f"the space has {count:,} points, at most {_LARGEST:,} are enumerated: narrow it")
    return count


class TooLarge(NamedTuple):
    """A point whose parameters, gradients and optimizer state alone are over the device's memory."""

    needed: int


Reject = Callable[[Mapping[str, str], str], int]
"""(values by key, machine) -> bytes that are surely too many, else 0."""


def candidates(
    base: Plan, space: dict[str, tuple[str, ...]], on: str, skip: Container[str] = (), reject: Reject | None = None
) -> Iterator[tuple[Candidate, Plan | TooLarge | str]]:
    """Every point with its plan, or the reason why it is none. Points whose key is in `skip` are passed over, and those that mean the
    same plan as one before."""
    size_of(space)
    seen: set[tuple[str, ...]] = set()
    for values in itertools.product(*space.values()):
        at = dict(zip(space, values, strict=True))
        machine = at.pop("on", on)
        candidate = point(at, machine)
        same = (machine, *_meaning(base, at).values())
        if same in seen:
            continue
        needed = reject(at, machine) if reject else 0
        found = TooLarge(needed) if needed else plan_at(base, candidate, at.get("gpus", ""))
        if not isinstance(found, str):
            seen.add(same)
        if candidate.key not in skip:
            yield candidate, found


def _meaning(base: Plan, at: Mapping[str, str]) -> dict[str, str]:
    """The point's values, with one value for all that mean the same: schedules and chunks without a pipeline, interleaving with one chunk
    a rank, chunks of a schedule that has but one, sharding among nobody."""
    p = base.parallel
    found = {SHORT.get(key, key): value for key, value in at.items()}
    pp, chunks = found.get("parallel.pp", str(p.pp)), found.get("parallel.virtual_stages", str(p.virtual_stages))
    if pp == "1":
        found |= {key: "" for key in ("parallel.schedule", "parallel.virtual_stages") if key in found}
    elif chunks == "1" and found.get("parallel.schedule") == "interleaved":
        found["parallel.schedule"] = "1f1b"
    elif found.get("parallel.schedule", p.schedule) != "interleaved" and "parallel.virtual_stages" in found:
        found["parallel.virtual_stages"] = "1"
    inner = [found.get(key, str(size)) for key, size in (("parallel.tp", p.tp), ("parallel.pp", p.pp), ("parallel.cp", p.cp))]
    if "parallel.zero" in found and "gpus" in found and all(n.isdigit() for n in (*inner, found["gpus"])):
        alone = int(found["gpus"]) == int(inner[0]) * int(inner[1]) and inner[2] == "1"
        found["parallel.zero"] = "0" if alone else found["parallel.zero"]
    return found


def point(at: Mapping[str, str], on: str) -> Candidate:
    """Values by key as overrides of a plan."""
    overrides = tuple(f"{SHORT.get(key, key)}={value}" for key, value in at.items() if key != "gpus")
    return Candidate(overrides + ((f"gpus={at['gpus']}",) if at.get("gpus") else ()), on)


def named(base: Plan, key: str) -> tuple[Candidate, Plan | str]:
    """The point that a results file names, with its plan."""
    words, _, on = f" {key}".rpartition(" on=")
    overrides = tuple(words.split())
    last = overrides[-1] if overrides else ""
    candidate = Candidate(overrides, on)
    return candidate, plan_at(base, candidate, last.removeprefix("gpus=") if last.startswith("gpus=") else "")


def plan_at(base: Plan, candidate: Candidate, gpus: str) -> Plan | str:
    """The point's plan: overrides, then data parallelism from what `gpus` leaves. A text says why there is none."""
    overrides = candidate.overrides[:-1] if gpus else candidate.overrides
    try:
        return _split(base, overrides, int(gpus)) if gpus else load_plan(base, overrides)
    except SteptwinError as error:
        return str(error)
    except ValueError:
        return f"gpus = {gpus} is no whole number"


def _split(base: Plan, overrides: tuple[str, ...], gpus: int) -> Plan:
    one = msgspec.structs.replace(base.parallel, dp_shard=1, dp_replicate=1, ep=1)
    # Without data parallelism any global batch divides: the axes alone are read first.
    axes = tuple(o for o in overrides if not o.startswith(("parallel.ep", "batch.")))
    free = msgspec.structs.replace(base, parallel=one, batch=msgspec.structs.replace(base.batch, micro=1))
    parallel = load_plan(free, (*axes, "parallel.schedule=gpipe", "parallel.virtual_stages=1")).parallel
    inner = parallel.tp * parallel.pp * parallel.cp
    if gpus % inner:
        raise BadInput(f"gpus = {gpus} is no multiple of tp x pp x cp = {inner}")
    axis = "dp_replicate" if parallel.zero == 0 else "dp_shard"
    whole = msgspec.structs.replace(base, parallel=msgspec.structs.replace(base.parallel, dp_shard=1, dp_replicate=1))
    return load_plan(whole, (f"parallel.{axis}={gpus // inner}", *overrides))


def auto_space(plan: Plan, on: str, gpus: int) -> dict[str, tuple[str, ...]]:
    """All sensible plans for the plan's model on so many GPUs: tp inside a node, pp that divides the layers, ...

    Raises `BadInput` where the model has no layers to split (CNNs, captured modules).
    """
    from sim.bind import model_of
    from topologies.load import load_topology

    model, machine = model_of(plan), load_topology(on)
    layers, heads = getattr(model, "layers", 0), getattr(model, "heads", 0)
    if not layers or not heads:
        raise BadInput(f"--auto knows how to split transformers; {plan.model_name} is none. Write the space, e.g. zero=0,1,3 micro=1..16")
    if not 1 <= gpus <= machine.gpus:
        raise BadInput(f"--auto {gpus}: {machine.name} has 1 to {machine.gpus} GPUs")
    experts = getattr(getattr(model, "moe", None), "experts", 0) or 0
    return sensible(layers, heads, gpus, machine.ranks_per_node, experts, long=(plan.seq_len or 0) >= 32_768)


def sensible(model_layers: int, heads: int, gpus: int, per_node: int, experts: int = 0, long: bool = False) -> dict[str, tuple[str, ...]]:
    """All plans that people would try for a model on so many GPUs: tp inside a node, pp that divides the layers, ..."""

    def divisors(limit: int, of: int) -> tuple[str, ...]:
        return tuple(str(n) for n in range(1, limit + 1) if of % n == 0 and gpus % n == 0)

    powers = tuple(str(2**i) for i in range(4))
    space: dict[str, tuple[str, ...]] = {
        "gpus": (str(gpus),),
        "tp": tuple(t for t in divisors(min(per_node, heads), heads) if int(t) & (int(t) - 1) == 0),
        "pp": tuple(p for p in divisors(min(model_layers, 64), model_layers)),
        "zero": ("1", "3"),
        "micro": powers,
        "recompute": ("none", "selective", "full"),
        "schedule": ("1f1b", "interleaved"),
        "virtual_stages": ("1", "2", "4"),
    }
    if experts:
        space["ep"] = tuple(str(2**i) for i in range(8) if experts % 2**i == 0)
    if long:
        space["cp"] = ("1", "2", "4", "8")
    return space


def base_tree(plan: Plan) -> dict[str, Any]:
    """The base plan as plain values, for a results file's header."""
    found: dict[str, Any] = msgspec.to_builtins(plan)
    return found
