"""What a sweep ranks plans by before it simulates whole those that matter: every layer and rank, in the fewest ops.

Equal layers are lowered, priced and condensed once (`sim.engine.shortcut`), each layer is one op also where gradients travel beside it,
long accumulations go by rounds (`sim.steady.rounds`), and, where ranks do not wait for each other on their hosts, time is told in program order
(`sim.engine.inorder.run`): what messages lose to each other on the same links is left out. Within 0.5 % of the whole simulation where that is little (a
test holds it there), up to 3 % too fast where experts' exchanges share links with what ZeRO-3 gathers, up to 6 % in
short steps of ZeRO-3 in a pipeline, up to 4 % where many small messages of an interleaved pipeline share a slow NIC. What logging and
checkpoints add is left out: what is as fast as the best without them is simulated whole.
"""

from __future__ import annotations

from sim.setting.bind import Setting
from sim.steady.rounds import step_of


def screened(setting: Setting) -> float:
    """Seconds of a step without output. Raises `BadInput` and its kinds."""
    return step_of(setting.quiet, coarse=True)
