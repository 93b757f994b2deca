"""`make bench`: speed as ratios to SimPy's own event rate, measured in one run and printed as a table.

U is the time that this machine needs for 1,000,000 bare SimPy timeouts. Nothing is asserted: a slow or noisy machine
changes every row alike. `python -m tests.bench NAME ...` runs only the named rows.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.plan import Plan

ROOT = Path(__file__).parents[1]
Row = tuple[str, str, str, str]
"""(what, measured, target, remark)."""


def unit(events: int = 300_000) -> float:
    """Seconds for 1,000,000 bare timeouts, from `events` of them (best of three)."""
    import simpy

    def run() -> float:
        env = simpy.Environment()

        def clock():  # type: ignore[no-untyped-def]
            for _ in range(events):
                yield env.timeout(1)

        env.process(clock())
        begun = time.perf_counter()
        env.run()
        return time.perf_counter() - begun

    return min(run() for _ in range(3)) * 1_000_000 / events


def _seconds(action: Callable[[], object], times: int = 3) -> float:
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        action()
        found.append(time.perf_counter() - begun)
    return min(found)


def _process(*words: str, times: int = 5) -> float:
    # As Python comes: modules are compiled on the first run and read from their cache later.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def run() -> None:
        subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, check=True, env=kept)

    return _seconds(run, times)


def imports(u: float) -> list[Row]:
    seconds = _process("-c", "import steptwin") - _process("-c", "pass")
    return [("import steptwin", f"{seconds:.3f} s", "0.1 s", "")]


def predict(u: float) -> list[Row]:
    plan = 'from steptwin import predict; predict({"model": "gpt2-1.5b", "parallel": {"dp_replicate": 8}, "seq_len": 1024}, "dgx-h100")'
    whole = _process("-c", plan)
    shell = _process("-m", "steptwin", "predict", "gpt2-ddp8", "--on", "dgx-h100")
    rows = [("predict, 8-GPU DDP, from a script, whole process", f"{whole / u:.2f} U", "0.50 U", f"{whole:.2f} s")]
    return [*rows, ("steptwin predict, 8-GPU DDP, whole process", f"{shell / u:.2f} U", "0.50 U", f"{shell:.2f} s")]


def _large(dp: int) -> tuple[float, float]:
    """Seconds that one step of Llama 3.1 405B on 128 x `dp` GPUs takes to simulate, and what it takes."""
    from sim.predict import steps_of
    from sim.setting.bind import bind
    from sim.setting.pricer import pricer_for

    plan = {
        "model": "llama3.1-405b", "seq_len": 8192, "framework": "megatron-core", "batch": {"global": dp * 16, "micro": 1},
        "parallel": {"tp": 8, "pp": 16, "dp_shard": dp, "zero": 1, "schedule": "interleaved", "virtual_stages": 7}, "memory": {"recompute": "none"},
    }  # fmt: skip
    begun = time.perf_counter()
    setting = bind(plan, f"{16 * dp}x dgx-h100")
    step = steps_of(setting, setting.plan, pricer_for(setting), False, 1).step
    return time.perf_counter() - begun, step


def scale(u: float) -> list[Row]:
    """Sizes in turn, so that a slow minute of the machine meets all of them."""
    runs = [[_large(dp) for dp in (8, 128, 1024)] for _ in range(4)]
    rows: list[Row] = []
    first = min(seconds for seconds, _ in (run[0] for run in runs))
    for gpus, found in zip((1024, 16_384, 131_072), zip(*runs, strict=True), strict=True):
        seconds, step = min(found)
        remark = f"step {step:.2f} s; {seconds / first:.2f} x the time of the first"
        rows.append((f"Llama-3.1-405B on {gpus:,} H100, events, folded", f"{seconds / u:.2f} U", "2 U", remark))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [*rows, ("peak memory of this process so far", f"{peak:.0f} MB", "500 MB", "")]


def ring(u: float) -> list[Row]:
    from sim.cost.collective.events import ring_all_reduce_events

    rows: list[Row] = []
    for ranks in (256, 1024, 4096, 16384):
        seconds = _seconds(lambda ranks=ranks: ring_all_reduce_events(ranks, 64 << 20), 1)  # type: ignore[misc]
        rows.append(
            (
                f"{ranks:,}-rank 64 MiB ring all_reduce, every step",
                f"{seconds / (u / 5):.2f} x 200,000 timeouts",
                "1 at 1,024",
                f"{seconds:.3f} s",
            )
        )
    return rows


def unfolded(u: float) -> list[Row]:
    """1,024 ranks, each simulated by itself, against equal ranks simulated once."""
    from sim.engine.run import simulate
    from sim.lower.step import lower
    from sim.setting.bind import bind
    from sim.setting.pricer import pricer_for
    from sim.timeline.metrics import step_time

    plan = {"model": "llama3-8b", "seq_len": 4096, "framework": "megatron-core", "batch": {"global": 1024, "micro": 1}}
    setting = bind(plan | {"parallel": {"dp_replicate": 1024, "zero": 0}}, "128x dgx-h100")
    program, pricer = lower(setting.plan, setting.network, setting.framework, "cuda", 2), pricer_for(setting)
    steps: list[float] = []
    seconds = _seconds(lambda: steps.append(step_time(simulate(program, pricer, False, detail=False))), 1)
    apart = abs(steps[0] / step_time(simulate(program, pricer, True, detail=False)) - 1)
    return [("1,024 ranks unfolded, 32 layers, DDP", f"{seconds / u:.1f} U", "60 U", f"{seconds:.1f} s; folded differs by {apart:.0e}")]


def sweep(u: float) -> list[Row]:
    """`--auto` for a 70B model on 512 GPUs, two processes; and how fast what cannot fit is rejected."""
    import tempfile
    from itertools import islice

    from sim.files.planfile import load_plan
    from sim.planning.sweeps.auto import auto_space
    from sim.planning.sweeps.floor import Floor
    from sim.planning.sweeps.space import TooLarge, candidates, parse_space
    from sim.planning.sweeps.sweep import sweep as run

    on, base = "64x dgx-h100", load_plan({"model": "llama3-70b", "seq_len": 8192, "framework": "megatron-core", "batch": {"global": 1024}})
    with tempfile.TemporaryDirectory() as place:
        begun = time.perf_counter()
        counts = run(base, auto_space(base, on, 512), on, Path(place) / "s.sqlite", workers=2).counts
        seconds = time.perf_counter() - begun
        begun = time.perf_counter()
        all_done = run(base, auto_space(base, on, 512), on, Path(place) / "all.sqlite", workers=2, every="short").counts["done"]
        whole = time.perf_counter() - begun
    fit = counts["done"] + counts["bound"]
    name, alone = "sweep --auto, 70B on 512 H100", f"{_in_short(base, on):.1f} / s"
    rows: list[Row] = [
        (f"{name}: plans that fit, decided", f"{fit / seconds:.1f} / s", "", f"{seconds:.1f} s in all; {counts['bound']} by their bounds"),
        (f"{name}: plans simulated", f"{counts['done'] / seconds:.1f} / s", "100 / s", f"{counts['done']} in all the sweep's time"),
        (
            f"{name} --every short: plans simulated",
            f"{all_done / whole:.1f} / s",
            "100 / s",
            f"{whole:.1f} s in all, from the plan to the confirmed front",
        ),
        (f"{name}: its simulations by themselves", alone, "100 / s", f"{fit} plans, whatever their bounds; two processes"),
    ]
    large = load_plan({"model": "llama3.1-405b", "seq_len": 8192, "framework": "megatron-core", "batch": {"global": 1024}})
    space = parse_space("tp=1 pp=1 zero=0 micro=1..1000:1 seq_len=1..20:1 gpus=512")
    begun = time.perf_counter()
    found = sum(isinstance(plan, TooLarge) for _, plan in islice(candidates(large, space, on, reject=Floor(large, space).over), 20_000))
    return [
        *rows,
        ("memory rejections", f"{found / (time.perf_counter() - begun):,.0f} / s", "50,000 / s", f"{found:,} points of a 405B model"),
    ]


def _in_short(base: Plan, on: str) -> float:
    """Plans a second: all of an automatic sweep that fit, simulated as a sweep ranks them, whether their bounds let them win or not."""
    from sim.plan import Plan
    from sim.planning.sweeps.auto import auto_space
    from sim.planning.sweeps.judge import Work, evaluate_chunk, screen_chunk
    from sim.planning.sweeps.pool import pool
    from sim.planning.sweeps.space import candidates
    from sim.planning.sweeps.sweep import by_layers

    points = [(candidate, plan) for candidate, plan in candidates(base, auto_space(base, on, 512), on) if isinstance(plan, Plan)]
    _, fit = screen_chunk(Work(points, {}))
    peaks = {one.candidate.key: one.bound.memory or 0 for one in fit}
    with pool(2, "", "") as place:
        list(place.map(evaluate_chunk, [Work([(one.candidate, one.plan)], {}) for one in fit[:4]]))
        begun = time.perf_counter()
        chunks = [Work(chunk, {}, depth="short", peaks=peaks) for chunk in by_layers(fit, 2)]
        done = sum(len(rows) for rows in place.map(evaluate_chunk, chunks))
        return done / (time.perf_counter() - begun)


def winner(u: float) -> list[Row]:
    """The best plan of an automatic sweep, against the event simulation of every plan that could be better: all whose lower bound is below
    it. Minutes long, so that it runs only when named."""
    import tempfile

    from sim.files.planfile import load_plan
    from sim.planning.sweeps.auto import auto_space
    from sim.planning.sweeps.judge import Work, evaluate_chunk, screen_chunk
    from sim.planning.sweeps.space import named
    from sim.planning.sweeps.sweep import sweep as run

    on, base = (
        "32x dgx-h100",
        load_plan({"model": "mixtral-8x7b", "seq_len": 4096, "framework": "megatron-core", "batch": {"global": 1024}}),
    )
    with tempfile.TemporaryDirectory() as place:
        found = run(base, auto_space(base, on, 256), on, Path(place) / "s.sqlite", workers=2)
    best = found.best
    assert best is not None and best.step_time is not None
    fit = [row for row in found.rows if row.outcome in ("done", "bound")]
    plans = [(candidate, plan) for candidate, plan in (named(base, row.key) for row in fit) if not isinstance(plan, str)]
    _, opened = screen_chunk(Work(plans, {}))
    rivals = [(one.candidate, one.plan) for one in opened if (one.bound.step_time or 0.0) < best.step_time]
    rows = evaluate_chunk(Work(rivals, {}, depth="whole"))
    first = min((row for row in rows if row.outcome == "done"), key=lambda row: row.step_time or 0.0)
    apart = best.step_time / (first.step_time or 1.0) - 1
    remark = f"{len(fit):,} plans fit; {len(rivals):,} had a bound below the winner and were simulated whole"
    return [("winner of sweep --auto against the best of the whole simulations", f"{apart:+.2%}", "1 %", remark)]


def stock(u: float) -> list[Row]:
    """Predicted against PyTorch's own training, two gloo ranks. No speed, but a figure that only a run can give."""
    from executor.twin import twin
    from executor.validation.here_plans import SHIPPED
    from sim.files.planfile import load_plan

    rows: list[Row] = []
    errors = []
    for name in SHIPPED:
        found = twin(load_plan(name), ROOT / "runs" / name, say=lambda text: print(text, file=sys.stderr)).comparisons["stock"]
        errors.append(abs(found.error))
        real = found.measured_step
        remark = f"predicted {found.predicted_step * 1e3:.1f} ms, stock {real.median * 1e3:.1f} ms (p10 {real.low * 1e3:.1f}, p90 {real.high * 1e3:.1f})"
        rows.append((f"predicted against stock, {name}", f"{found.error:+.1%}", "20 %", remark))
    return [*rows, ("predicted against stock, mean of |error|", f"{sum(errors) / len(errors):.1%}", "12 %", "")]


GROUPS: dict[str, Callable[[float], list[Row]]] = {
    "imports": imports,
    "predict": predict,
    "scale": scale,
    "ring": ring,
    "unfolded": unfolded,
    "sweep": sweep,
    "stock": stock,
    "winner": winner,
}
LONG = ("winner",)
"""Groups that run only when named."""


def main(names: list[str]) -> None:
    from reports.tables import show

    u = unit()
    rows: list[Row] = [("U: 1,000,000 bare SimPy timeouts", f"{u:.2f} s", "", "")]
    for name in names or [name for name in GROUPS if name not in LONG]:
        rows += GROUPS[name](u)
    show({"rows": [dict(zip(("what", "measured", "target", "remark"), row, strict=True)) for row in rows]}, "bench")


if __name__ == "__main__":
    main(sys.argv[1:])
