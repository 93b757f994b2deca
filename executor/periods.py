"""Stock runs over whole periods, for work that is not done in every step: checkpoints, logs, averages of parameters."""

from __future__ import annotations

from pathlib import Path

from executor.repeats import means
from executor.stock import PROFILED, WARMUP, StockResult, run_stock
from sim.plan import Plan


def trained(plan: Plan, folder: Path, steps: int, every: int) -> tuple[StockResult, list[float]]:
    """A stock run of at least `steps` steps, in whole periods of `every` steps, and the mean step time of each period in seconds."""
    whole = -(-steps // every) * every
    stock = run_stock(plan, folder, whole, warmup=-(-WARMUP // every) * every, profile=-(-PROFILED // every) * every)
    return stock, means(stock.step_times, every)
