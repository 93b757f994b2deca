"""What a sweep ranks plans by before it simulates whole those that matter: every layer and rank, in the fewest ops.

Equal layers are lowered, priced and condensed once (`sim.engine.shortcut`), each layer is one op also where gradients travel beside it,
and long accumulations go by rounds (`sim.steady`). Within 0.3 % of the whole simulation (a test holds it there).
"""

from __future__ import annotations

from sim.bind import Setting
from sim.steady import step_of


def screened(setting: Setting) -> float:
    """Seconds of a step. Raises `BadInput` and its kinds."""
    return step_of(setting, coarse=True)[0]
