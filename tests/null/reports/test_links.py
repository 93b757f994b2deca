"""Link use: bytes are those of the program, times those of the trace."""

import pytest

from reports.figures.links import BINS, LinkUse, group_of, link_use
from sim.predict import predict_setting
from sim.result.prediction import Prediction
from sim.setting.bind import Setting, bind
from sim.setting.pricer import pricer_for
from sim.timeline.metrics import window

GPT = {"model": "gpt2-124m", "batch": {"global": 32, "micro": 4}}


def uses(parallel: dict[str, object], on: str, fold: bool = True, batch: int = 32) -> tuple[Setting, Prediction, dict[str, LinkUse]]:
    setting = bind(GPT | {"batch": {"global": batch, "micro": 4}, "parallel": parallel}, on)
    found = predict_setting(setting, fold=fold)
    assert found.program is not None and found.trace is not None
    return setting, found, {use.name: use for use in link_use(found.program, found.trace, pricer_for(setting))}


@pytest.mark.parametrize(
    ("link", "group"),
    [
        ("n0/gpu3>n0/nvswitch", "n0: gpu > nvswitch"),
        ("n12/gpu7.d2h>n12/gpu7", "n12: gpu.d2h > gpu"),
        ("n1/nic4>net/leaf0.4", "n1 nic > net leaf"),
        ("net/leaf0.0>net/spine31", "net: leaf > spine"),
    ],
)
def test_equal_links_have_one_name(link: str, group: str) -> None:
    assert group_of(link) == group


@pytest.mark.no_cover
def test_what_goes_into_the_switch_comes_out() -> None:
    _, _, found = uses({"dp_shard": 8, "zero": 3}, "dgx-h100")
    out, back = found["n0: gpu > nvswitch"], found["n0: nvswitch > gpu"]
    assert out.moved == pytest.approx(back.moved) and out.moved > 0
    assert out.bins == pytest.approx(back.bins)


@pytest.mark.no_cover
@pytest.mark.parametrize("parallel", [{"dp_shard": 8, "zero": 3}, {"dp_shard": 4, "tp": 2, "zero": 3}], ids=["fsdp", "fsdp x tp"])
def test_folded_and_unfolded_agree(parallel: dict[str, object]) -> None:
    _, _, folded = uses(parallel, "dgx-h100")
    _, _, every = uses(parallel, "dgx-h100", fold=False)
    assert folded["n0: gpu > nvswitch"].moved == pytest.approx(every["n0: gpu > nvswitch"].moved)


def test_over_nodes_the_links_inside_them_carry_it_too() -> None:
    """Each GPU of one node hands its sums on over NVLink, as it does where there is one node; each NIC carries what eight GPUs are short of."""
    _, _, one = uses({"dp_replicate": 8}, "dgx-h100")
    _, _, two = uses({"dp_replicate": 16}, "2x dgx-h100", batch=64)
    assert 1.0 <= two["n0: gpu > nvswitch"].moved / one["n0: gpu > nvswitch"].moved < 2.0
    assert two["n0: gpu > nvswitch"].moved == pytest.approx(two["n0: nvswitch > gpu"].moved)
    assert two["n0 nic > net leaf"].moved < 0.2 * two["n0: gpu > nvswitch"].moved


def test_use_is_bytes_over_what_the_link_could_carry() -> None:
    _, found, links = uses({"dp_shard": 8, "zero": 3}, "dgx-h100")
    assert found.trace is not None
    begin, end = window(found.trace)
    use = links["n0: gpu > nvswitch"]
    assert use.rate == 450e9
    assert use.share == pytest.approx(use.moved / (use.rate * (end - begin)))
    assert use.share == pytest.approx(sum(use.bins) / BINS)
    assert max(use.bins) <= 1.0


def test_a_ring_moves_what_the_algorithm_says() -> None:
    """Reduce-scatter and all-gather of n ranks pass (n - 1)/n of the array through each rank's link; NVLink Sharp less, protocols more."""
    _, found, links = uses({"dp_shard": 8, "zero": 3}, "dgx-h100")
    assert found.trace is not None
    begin, end = window(found.trace)
    arrays = sum(s.bytes for s in found.trace.spans if s.kind == "collective" and s.start >= begin and s.end <= end)
    assert 0.4 * arrays < links["n0: gpu > nvswitch"].moved < 1.3 * arrays


def test_pipelines_cross_the_network() -> None:
    _, _, found = uses({"dp_shard": 4, "tp": 2, "pp": 2, "zero": 2}, "2x dgx-h100")
    assert found["n0 nic > net leaf"].moved > 0
    assert found["net leaf > n1 nic"].moved == pytest.approx(found["n0 nic > net leaf"].moved)


def test_one_rank_uses_no_link_between_gpus() -> None:
    _, _, found = uses({}, "dgx-h100")
    assert not any("nvswitch" in name or "nic" in name for name in found)
