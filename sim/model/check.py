"""What must divide what inside a model, with messages that name field, value and remedy."""

from __future__ import annotations

from sim.model.parts import Shape
from topologies.errors import BadInput, Refused


def check_heads(name: str, hidden: int, heads: int, head_dim: int = 0) -> None:
    """Raises `BadInput` where heads of no stated size do not divide the width."""
    if not head_dim and hidden % heads:
        fits = [n for n in range(1, 2 * heads) if hidden % n == 0]
        near = sorted(fits, key=lambda n: abs(n - heads))[:3]
        raise BadInput(f"{name}: heads = {heads} does not divide hidden = {hidden}. Use heads = {' or '.join(map(str, sorted(near)))}")


def check_length(name: str, seq: int, positions: int) -> None:
    """Raises `BadInput` where a sequence is longer than the table of positions that the model learns: torch would index beyond it."""
    if seq > positions:
        raise BadInput(
            f"{name}: seq_len = {seq} is more than positions = {positions}. Set seq_len = {positions} or less, or give it more positions"
        )


def check_documents(seq: int, document: int, pieces: int) -> int:
    """Documents of `document` tokens in the mean that make a sequence, to the nearest number. Raises `BadInput` for some that are longer, or of less
    tokens than the `pieces` that ranks cut each into."""
    if not pieces <= document <= seq:
        cut = f", which context parallelism cuts into {pieces} pieces each" if pieces > 1 else ""
        raise BadInput(f"data.document = {document}: a sequence of seq_len = {seq} is packed of documents of {pieces} to {seq} tokens{cut}")
    return max(1, round(seq / document))


def divisible(what: str, value: int, by: str, ways: int) -> int:
    """`value / ways`. Raises `BadInput` naming both."""
    if value % ways:
        fits = [n for n in range(1, min(value, 32 * ways) + 1) if value % n == 0]
        near = [n for n in fits if n < ways][-3:] + [n for n in fits if n > ways][:2]
        raise BadInput(f"{by} = {ways} does not divide {what} = {value}. Use {by} in {', '.join(map(str, near))}")
    return value // ways


def data_parallel_only(name: str, what: str, shape: Shape, *, chain: bool = True, context: bool = False) -> None:
    """Raises `Refused` where tensor, context or expert parallelism would split what has no such split. `chain`: pipelines can cut it; `context`:
    ranks can share its tokens."""
    if shape.tp * shape.ep * (1 if context else shape.cp) > 1:
        kinds = "data, context or pipeline" if context else "data or pipeline" if chain else "data"
        raise Refused(f"{name}: {what} is split by {kinds} parallelism only; set tp = {'' if context else 'cp = '}ep = 1")
