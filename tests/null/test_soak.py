"""A long-lived process keeps what it needs and no more: the short form of `python -m tests.reliability.soak`."""

from __future__ import annotations

import gc
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest

from tests.reliability.soak import caches, one, resident, swept

OWN_BOUND = {
    "sim.cost.collective._shapes": "cleared at a number of its own",
    "sim.cost.kernel._known": "prices of kernels, cleared at a number by GPU and by work",
}
"""Mappings that grow with new plans."""


@pytest.mark.no_cover
def test_the_same_again_takes_no_memory() -> None:
    for _ in range(2):
        for number in range(4):
            one(number)
    tracemalloc.start()
    try:
        held = []
        for _ in range(4):
            for number in range(4):
                one(number)
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    # Each prediction holds some 100 kB while it runs; what stays is a new topology in the caches of shapes. A cache that tests before have all
    # but filled takes more room once, a leak in every round.
    assert min(after - before for before, after in pairwise(held[1:])) < 300_000, held


@pytest.mark.no_cover
def test_caches_without_a_bound_do_not_grow_with_plans(tmp_path: Path) -> None:
    for number in range(100, 116):
        one(number)
    swept(100, tmp_path)
    before = {name: entries for name, entries, bound in caches() if bound is None}
    assert len(before) > 10, "caches were found"
    for number in range(116, 132):
        one(number)
    swept(116, tmp_path)
    grown = {name for name, entries, bound in caches() if bound is None and entries > before.get(name, 0)}
    assert grown <= set(OWN_BOUND)


def test_bounded_caches_keep_their_bound() -> None:
    assert all(entries <= bound for _, entries, bound in caches() if bound is not None)


def test_the_process_knows_its_size() -> None:
    assert 10 * 2**20 < resident() < 2**36
