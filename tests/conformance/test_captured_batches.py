"""What a captured module does with other batches than those it was captured with, and ops that are more than their bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import library, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from executor.recording.capture import Input, capture, save  # noqa: E402
from sim.framework.framework import Framework  # noqa: E402
from sim.model import Network, Shape, describe, load_model  # noqa: E402
from sim.predict import predict  # noqa: E402
from sim.work import Gemm  # noqa: E402
from topologies.errors import BadInput  # noqa: E402

PLAIN = Framework(name="plain", source="test").but(
    precision={"param_dtype": "fp32", "grad_dtype": "fp32", "reduce_dtype": "fp32"}, optimizer={"implementation": "fused"}
)


class Contrast(nn.Module):
    """Each picture of a batch against each text of it, as CLIP is trained: its loss grows with the square of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures, self.texts = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, pictures: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        scores = self.pictures(pictures) @ self.texts(texts).T
        return F.cross_entropy(scores, torch.arange(scores.shape[0])) + F.cross_entropy(scores.T, torch.arange(scores.shape[0]))


class Large(nn.Module):
    """Another way for large batches."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x)) if x.shape[0] > LIMIT else self.one(x)


LIMIT = 10


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Bilinear(48, 64, 24)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.both(x, y)


def network(build: Callable[[], nn.Module], width: int, captured: int, used: int, inputs: int = 1) -> Network:
    shapes = tuple(Input((captured, width + 16 * i if build is Bilinear else width), "fp32") for i in range(inputs))
    return describe(capture(build, shapes), Shape(micro=used, seq=1, precision="fp32"), PLAIN)


@pytest.mark.parametrize("used", [1, 3, 24, 60, 640])
def test_a_loss_over_all_pairs_follows_the_square_of_the_batch(used: int) -> None:
    """Captured with 4, 8 and 12 samples, it says what a capture with `used` of them says."""
    found, real = (network(Contrast, 32, captured, used, 2) for captured in (4, used))
    for (_, block), (_, other) in zip(found.blocks, real.blocks, strict=True):
        assert [p.forward + p.backward + p.wgrad for p in block.parts] == [p.forward + p.backward + p.wgrad for p in other.parts]
        assert [p.saved for p in block.parts] == [p.saved for p in other.parts]
    assert found.flops_per_sample == pytest.approx(real.flops_per_sample, rel=1e-9)


def test_what_grows_with_the_batch_keeps_two_batches_in_its_file() -> None:
    straight = capture(lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), (Input((4, 8), "fp32"),))
    assert not straight.third and not straight.unseen


def test_a_module_that_decides_by_its_batch_is_named_when_it_is_captured() -> None:
    for batch, other in ((4, 12), (6, 12), (10, 20)):
        with pytest.raises(
            BadInput, match=rf"it runs other kernels with {other} samples than with {batch}: it decides by the size of its batch"
        ):
            capture(Large, (Input((batch, 8), "fp32"),), name="large")
    assert capture(Large, (Input((3, 8), "fp32"),)).micro == 3  # 9 samples are not more than 10


def test_a_bilinear_layer_is_as_many_products_as_it_has_outputs() -> None:
    built = network(Bilinear, 48, 5, 5, 2)
    part = built.blocks[0][1].parts[0]
    products = [[work for work in works if isinstance(work, Gemm)] for works in (part.forward, part.backward, part.wgrad)]
    assert [work.flops for works in products for work in works] == [2.0 * 5 * 48 * 64 * 24] * 2  # forward and weights; its inputs need none
    assert products[0] == [Gemm(5, 64, 48, "fp32", 24)]
    assert built.flops_per_sample == 3 * 2.0 * 48 * 64 * 24


@library.custom_op("steptwin_test::scores", mutates_args=())  # type: ignore[untyped-decorator]
def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q @ k.transpose(-1, -2)


@scores.register_fake
def _(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q.new_empty(*q.shape[:-1], k.shape[-2])


scores.register_autograd(lambda ctx, grad: (torch.empty_like(ctx.saved_tensors[0]), torch.empty_like(ctx.saved_tensors[1])),
                         setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))  # fmt: skip


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svdvals(scores(self.q(x), self.k(x)))


def test_custom_kernels_count_by_their_bytes_and_every_prediction_says_so(tmp_path: Path) -> None:
    file = save(capture(Custom, (Input((2, 16, 32), "fp32"),)), tmp_path / "custom.model.json")
    works = [work for _, block in describe(load_model(str(file)), Shape(micro=2, seq=1, precision="fp32"), PLAIN).blocks for part in block.parts
             for work in part.forward]  # fmt: skip
    moved = 2 * (2 * 16 * 32 + 2 * 16 * 32 + 2 * 16 * 16) * 4 // 2  # two inputs, one output, fp32
    assert moved in [getattr(work, "bytes", 0) for work in works]
    found = predict({"model": str(file), "precision": "fp32", "batch": {"micro": 2}}, "dgx-h100")
    (said,) = [text for text in found.warnings if "only the bytes" in text]
    assert said.startswith("of aten::_linalg_svd, steptwin_test::scores in the captured model")


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


def test_a_capture_does_not_depend_on_addresses() -> None:
    """Views of parameters are freed in backward: what came to lie at their addresses was taken for a parameter."""
    found = [capture(encoder, (Input((8, 16, 64), "fp32"),), name="encoder") for _ in range(4)]
    assert all(one == found[0] for one in found)
    for block in found[0].low:
        for part in block.parts:
            made, gradients = ([work for work in works if isinstance(work, Gemm)] for works in (part.forward, part.wgrad))
            assert len(made) == len(gradients), part.name
