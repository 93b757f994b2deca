"""The optimizers, one record each: what they keep of a parameter, and the kernels that update it.

A new one is a record here, and its name in `sim.sections.Optimizer`. Muon and Adafactor, which take whole matrices, have a file each in
`sim.lower.optimizer` that says what they do with them; their records say the rest.
"""

from __future__ import annotations

import msgspec

Passes = tuple[tuple[str, int, int], ...]
"""(kernel, tensors read, tensors written); one that ends in _ writes over what it reads."""


class Algorithm(msgspec.Struct, frozen=True, kw_only=True):
    """One optimizer. Tensors are as large as the parameter."""

    states: int
    """Tensors kept of each parameter; Muon: of those that it leaves to AdamW; Adafactor: of those that are no matrices."""
    fused: tuple[int, int] = (0, 0)
    """Tensors that fused kernels read and write."""
    like: str
    """Whose fused kernel stands for this one's where it does not exist, or was not measured."""
    loop: Passes = ()
    """torch's for-loop implementation, tensor by tensor."""
    foreach: Passes = ()
    """torch's lists of tensors, where they call other kernels than `loop`."""
    listed: bool = True
    """False: nobody calls it by lists; asked for them, it is the loop."""
    loop_numbers: int = 0
    """Kernels of the loop over single numbers."""
    script: Passes = ()
    """A compiled function: elementwise operators in one kernel, up to a norm."""
    script_numbers: int = 0
    """Kernels of a compiled function over single numbers."""
    written: Passes = ()
    """A loop that a script writes out itself, an operator a kernel (`Updates.written_adam`)."""
    graph: Passes = ()
    """Operators of a static graph (TensorFlow), before their results are assigned to `variables`."""
    graph_operator: Passes = ()
    """The same where the update is one operator (Keras's)."""
    variables: int = 0
    """Results that a static graph assigns, each in a kernel."""
    gradient_reads: int = 0
    """Times that torch's foreach and for-loop updates read a gradient (lerp, and addcmul twice); 0: of a whole matrix alone."""
    torch: str = ""
    """Its class in torch.optim, which stock training uses; empty: torch has none."""
    whole_matrices: bool = False
    """It cannot update a piece of a matrix."""

    def launched(self, how: str) -> Passes:
        """What `foreach` or a for-loop calls."""
        return self.foreach or self.loop if how == "foreach" else self.loop

    def in_graph(self, compiled: bool, operator: bool) -> Passes:
        """What a static graph calls: fused by a compiler as a compiled function is, or not; its update `operator` if it has one. Assigned at last."""
        if operator and self.graph_operator:
            return self.script if compiled else self.graph_operator
        return (*(self.script if compiled else self.graph), *(("copy", 1, 1),) * self.variables)


_ADAM: Passes = (("add_", 2, 1), ("scale_", 1, 1), ("add_", 2, 1), ("sqrt", 1, 1), ("scale_", 1, 1), ("scale_", 1, 1), ("add_", 3, 1))
"""lerp, mul, addcmul, sqrt, div, add, addcdiv."""
_BERT_ADAM: Passes = (
    *(("scale", 1, 1), ("scale", 1, 1)),
    *(("scale", 1, 1), ("add", 2, 1), ("scale", 1, 1), ("add", 2, 1)),
    *(("scale", 1, 1), ("scale", 1, 1), ("scale", 2, 1), ("scale", 1, 1), ("add", 2, 1)),
    *(("scale", 1, 1), ("scale", 1, 1), ("add", 2, 1)),
)
"""BertAdam (DeepLearningExamples' BERT in PyTorch, optimization.py): the parameter times the largest norm over the norm, both moments, the update and
its decay, times the learning rate, negated and added."""
_GRAPH_UPDATE: Passes = (
    *(("scale", 1, 1), ("scale", 1, 1), ("add", 2, 1)),
    *(("scale", 1, 1), ("scale", 1, 1), ("scale", 1, 1), ("add", 2, 1)),
    *(("activation", 1, 1), ("add", 1, 1), ("scale", 2, 1), ("scale", 1, 1), ("add", 2, 1)),
)
"""Both moments, and the update with decay (BERT's optimization.py in TensorFlow)."""
_GRAPH_NORMS: Passes = (("scale", 1, 1), ("scale", 1, 1), ("norm", 1, 0), ("norm", 1, 0))
_GRAPH_APPLY: Passes = (("scale", 1, 1), ("add", 2, 1))
_GRAPH_DECAY: Passes = (("scale", 1, 1), ("scale", 1, 1), ("add", 2, 1))
"""AdamWeightDecay of optimization.py subtracts it before Keras's operator (ResourceApplyAdam)."""

_SGD = Algorithm(
    states=0,
    fused=(2, 1),
    like="sgd",
    loop=(("add_", 2, 1),),
    script=(("add_", 2, 1),),
    graph=(("add_", 2, 1),),
    gradient_reads=1,
    torch="SGD",
)
_MOMENTUM = Algorithm(
    states=1,
    fused=(3, 2),
    like="momentum",
    loop=(("scale_", 1, 1), ("add_", 2, 1), ("add_", 2, 1)),
    script=(("add", 3, 2),),
    graph=(("add", 3, 2),),  # ApplyMomentum
    gradient_reads=1,
    torch="SGD",
)
_ADAMW = Algorithm(
    states=2,
    fused=(4, 3),
    like="adamw",
    loop=(("scale_", 1, 1), *_ADAM),  # decay first
    script=(("add", 4, 3),),
    written=_BERT_ADAM,
    graph=(*_GRAPH_UPDATE, *_GRAPH_APPLY),
    graph_operator=(*_GRAPH_DECAY, ("add", 4, 3)),
    variables=3,
    gradient_reads=3,
    torch="AdamW",
)
NESTEROV = Algorithm(
    states=1,
    fused=(3, 2),
    like="momentum",
    loop=(("scale_", 1, 1), ("add_", 2, 1), ("add", 2, 1), ("add_", 2, 1)),  # and the look-ahead
    foreach=(("scale_", 1, 1), ("add_", 2, 1), ("add_", 2, 1), ("add_", 2, 1)),  # looks ahead in the gradients' own memory
    gradient_reads=2,
    torch="SGD",
)
"""torch.optim.SGD(nesterov = True): the outer step of local updates, no plan's own optimizer."""
_LION: Passes = (("scale_", 1, 1), ("scale", 1, 1), ("add_", 2, 1), ("sign", 1, 1), ("add_", 2, 1))
_ADAGRAD: Passes = (("add_", 2, 1), ("sqrt", 1, 1), ("scale_", 1, 1))
_MIXED: Passes = (("scale", 1, 1), ("scale", 1, 1), ("add", 2, 1), ("scale", 2, 1), ("add_", 2, 1), ("scale", 1, 1), ("add_", 2, 1))
"""AdEMAMix's update: the fast mean by its correction, the slow one by alpha, their sum, over the root, decay, times the learning rate, added."""

OPTIMIZERS: dict[str, Algorithm] = {
    "sgd": _SGD,
    "momentum": _MOMENTUM,
    "adam": msgspec.structs.replace(_ADAMW, like="adam", loop=_ADAM, graph_operator=(("add", 4, 3),), torch="Adam"),
    "adamw": _ADAMW,
    # Fused: the update with its moments, two norms, the application. Its script's numbers are those of the trust ratio: a clamp, two quotients, two
    # comparisons of either norm, products and sums (DeepLearningExamples' Transformer-XL, lamb.py).
    "lamb": Algorithm(
        states=2,
        fused=(8, 4),
        like="adam",
        loop=(*_ADAM[:6], ("scale", 2, 1), ("add", 2, 1), ("norm", 1, 0), ("norm", 1, 0), ("add", 2, 1)),
        script=(("add", 4, 3), ("norm", 1, 0), ("norm", 1, 0), ("add", 2, 1)),
        script_numbers=10,
        graph=(*_GRAPH_UPDATE, *_GRAPH_NORMS, *_GRAPH_APPLY),
        variables=3,
        gradient_reads=3,
    ),
    # Jordan 2024: `sim.lower.optimizer.muon`, and AdamW beside it.
    "muon": Algorithm(states=2, like="adamw", gradient_reads=3, whole_matrices=True, torch="Muon"),
    # Chen et al. 2023. Fused: DeepSpeed's csrc/lion/multi_tensor_lion.cu. Loop: timm's lion.py: decay, the momentum times a number plus the gradient,
    # its sign, the update, lerp, which a list has as a product and a sum. A graph assigns parameter and momentum.
    "lion": Algorithm(
        states=1,
        fused=(3, 2),
        like="momentum",
        loop=(*_LION, ("add_", 2, 1)),
        foreach=(*_LION, ("scale_", 1, 1), ("add_", 2, 1)),
        script=(("add", 3, 2),),
        graph=(*_LION, ("add_", 2, 1)),
        variables=2,
        gradient_reads=2,
    ),
    # addcmul, sqrt, add, addcdiv; a list multiplies the gradient by a list of learning rates before.
    "adagrad": Algorithm(
        states=1,
        fused=(3, 2),
        like="momentum",
        loop=(*_ADAGRAD, ("add_", 3, 1)),
        foreach=(*_ADAGRAD, ("scale", 1, 1), ("add_", 3, 1)),
        script=(("add", 3, 2),),
        graph=(("add", 3, 2),),
        gradient_reads=3,
        torch="Adagrad",
    ),
    # You et al. 2017. Fused: two norms, then momentum's (MXNet's multi_sum_sq and preloaded_multi_sgd_mom_update). Loop: timm's lars.py: both norms,
    # decay, trust ratio, momentum, update; of its numbers four products and sums and a quotient, two comparisons, two choices.
    "lars": Algorithm(
        states=1,
        fused=(5, 2),
        like="momentum",
        loop=(("norm", 1, 0), ("norm", 1, 0), ("add", 2, 1), ("scale_", 1, 1), ("scale_", 1, 1), ("add_", 2, 1), ("add_", 2, 1)),
        listed=False,
        loop_numbers=9,
        script=(("norm", 1, 0), ("norm", 1, 0), ("add", 3, 2)),
        graph=(("norm", 1, 0), ("norm", 1, 0), ("add", 3, 2)),
        gradient_reads=2,
    ),
    # Pagliardini et al. 2024. Fused: bitsandbytes' csrc/kernels.cu (ADEMAMIX, whose first state is both moments). Loop: apple/ml-ademamix,
    # pytorch/ademamix.py: three moments, the root with its numbers, both means over it, decay, times the learning rate. A graph's is nobody's: one
    # operator (assumed).
    "ademamix": Algorithm(
        states=3,
        fused=(5, 4),
        like="adamw",
        loop=(*(("scale_", 1, 1), ("add_", 2, 1)) * 3, ("sqrt", 1, 1), ("scale", 1, 1), ("scale_", 1, 1), *_MIXED),
        listed=False,
        script=(("add", 5, 4),),
        graph=(("add", 5, 4),),
        gradient_reads=4,
    ),
    # Shazeer and Stern 2018: `sim.lower.optimizer.adafactor`.
    "adafactor": Algorithm(states=1, like="adam", whole_matrices=True, torch="Adafactor"),
}
