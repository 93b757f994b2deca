"""Checks that the ranks' graphs agree on their collectives and messages, so that they can run together."""

from __future__ import annotations

from collections.abc import Sequence

from sim.exchange.chakra import Kind
from sim.exchange.order import Meet, Order
from topologies.errors import BadInput


def agreed(orders: Sequence[Order]) -> dict[Meet, tuple[str, int]]:
    """Name of every collective, and the largest number of bytes that a member gives for it. Raises `BadInput` where the members of a group
    run different collectives, or not the same number of them."""
    found: dict[tuple[Meet, tuple[int, ...]], list[tuple[int, str, int]]] = {}
    for order in orders:
        for node in order.nodes:
            if node.id in order.meets:
                members = order.says.members(node)
                found.setdefault((order.meets[node.id], members), []).append((order.rank, *order.says.collective(node)))
    settled: dict[Meet, tuple[str, int]] = {}
    for (meet, members), rows in found.items():
        where = f"collective number {meet[2]} of group {meet[0]!r} on lane {meet[1]}"
        came = {rank for rank, _, _ in rows}
        if strangers := sorted(came - set(members)):
            raise BadInput(f"{where}: ranks {str(strangers)[:80]} take part and are no members of {str(members)[:80]}")
        if missing := sorted(set(members) - came):
            raise BadInput(f"{where}: ranks {str(missing)[:80]} do not take part, of the members {str(members)[:80]}")
        if len({name for _, name, _ in rows}) > 1:
            raise BadInput(f"{where}: ranks disagree what it is: {', '.join(f'rank {rank} {name}' for rank, name, _ in rows[:8])}")
        settled[meet] = (rows[0][1], max(size for _, _, size in rows))
    return settled


def matched(orders: Sequence[Order]) -> None:
    """Raises `BadInput` unless each pair of ranks sends and receives the same messages (tag, bytes) in the same order."""
    sent: dict[tuple[int, int], list[tuple[object, object]]] = {}
    received: dict[tuple[int, int], list[tuple[object, object]]] = {}
    for order in orders:
        for node in order.nodes:
            if node.kind in (Kind.SEND, Kind.RECV):
                ends = (order.rank, node.attrs.get("comm_dst")) if node.kind == Kind.SEND else (node.attrs.get("comm_src"), order.rank)
                side = sent if node.kind == Kind.SEND else received
                side.setdefault(ends, []).append((node.attrs.get("comm_tag", 0), node.attrs.get("comm_size")))  # type: ignore[arg-type]
    for ends in {*sent, *received}:
        out, back = sent.get(ends, []), received.get(ends, [])
        if out != back:
            at = next((i for i, (a, b) in enumerate(zip(out, back, strict=False)) if a != b), min(len(out), len(back)))
            raise BadInput(
                f"rank {ends[0]} sends {len(out)} messages to rank {ends[1]}, which receives {len(back)}; from number {at} on they differ in "
                "tag, bytes or order"
            )
