"""DLRM as it is described, against the same in PyTorch: parameters, FLOPs by torch's own counter, each product by itself. Tables are looked up and
updated by kernels that plain PyTorch has not (FBGEMM's), so their bytes are counted by hand (tests/null/model/test_recommender.py)."""

from __future__ import annotations

from functools import cache

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


@pytest.mark.parametrize("name", ["dlrm-kaggle", "dlrm-terabyte", "dlrm-dcnv2"])
def test_presets_are_torch_s(name: str) -> None:
    spec = load_model(name)
    assert isinstance(spec, Dlrm)
    network = describe(spec, Shape(micro=64, seq=1, precision="fp32"), PLAIN)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = modules.Dlrm(spec.tables, spec.dim, spec.bottom, spec.top, cross=spec.cross, rank=spec.rank)
        model(torch.empty(64, 13)).backward()
    assert network.parameters == sum(p.numel() for p in model.parameters())
    assert sum(w.flops for w in works_of(network) if not isinstance(w, MemoryBound)) == counter.get_total_flops()


@cache
def both(cross: int) -> tuple[Network, Network]:
    sizes = ((50, 7, 300), 16, (32, 16), (24, 1))
    captured = capture(lambda: modules.Dlrm(*sizes, cross=cross, rank=12), (Input((8, 13)),), name="dlrm")
    said = Dlrm(tables=sizes[0], dim=16, bottom=sizes[2], top=sizes[3], cross=cross, rank=12)
    shape = Shape(micro=8, seq=1, precision="fp32")
    return describe(captured, shape, PLAIN), describe(said, shape, PLAIN)


@pytest.mark.parametrize("cross", [0, 2])
def test_each_product_is_the_captured_one(cross: int) -> None:
    captured, described = both(cross)
    assert products(captured) == products(described)
    assert captured.parameters == described.parameters


def test_the_dense_half_keeps_what_is_captured() -> None:
    kept = [sum(p.saved for _, b in network.blocks for p in b.parts if p.cls in ("gemm", "activation")) for network in both(0)]
    assert kept[0] == pytest.approx(kept[1], rel=0.1)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_cross_network_keeps_what_torch_keeps(autocast: bool) -> None:
    """Autocast: x0, the sums and biases are fp32, what products read is a copy in 16 bits."""
    crossed, held, x = modules.Crossed(64, 3, 8), {}, torch.randn(32, 64, requires_grad=True)
    own = {one.untyped_storage().data_ptr() for one in crossed.parameters()}

    def hold(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape[0] == 32:  # not weights in 16 bits
            held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        crossed(x * 1.0)
    kept = sum(tensor.untyped_storage().nbytes() for place, tensor in held.items() if place not in own)
    spec = Dlrm(tables=(50, 7, 300), dim=16, bottom=(16,), top=(1,), cross=3, rank=8)
    framework = PLAIN.but(precision={"autocast": autocast})
    network = describe(spec, Shape(micro=32, seq=1, precision="bf16" if autocast else "fp32"), framework)
    assert sum(part.saved for part in dict(network.blocks)["head"].parts if part.name.startswith("cross")) == kept
