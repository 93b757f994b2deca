"""Stock runs of whole periods of what does not happen in each step: checkpoints, logs, averages of parameters."""

from __future__ import annotations

from pathlib import Path

from executor.repeats import means
from executor.stock import PROFILED, WARMUP, StockResult, run_stock
from sim.plan import Plan


def trained(plan: Plan, folder: Path, steps: int, every: int) -> tuple[StockResult, list[float]]:
    """A stock run of whole periods of `every` steps, and its step times, each the mean over one period."""
    whole = -(-steps // every) * every
    stock = run_stock(plan, folder, whole, warmup=-(-WARMUP // every) * every, profile=-(-PROFILED // every) * every)
    return stock, means(stock.step_times, every)
