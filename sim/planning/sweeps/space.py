"""Spaces of plans by a short expression, and the plans that they hold.

`tp=1,2,4 pp=1..16 zero=1,3 micro=1,2 gpus=64,128 on=dgx-h100,dgx-b200`: values by comma, `a..b` doubles from a to b, `a..b:s` goes in steps
of s. `gpus` fills data parallelism with what the other axes leave (`dp_shard=rest,8`: all of it, or groups of 8). `schedule=1f1b,zb-v,mine.csv` takes names and files. Any other key is a
dotted path of the plan (`memory.recompute=none,full`), or what changes the machine (`oversubscription=1,2,4 nic.rate=200 Gbit/s,400 Gbit/s`:
`topologies.edits`). `auto=512` stands for all sensible plans on so many GPUs, beside which other keys may be said (`sim.planning.sweeps.auto`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from sim.files.keynames import unplaced
from sim.files.overrides import SHORT
from sim.files.planfile import load_plan, read_plan
from sim.framework.framework import load_framework
from sim.plan import Plan
from sim.sections import LOOPS
from topologies.edits import is_edit, keys
from topologies.errors import BadInput, SteptwinError, UnknownName
from topologies.load import load_topology

_LARGEST = 10_000_000
"""Most points that a space may have."""
_OWN = ("gpus", "on", "auto")
"""Keys of a space alone."""
REST = "rest"
"""Value of a data-parallel axis beside `gpus`: all ranks that the other axes leave. It is also the default."""


class Candidate(msgspec.Struct, frozen=True):
    """One point of a space: overrides of the base plan, and the machine with what is changed about it. `key` names it in a results file."""

    overrides: tuple[str, ...]
    on: str
    edits: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"{' '.join((*self.overrides, *self.edits))} on={self.on}"


def parse_space(written: str | Mapping[str, Iterable[Any]]) -> dict[str, tuple[str, ...]]:
    """Values by key, in the order written: `"tp=1,2"`, or from a script `{"tp": [1, 2]}`.

    Raises `BadInput` for what cannot be read, or an empty space.
    """
    text = " ".join(f"{key}={_listed(values)}" for key, values in written.items()) if isinstance(written, Mapping) else written
    if not isinstance(text, str):
        raise BadInput(f'a space is a text ("tp=1,2,4 pp=1..8") or values by key ({{"tp": [1, 2, 4]}}), not {type(written).__name__}')
    space: dict[str, tuple[str, ...]] = {}
    for word in _words(text):
        key, equals, values = word.partition("=")
        if not equals or not key or not values:
            raise BadInput(f"cannot read '{word}' in the space: write key=value,value e.g. tp=1,2,4 pp=1..8")
        if any(_full(key) == _full(known) for known in space):
            raise BadInput(f"the space names '{key}' twice; write all its values once, by comma")
        if key == "nodes":
            raise BadInput("a space has no nodes: say gpus=16,32 (the first ones of the machine), or machines: on=2x dgx-h100,4x dgx-h100")
        if key not in SHORT and key not in _OWN and "." not in key and not is_edit(key):
            raise unplaced(key, "the space") or UnknownName("key", key, [*SHORT, *_OWN, *keys()], "the space")
        space[key] = tuple(value for item in values.split(",") for value in _values(item, word))
    if not space:
        raise BadInput("the space is empty: name at least one key, e.g. tp=1,2,4")
    return space


def _full(key: str) -> str:
    return SHORT.get(key, key).removeprefix("fabric.")


def _listed(values: Any) -> str:
    """The values of one key as text; one value alone is a list of it."""
    several = [values] if isinstance(values, str) or not isinstance(values, Iterable) else values
    return ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in several)


def _words(text: str) -> list[str]:
    """Splits at blanks, but keeps a value together that has some: `on=16x dgx-h100`, `comm.bucket=25 MiB`."""
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


def check_values(base: Plan, space: dict[str, tuple[str, ...]], on: str, edits: tuple[str, ...] = ()) -> None:
    """Raises `BadInput` for a value that its key has not, whatever the others are: a slip, and no point that happens to be no plan. What fields of
    a model make together only its plans tell, and which of several machines has what is changed."""
    size_of(space)
    for key, value in ((key, value) for key, values in space.items() for value in values if key != "on"):
        if is_edit(key):
            _check_edit(f"{key}={value}", space.get("on", (on,)), edits)
            continue
        if key == "gpus":
            if not value.isdecimal() or int(value) < 1:
                raise BadInput(f"the space has gpus={value}: write whole numbers from 1, e.g. gpus=8,16")
            continue
        if value == REST and _full(key) in _DATA and "gpus" in space:
            continue
        try:
            load_framework(read_plan(base, (f"{key}={value}",)).framework)
        except BadInput as error:
            raise BadInput(f"the space has {key}={value}: {error}") from None


def _check_edit(edit: str, machines: tuple[str, ...], edits: tuple[str, ...]) -> None:
    """Raises `BadInput` where none of the machines can be changed so."""
    wrong: BadInput | None = None
    for machine in machines:
        try:
            load_topology(machine, (*edits, edit))
        except BadInput as error:
            wrong = error
        else:
            return
    raise BadInput(f"the space has {edit}: {wrong}") from None


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
"""(values by key, machine) -> bytes that are surely too many, else 0. Raises `BadInput`."""


def candidates(
    base: Plan,
    space: dict[str, tuple[str, ...]],
    on: str,
    skip: Container[str] = (),
    reject: Reject | None = None,
    each: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Candidate, Plan | TooLarge | str]]:
    """Every point with its plan, or the reason why it is none. Points whose key is in `skip` are passed over, and those that mean the
    same plan as one before. `each` is called for every point."""
    size_of(space)
    seen: set[tuple[str, ...]] = set()
    for values in itertools.product(*space.values()):
        each()
        at = dict(zip(space, values, strict=True))
        machine = at.pop("on", on)
        candidate = point(at, machine)
        same = (machine, *_meaning(base, at).values())
        if same in seen:
            continue
        found = looked_at(base, candidate, at, reject)
        if not isinstance(found, str):
            seen.add(same)
        if candidate.key not in skip:
            yield candidate, found


def looked_at(base: Plan, candidate: Candidate, at: Mapping[str, str], reject: Reject | None) -> Plan | TooLarge | str:
    """The point's plan, or the reason why it is none."""
    try:
        needed = reject(at, candidate.on) if reject else 0
    except BadInput as error:  # of several machines one has not what is changed
        return str(error)
    return TooLarge(needed) if needed else plan_at(base, candidate, at.get("gpus", ""))


def _meaning(base: Plan, at: Mapping[str, str]) -> dict[str, str]:
    """The point's values, with one value for all that mean the same: schedules and chunks without a pipeline, interleaving with one chunk
    a rank, chunks of a schedule that has but one, sharding among nobody."""
    p = base.parallel
    found = {SHORT.get(key, key): value for key, value in at.items()} | dict.fromkeys(idle(at), "")
    pp, chunks = found.get("parallel.pp", str(p.pp)), found.get("parallel.virtual_stages", str(p.virtual_stages))
    if pp == "1":
        found |= {key: "" for key in ("parallel.schedule", "parallel.virtual_stages") if key in found}
    elif chunks == "1" and found.get("parallel.schedule") == "interleaved":
        found["parallel.schedule"] = "1f1b"
    elif found.get("parallel.schedule", p.schedule) not in LOOPS and "parallel.virtual_stages" in found:
        found["parallel.virtual_stages"] = "1"
    inner = [found.get(key, str(size)) for key, size in (("parallel.tp", p.tp), ("parallel.pp", p.pp), ("parallel.cp", p.cp))]
    if "parallel.zero" in found and "gpus" in found and all(n.isdigit() for n in (*inner, found["gpus"])):
        alone = int(found["gpus"]) == int(inner[0]) * int(inner[1]) and inner[2] == "1"
        found["parallel.zero"] = "0" if alone else found["parallel.zero"]
    elif "parallel.zero" in found and "gpus" not in found and (found.get("parallel.dp_shard", str(p.dp_shard)), inner[2]) == ("1", "1"):
        found["parallel.zero"] = "0"
    if found.get("parallel.dp_shard", "").isdigit() and "gpus" in found and all(n.isdigit() for n in (*inner, found["gpus"])):
        whole = math.prod(map(int, (*inner, found["parallel.dp_shard"]))) == int(found["gpus"])
        found["parallel.dp_shard"] = "" if whole else found["parallel.dp_shard"]
    return found


def point(at: Mapping[str, str], on: str) -> Candidate:
    """Values by key as overrides of a plan, and of a machine."""
    gone = {"gpus", *idle(at)}
    overrides = tuple(f"{name}={value}" for key, value in at.items() if (name := SHORT.get(key, key)) not in gone and not is_edit(key))
    return Candidate(overrides + ((f"gpus={at['gpus']}",) if at.get("gpus") else ()), on, edits_of(at))


def idle(at: Mapping[str, str]) -> list[str]:
    """Keys of a point that say nothing beside its others: they are no part of its plan's name."""
    said = {SHORT.get(key, key): value for key, value in at.items()}
    found = [axis for axis in _DATA if said.get(axis) == REST]
    found += ["parallel.tp_overlap"] if said.get("parallel.tp") == "1" and "parallel.tp_overlap" in said else []
    kept = said.get("memory.recompute", "selective") != "selective" and "memory.recompute_modules" in said
    return found + (["memory.recompute_modules"] if kept else [])


def edits_of(at: Mapping[str, str]) -> tuple[str, ...]:
    """What values by key change about the machine: other GPUs first, as they come with figures of their own."""
    return tuple(f"{key}={at[key]}" for key in sorted(filter(is_edit, at), key=lambda key: key != "gpu"))


def settings_of(key: str) -> dict[str, str]:
    """The words of a plan's name in a sweep (`parallel.tp=2 batch.micro=1 on=4x dgx-h100`) by key; `on` is the machine."""
    words, _, on = f" {key}".rpartition(" on=")
    return dict(word.partition("=")[::2] for word in _words(words)) | {"on": on}


def named(base: Plan, key: str) -> tuple[Candidate, Plan | str]:
    """The point that a results file names, with its plan."""
    at = settings_of(key)
    candidate = point(at, at.pop("on"))
    return candidate, plan_at(base, candidate, at.get("gpus", ""))


def plan_at(base: Plan, candidate: Candidate, gpus: str) -> Plan | str:
    """The point's plan: overrides, then data parallelism from what `gpus` leaves. A text says why there is none."""
    overrides = candidate.overrides[:-1] if gpus else candidate.overrides
    base = relaid(base, overrides)
    try:
        return _split(base, overrides, int(gpus)) if gpus else load_plan(base, overrides)
    except SteptwinError as error:
        return str(error)


def relaid(base: Plan, overrides: tuple[str, ...]) -> Plan:
    """The base without its stages where `overrides` make another pipeline: they say which layers lie where in that of the base."""
    p = base.parallel
    said = {key: value for key, _, value in (word.partition("=") for word in overrides)}
    pipeline = (said.get("parallel.pp", str(p.pp)), said.get("parallel.virtual_stages", str(p.virtual_stages)))
    if p.stages is None or pipeline == (str(p.pp), str(p.virtual_stages)):
        return base
    return msgspec.structs.replace(base, parallel=msgspec.structs.replace(p, stages=None))


def _split(base: Plan, overrides: tuple[str, ...], gpus: int) -> Plan:
    """The plan on so many GPUs: what other axes leave goes to data parallelism, to that of its axes which is not said."""
    one = msgspec.structs.replace(base.parallel, dp_shard=1, dp_replicate=1, ep=1, stages=None)
    # Without data parallelism any global batch divides: the axes alone are read first.
    axes = tuple(o for o in overrides if not o.startswith(("parallel.ep", "parallel.dp_", "batch.")))
    free = msgspec.structs.replace(base, parallel=one, batch=msgspec.structs.replace(base.batch, micro=1))
    parallel = load_plan(free, (*axes, "parallel.schedule=gpipe", "parallel.virtual_stages=1")).parallel
    said = {key: int(value) for key, _, value in (o.partition("=") for o in overrides) if key in _DATA and value.isdecimal() and int(value)}
    inner = math.prod((parallel.tp, parallel.pp, parallel.cp, *said.values()))
    names = " x ".join(("tp x pp x cp", *(key.partition(".")[2] for key in said)))
    if gpus % inner or (len(said) == len(_DATA) and gpus != inner):
        raise BadInput(f"gpus = {gpus} is {'no multiple of' if gpus % inner else 'not'} {names} = {inner}")
    first, other = _DATA if parallel.zero == 0 else _DATA[::-1]
    axis = other if first in said else first
    whole = msgspec.structs.replace(base, parallel=msgspec.structs.replace(base.parallel, dp_shard=1, dp_replicate=1))
    return load_plan(whole, (f"{axis}={gpus // inner * said.get(axis, 1)}", *overrides))


_DATA = ("parallel.dp_replicate", "parallel.dp_shard")


def base_tree(plan: Plan) -> dict[str, Any]:
    """The base plan as plain values, for a results file's header."""
    found: dict[str, Any] = msgspec.to_builtins(plan)
    return found
