"""`comm.algorithm` from the plan to the step: every word that the plan takes is one that the cost model knows, and does something."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest

from sim.cost.collective import best, collective_cost, group_shape
from sim.cost.collective.nccl import ALGORITHMS, NAMES
from sim.predict import predict
from sim.sections import Comm
from topologies.errors import Refused
from topologies.load import load_topology

_GPT = {"model": "gpt2-124m", "batch": {"global": 32, "micro": 1}}
_GATHERS = {"dp_shard": 2, "tp": 4, "zero": 3}
_REDUCES = {"dp_replicate": 2, "tp": 4}


def _sent(parallel: dict[str, int], algorithm: str, on: str) -> float:
    """Seconds in which the step's collectives run."""
    trace = predict(_GPT | {"parallel": parallel, "comm": {"algorithm": algorithm}}, on).trace
    assert trace is not None
    return sum(span.end - span.start - span.wait for span in trace.spans if span.kind == "collective")


def test_the_plan_takes_the_words_of_the_cost_model() -> None:
    assert get_args(get_type_hints(Comm)["algorithm"]) == ALGORITHMS


@pytest.mark.no_cover
@pytest.mark.parametrize(("parallel", "algorithm"), [(_GATHERS, "pat"), (_REDUCES, "collnet")])
def test_ways_between_nodes_leave_groups_inside_to_nccl(parallel: dict[str, int], algorithm: str) -> None:
    """tp talks inside a node, dp over nodes from one rank of each: only the latter takes the forced way."""
    on = "2x a100-x4-nvlink" if algorithm == "pat" else "2x leonardo-a100"
    topology = load_topology(on)
    inside, between = (0, 1, 2, 3), (0, 4)
    name = "all_gather" if algorithm == "pat" else "all_reduce"
    assert collective_cost(name, 1 << 26, inside, topology, algorithm) == collective_cost(name, 1 << 26, inside, topology)
    ring, forced = (collective_cost(name, 1 << 26, between, topology, how).seconds for how in ("ring", algorithm))
    assert forced != ring
    assert _sent(parallel, algorithm, on) != _sent(parallel, "ring", on)


@pytest.mark.parametrize(
    ("parallel", "algorithm", "on", "says"),
    [
        ({"dp_shard": 8, "zero": 3}, "pat", "dgx-h100", "one rank on each"),
        ({"dp_shard": 16, "zero": 3}, "pat", "2x dgx-h100", "one rank on each"),
        ({"dp_replicate": 16}, "collnet", "2x aws-p5", "SHARP"),
        ({"dp_replicate": 8}, "collnet", "dgx-h100", "SHARP"),
    ],
)
def test_what_the_machine_cannot_do_is_refused_with_the_rule(parallel: dict[str, int], algorithm: str, on: str, says: str) -> None:
    with pytest.raises(Refused, match=says):
        _sent(parallel, algorithm, on)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("on", ["dgx-h100", "2x gh200"])
def test_a_refusal_allows_only_what_may_be_asked_for(name: str, on: str) -> None:
    topology = load_topology(on)
    for algorithm in ALGORITHMS:
        try:
            best(name, 1 << 20, group_shape(topology, tuple(range(topology.gpus))), algorithm)
        except Refused as error:
            assert set(str(error).partition("allowed: ")[2].split(", ")) <= set(ALGORITHMS)
