"""Which pipeline rank holds which stage: round and round, or there and back (DualPipe-V)."""

from __future__ import annotations


def chunks_of(name: str, virtual_stages: int) -> int:
    """Stages on each rank. DualPipe-V always has two."""
    return 2 if name == "dualpipe" else virtual_stages


def rank_of(name: str, pp: int, stage: int) -> int:
    """The rank that holds `stage`: "loop" `stage % pp`, "v" down and up again
    (torch.distributed.pipelining.generate_stage_to_rank_mapping)."""
    return 2 * pp - 1 - stage if name == "dualpipe" and stage >= pp else stage % pp
