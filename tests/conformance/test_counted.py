"""Captured modules of many kinds against torch's own counters: FLOPs by FlopCounterMode, parameters, peak memory by MemTracker."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed._tools.mem_tracker import MemTracker  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from executor.recording.capture import Input, capture  # noqa: E402
from sim.framework.framework import Framework  # noqa: E402
from sim.memory.report import memory_of  # noqa: E402
from sim.model import Network, Shape, describe  # noqa: E402
from sim.model.language.lstm import KEPT, layer_works  # noqa: E402
from sim.plan import Plan  # noqa: E402
from sim.sections import Batch, Optimizer  # noqa: E402
from sim.work import Conv, MemoryBound  # noqa: E402

PLAIN = Framework(name="plain", source="test").but(
    precision={"param_dtype": "fp32", "grad_dtype": "fp32", "reduce_dtype": "fp32"}, optimizer={"implementation": "fused"}
)


class UNet(nn.Module):
    """Two levels, joined by concatenation; one way up by a transposed convolution, one by interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = _double(3, 16), _double(16, 32), _double(32, 64)
        self.up2, self.up1 = nn.ConvTranspose2d(64, 32, 2, 2), nn.Upsample(scale_factor=2)
        self.join2, self.join1, self.out = _double(64, 32), _double(48, 16), nn.Conv2d(16, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        y = self.join2(torch.cat([self.up2(self.middle(F.avg_pool2d(two, 2))), two], 1))
        logits = self.out(self.join1(torch.cat([self.up1(y), one], 1)))
        return F.binary_cross_entropy_with_logits(logits, torch.zeros_like(logits))


def _double(c_in: int, c_out: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(c_in, c_out, 3, padding=1), nn.GroupNorm(4, c_out), nn.SiLU())


def generator() -> nn.Module:
    """A GAN's: from a vector to an image by transposed convolutions."""
    return nn.Sequential(
        nn.ConvTranspose2d(64, 128, 4, 1, 0, bias=False), nn.BatchNorm2d(128), nn.ReLU(True),
        nn.ConvTranspose2d(128, 64, 4, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(True),
        nn.ConvTranspose2d(64, 3, 3, 2, 1, output_padding=1), nn.Tanh(),
    )  # fmt: skip


class Soft(nn.Module):
    """Four experts that all see every token, mixed by a gate."""

    def __init__(self, h: int = 64) -> None:
        super().__init__()
        self.gate = nn.Linear(h, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(h, 96), nn.GELU(), nn.Linear(96, h)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share = self.gate(x).softmax(-1)
        return torch.stack([share[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts)]).sum(0)


class Shared(nn.Module):
    """One linear used three times, the head's weight the embedding's, and buffers that are no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix, self.head = nn.Embedding(500, 48), nn.Linear(48, 48), nn.Linear(48, 500, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("mask", torch.tril(torch.ones(24, 24, dtype=torch.bool)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.words(x)
        for _ in range(3):
            y = F.relu(self.mix(y))
        scores = (y @ y.transpose(1, 2) / 7.0).masked_fill(~self.mask, float("-inf")).softmax(-1)
        return self.head(scores @ y)


class Attending(nn.Module):
    """Attention over an image's places by einsum, with a residual: no part saves what the sum reads."""

    def __init__(self, c: int = 32) -> None:
        super().__init__()
        self.norm, self.q, self.kv, self.out = nn.GroupNorm(4, c), nn.Linear(c, c), nn.Linear(c, 2 * c), nn.Linear(c, c)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.norm(x).flatten(2).transpose(1, 2)
        k, v = self.kv(rows).chunk(2, -1)
        share = torch.einsum("bic,bjc->bij", self.q(rows), k).softmax(-1)
        return x + self.out(torch.einsum("bij,bjc->bic", share, v)).transpose(1, 2).reshape(x.shape)


class Squeezed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.down, self.up = nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.Conv2d(32, 8, 1), nn.Conv2d(8, 32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.hardswish(self.norm(self.conv(x)))
        return (y * torch.sigmoid(self.up(F.relu(self.down(y.mean((2, 3), keepdim=True)))))).amax((2, 3))


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.top = nn.EmbeddingBag(2000, 32, mode="sum"), nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(self.bag(x))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint

        return self.out(checkpoint(self.body, x, use_reentrant=False))


def waves() -> nn.Module:
    return nn.Sequential(nn.Conv1d(8, 32, 5, padding=2), nn.ReLU(), nn.Conv1d(32, 32, 3, dilation=2), nn.BatchNorm1d(32), nn.Flatten())


def volumes() -> nn.Module:
    return nn.Sequential(nn.Conv3d(3, 16, 3, padding=1), nn.LeakyReLU(0.1), nn.MaxPool3d(2), nn.ConvTranspose3d(16, 8, 2, 2))


ZOO: dict[str, tuple[Callable[[], nn.Module], Input]] = {
    "generator": (generator, Input((8, 64, 1, 1))),
    "unet": (UNet, Input((4, 3, 32, 32))),
    "experts": (Soft, Input((8, 24, 64))),
    "attending": (Attending, Input((4, 32, 8, 8))),
    "squeezed": (Squeezed, Input((4, 3, 32, 32))),
    "shared": (Shared, Input((6, 24), "int64")),
    "bag": (Bag, Input((40, 12), "int64")),
    "checkpointed": (Checkpointed, Input((48, 64))),
    "waves": (waves, Input((6, 8, 40))),
    "volumes": (volumes, Input((4, 3, 8, 12, 12))),
}


def _captured(build: Callable[[], nn.Module], one: Input) -> Network:
    spec = capture(build, (one,), name="zoo")
    return describe(spec, Shape(micro=one.shape[0], seq=one.shape[1] if spec.seq > 1 else 1, precision="fp32"), PLAIN)


def _run(build: Callable[[], nn.Module], one: Input) -> nn.Module:
    model = build()
    out = model(torch.zeros(one.shape, dtype=torch.int64) if one.dtype == "int64" else torch.empty(one.shape))
    (out if out.dim() == 0 else out.sum()).backward()
    return model


@pytest.mark.no_cover
@pytest.mark.parametrize("name", ZOO)
def test_flops_and_parameters_are_torch_s(name: str) -> None:
    network = _captured(*ZOO[name])
    with FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False) as counter:
        model = _run(*ZOO[name])
    works = [w for _, block in network.blocks for p in block.parts for w in (*p.forward, *p.backward, *p.wgrad)]
    assert sum(w.flops for w in works if not isinstance(w, MemoryBound)) == counter.get_total_flops()
    assert network.parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.no_cover
@pytest.mark.parametrize("name", ZOO)
def test_peak_memory_is_that_of_the_tracker(name: str) -> None:
    warnings.simplefilter("ignore")
    build, one = ZOO[name]
    network = _captured(build, one)
    plan = Plan(model=name, precision="fp32", batch=Batch(micro=one.shape[0]), optimizer=Optimizer(name="sgd"))
    with FakeTensorMode(allow_non_fake_inputs=True):
        model, tracker = build(), MemTracker()
        x = torch.zeros(one.shape, dtype=torch.int64) if one.dtype == "int64" else torch.empty(one.shape)
        tracker.track_external(model, x)
        with tracker:
            out = model(x)
            (out if out.dim() == 0 else out.sum()).backward()
        peak = int(next(iter(tracker.get_tracker_snapshot("peak").values()))["Total"])
    # To the byte, but for what a checkpoint brings back: that belongs to the part whose backward asks for it.
    assert memory_of(plan, network, PLAIN).allocated == pytest.approx(peak, rel=0.05 if name == "checkpointed" else 1e-4)


def test_frozen_parts_have_no_gradients() -> None:
    def build() -> nn.Module:
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        model[0].requires_grad_(False)
        return model

    network = _captured(build, Input((8, 64)))
    parts = [part for _, block in network.blocks for part in block.parts if part.tensors]
    assert [part.frozen for part in parts] == [True, False]
    plan = Plan(model="x", precision="fp32", batch=Batch(micro=8), optimizer=Optimizer(name="adam"))
    assert memory_of(plan, network, PLAIN).optimizer == 2 * 4 * (64 * 64 + 64)


def test_a_transposed_convolution_is_the_gradient_of_one() -> None:
    network = _captured(generator, Input((8, 64, 1, 1)))
    first = network.blocks[0][1].parts[0].forward[0]
    assert isinstance(first, Conv)
    assert (first.role, first.c_in, first.c_out, first.h, first.out) == ("dgrad", 128, 64, 4, (1, 1))


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_a_recurrent_layer_is_one_call(kind: type[nn.Module], gates: int) -> None:
    """As cuDNN runs it, whatever this CPU would do: one product over all steps, then one small product and one kernel a step."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.cells, self.out = nn.Embedding(50, 32), kind(32, 64, batch_first=True), nn.Linear(64, 50)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.cells(self.words(x))[0])

    network = _captured(Model, Input((4, 16), "int64"))
    part = next(part for _, block in network.blocks for part in block.parts if part.params == gates * (32 + 64 + 2) * 64)
    forward, backward, wgrad = layer_works(4, 16, 32, 64, "fp32", 4, gates)
    products = [[w for w in works if not isinstance(w, MemoryBound)] for works in (part.forward, part.backward, part.wgrad)]
    assert products == [[w for w in works if not isinstance(w, MemoryBound)] for works in (forward, backward, wgrad)]
    assert part.saved >= 4 * 16 * 64 * 4 * (1 + KEPT[gates])


class Tail(nn.Module):
    """A norm over 96 columns, written-out attention over 24 keys, and a loss over 500 words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.frozen, self.head = nn.Embedding(500, 96), nn.LayerNorm(96), nn.LayerNorm(96), nn.Linear(96, 500)
        self.frozen.requires_grad_(False)
        self.mix = Mix()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.mix(self.frozen(self.norm(self.words(x))))).flatten(0, 1), x.flatten())


class Mix(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ x.transpose(1, 2)).softmax(-1) @ x


def test_norms_and_softmaxes_know_their_rows_and_a_loss_is_one() -> None:
    """Short rows cost less; gradients of a norm's weights read gradient and input once more, where weights learn."""
    network = _captured(Tail, Input((6, 24), "int64"))
    parts = {part.name: part for _, block in network.blocks for part in block.parts}
    rows, array = 6 * 24, 6 * 24 * 96 * 4
    assert (parts["norm"].cls, parts["mix"].cls, parts["self"].cls) == ("norm", "gemm", "loss")
    first, second = parts["norm"].backward
    assert isinstance(first, MemoryBound) and isinstance(second, MemoryBound)
    assert (first.rows, second.rows, second.read, second.written) == (rows, rows, 2 * array, 0)
    assert len(parts["frozen"].backward) == 1
    soft = [w for name in ("mix", "self") for w in parts[name].forward if isinstance(w, MemoryBound) and w.what == "softmax"]
    assert [w.rows for w in soft] == [rows, rows]


class Laid(nn.Module):
    """A product's halves, in the other order, laid into a tensor that is there."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(128, 128, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.lin(x)
        out = torch.empty_like(y)
        out[..., :64], out[..., 64:] = y[..., 64:], y[..., :64]
        return out


def test_what_is_copied_over_is_not_read() -> None:
    """Nor does an allocation move anything. Forward writes two halves. Backward: for either, autograd's CopySlices copies all of the gradient (the
    first is one number, broadcast), then the half; what lay beneath the second gets zeros; and the halves are laid into zeros, as slices' gradients."""
    network = describe(capture(Laid, (Input((8, 128)),), name="laid"), Shape(micro=8, seq=1, precision="fp32"), PLAIN)
    parts = [part for _, block in network.blocks for part in block.parts]
    half = 4 * 8 * 64
    forward = [(w.read, w.written) for part in parts for w in part.forward if isinstance(w, MemoryBound) and w.what == "copy"]
    backward = [(w.read, w.written) for part in parts for w in part.backward if isinstance(w, MemoryBound) and w.what == "copy"]
    assert forward == [(half, half)] * 2
    assert sorted(backward) == [(4, 2 * half), *[(half, half)] * 5, (2 * half, 2 * half)]
