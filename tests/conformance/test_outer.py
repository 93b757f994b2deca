"""The executor's outer step is DiLoCo's, and calls the kernels that are predicted."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from executor.training.outer import Outer  # noqa: E402
from sim.framework.framework import load_framework  # noqa: E402
from sim.work import LISTED  # noqa: E402
from tests.conformance.calls import Calls  # noqa: E402
from tests.null.lower.test_outer import kernels, local  # noqa: E402
from tests.null.lower.tiny import QUIET, network  # noqa: E402


def test_it_is_the_papers_algorithm() -> None:
    """Douillard et al. 2023, algorithm 1: the outer gradient is the old parameters minus the new ones; Nesterov (lr 0.7, momentum 0.9) from them."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    old = [p.detach().clone() for p in model.parameters()]
    outer, momenta = Outer(model, load_framework("pytorch")), [torch.zeros_like(p) for p in old]
    for _ in range(3):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p))
        new = [p.detach().clone() for p in model.parameters()]
        outer.step()
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            momenta[i] = 0.9 * momenta[i] + (a - b)
            old[i] = a - 0.7 * ((a - b) + 0.9 * momenta[i])
        for p, expected in zip(model.parameters(), old, strict=True):
            torch.testing.assert_close(p.detach(), expected)
            assert p.grad is None


KERNELS = {"sub": "add", "add": "add", "copy_": "copy", "mul_": "scale_", "add_": "add_", "_fused_sgd_": "momentum"}
"""Of torch's operators, without their `_foreach`."""


@pytest.mark.parametrize("how", ["for-loop", "foreach", "fused"])
def test_kernels_of_a_settled_outer_step(how: str) -> None:
    habits = QUIET.but(host="python", optimizer={"implementation": how})
    model = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(3))
    outer = Outer(model, habits)
    outer.step()  # makes the momentum
    with Calls() as calls:
        outer.step()
    p = local(1, net=network(3), framework=habits)
    predicted = [work.what for id in ("outer/moved", "outer/step") for work in kernels(p, id)]
    plain = [(name.startswith("_foreach_"), name.removeprefix("_foreach_")) for name in calls.names]
    called = [LISTED * listed + KERNELS[name] for listed, name in plain if name in KERNELS]
    assert sorted(called) == sorted(predicted) and len(called) == len(predicted)
