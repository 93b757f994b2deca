"""Least squares on logarithms of seconds, over named parameters with bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

Bounds = Mapping[str, tuple[float, float, float]]
"""name -> (lowest, start, highest). A positive lowest bound means that the logarithm is searched."""


def search(
    seconds: Callable[[dict[str, float]], Sequence[float]],
    measured: Sequence[float],
    bounds: Bounds,
    tries: int = 40,
    loss: str = "soft_l1",
) -> dict[str, float]:
    """Parameters with which `seconds` comes closest to `measured`, robustly (soft L1 above 10 %)."""
    import numpy as np
    from scipy.optimize import least_squares

    names = list(bounds)
    logs = np.array([bounds[name][0] > 0 for name in names])

    def inner(values: Sequence[float]) -> object:
        return np.array([math.log(v) if log else v for v, log in zip(values, logs, strict=True)])

    def outer(point: object) -> dict[str, float]:
        return {name: float(math.exp(v) if log else v) for name, v, log in zip(names, point, logs, strict=True)}  # type: ignore[call-overload]

    target = np.log(np.array(measured))
    low, start, high = (inner([bounds[name][i] for name in names]) for i in range(3))
    found = least_squares(
        lambda point: np.log(np.array(seconds(outer(point)))) - target,
        start, bounds=(low, high), loss=loss, f_scale=0.1, diff_step=2e-3, max_nfev=tries,
    )  # fmt: skip
    return outer(found.x)


def show(name: str, values: Mapping[str, object], comment: str = "") -> str:
    """One TOML table with short numbers."""
    lines = [f"[{name}]" + (f"  # {comment}" if comment else "")]
    for key, value in values.items():
        if isinstance(value, str):
            lines.append(f'{key} = "{value}"')
        elif isinstance(value, bool):
            lines.append(f"{key} = {str(value).lower()}")
        elif isinstance(value, int):
            lines.append(f"{key} = {value}")
        elif isinstance(value, float) and abs(value) < 1e-9:
            lines.append(f"{key} = 0.0")
        elif isinstance(value, float):
            lines.append(f"{key} = {value:.3g}" if "." in f"{value:.3g}" or "e" in f"{value:.3g}" else f"{key} = {value:.1f}")
    return "\n".join(lines) + "\n"
