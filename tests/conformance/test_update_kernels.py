"""The predicted kernels of updates with one state against what torch calls: Adagrad's own, Lion and LARS as their papers write them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from executor.training.optimizers import optimizer_of  # noqa: E402
from sim.files.planfile import load_plan  # noqa: E402
from sim.optimizers import OPTIMIZERS  # noqa: E402
from sim.work import LISTED, Gemm, MemoryBound  # noqa: E402
from tests.conformance.calls import Calls  # noqa: E402
from tests.null.lower.test_optimizer import works  # noqa: E402
from tests.null.lower.tiny import QUIET, linear, network, norm, program  # noqa: E402

SIDE, TENSORS = 32, 3
KERNELS = {
    "addcmul_": "add_", "addcdiv_": "add_", "add_": "add_", "add": "add", "lerp_": "add_", "sqrt": "sqrt", "mul_": "scale_", "mul": "scale",
    "div": "scale", "sign_": "scale", "linalg_vector_norm": "norm", "_fused_adagrad_": "adagrad", "gt": "scale", "where": "scale",
}  # fmt: skip
"""Of torch's operators, without their `_foreach`, which a program calls `foreach`: what it calls them."""


def predicted(name: str, how: str, size: int = SIDE * SIDE) -> list[MemoryBound]:
    net = network(TENSORS, (linear(elements=size),))
    return works(program({"optimizer": {"name": name}}, net, QUIET.but(host="python", optimizer={"implementation": how})))


def called(step: Callable[[], object]) -> Counter[tuple[str, bool]]:
    """Kernels by name, and whether they are over whole tensors. A number is added as one is multiplied; kernels over single numbers are all alike."""
    with Calls() as calls:
        step()
    kinds: Counter[tuple[str, bool]] = Counter()
    for name, size, inputs in zip(calls.names, calls.sizes, calls.inputs, strict=True):
        kind = KERNELS.get(name.removeprefix("_foreach_"), "")
        if kind:
            whole = size >= SIDE
            number = {"add": "scale", "add_": "scale_"}.get(kind, kind) if inputs == 1 else kind
            kinds[LISTED * name.startswith("_foreach_") + number if whole else "scale", whole] += 1
    return kinds


def counted(found: list[MemoryBound]) -> Counter[tuple[str, bool]]:
    kinds: Counter[tuple[str, bool]] = Counter()
    for work in found:
        kinds[work.what, work.read >= 4 * SIDE] += work.repeat
    return kinds


def parameters() -> list[nn.Parameter]:
    made = [nn.Parameter(torch.randn(SIDE, SIDE)) for _ in range(TENSORS)]
    for parameter in made:
        parameter.grad = torch.randn(SIDE, SIDE)
    return made


@pytest.mark.parametrize("how", ["foreach", "for-loop", "fused"])
def test_adagrads_kernels_are_torchs(how: str) -> None:
    model = nn.ParameterList(parameters())
    optimizer = optimizer_of("adagrad", QUIET.but(optimizer={"implementation": how}), model)
    optimizer.step()
    seen = called(optimizer.step)
    assert seen.pop(("scale", False)) in (1, TENSORS), "counts of steps, which lie on the host"
    assert seen == counted(predicted("adagrad", how))


@pytest.mark.parametrize("name", [name for name, one in OPTIMIZERS.items() if one.torch and name != "muon"])
def test_stock_training_uses_the_class_that_the_record_names(name: str) -> None:
    made: Any = optimizer_of(name, QUIET.but(optimizer={"implementation": "foreach"}), nn.ParameterList(parameters()))
    assert type(made) is getattr(torch.optim, OPTIMIZERS[name].torch)
    assert (made.defaults.get("momentum", 0.0) > 0) == (name == "momentum")


@pytest.mark.parametrize("name", ["lion", "lamb"])
def test_nothing_stands_for_an_optimizer_that_torch_has_not(name: str) -> None:
    with pytest.raises(AttributeError):
        optimizer_of(name, QUIET, nn.ParameterList(parameters()))


def test_adagrads_state_is_one_number_a_parameter() -> None:
    model = nn.ParameterList(parameters())
    optimizer: Any = optimizer_of("adagrad", QUIET, model)
    kept = sum(value.numel() for state in optimizer.state.values() for name, value in state.items() if name != "step")
    assert kept == OPTIMIZERS["adagrad"].states * TENSORS * SIDE * SIDE


def lion(p: Tensor, m: Tensor) -> None:
    """Chen et al. 2023, algorithm 2, with torch's operators."""
    assert p.grad is not None
    p.mul_(1 - 1e-4 * 0.1)
    p.add_(m.mul(0.9).add_(p.grad, alpha=0.1).sign_(), alpha=-1e-4)
    m.lerp_(p.grad, 0.01)


def lars(p: Tensor, m: Tensor) -> None:
    """You et al. 2017, algorithm 1, with torch's operators; a ratio of one where a norm is zero."""
    assert p.grad is not None
    weights, gradients = torch.linalg.vector_norm(p), torch.linalg.vector_norm(p.grad)
    ratio = 0.001 * weights / (gradients + weights * 1e-4 + 1e-8)
    one = torch.ones(())
    ratio = torch.where(weights > 0, torch.where(gradients > 0, ratio, one), one)
    m.mul_(0.9).add_(p.grad.add(p, alpha=1e-4).mul_(ratio))
    p.add_(m, alpha=-0.1)


@pytest.mark.parametrize(("name", "one"), [("lion", lion), ("lars", lars)])
def test_updates_that_torch_has_not_are_written_with_its_operators(name: str, one: Callable[[Tensor, Tensor], None]) -> None:
    made = parameters()
    states = [torch.zeros_like(parameter) for parameter in made]

    @torch.no_grad()
    def step() -> None:
        for parameter, state in zip(made, states, strict=True):
            one(parameter, state)

    assert called(step) == counted(predicted(name, "for-loop"))
    assert OPTIMIZERS[name].states == 1


def test_ademamix_is_written_with_torchs_operators() -> None:
    """Pagliardini et al. 2024, algorithm 1, as its authors write it: no list of tensors, numbers apart."""
    made = parameters()
    states = [[torch.zeros_like(parameter) for _ in range(3)] for parameter in made]

    def one(p: Tensor, fast: Tensor, slow: Tensor, square: Tensor) -> None:
        assert p.grad is not None
        fast.mul_(0.9).add_(p.grad, alpha=0.1)
        slow.mul_(0.9999).add_(p.grad, alpha=0.0001)
        square.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
        root = (square.sqrt() / 0.5).add_(1e-8)
        update = (fast.div(0.1) + 5.0 * slow) / root
        update.add_(p, alpha=0.1)
        p.add_(-1e-3 * update)

    @torch.no_grad()
    def step() -> None:
        for parameter, kept in zip(made, states, strict=True):
            one(parameter, *kept)

    assert called(step) == counted(predicted("ademamix", "for-loop"))
    assert predicted("ademamix", "foreach") == predicted("ademamix", "for-loop")
    assert OPTIMIZERS["ademamix"].states == 3


def test_lions_lists() -> None:
    """timm's _multi_tensor_lion: six lists, and a sign for each tensor."""
    assert counted(predicted("lion", "foreach")) == Counter(
        {("foreach_scale", True): 1, ("scale", True): TENSORS, ("foreach_scale_", True): 2, ("foreach_add_", True): 3}
    )


def test_nobody_calls_lars_by_lists() -> None:
    assert predicted("lars", "foreach") == predicted("lars", "for-loop")


def test_plans_name_them() -> None:
    for name in ("lion", "adagrad", "lars"):
        assert load_plan({"model": "gpt2-124m", "optimizer": {"name": name}}).optimizer.name == name


@pytest.mark.parametrize("how", ["foreach", "for-loop"])
def test_adafactors_kernels_are_torchs(how: str) -> None:
    """Over whole matrices and vectors; what it reads, and the products of the factors."""
    rows, columns = 2 * SIDE, SIDE
    bias = 8
    model = nn.ParameterList([nn.Parameter(torch.randn(rows, columns)) for _ in range(TENSORS)])
    model.extend(nn.Parameter(torch.randn(bias)) for _ in range(TENSORS * 2))
    for parameter in model:
        parameter.grad = torch.randn(parameter.shape)
    optimizer: Any = optimizer_of("adafactor", QUIET.but(optimizer={"implementation": how}), model)
    optimizer.step()
    kept = sum(value.numel() for state in optimizer.state.values() for name, value in state.items() if name != "step")
    net = network(TENSORS, (linear(elements=rows * columns, matrices=((rows, columns),)), norm()))
    p = program({"optimizer": {"name": "adafactor"}}, net, QUIET.but(host="python", optimizer={"implementation": how}))
    assert kept == p.resident["optimizer"] // 4
    with Calls() as calls:
        optimizer.step()
    names = {
        "mul_": "scale", "mul": "scale", "div_": "scale", "clamp_min_": "scale", "clamp_": "scale", "rsqrt_": "sqrt", "add_": "add", "lerp_": "add",
        "clone": "copy", "linalg_vector_norm": "norm", "mm": "gemm", "pow": "scale",
    }  # fmt: skip
    whole: Counter[str] = Counter()
    for name, size in zip(calls.names, calls.sizes, strict=True):
        if size == rows * columns and name.removeprefix("_foreach_") in names:
            whole[names[name.removeprefix("_foreach_")]] += 1
    if how == "foreach":  # estimates by numbers of another shape: ForeachBinaryOpList.cu takes its slow route, tensor by tensor
        whole["scale"] += TENSORS - 1
    found: Counter[str] = Counter()
    for op in p.segments["update"]:
        if "matrices" in op.id:
            for work in op.works:
                found["gemm" if isinstance(work, Gemm) else work.what.removeprefix(LISTED)] += work.repeat  # type: ignore[union-attr]
    short = found.pop("reduce") + 7 * (1 if how == "foreach" else TENSORS)
    found["scale"] -= short - TENSORS
    assert whole == found
    # two matrix norms (of rows and columns) and two numbers that are read, for each
    assert whole["norm"] == 4 * TENSORS and whole["gemm"] == TENSORS
    reads = calls.names.count("_local_scalar_dense")
    steps = (3 if how == "foreach" else 1) * 3 * TENSORS  # of the counts of steps, on the host
    assert reads - steps == 2 * 3 * TENSORS == sum(op.kind == "copy" for op in p.segments["update"])
