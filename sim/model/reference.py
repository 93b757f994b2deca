"""A frozen copy of the model that runs first: direct preference optimization's reference (Rafailov et al. 2023, equation 7).

Each sequence of a pair (chosen, rejected) goes through the copy without autograd, then through the model that is trained; both give the log-probability
of each token, as a cross-entropy does, whose sums over a sequence are compared: kernels of a number for each sequence.
"""

from __future__ import annotations

import msgspec

from sim.model.parts import Block, Network, Part, still
from sim.work import MemoryBound, Work

PREFIX = "reference."
"""Before the names of the copy's blocks."""
_COMPARED, _BACK = 7, 6
"""Kernels that make one loss of the sums: of both models a row's sum and the difference of a pair, the difference of these, a factor, logsigmoid, the
mean; and their gradients, but for the reference's."""


def with_reference(network: Network, micro: int) -> Network:
    """The network behind a frozen copy of itself; `micro`: sequences of a micro-batch, which are compared in pairs."""
    copies = {id(block): _still(block) for block in network.kinds}
    behind = tuple((f"{PREFIX}{name}", copies[id(block)]) for name, block in network.blocks)
    *body, (last, head) = network.blocks
    compared = (last, msgspec.structs.replace(head, parts=(*head.parts, _preference(micro))))
    return msgspec.structs.replace(
        network,
        blocks=(*behind, *body, compared),
        parameters=2 * network.parameters,
        active_parameters=2 * network.active_parameters,
        flops_per_sample=network.flops_per_sample + network.forward_flops_per_sample,
        forward_flops_per_sample=2 * network.forward_flops_per_sample,
        chain=False,
    )


def _still(block: Block) -> Block:
    return msgspec.structs.replace(block, parts=tuple(still(part) for part in block.parts))


def _preference(micro: int) -> Part:
    small: Work = MemoryBound("scale", 4 * micro, 4 * micro, "fp32")
    return Part(name="head.preference", forward=(small,) * _COMPARED, backward=(small,) * _BACK, cls="loss", saved=8 * micro, modules=1)
