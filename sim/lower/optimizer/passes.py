"""What an optimizer's update does to each tensor, kernel by kernel: torch's passes, those of a compiled function, a static graph's operators."""

from __future__ import annotations

from sim.work import MemoryBound, Work

Passes = tuple[tuple[str, int, int], ...]
"""(kernel, tensors read, tensors written)."""
_ADAM: Passes = (("add", 2, 1), ("scale", 1, 1), ("add", 2, 1), ("sqrt", 1, 1), ("scale", 1, 1), ("scale", 1, 1), ("add", 3, 1))
PASSES: dict[str, Passes] = {
    "sgd": (("add", 2, 1),),
    "momentum": (("scale", 1, 1), ("add", 2, 1), ("add", 2, 1)),
    "nesterov": (("scale", 1, 1), ("add", 2, 1), ("add", 2, 1), ("add", 2, 1)),  # and the look-ahead
    "adam": _ADAM,  # lerp, mul, addcmul, sqrt, div, add, addcdiv
    "adamw": (("scale", 1, 1), *_ADAM),  # decay first
    "lamb": (*_ADAM[:6], ("scale", 2, 1), ("add", 2, 1), ("norm", 1, 0), ("norm", 1, 0), ("add", 2, 1)),
}
"""Of torch's foreach and for-loop implementations."""
WRITTEN: Passes = (
    *(("scale", 1, 1), ("scale", 1, 1)),
    *(("scale", 1, 1), ("add", 2, 1), ("scale", 1, 1), ("add", 2, 1)),
    *(("scale", 1, 1), ("scale", 1, 1), ("scale", 2, 1), ("scale", 1, 1), ("add", 2, 1)),
    *(("scale", 1, 1), ("scale", 1, 1), ("add", 2, 1)),
)
"""BertAdam (DeepLearningExamples' BERT in PyTorch, optimization.py): the parameter times the largest norm over the norm, both moments, the update and
its decay, times the learning rate, negated and added."""
SCRIPTED: dict[str, Passes] = {
    "sgd": PASSES["sgd"],
    "momentum": (("add", 3, 2),),
    "adam": (("add", 4, 3),),
    "adamw": (("add", 4, 3),),
    "lamb": (("add", 4, 3), ("norm", 1, 0), ("norm", 1, 0), ("add", 2, 1)),
}
"""The same in a compiled function: elementwise operators in one kernel, up to a norm."""
SCALARS = 10
"""Kernels of LAMB's trust ratio in a TorchScript function: a clamp, two quotients, two comparisons of either norm, products and sums
(DeepLearningExamples' Transformer-XL, lamb.py)."""
_MOMENTS: Passes = (
    *(("scale", 1, 1), ("scale", 1, 1), ("add", 2, 1)),
    *(("scale", 1, 1), ("scale", 1, 1), ("scale", 1, 1), ("add", 2, 1)),
    *(("activation", 1, 1), ("add", 1, 1), ("scale", 2, 1), ("scale", 1, 1), ("add", 2, 1)),
)
_NORMS: Passes = (("scale", 1, 1), ("scale", 1, 1), ("norm", 1, 0), ("norm", 1, 0))
_DECAYED: Passes = (("scale", 1, 1), ("scale", 1, 1), ("add", 2, 1))
_APPLY: Passes = (("scale", 1, 1), ("add", 2, 1))
_ASSIGN: Passes = (("copy", 1, 1),) * 3


def graph_passes(name: str, compiled: bool, one: bool = False) -> Passes:
    """Of TensorFlow: moments, update with decay and (LAMB) norms, each an operator, whose results are assigned to their variables at last (BERT's
    optimization.py); compiled, as a compiled function's and then assigned. Plain and momentum SGD are one operator (ApplyMomentum),
    and so is Keras's Adam (`one`: ResourceApplyAdam), whose decay is subtracted before (AdamWeightDecay of optimization.py)."""
    if name in ("sgd", "momentum"):
        return SCRIPTED[name]
    if one and name in ("adam", "adamw"):
        return (*(_DECAYED if name == "adamw" and not compiled else ()), *SCRIPTED[name])
    if compiled:
        return (*SCRIPTED[name], *_ASSIGN)
    return (*_MOMENTS, *(_NORMS if name == "lamb" else ()), *_APPLY, *_ASSIGN)


def over_one(size: int, passes: Passes, width: float, dtype: str, repeat: int = 1) -> list[Work]:
    """Kernels over a tensor of `size` elements of `width` bytes, or one after the other over `repeat` of them, launched by a loop in C++."""
    return [MemoryBound(what, int(size * r * width), int(size * w * width), dtype, float(size), repeat) for what, r, w in passes]
