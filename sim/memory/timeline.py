"""Device memory over time: combines the times of a predicted trace with the bytes of `sim.memory.report`, block by block.

Parameters, optimizer, gathered parameters and context stay. A block's forward leaves what it keeps; its backward rises to its
fullest moment, then gives all of it back (a pipeline's stages hold as many micro-batches as their schedule has begun).
The peak of the fullest rank is the peak of `memory_of`: both come from the same passes.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple, TypeVar

from sim.lower.noise import loads
from sim.memory.activations import Known, Pass, passes
from sim.memory.report import MemoryReport, forward_bytes, growth, memory_of_stages
from sim.memory.static import static_bytes
from sim.model.layers.redo import sent_away
from sim.model.stages import held, layout
from sim.program import COMPUTE, ORDERS, cpu_lane
from sim.rules import mesh_of
from sim.setting.bind import Setting
from sim.setting.rooms import smallest_devices
from sim.trace import Span, Trace

Line = tuple[tuple[float, int], ...]
"""(seconds, bytes in use from then on), in order of time."""
UPDATE = "optimizer"
"""Class of an update's ops. Clearing gradients (`optimizer/zero`) has it, too, but belongs to the begin of the next step."""


class _Window(NamedTuple):
    """When one block ran one phase of one micro-batch."""

    start: float
    end: float


_Key = tuple[int, str, str, str]
"""(step, micro-batch, phase, block)."""
_K = TypeVar("_K")


class _Change(NamedTuple):
    """At `time` (seconds), `more` bytes come into use; negative: are freed. By `order`, frees (0) come before allocations (1) of the
    same instant."""

    time: float
    order: int
    more: int


def memory_timelines(setting: Setting, trace: Trace) -> dict[int, Line]:
    """Memory of every simulated rank over all steps of `trace`. Ranks that were folded away have no line: they are as the one that stands for them.

    The trace must hold every op (`simulate` with detail); an empty one gives no lines.
    """
    plan, network, framework = setting.plan, setting.network, setting.framework
    stages, mesh = layout(network, plan), mesh_of(plan)
    reports = memory_of_stages(plan, network, framework, smallest_devices(setting))
    spans: dict[int, list[Span]] = defaultdict(list)
    for span in trace.spans:
        if span.kind not in ORDERS and (span.lane == COMPUTE or (span.cls == UPDATE and not cpu_lane(span.lane))):
            spans[span.rank].append(span)
    found, known, load = {}, Known(), loads(plan)
    for rank, mine in sorted(spans.items()):
        stage = mesh.coordinates(rank)["pp"]
        chunks = held(stages, plan, stage)
        static = static_bytes(plan, network, framework, chunks)
        each = growth(plan, framework, chunks, static)
        share = load(rank)
        chains = [[one.of_samples(share) for one in passes(plan, chunk, each, known, framework.compile)] for chunk in chunks]
        if plan.task == "forward":
            changes = _forward_only(mine, round(forward_bytes(chunks) * share))
        else:
            blocks = {name: one for chunk, chain in zip(chunks, chains, strict=True) for (name, _), one in zip(chunk, chain, strict=True)}
            away = {chunk[at][0]: chunk[beside][0] for chunk in chunks for at, beside in sent_away(plan.memory, chunk).items()}
            changes = _trained(mine, blocks, away, static["step"])
        found[rank] = _drawn(_base(reports[stage], static, lasting=not each), changes)
    return found


def _base(report: MemoryReport, static: dict[str, int], lasting: bool) -> int:
    """Bytes in use during the whole run. `lasting`: gradients live through all steps."""
    return report.parameters + report.optimizer + report.gathered + report.slack + report.context + (static["gradients"] if lasting else 0)


def _drawn(used: int, changes: list[_Change]) -> Line:
    """The line that starts at `used` bytes and adds up all changes."""
    line = [(0.0, used)]
    for change in sorted(changes):
        used += change.more
        if line[-1][0] == change.time:
            line[-1] = (change.time, used)
        else:
            line.append((change.time, used))
    return tuple(line)


def _trained(spans: list[Span], blocks: dict[str, Pass], away: dict[str, str], step: int) -> list[_Change]:
    """All changes of one rank in training. `step`: bytes that live only during the optimizer step. `away`: block whose activations are
    in host memory -> block beside whose forward they leave and beside whose backward they come back."""
    windows, updates = _windows(spans, blocks)
    changes: list[_Change] = []
    for (number, microbatch, phase, name), window in windows.items():
        one = blocks[name]
        if phase == "fwd":
            changes.append(_Change(window.end, 1, one.kept))
            if name in away:
                leaves, returns = (windows.get((number, microbatch, turn, away[name]), window) for turn in ("fwd", "bwd"))
                changes += [_Change(leaves.end, 0, -one.kept), _Change(returns.start, 1, one.kept)]
            continue
        changes.append(_Change(window.start, 1, one.rise))
        last = phase == "wgrad" or (number, microbatch, "wgrad", name) not in windows
        changes.append(_Change(window.end, 0, -one.rise - (one.kept if last else 0)))
        if last and one.grown:
            changes.append(_Change(window.end, 0, one.grown))
    begins = {number: min(window.start for (n, *_), window in windows.items() if n == number) for number in {n for n, *_ in windows}}
    for number in begins:
        grown = sum(blocks[name].grown for n, _, phase, name in windows if n == number and phase == "fwd")
        if number in updates:
            changes += [_Change(updates[number].start, 1, step), _Change(updates[number].end, 0, -step - grown)]
        elif grown:  # updated elsewhere: gone before they are made anew
            changes.append(_Change(begins.get(number + 1, spans[-1].end), 0, -grown))
    return changes


def _forward_only(spans: list[Span], widest: int) -> list[_Change]:
    ran = [span for span in spans if "/fwd/" in span.id]
    return [change for span in ran for change in (_Change(span.start, 1, widest), _Change(span.end, 0, -widest))]


def _windows(spans: list[Span], blocks: dict[str, Pass]) -> tuple[dict[_Key, _Window], dict[int, _Window]]:
    """When each block ran each phase (fwd, bwd, wgrad) of each micro-batch, and when each step's update ran.

    Where gradients of input and weights take turns, both are one phase (bwd). Zero-bubble schedules run them apart.
    """
    ran: dict[_Key, list[float]] = {}
    updated: dict[int, list[float]] = {}
    names: dict[str, str] = {}
    for span in spans:
        place = span.id.split("/", 4)  # rank, step, micro-batch, phase, block.part
        if len(place) == 5 and place[3] in ("fwd", "bwd", "wgrad", "recompute") and not place[4].endswith(".copy_in"):
            name = names.get(place[4])
            if name is None:  # micro-batches and steps have the same places
                name = names[place[4]] = _block(place[4], blocks)
            if name:
                phase = "bwd" if place[3] == "recompute" else place[3]
                _join(ran, (span.step, place[2], phase, name), span)
        elif span.cls == UPDATE and not span.id.endswith("/zero"):
            _join(updated, span.step, span)
    found = {key: _Window(*window) for key, window in ran.items()}
    for key in [key for key in found if key[2] == "wgrad"]:
        back = (key[0], key[1], "bwd", key[3])
        if back in found and found[key].start < found[back].end:
            both, weights = found[back], found.pop(key)
            found[back] = _Window(min(both.start, weights.start), max(both.end, weights.end))
    return found, {step: _Window(*window) for step, window in updated.items()}


def _join(windows: dict[_K, list[float]], key: _K, span: Span) -> None:
    """Extends the window [start, end] of this key so that it holds the span."""
    window = windows.get(key)
    if window is None:
        windows[key] = [span.start, span.end]
        return
    if span.start < window[0]:
        window[0] = span.start
    if span.end > window[1]:
        window[1] = span.end


def _block(place: str, blocks: dict[str, Pass]) -> str:
    """The block that an op belongs to, by the longest name that its id begins with; "" for none."""
    name = place
    while name:
        name = name.rpartition(".")[0]
        if name in blocks:
            return name
    return ""
