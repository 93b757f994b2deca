"""`python -m executor.validation.gpu_run [PLAN ...]`: the table of GPU plans where only torch, msgspec and simpy are installed.

The same as `steptwin here --gpu`, without the page. The page can be drawn on another machine, where plotly is installed, with
`python -m reports.pages.gpu SUMMARY.json`. Predict on a laptop, play on the GPU machine, report on the laptop.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from topologies.errors import SteptwinError


def arguments(words: list[str]) -> argparse.Namespace:
    """The parsed arguments of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m executor.validation.gpu_run", description="Predicted, played and trained on this machine's GPUs."
    )
    parser.add_argument("names", nargs="*", help="plans of the table; all of them where none is named")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder for calibrations, traces and rows")
    parser.add_argument("--keep", type=Path, default=Path("reports/measured"), help="folder for summary and calibration, to commit")
    parser.add_argument("--minutes", type=float, default=9.0, help="no plan is begun later; the next call goes on")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs that may be used; 0: all of this node")
    parser.add_argument("--steps", type=int, default=30, help="most steps that are timed of each plan")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu walks the same way with tiny plans")
    parser.add_argument("--quick", action="store_true", help="a short probe: to see whether all works")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Runs the table. Returns the exit code: 0, 4 if no plan was measured, or that of an error such as bad input."""
    from executor.validation.gpu_twin import twin_gpu

    asked = arguments(words)
    keep = asked.keep if asked.device == "cuda" else None
    try:
        _, total, folder = twin_gpu(
            asked.names or None, asked.out, minutes=asked.minutes, gpus=asked.gpus, device=asked.device, steps=asked.steps, quick=asked.quick, keep=keep,
            say=lambda text: print(text, flush=True),  # rows at once: in a pipe, buffered output would be lost if this process is killed
        )  # fmt: skip
    except SteptwinError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"{total.measured} of {total.plans} plans measured; files in {folder}")
    return 0 if total.measured else 4


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
