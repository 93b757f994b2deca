"""What must hold inside one model, with messages that name field, value and remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topologies.errors import BadInput, Refused

if TYPE_CHECKING:
    from sim.model.spec import Decoder


def check_decoder(spec: Decoder) -> None:
    """Raises `BadInput` where heads, experts or a layer pattern do not fit together."""
    name = spec.name or "model"
    if not spec.head_dim and spec.hidden % spec.heads:
        raise BadInput(
            f"{name}: heads = {spec.heads} does not divide hidden = {spec.hidden}. Set head_dim, or a divisor of hidden as heads"
        )
    if spec.heads % spec.kv:
        raise BadInput(f"{name}: kv_heads = {spec.kv} does not divide heads = {spec.heads}. Use a divisor of {spec.heads}")
    if spec.moe is not None and spec.moe.top_k > spec.moe.experts:
        raise BadInput(f"{name}: moe.top_k = {spec.moe.top_k} is more than moe.experts = {spec.moe.experts}")
    if not (spec.pre_norms or spec.post_norms) or (spec.parallel_block and not spec.pre_norms):
        raise BadInput(f"{name}: pre_norms = false needs post_norms = true, and parallel_block = false")
    if spec.lora is not None and (spec.moe is not None or spec.mla is not None or spec.pattern):
        raise Refused(f"{name}: LoRA is described for dense decoders with plain attention. Use task = train for MoE, MLA and hybrid models")
    if spec.pattern:
        _check_pattern(spec, name)


def check_heads(name: str, hidden: int, heads: int, head_dim: int = 0) -> None:
    """Raises `BadInput` where heads of no stated size do not divide the width."""
    if not head_dim and hidden % heads:
        fits = [n for n in range(1, 2 * heads) if hidden % n == 0]
        near = sorted(fits, key=lambda n: abs(n - heads))[:3]
        raise BadInput(f"{name}: heads = {heads} does not divide hidden = {hidden}. Use heads = {' or '.join(map(str, sorted(near)))}")


def _check_pattern(spec: Decoder, name: str) -> None:
    if len(spec.pattern) != spec.layers or set(spec.pattern) - set("M*-E"):
        raise BadInput(f"{name}: pattern has {len(spec.pattern)} letters for layers = {spec.layers}; write one of M * - E for each layer")
    for letter, field, given in (("M", "mamba", spec.mamba), ("E", "moe", spec.moe)):
        if letter in spec.pattern and given is None:
            raise BadInput(f"{name}: pattern has '{letter}' layers but {field} is not given. Add a [{field}] table")


def divisible(what: str, value: int, by: str, ways: int) -> int:
    """`value / ways`. Raises `BadInput` naming both."""
    if value % ways:
        fits = [n for n in range(1, ways + 1) if value % n == 0]
        raise BadInput(f"{by} = {ways} does not divide {what} = {value}. Use {by} in {', '.join(map(str, fits[-4:]))}")
    return value // ways
