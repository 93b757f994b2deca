"""Fits what `params/memory.toml` holds of NeuSight's kernels: run `python -m sim.cost.fit.memory --facts DIR`.

Prints shares of bandwidth for each GPU, and the seconds that each call takes beside them in the benchmark (launches timed
from Python): the tables [harness.GPU] of that file, which no prediction uses. The other values there are set by hand.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from sim.cost.fit.data import NEUSIGHT, VectorRow, sample, vector_rows
from sim.cost.fit.search import Bounds, search, show
from sim.cost.variant import NARROW
from topologies.devices import gpu as find_gpu
from topologies.hardware import Gpu

_FAMILY = {"ln": "layernorm", "softmax": "softmax"}
BOUNDS: Bounds = {
    "stream": (0.3, 0.8, 1.0),
    "layernorm": (0.1, 0.6, 1.0),
    "layernorm_narrow": (0.1, 0.6, 1.0),
    "softmax": (0.1, 0.6, 1.0),
    "softmax_narrow": (0.1, 0.6, 1.0),
    "harness_stream": (1e-6, 1.5e-5, 1e-4),
    "harness_layernorm": (1e-6, 5e-5, 3e-4),
    "harness_softmax": (1e-6, 1.5e-5, 1e-4),
}


def shares(row: VectorRow) -> tuple[str, str]:
    """Names of the row's kernel in the tables [harness.GPU], and of its share of bandwidth in [arch.ARCH]."""
    family = _FAMILY.get(row.op, "stream")
    return family, f"{family}_narrow" if family != "stream" and row.width <= NARROW else family


def predicted(rows: list[VectorRow], gpu: Gpu, values: dict[str, float]) -> list[float]:
    """Seconds of each row, timed as in the benchmark."""
    found = []
    for row in rows:
        family, share = shares(row)
        found.append(values[f"harness_{family}"] + row.bytes / (values[share] * gpu.bandwidth))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--facts", type=Path, required=True)
    args = parser.parse_args()
    for name in NEUSIGHT.values():
        rows = vector_rows(args.facts, name)
        if not rows:
            continue
        gpu = find_gpu(name)
        train = sample(rows, 700, seed=0)
        values = search(lambda v: predicted(train, gpu, v), [row.seconds for row in train], BOUNDS)  # noqa: B023
        held = sample(rows, 1500, seed=1)
        errors = [abs(p / row.seconds - 1) for p, row in zip(predicted(held, gpu, values), held, strict=True)]
        print(f"{name}: median {statistics.median(errors):.1%}", file=sys.stderr)
        note = f"median {statistics.median(errors):.1%}, p90 {statistics.quantiles(errors, n=10)[-1]:.1%} of {len(errors)}"
        print(show(f"arch.{gpu.arch}", {k: v for k, v in values.items() if not k.startswith("harness")}, note))
        print(show(f"harness.{name}", {k.removeprefix("harness_"): v for k, v in values.items() if k.startswith("harness")}))


if __name__ == "__main__":
    main()
