"""A frozen copy of the model that runs first, or the model without its adapters: direct preference optimization's reference (Rafailov et al. 2023,
equation 7).

Each sequence of a pair (chosen, rejected) goes through the copy without autograd, then through the model that is trained; both give the log-probability
of each token, as a cross-entropy does, whose sums over a sequence are compared: kernels of a number for each sequence.
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.parts import ADAPTER, Block, Network, Part, still
from sim.work import MemoryBound, Work

PREFIX = "reference."
"""Before the names of the copy's blocks."""
_COMPARED, _BACK = 7, 6
"""Kernels that make one loss of the sums: of both models a row's sum and the difference of a pair, the difference of these, a factor, logsigmoid, the
mean; and their gradients, but for the reference's."""


def with_reference(network: Network, micro: int, base: Network | None = None) -> Network:
    """The network behind a frozen copy of itself; `micro`: sequences of a micro-batch, which are compared in pairs. `base`: the network without the
    adapters that it has: then these are left out of a pass through the same weights (PEFT's disable_adapter, as TRL has it), and there is no copy."""
    lent = base is not None
    copies = {id(block): _still(block, lent) for block in network.kinds}
    behind = tuple((f"{PREFIX}{name}", copies[id(block)]) for name, block in network.blocks)
    *body, (last, head) = network.blocks
    compared = (last, replace(head, parts=(*head.parts, _preference(micro))))
    forward = (base or network).forward_flops_per_sample
    return replace(
        network,
        blocks=(*behind, *body, compared),
        parameters=network.parameters * (1 if lent else 2),
        active_parameters=network.active_parameters * (1 if lent else 2),
        flops_per_sample=network.flops_per_sample + forward,
        forward_flops_per_sample=network.forward_flops_per_sample + forward,
        chain=False,
        lent=lent,
    )


def _still(block: Block, lent: bool) -> Block:
    if not lent:
        return replace(block, parts=tuple(still(part) for part in block.parts))
    parts = (still(part) for part in block.parts if not part.name.endswith(ADAPTER))
    return replace(block, parts=tuple(replace(part, tensors=(), matrices=(), tables=(), whole=(), stored=0.0) for part in parts))


def _preference(micro: int) -> Part:
    small: Work = MemoryBound("scale", 4 * micro, 4 * micro, "fp32")
    return Part(name="head.preference", forward=(small,) * _COMPARED, backward=(small,) * _BACK, cls="loss", saved=8 * micro, modules=1)
