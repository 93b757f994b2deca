"""Kernels of works on a CPU: what PyTorch is called, and how many bytes come out. Nothing is timed."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode

from executor.arena import Arena, of_cpu, of_gpu
from executor.kernels.backward import _alone, backward
from executor.kernels.bodies import body, held
from executor.kernels.memory_bound import memory_kernel
from executor.probes.bench import Bench
from executor.probes.kernels import _CONVOLUTIONS, variants
from sim.cost.device import table
from sim.cost.points import place_of
from sim.cost.variant import variant
from sim.predict import predict
from sim.work import Attention, Conv, Gemm, MemoryBound, Scores
from tests.gloo.gpu_standin import StandIn, alone
from topologies.errors import BadInput

MAIN = {
    "add": "add", "add_": "add_", "scale": "mul", "scale_": "mul_", "copy": "clone", "permute": "clone", "zero": "zero_", "cast": "_to_copy", "widen": "_to_copy", "reduce": "sum",
    "norm": "linalg_vector_norm", "relu": "relu", "relu_backward": "threshold_backward", "gelu": "gelu", "gelu_backward": "gelu_backward",
    "silu": "silu", "silu_backward": "silu_backward", "glu": "silu", "glu_backward": "silu_backward", "dropout": "native_dropout",
    "dropout_backward": "native_dropout_backward", "layernorm": "native_layer_norm", "layernorm_backward": "native_layer_norm_backward",
    "layernorm_weights": "native_layer_norm_backward",
    "softmax": "_softmax", "softmax_backward": "_softmax_backward_data", "softmax_wide": "_log_softmax",
    "softmax_wide_backward": "_log_softmax_backward_data", "batchnorm": "native_batch_norm",
    "batchnorm_backward": "native_batch_norm_backward", "cross_entropy": "nll_loss_forward", "embedding": "embedding",
    "embedding_backward": "embedding_dense_backward", "scatter_add": "scatter_add_", "rope": "cat", "strided": "mul", "sgd": "_fused_sgd_", "momentum": "_fused_sgd_",
    "adam": "_fused_adam_", "adamw": "_fused_adamw_", "pool": "max_pool2d_with_indices",
    "pool_backward": "max_pool2d_with_indices_backward",
}  # fmt: skip
"""The op of PyTorch that does most of it."""
BESIDES = {"batchnorm": 1.25, "batchnorm_backward": 1.4, "layernorm": 1.01}
"""Masks and statistics come out as well: bytes over those of the work, at most."""


class Called(TorchDispatchMode):
    """Notes the ops that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def _bytes(value: object) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(_bytes, value)) if isinstance(value, (tuple, list)) else 0


def _run(work: MemoryBound, dtype: torch.dtype, as_on: str = "cpu") -> tuple[list[str], int]:
    arena = Arena(torch.device("cpu"), 1 << 28, distant=1 << 20)
    arena.device = torch.device(as_on)  # its rings stay here
    with torch.no_grad():
        kernel = memory_kernel(work, arena, dtype)
        with Called() as called:
            made = kernel()
    return called.names, _bytes(made)


def test_each_kernel_of_a_layer_norm_on_a_gpu_is_that_part_of_torchs_here() -> None:
    """The last one gives two gradients of 256 numbers: a sum of all that it reads would keep every SM of a GPU busy, torch's kernel one for 32 of them."""
    for read, written, name, out in (
        (1, 1, "layernorm", 1 << 16),
        (2, 1, "layernorm_backward", 1 << 16),
        (2, 0, "layernorm_weights", 2 << 10),
    ):
        work = MemoryBound("layernorm_apart", read << 16, written << 16, "fp32", rows=64)
        names, made = _run(work, torch.float32, "cuda")
        assert variant(work) == name and MAIN[name] in names
        assert made == pytest.approx(out, rel=0.02)


def test_one_kernel_of_a_cpu_makes_all_gradients_of_a_layer_norm() -> None:
    backward, weights = (_run(MemoryBound("layernorm_apart", 2 << 16, written << 16, "fp32", rows=64), torch.float32) for written in (1, 0))
    assert backward == (["native_layer_norm_backward"], (1 << 16) + (2 << 10))
    assert weights == ([], 0)


def test_an_rms_norm_runs_what_torch_runs_in_training() -> None:
    """On a CPU: operators with nodes for backward, whose products are the norm's and whose sum over rows is a work of its own."""
    x, w, g = torch.randn(64, 256).requires_grad_(), torch.ones(256).requires_grad_(), torch.randn(64, 256)
    with Called() as forward:
        out = F.rms_norm(x, (256,), w)
    with Called() as backward:
        torch.autograd.grad(out, (x, w), g)
    e = 4 * x.numel()
    works = [MemoryBound("rmsnorm", read * e, e, "fp32", rows=64) for read in (1, 2)] + [MemoryBound("reduce", e, 4 * 256, "fp32")]
    views = ("detach", "expand", "view", "t")
    played, played_backward, total = (Counter(name for name in _run(work, torch.float32)[0] if name not in views) for work in works)
    assert played == Counter(name for name in forward.names if name not in views)
    assert played_backward + total == Counter(name for name in backward.names if name not in views)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("at", range(len(list(variants(1 << 18, "fp32")))))
def test_every_variant_runs_as_its_kernel_and_writes_its_bytes(at: int, dtype: str) -> None:
    work = list(variants(1 << 18, dtype))[at]
    name = variant(work)
    names, made = _run(work, torch.float32 if dtype == "fp32" else torch.bfloat16, "cuda" if name.startswith("layernorm") else "cpu")
    if name in MAIN:
        assert MAIN[name] in names
    if not MAIN.get(name, "").endswith("_") and work.written and name != "cross_entropy":  # in place, and a loss: nothing else comes out
        assert 0.95 * work.written <= made <= BESIDES.get(name, 1.0) * work.written + 64


def test_what_holds_a_kernel_back_is_said_of_kernels_that_a_probe_knows() -> None:
    assert set(table("memory", "bound", dict[str, dict[str, object]])["sm90"]) <= {variant(work) for work in variants(1 << 18, "bf16")}


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("model", ["gpt2-124m", "resnet50"])
def test_kernels_are_timed_over_the_arrays_that_a_steps_kernels_have(model: str, precision: str) -> None:
    """Points lie at their bytes: a zero that was said to read what it writes, and a dropout without its mask, stood at others than theirs."""
    plan: dict[str, Any] = {"model": model, "precision": precision, "batch": {"micro": 2}}
    program = predict(plan | ({"seq_len": 64} if model == "gpt2-124m" else {}), "dgx-h100").program
    assert program is not None
    ratios: dict[str, set[float]] = {}
    for work in (work for ops in program.segments.values() for op in ops for work in op.works if isinstance(work, MemoryBound)):
        ratios.setdefault(variant(work), set()).add(round(work.read / max(1, work.written), 1))
    timed = {variant(work): round(work.read / max(1, work.written), 1) for work in variants(1 << 20, precision)}
    alike = {
        "zero",
        "dropout",
        "dropout_backward",
        "batchnorm",
        "batchnorm_backward",
        "gelu_backward",
        "relu_backward",
        "layernorm_backward",
    }
    found = {name: ratios[name] for name in alike & ratios.keys()}
    assert len(found) > 3 and found == {name: {timed[name]} for name in found}


def test_works_without_a_kernel_of_their_own_move_their_bytes() -> None:
    """One array is copied, two are added, and what writes nothing is summed."""
    for read, written, op, out in ((4096, 4096, "clone", 4096), (8192, 4096, "add", 4096), (4096, 0, "sum", 4)):
        names, made = _run(MemoryBound("unheard", read, written, "fp32"), torch.float32)
        assert names == [op] and made == out


def test_a_held_result_stays_until_its_call_comes_again() -> None:
    """As a step's activations do: what the next kernel makes lies elsewhere."""
    made: list[weakref.ref[torch.Tensor]] = []

    def make() -> torch.Tensor:
        result = torch.ones(8)
        made.append(weakref.ref(result))
        return result

    one, other = held(make), held(make)
    one()
    other()
    assert [ref() is not None for ref in made] == [True, True]
    one()
    assert [ref() is not None for ref in made] == [False, True, True]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("what", "read"), [("add_", 2), ("add_", 3), ("scale_", 1)])
def test_kernels_in_place_leave_the_numbers_that_others_read(what: str, read: int, dtype: str) -> None:
    """They run a thousand times over a ring that all kernels share: what grew or shrank would come to NaN or to denormals."""
    arena = Arena(torch.device("cpu"), 1 << 28, distant=1 << 20)
    size = (1 << 16) * (4 if dtype == "fp32" else 2)
    with torch.no_grad():
        run = body(MemoryBound(what, read * size, size, dtype), arena)
        ring = arena._distant._flat.clone()
        result = [run() for _ in range(3)][-1]
    assert isinstance(result, torch.Tensor) and _bytes(result) == size
    assert torch.equal(ring, arena._distant._flat)


@pytest.mark.parametrize(("tensors", "expected"), [(1, 1), (5, 5), (3, 1)])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("what", "read", "written"), [
    ("add_", 2, 1), ("add_", 3, 1), ("scale_", 1, 1), ("add", 2, 1), ("scale", 1, 1), ("scale", 2, 1), ("sqrt", 1, 1), ("norm", 1, 0), ("copy", 1, 1),
])  # fmt: skip
def test_passes_over_lists_are_torchs(what: str, read: int, written: int, dtype: str, tensors: int, expected: int) -> None:
    """A plain kernel over as many bytes is a quarter to a third shorter on a GPU. Small tensors stay a list; large ones are cut up all the same. Numbers
    that others read stay what they are, and tensors are of lengths that multi-tensor kernels take four elements of at once."""
    arena, seen = Arena(torch.device("cpu"), 1 << 28, distant=1 << 20), list[tuple[str, list[torch.Tensor]]]()
    size = (tensors * (1 << 14) if expected > 1 else 1 << 18) + 3

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append((func.overloadpacket.__name__, args[0]))
            return func(*args, **(kwargs or {}))

    e = 4 if dtype == "fp32" else 2
    work = MemoryBound(f"foreach_{what}", read * size * e, written * size * e, dtype, 0.0, 2, tensors)
    with torch.no_grad():
        run = body(work, arena)
        ring = arena._distant._flat.clone()
        with Noted():
            run()
    names = {
        "scale_": "_foreach_mul_",
        "scale": "_foreach_mul",
        "copy": "_foreach_copy_",
        "add_": "_foreach_addcmul_" if read == 3 else "_foreach_add_",
    }
    lists = [given for name, given in seen if name == names.get(what, f"_foreach_{what}")]
    assert len(lists) == 2, "one for each launch"
    for given in lists:
        assert len(given) == expected and all(len(x) % 8 == 0 for x in given) and size - sum(map(len, given)) < 8 * tensors
    assert what == "copy" or torch.equal(ring, arena._distant._flat)


@pytest.mark.parametrize(("what", "inputs", "ops", "called"), [
    ("activation", 1, 5.0, "silu"), ("activation", 2, 10.0, "silu_backward"), ("scale", 2, 1.0, "mul"),
])  # fmt: skip
def test_gated_activations_read_halves_of_rows_where_they_lie(what: str, inputs: int, ops: float, called: str) -> None:
    """As stock models do: such kernels take twice as long on a GPU as those over rows that lie together, and write these."""
    rows, width, seen = 48, 256, list[tuple[torch.Tensor, ...]]()
    n = rows * width

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            assert func.overloadpacket.__name__ == called
            seen.append(args)
            return func(*args, **(kwargs or {}))

    for halves in (True, False):
        work = MemoryBound(what, inputs * 2 * n, 2 * n, "bf16", ops * n, 1, rows, halves)
        assert variant(work).endswith("_halves") == halves
        run = memory_kernel(work, Arena(torch.device("cpu"), 1 << 28, distant=1 << 20), torch.bfloat16)
        with torch.no_grad(), Noted():
            made: Any = run()
        assert made.numel() == n and made.is_contiguous()
    lying, together = ([x for x in given if isinstance(x, torch.Tensor)] for given in seen)
    assert [x.is_contiguous() for x in lying] == [True] * (inputs - 1) + [False] and all(x.is_contiguous() for x in together)
    assert lying[-1].stride() == (2 * width, 1)


def test_gradients_are_cast_by_lists_into_another_dtype() -> None:
    arena = Arena(torch.device("cpu"), 1 << 28, distant=1 << 20)
    with torch.no_grad():
        body(MemoryBound("foreach_cast", 2 << 16, 4 << 16, "fp32", rows=1), arena)()
        names, _ = _run(MemoryBound("foreach_cast", 4 << 16, 2 << 16, "bf16", rows=1), torch.bfloat16)
    assert names == ["_foreach_copy_"]


def test_what_optimizers_write_over_is_read_by_no_other_kernel() -> None:
    """Half of a moment's fp32 number is a bf16 of random bits: attention over such numbers ran 25 times slower."""
    arena = Arena(torch.device("cpu"), 1 << 28, distant=1 << 20)
    with torch.no_grad():
        body(MemoryBound("adamw", 4 << 16, 3 << 16, "fp32"), arena)()
    assert arena._updated._flat.numel() and not arena._distant._flat.numel() and not arena._recent._flat.numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_buffers_hold_small_numbers_in_every_dtype(dtype: torch.dtype) -> None:
    """Half of an fp32 number is a bf16 of random bits: NaN, huge and denormal ones, whose products take other power than training's."""
    arena = Arena(torch.device("cpu"), 1 << 24, recent=1 << 20, distant=1 << 20)
    for tensor in (arena.recent(1 << 16, dtype=dtype), arena.distant(1 << 16, dtype=dtype)):
        size = tensor.float().abs()
        assert float(size.max()) < 2.0 and float(size.std()) > 0.0
        assert int((size < 1e-10).sum()) < 8, "no zeros or denormals"


def test_numbers_are_drawn_once_and_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing them for each buffer took a third of the processors' time of plans played one after the other."""
    drawn, draw = list[torch.Size](), torch.randn
    monkeypatch.setattr(torch, "randn", lambda shape, **more: drawn.append(shape) or draw(shape, **more))
    for _ in range(2):
        arena = Arena(torch.device("cpu"), 64 << 20, recent=1 << 20, distant=32 << 20)
        assert float(arena.distant(5 << 20).abs().min()) > 0.0 and float(arena.updated(4).abs().min()) > 0.0
    assert len(drawn) <= 1


def test_buffers_of_all_ranks_fit_beside_those_they_outgrew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranks of VGG-11, whose first linear layer has 411 MB, were ended by the system on a machine of 24 GB."""
    monkeypatch.setattr("executor.arena.free_memory", lambda device: 12 << 20)  # half of what is available
    arena = of_cpu(torch.device("cpu"), 4)
    held = list[torch.Tensor]()
    for size in range(1 << 14, 12 << 20, 1 << 14):
        with contextlib.suppress(BadInput):
            held += [arena.recent(size, dtype=torch.uint8), arena.distant(size, dtype=torch.uint8), arena.updated(size // 4)]
    taken = sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in held}.values())
    assert (4 << 20) < 4 * taken < 24 << 20


def test_an_array_that_no_cache_holds_is_read_from_memory() -> None:
    arena = Arena(torch.device("cpu"), 64 << 20, recent=1 << 20, distant=32 << 20, near=True, spills=True)
    fits, larger = 1 << 18, (1 << 18) + 1
    near, far, *found = (
        take(count).untyped_storage().data_ptr()
        for take, count in ((arena.recent, fits), (arena.distant, larger), (arena.recent, fits), (arena.recent, larger))
    )
    assert found == [near, far] and near != far


def test_neighbours_get_different_bytes_however_large() -> None:
    arena = Arena(torch.device("cpu"), 64 << 20, recent=1 << 20, distant=2 << 20)
    for take in (arena.recent, arena.distant):
        for size in (1 << 10, 1 << 20, 2 << 20, 3 << 20):
            taken = [take(size, dtype=torch.uint8) for _ in range(12)]
            for first, *others in (taken[at : at + 4] for at in range(9)):
                assert all(abs(first.data_ptr() - other.data_ptr()) >= size for other in others)
    held = [arena.recent(size, dtype=torch.uint8) for size in range(5 << 20, 8 << 20, 1 << 14)]
    assert sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in held}.values()) <= 64 << 20


@pytest.mark.parametrize(
    ("work", "called"),
    [
        (Gemm(8, 4, 16, "bf16", 1, "dgrad", True, 1, "bf16"), ["addmm_"]),
        (Gemm(8, 4, 16, "fp32", 3, "wgrad", True, 1, "fp32"), ["baddbmm_"]),
        (Gemm(8, 4, 16, "bf16", 1, "wgrad", True, 1, "fp32"), ["mm", "add_"]),
        (Gemm(8, 4, 16, "bf16"), ["mm"]),
    ],
)
def test_a_product_adds_in_its_own_kernel_where_torch_has_one(work: Gemm, called: list[str]) -> None:
    run = body(work, Arena(torch.device("cpu"), 1 << 20))
    with Called() as seen:
        run()
    assert seen.names == called


@pytest.mark.parametrize(
    ("kind", "dtype", "flagged", "beside"),
    [
        ("cuda", "bf16", False, True),
        ("cuda", "tf32", False, True),
        ("cuda", "fp32", True, True),
        ("cuda", "fp32", False, False),
        ("cpu", "bf16", False, False),
    ],
)
@pytest.mark.parametrize("role", ["fwd", "dgrad", "wgrad"])
def test_tensor_cores_convolve_maps_whose_channels_lie_side_by_side(kind: str, dtype: str, flagged: bool, beside: bool, role: str) -> None:
    """What a GPU would be given, run on the CPU: layouts of all maps, and a result of the right shape."""
    real = Arena(torch.device("cpu"), 1 << 28, distant=1 << 20)
    given: list[bool] = []

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            maps = [a for a in args if isinstance(a, torch.Tensor) and a.dim() == 4]
            if "convolution" in func.overloadpacket.__name__:
                given.extend(a.is_contiguous(memory_format=torch.channels_last) for a in maps)
            return func(*args, **(kwargs or {}))

    arena: Any = SimpleNamespace(device=SimpleNamespace(type=kind), limit=1 << 28, recent=real.recent, distant=real.distant)
    work = Conv(2, 8, 6, 6, 16, 3, 3, dtype=dtype, role=role, channels_last=flagged)
    with torch.no_grad():
        call = body(work, arena)
        with Noted():
            made: Any = call()
    assert given == [beside] * (2 if role == "fwd" else 3)
    shape = {"fwd": (2, 16, 6, 6), "dgrad": (2, 8, 6, 6), "wgrad": (16, 8, 3, 3)}[role]
    assert tuple((made if role == "fwd" else made[role == "wgrad"]).shape) == shape


@pytest.mark.parametrize(("kind", "shape"), [("cuda", (300, 8)), ("cpu", (1, 8, 300))])
@pytest.mark.parametrize("back", [False, True])
def test_a_batch_norm_has_as_many_channels_as_the_works(kind: str, shape: tuple[int, ...], back: bool) -> None:
    """Its rows: taken for samples, they had made a norm of 300 channels over eight values each."""
    real, given = Arena(torch.device("cpu"), 1 << 28, distant=1 << 20), list[tuple[int, ...]]()

    def take(ring: Any) -> Any:
        return lambda *size, dtype: (given.append(size), ring(*size, dtype=dtype))[1]

    arena: Any = SimpleNamespace(device=SimpleNamespace(type=kind), limit=1 << 28, recent=take(real.recent), distant=take(real.distant))
    size = 4 * 8 * 300
    made: Any = body(MemoryBound("batchnorm", (4 if back else 2) * size, size, "fp32", 1.0, 1, 8), arena)()
    assert {one for one in given if len(one) > 1} == {shape} and tuple(made[0].shape) == shape
    assert [tuple(one.shape) for one in made[1:]] == [(8,), (8,)]


@pytest.mark.parametrize(("each", "places"), [(1 << 12, 6), (3 << 16, 3)])
def test_repetitions_are_over_tensors_of_their_own(each: int, places: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an optimizer's lists: one of 40 MB, updated six times, would stay in the L2 of a GPU. What is large takes turns, and so leaves it."""
    given: list[int] = []
    monkeypatch.setattr("executor.kernels.bodies._APART", 1 << 20)

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given.append(args[0].data_ptr())
            return args[0]

    run = body(MemoryBound("scale_", each, each, "bf16", repeat=6), Arena(torch.device("cpu"), 1 << 28, distant=4 << 20))
    with Noted():
        run()
    assert len(given) == 6 and len(set(given)) == places


def test_on_a_gpu_small_buffers_stay_near_whatever_else_is_played() -> None:
    """Logits make the ring long; what comes after them would else be spread over it, and come from memory instead of L2."""
    arena, far = of_gpu(torch.device("cpu"), 1 << 28, 1 << 20), 24 << 20
    first = arena.recent(1 << 18).data_ptr()
    large = arena.recent(far // 4)
    places = [arena.recent(1 << 18).data_ptr() for _ in range(40)]
    assert large.numel() * 4 == far and max(places) - min(places) < 8 << 20
    assert len(set(places)) == 8, "neighbours get different bytes"
    assert first not in places, "the ring is a new one since it grew"


def test_a_gpus_weights_come_from_memory_in_the_probe_as_in_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve products of 2 MB each lie in an L2 of 50 MB."""
    monkeypatch.setattr("executor.probes.bench.free_memory", lambda device: 1 << 30)
    bench, rings = Bench(alone(tmp_path, "cuda"), True, StandIn()), list[int]()
    monkeypatch.setattr(bench, "device_times", lambda calls: rings.append(len(calls)) or [1e-6])
    bench.work("gemm", "fwd", Gemm(128, 1024, 1024, "bf16"), "bf16", (128, 1024, 1024))
    assert rings[0] * 2 * 1024 * 1024 > 2 * 50e6


@pytest.mark.parametrize(("channels", "pixels"), [(64, 24), (128, 12), (256, 6), (512, 3), (512, 2)])
def test_every_stage_of_a_residual_network_is_near_a_timed_convolution(channels: int, pixels: int) -> None:
    """The last ones are bound by their weights: at the rate of large maps a step of ResNet-18 came out a fifth too short."""
    timed = [Conv(b, i, h, w, o, k, k, stride) for b, i, h, w, o, k, stride, *groups in _CONVOLUTIONS if not groups]
    wanted = place_of(Conv(6, channels, pixels, pixels, channels, 3, 3))
    assert min(math.dist(wanted, place_of(one)) for one in timed) < 0.6


def test_an_operators_backward_is_launched_by_the_calling_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the engine would hand each to the device's thread and wait: in a launch-bound program of sixteen layers most of a millisecond."""
    q, k, v = (torch.randn(2, 4, 16, 8, requires_grad=True) for _ in range(3))
    x, w = torch.randn(8, 64, requires_grad=True), torch.ones(64)
    cases = [
        (F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v)),
        (torch.native_layer_norm(x, [64], w, w, 1e-5)[0], (x,)),  # two outputs more, whose gradients its node asks for
    ]
    chain = (F.gelu(x).square(), (x,))
    wanted = [torch.autograd.grad(out, inputs, torch.ones_like(out), retain_graph=True) for out, inputs in (*cases, chain)]
    with torch.no_grad():
        assert _alone(chain[0], chain[1], torch.ones_like(chain[0])) is None, "several operators are the engine's"
        assert torch.equal(backward(*chain, torch.ones_like(chain[0]))()[0], wanted[-1][0])  # type: ignore[index]
        monkeypatch.setattr(torch.autograd, "grad", None)
        for (out, inputs), gradients in zip(cases, wanted, strict=False):
            call = _alone(out, inputs, torch.ones_like(out))
            assert call is not None
            for _ in range(2):
                assert all(torch.equal(one, other) for one, other in zip(call(), gradients, strict=False))  # type: ignore[call-overload]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("work", "products"),
    [
        (Attention(2, 4, 1, 8, 32, 16, 8, chosen=4, dtype="fp32"), (2, 5)),
        (Scores(2, 4, 8, 32, 16, chosen=4, dtype="fp32"), (1, 3)),
        (Scores(2, 4, 8, 32, 16, dtype="fp32"), (1, 3)),
    ],
    ids=["attention", "scores of the chosen", "scores of all"],
)
def test_what_chooses_keys_runs_in_parts(work: Attention | Scores, products: tuple[int, int], backward: bool) -> None:
    """torch has no kernel that attends to chosen keys, nor one for an indexer's scores."""
    run = body(replace(work, backward=backward), of_cpu(torch.device("cpu"), 1))
    with Called() as called:
        run()
    assert called.names.count("bmm") == products[backward]
    assert ("embedding" in called.names, "scatter_add_" in called.names) == (work.chosen > 0, backward and work.chosen > 0)
