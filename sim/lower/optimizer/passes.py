"""What an optimizer's update does to each tensor, kernel by kernel: torch's passes, those of a compiled function, a static graph's operators."""

from __future__ import annotations

from sim.work import MemoryBound, Work

Passes = tuple[tuple[str, int, int], ...]
"""(kernel, tensors read, tensors written); one that ends in _ writes over what it reads."""
_ADAM: Passes = (("add_", 2, 1), ("scale_", 1, 1), ("add_", 2, 1), ("sqrt", 1, 1), ("scale_", 1, 1), ("scale_", 1, 1), ("add_", 3, 1))
PASSES: dict[str, Passes] = {
    "sgd": (("add_", 2, 1),),
    "momentum": (("scale_", 1, 1), ("add_", 2, 1), ("add_", 2, 1)),
    "nesterov": (("scale_", 1, 1), ("add_", 2, 1), ("add", 2, 1), ("add_", 2, 1)),  # and the look-ahead
    "adam": _ADAM,  # lerp, mul, addcmul, sqrt, div, add, addcdiv
    "adamw": (("scale_", 1, 1), *_ADAM),  # decay first
    "lamb": (*_ADAM[:6], ("scale", 2, 1), ("add", 2, 1), ("norm", 1, 0), ("norm", 1, 0), ("add", 2, 1)),
    "lion": (("scale_", 1, 1), ("scale", 1, 1), ("add_", 2, 1), ("sign", 1, 1), ("add_", 2, 1), ("add_", 2, 1)),
    "adagrad": (("add_", 2, 1), ("sqrt", 1, 1), ("scale_", 1, 1), ("add_", 3, 1)),  # addcmul, sqrt, add, addcdiv
    "lars": (("norm", 1, 0), ("norm", 1, 0), ("add", 2, 1), ("scale_", 1, 1), ("scale_", 1, 1), ("add_", 2, 1), ("add_", 2, 1)),
}
"""Of torch's foreach and for-loop implementations. Not torch's are Lion (Chen et al. 2023; timm's lion.py: decay, the momentum times a number plus
the gradient, its sign, the update, lerp) and LARS (You et al. 2017; timm's lars.py: both norms, decay, trust ratio, momentum, update)."""
LISTED: dict[str, Passes] = {
    "nesterov": (*PASSES["nesterov"][:2], *PASSES["sgd"], *PASSES["sgd"]),  # looks ahead in the gradients' own memory
    "lion": (*PASSES["lion"][:-1], ("scale_", 1, 1), ("add_", 2, 1)),  # for lerp
    "adagrad": (*PASSES["adagrad"][:-1], ("scale", 1, 1), PASSES["adagrad"][-1]),  # the gradient times a list of learning rates
}
"""Of foreach implementations that call other kernels than the for-loop's."""
UNLISTED = ("lars",)
"""Nobody calls these by foreach: it is the for-loop."""
RATIO = 9
"""Kernels over LARS's single numbers: four products and sums and a quotient, two comparisons, two choices (timm's lars.py)."""
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
    "lion": (("add", 3, 2),),
    "adagrad": (("add", 3, 2),),
    "lars": (("norm", 1, 0), ("norm", 1, 0), ("add", 3, 2)),
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
        optimization.py); compiled, as a compiled function's and then assigned. Plain and momentum SGD are one operator (ApplyMomentum; LARS has its norms
    before), as Adagrad is,
        and so is Keras's Adam (`one`: ResourceApplyAdam), whose decay is subtracted before (AdamWeightDecay of optimization.py)."""
    if name in ("sgd", "momentum", "adagrad", "lars"):
        return SCRIPTED[name]
    if name == "lion":  # parameter and momentum
        return (*(SCRIPTED if compiled else PASSES)[name], *_ASSIGN[:2])
    if one and name in ("adam", "adamw"):
        return (*(_DECAYED if name == "adamw" and not compiled else ()), *SCRIPTED[name])
    if compiled:
        return (*SCRIPTED[name], *_ASSIGN)
    return (*_MOMENTS, *(_NORMS if name == "lamb" else ()), *_APPLY, *_ASSIGN)


def over_one(size: int, passes: Passes, width: float, dtype: str, repeat: int = 1) -> list[Work]:
    """Kernels over a tensor of `size` elements of `width` bytes, or one after the other over `repeat` of them, launched by a loop in C++."""
    return [MemoryBound(kernel(what), int(size * r * width), int(size * w * width), dtype, float(size), repeat) for what, r, w in passes]


def kernel(what: str) -> str:
    """The kernel that runs a pass: a sign streams as a product does."""
    return "scale" if what == "sign" else what
