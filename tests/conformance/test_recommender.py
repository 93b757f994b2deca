"""DLRM as it is described, against the same in PyTorch: parameters, FLOPs by torch's own counter, each product by itself. Tables are looked up and
updated by kernels that plain PyTorch has not (FBGEMM's), so their bytes are counted by hand (tests/null/model/test_recommender.py)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from executor.recording.capture import Input, capture  # noqa: E402
from sim.framework.framework import Framework  # noqa: E402
from sim.model import Network, Shape, describe, load_model  # noqa: E402
from sim.model.specs.spec import Dlrm  # noqa: E402
from sim.work import MemoryBound  # noqa: E402
from tests.conformance import recommender_modules as modules  # noqa: E402
from tests.conformance.test_pictures import products, works_of  # noqa: E402

PLAIN = Framework(name="plain", source="test").but(
    precision={"param_dtype": "fp32", "grad_dtype": "fp32", "reduce_dtype": "fp32"}, optimizer={"implementation": "fused"}
)


@pytest.mark.parametrize("name", ["dlrm-kaggle", "dlrm-terabyte"])
def test_presets_are_torch_s(name: str) -> None:
    spec = load_model(name)
    assert isinstance(spec, Dlrm)
    network = describe(spec, Shape(micro=64, seq=1, precision="fp32"), PLAIN)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = modules.Dlrm(spec.tables, spec.dim, spec.bottom, spec.top)
        model(torch.empty(64, 13)).backward()
    assert network.parameters == sum(p.numel() for p in model.parameters())
    assert sum(w.flops for w in works_of(network) if not isinstance(w, MemoryBound)) == counter.get_total_flops()


def both() -> tuple[Network, Network]:
    sizes = ((50, 7, 300), 16, (32, 16), (24, 1))
    captured = capture(lambda: modules.Dlrm(*sizes), (Input((8, 13)),), name="dlrm")
    said = Dlrm(tables=sizes[0], dim=16, bottom=sizes[2], top=sizes[3])
    shape = Shape(micro=8, seq=1, precision="fp32")
    return describe(captured, shape, PLAIN), describe(said, shape, PLAIN)


def test_each_product_is_the_captured_one() -> None:
    captured, described = both()
    assert products(captured) == products(described)
    assert captured.parameters == described.parameters


def test_the_dense_half_keeps_what_is_captured() -> None:
    kept = [sum(p.saved for _, b in network.blocks for p in b.parts if p.cls in ("gemm", "activation")) for network in both()]
    assert kept[0] == pytest.approx(kept[1], rel=0.1)
