"""RetinaNet and SSD300 as they are described, against the same in PyTorch: parameters, FLOPs by torch's own counter, what its graph keeps, the kernels of its loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from msgspec.structs import replace  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from sim.model import Network, Shape, describe, load_model  # noqa: E402
from sim.work import MemoryBound  # noqa: E402
from tests.conformance.detection_modules import RetinaNet, Ssd300  # noqa: E402
from tests.conformance.test_pictures import PLAIN, forward_flops, works_of  # noqa: E402

SIDE = 128


def network(micro: int = 1, **changes: Any) -> Network:
    return describe(replace(load_model("retinanet-resnext50"), **changes), Shape(micro=micro, seq=1, precision="fp32"), PLAIN)


def test_the_preset_is_torch_s() -> None:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = RetinaNet()
        model.heads(torch.empty(1, 3, 800, 800))
    assert network().parameters == sum(p.numel() for p in model.parameters())
    assert forward_flops(network()) == counter.get_total_flops()


def test_backward_is_torch_s_where_no_convolution_is_grouped() -> None:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        scores, boxes = RetinaNet(1, 64).heads(torch.empty(1, 3, 800, 800))
        (scores.sum() + boxes.sum()).backward()
    works = works_of(network(groups=1, width=64))
    assert sum(work.flops for work in works if not isinstance(work, MemoryBound)) == counter.get_total_flops()


def test_ssd_is_torch_s() -> None:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = Ssd300()
        model.heads(torch.empty(2, 3, 300, 300))
    described = describe(load_model("ssd300"), Shape(micro=2, seq=1, precision="fp32"), PLAIN)
    assert described.parameters == sum(p.numel() for p in model.parameters())
    assert forward_flops(described) == counter.get_total_flops()


@pytest.mark.parametrize(
    ("build", "side", "changes", "micro"),
    [(RetinaNet, SIDE, {"image": SIDE}, 1), (RetinaNet, SIDE, {"image": SIDE}, 2), (Ssd300, 300, {"arch": "ssd300", "groups": 1}, 2)],
)
def test_they_keep_what_torch_keeps(build: Callable[[], torch.nn.Module], side: int, changes: dict[str, Any], micro: int) -> None:
    """Of maps that several convolutions read, one copy."""
    model, held = build(), {}
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}

    def hold(tensor: torch.Tensor) -> torch.Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
        model(torch.randn(micro, 3, side, side))
    kept = sum(tensor.untyped_storage().nbytes() for place, tensor in held.items() if place not in own)
    described = sum(part.saved for _, block in network(micro, **changes).blocks for part in block.parts)
    assert described == pytest.approx(kept, rel=0.01)


class Large(TorchDispatchMode):
    """Counts operators over all anchors and classes of a picture."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.least, self.found = least, Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        some = [one for one in (*args, out) if isinstance(one, torch.Tensor)]
        if max((one.numel() for one in some), default=0) > self.least and not func.is_view:
            self.found[func.overloadpacket.__name__] += 1
        return out


def test_the_loss_has_torch_s_operators() -> None:
    """Cross-entropy is one operator of four kernels (1 - t, times x, log sigmoid, their difference); the other way around it is none."""
    loss = next(part for part in dict(network(image=SIDE).blocks)["loss"].parts if part.name == "focal")
    n = 9 * 264 * sum((SIDE >> level) ** 2 for level in range(3, 8))
    sizes = [
        [work for work in works if isinstance(work, MemoryBound) and max(work.read, work.written) >= 4 * n]
        for works in (loss.forward, loss.backward)
    ]
    scores = torch.randn(1, n // 264, 264, requires_grad=True)
    net = RetinaNet()
    with Large(0.9 * n) as forward:
        total = net.loss(scores, torch.zeros(1, n // 264, 4))
    with Large(0.9 * n) as backward:
        total.backward()
    assert forward.found["binary_cross_entropy_with_logits"] == 1
    assert len(sizes[0]) == forward.found.total() + 3 - forward.found["index_put_"]
    assert len(sizes[1]) == backward.found.total()
