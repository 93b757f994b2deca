"""A fixed sample of small faults over whole rooms: which do the tests notice? `python -m tests.reliability.mutation_sample [ROOM...]`.

The tests are collected once, without those that have the mark `no_cover`: what a fault is tried with are the shortest. A first pass, in
processes of its own, notes which functions each test runs. Then each drawn fault (`mutation.changed`: one operator, comparison, number or
truth value inside a function's body) gets a forked process in which the function's code is exchanged in place, and the shortest tests
that run the function are run until one fails. Nothing is written to the tree, nothing is imported or collected again, and the choice
rests on a seed and on counted calls, never on a clock.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import io
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.reliability.mutation import HOME
from tests.reliability.mutation_faults import Fault, Key, codes, damaged, drawn, loaded

ROOMS = ("sim/lower", "sim/schedule", "sim/cost")
TESTS = (
    *(f"tests/null/{room}" for room in ("lower", "schedule", "cost", "collectives", "step", "pipeline", "verify")),
    "tests/null/test_calibration.py",
)
EACH = 20
CALLS = 3_000_000
"""Python calls (about a second) that the tests of one fault may make together; the shortest first."""
_PATIENCE = 3600.0
"""Seconds that the first pass may take: no machine is that slow."""
HUNG = 40.0
"""Seconds after which a fault counts as noticed: its tests do not end."""


class Sample:
    """The pytest plugin: in the place of a run of the tests, one for each fault."""

    def __init__(self, paths: Sequence[str], drawn: Sequence[Fault]) -> None:
        self.paths, self.drawn = paths, drawn
        self.noticed: list[bool] = []
        self.reached: list[bool] = []
        self.broken: list[str] = []
        """What went wrong without any fault."""
        self.left_out: list[str] = []
        """Tests that fail without any fault: they say nothing."""
        self._failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes that a test has failed."""
        self._failed = self._failed or report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs the first pass, then each fault's tests, on as many processes as there are cores."""
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # a fork that made it would take away what is there
        code_of = {id(code): key for key, all_ in loaded(self.paths).items() for one in all_ for code in codes(one.__code__)}
        shares = os.cpu_count() or 1
        files = sorted({str(item.path) for item in session.items})
        parts = [[i for i, item in enumerate(session.items) if files.index(str(item.path)) % shares == share] for share in range(shares)]
        seen: dict[int, tuple[int, set[Key]]] = {}
        for text in self._forked([lambda part=part: self._traced(session, part, code_of) for part in parts], _PATIENCE):
            told = json.loads(text) if text[:1] == "{" else {"failed": [], "ran": []}
            self.broken += [] if told["ran"] else [text or "the first pass ended early"]
            self.left_out += told["failed"]
            seen |= {int(i): (calls, {(path, line) for path, line in keys}) for i, calls, keys in told["ran"]}
        if not self.broken:
            chosen = [_shortest(seen, fault.function) for fault in self.drawn]
            self.reached = [bool(items) for items in chosen]
            jobs = [lambda f=fault, i=items: self._tried(session, f, i) for fault, items in zip(self.drawn, chosen, strict=True)]
            ends = self._forked(jobs, HUNG)
            self.broken = [end for end in ends if end.startswith("error")]
            self.noticed = [end != "passed" for end in ends]
        return True

    def _run(self, session: pytest.Session, items: Sequence[int]) -> bool:
        """Whether one of these tests fails; the others are not run then."""
        self._failed = False
        for at, index in enumerate(items):
            following = session.items[items[at + 1]] if at + 1 < len(items) else None
            session.config.hook.pytest_runtest_protocol(item=session.items[index], nextitem=following)
            if self._failed:
                return True
        return False

    def _traced(self, session: pytest.Session, items: Sequence[int], code_of: dict[int, Key]) -> str:
        """JSON of what each test runs: its number, its calls, and the functions of the rooms among them."""
        ran, failed = [], []
        for at, index in enumerate(items):
            self._failed = False
            following = session.items[items[at + 1]] if at + 1 < len(items) else None
            counted = cProfile.Profile(subcalls=False, builtins=False)  # in C, where a trace function in Python would take most of the pass
            counted.enable()
            session.config.hook.pytest_runtest_protocol(item=session.items[index], nextitem=following)
            counted.disable()
            if self._failed:
                failed.append(session.items[index].nodeid)
                continue
            told = counted.getstats()
            found = {key for one in told if (key := code_of.get(id(one.code))) is not None}
            ran.append((index, sum(one.callcount for one in told), sorted(found)))
        return json.dumps({"ran": ran, "failed": failed})

    def _tried(self, session: pytest.Session, fault: Fault, items: Sequence[int]) -> str:
        """How the tests end with the fault in place; where no test runs the function, they pass."""
        new = damaged(fault)[1] if items else None
        for one in loaded(self.paths)[fault.function] if new else ():
            one.__code__ = new
        try:
            return "noticed" if self._run(session, items) else "passed"
        except BaseException:
            return "noticed"

    def _forked(self, jobs: Sequence[Callable[[], str]], limit: float) -> list[str]:
        """What each job writes, in a process of its own; "" where it dies or is still at work after `limit` seconds."""
        found, waiting = [""] * len(jobs), list(range(len(jobs)))[::-1]
        running: dict[int, tuple[int, Path, float]] = {}
        with tempfile.TemporaryDirectory() as place:
            while waiting or running:
                while waiting and len(running) < (os.cpu_count() or 1):
                    job = waiting.pop()
                    path = Path(place) / str(job)
                    running[_child(jobs[job], path)] = (job, path, time.monotonic() + limit)
                for pid, (job, path, end) in list(running.items()):
                    if os.waitpid(pid, os.WNOHANG)[0]:
                        found[job] = path.read_text("utf-8") if path.is_file() else ""
                        del running[pid]
                    elif time.monotonic() > end:
                        os.kill(pid, signal.SIGKILL)
                        os.waitpid(pid, 0)
                        del running[pid]
                time.sleep(0.005)
        return found


def _shortest(seen: dict[int, tuple[int, set[Key]]], function: Key) -> list[int]:
    """Tests that run the function, the shortest first, until their calls are `CALLS`; the shortest always."""
    found: list[int] = []
    total = 0
    for calls, index in sorted((calls, index) for index, (calls, keys) in seen.items() if function in keys):
        total += calls
        if total > CALLS and found:
            break
        found.append(index)
    return found


def _child(job: Callable[[], str], path: Path) -> int:
    """The process that does the job and writes its answer to `path`, silently."""
    pid = os.fork()
    if pid == 0:
        try:
            silence = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(silence, stream)
            part = path.with_suffix(".part")
            try:
                part.write_text(job(), "utf-8")
            except Exception:
                part.write_text(f"error: {traceback.format_exc()}", "utf-8")
            part.replace(path)
        finally:
            os._exit(0)
    return pid


def main(words: Sequence[str]) -> int:
    """Prints the table and what nobody noticed; 1 where tests fail by themselves or a share is below `--least`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="*", default=list(ROOMS))
    parser.add_argument("--tests", nargs="+", default=list(TESTS))
    parser.add_argument("--each", type=int, default=EACH, help="faults of each room, 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--least", type=float, default=0.0, help="percent that must be noticed in every room")
    args = parser.parse_args(words)
    sys.dont_write_bytecode = True
    # No search for the smallest example of a failure: that there is one is enough.
    quick = [Phase.explicit, Phase.generate]
    settings.register_profile(
        "faults", derandomize=True, database=None, deadline=None, phases=quick, suppress_health_check=list(HealthCheck)
    )
    settings.load_profile("faults")
    known, chosen = drawn(args.rooms, args.each, args.seed)
    sample = Sample(sorted({fault.function[0] for fault in chosen}), chosen)
    with tempfile.TemporaryDirectory() as place:
        quiet = [word for name in ("cacheprovider", "xdist", "timeout") for word in ("-p", f"no:{name}")]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            pytest.main([*quiet, "-W", "ignore", "-m", "not no_cover", f"--basetemp={place}/t", *args.tests], plugins=[sample])
    if sample.broken or len(sample.noticed) != len(chosen):
        print("no sample could be drawn:", *(sample.broken or [said.getvalue()]), sep="\n  ")
        return 1
    return _told(sample, known, args.least)


def _told(sample: Sample, known: dict[str, int], least: float) -> int:
    print(f"{'room':<14}{'faults':>8}{'tried':>8}{'noticed':>9}{'share':>8}")
    short = 0
    for room, count in known.items():
        mine = [i for i, fault in enumerate(sample.drawn) if Path(fault.function[0]).is_relative_to(HOME / room)]
        caught = sum(sample.noticed[i] and sample.reached[i] for i in mine)
        share = 100.0 * caught / max(len(mine), 1)
        short += share < least
        print(f"{room:<14}{count:>8}{len(mine):>8}{caught:>9}{share:>6.0f} %")
    for name in sample.left_out:
        print(f"left out, for it fails without any fault: {name}")
    print("not noticed:")
    for fault, caught, reached in zip(sample.drawn, sample.noticed, sample.reached, strict=True):
        if not (caught and reached):
            print(f"  {damaged(fault)[0]}{'' if reached else '  (no test runs it)'}")
    if short:
        print(f"below {least:.0f} % in {short} room(s)")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
