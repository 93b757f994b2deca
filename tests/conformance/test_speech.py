"""Whisper and the head of wav2vec 2.0 as they are described, against the same in PyTorch: parameters, FLOPs by torch's own counter, each product
by itself, the bytes of all other kernels, and what is kept for backward."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from executor.recording.capture import Input, capture  # noqa: E402
from sim.framework.framework import Framework  # noqa: E402
from sim.model import Network, Shape, describe, load_model  # noqa: E402
from sim.model.share import share_of  # noqa: E402
from sim.model.specs.spec import Whisper  # noqa: E402
from sim.model.specs.speech import Wav2Vec  # noqa: E402
from sim.model.speech.contrast import contrast  # noqa: E402
from sim.work import Attention, MemoryBound  # noqa: E402
from tests.conformance import speech_modules as modules  # noqa: E402
from tests.conformance.test_pictures import hold_bytes, hold_kept, works_of  # noqa: E402

PLAIN = Framework(name="plain", source="test").but(
    precision={"param_dtype": "fp32", "grad_dtype": "fp32", "reduce_dtype": "fp32"},
    optimizer={"implementation": "fused"},
    elementwise={"norm_kernels": "apart"},
)


def shape(seq: int) -> Shape:
    return Shape(micro=2, seq=seq, precision="fp32")


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("whisper-tiny", ()), ("whisper-small", (12, 768, 12)), ("whisper-large-v3-turbo", (32, 1280, 20, 128, 3000, 448, 51866, 4))],
)
def test_presets_are_torch_s(name: str, sizes: tuple[int, ...]) -> None:
    """Forward and backward on the meta device, where attention is written out: causal halves are computed whole, and its backward is two forwards."""
    network = describe(load_model(name), shape(448), PLAIN)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = modules.Whisper(*sizes)
        model(torch.empty(2, model.conv1.in_channels, 3000)).backward()
    works = [w for w in works_of(network) if not isinstance(w, MemoryBound)]
    total = sum(w.flops * (0.8 if w.backward else 1.0) * (2.0 if w.causal else 1.0) if isinstance(w, Attention) else w.flops for w in works)
    assert network.parameters == sum(p.numel() for p in model.parameters())
    assert total == pytest.approx(counter.get_total_flops(), rel=1e-9)


@cache
def both() -> tuple[Network, Network]:
    """Captured and described, small: three layers hear, two say."""
    spec = capture(lambda: modules.Whisper(3, 64, 4, 16, 96, 32, 500, 2), (Input((2, 16, 96)),), name="whisper")
    said = Whisper(layers=3, decoder_layers=2, hidden=64, heads=4, mels=16, frames=96, positions=32, vocab=500)
    return describe(spec, Shape(micro=2, seq=1, precision="fp32"), PLAIN), describe(said, shape(32), PLAIN)


def products(network: Network) -> Counter[object]:
    """Convolutions along one axis are captured as the products that they are: all by role and FLOPs."""
    found: Counter[object] = Counter()
    for w in works_of(network):
        if not isinstance(w, MemoryBound):
            found[getattr(w, "role", "attention"), w.flops] += getattr(w, "batch", 1) if type(w).__name__ == "Attention" else 1
    return found


def test_each_product_is_the_captured_one() -> None:
    captured, described = both()
    assert products(captured) == products(described)
    assert captured.parameters == described.parameters


def test_blocks_move_what_is_captured() -> None:
    hold_bytes(*both(), [("L1", "L1"), ("L4", "D1"), ("head", "head")])


def test_what_is_kept_for_backward_is_what_is_captured() -> None:
    hold_kept(*both())


class Sound(torch.nn.Module):
    """Features and layers of wav2vec 2.0 for its head to learn from: a linear each."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after, self.head = torch.nn.Linear(64, 512), torch.nn.Linear(64, 64), modules.Wav2VecHead(512, 64, 320, 2, 256)

    def forward(self, x: torch.Tensor, others: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
        return self.head(self.before(x), self.after(x), others, masked)


@pytest.mark.no_cover
def test_what_wav2vec_learns_from_is_what_is_captured() -> None:
    """Its parameters, the bytes of its kernels in each direction, how many there are, and what they keep."""
    inputs = (Input((2, 48, 64)), Input((2, 48, 100), "int64"), Input((2, 48), "bool"))
    captured = describe(capture(Sound, inputs, name="sound"), Shape(micro=2, seq=1, precision="fp32"), PLAIN)
    found = [part for _, block in captured.blocks for part in block.parts if part.name.startswith("head")]
    said = contrast(Wav2Vec(layers=1, hidden=64, heads=1), share_of(shape(48), PLAIN), 512)
    assert sum(part.params for part in said) == sum(part.params for part in found)
    for works in (lambda part: part.forward, lambda part: (*part.backward, *part.wgrad)):
        mine, its = ([w for part in parts for w in works(part) if isinstance(w, MemoryBound)] for parts in (said, found))
        assert sum(w.bytes for w in mine) == pytest.approx(sum(w.bytes for w in its), rel=0.03)
        assert sum(w.repeat for w in mine) == pytest.approx(len(its), rel=0.05)
    assert sum(part.saved for part in said) == pytest.approx(sum(part.saved for part in found), rel=0.01)
