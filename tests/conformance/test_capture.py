"""Captured modules: the same kernels as the description of the same model, torch's own memory tracker, clear refusals."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed._tools.mem_tracker import MemTracker  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from executor.recording.builder import load_builder, read_input  # noqa: E402
from executor.recording.capture import Input, capture, save  # noqa: E402
from sim.framework.framework import Framework  # noqa: E402
from sim.memory.report import memory_of  # noqa: E402
from sim.model import Network, Shape, describe, load_model  # noqa: E402
from sim.model.readers.families import decoder  # noqa: E402
from sim.plan import Plan  # noqa: E402
from sim.sections import Batch, Optimizer  # noqa: E402
from sim.work import Attention, Conv, Gemm  # noqa: E402
from topologies.errors import BadInput, Refused  # noqa: E402

PLAIN = Framework(name="plain", source="test").but(
    precision={"param_dtype": "fp32", "grad_dtype": "fp32", "reduce_dtype": "fp32"},
    optimizer={"implementation": "fused"},
    elementwise={"norm_kernels": "apart"},
)


class Layer(nn.Module):
    def __init__(self, h: int, a: int) -> None:
        super().__init__()
        self.heads = a
        self.ln1, self.qkv, self.proj = nn.LayerNorm(h), nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.ln2, self.up, self.act, self.down = nn.LayerNorm(h), nn.Linear(h, 4 * h), nn.GELU(), nn.Linear(4 * h, h)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, h = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.ln1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, h)
        x = x + self.proj(y)
        return x + self.down(self.act(self.up(self.ln2(x))))


class Gpt(nn.Module):
    def __init__(self, h: int = 128, a: int = 4, n: int = 3, v: int = 1000, t: int = 64) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(v, h), nn.Embedding(t, h)
        self.layers = nn.ModuleList(Layer(h, a) for _ in range(n))
        self.ln, self.head = nn.LayerNorm(h), nn.Linear(h, v, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.ln(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), ids.view(-1))


class Bottleneck(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, c // 4, 1, bias=False), nn.BatchNorm2d(c // 4)
        self.conv2, self.bn2 = nn.Conv2d(c // 4, c // 4, 3, padding=1, bias=False), nn.BatchNorm2d(c // 4)
        self.conv3, self.bn3 = nn.Conv2d(c // 4, c, 1, bias=False), nn.BatchNorm2d(c)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        return F.relu(self.bn3(self.conv3(y)) + x, inplace=True)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        return y if y.sum() > 0 else 2 * y


def products(network: Network) -> Counter[object]:
    """Every product and attention of the network, sides of a product in either order."""
    found: Counter[object] = Counter()
    for _, block in network.blocks:
        for part in block.parts:
            for work in (*part.forward, *part.backward, *part.wgrad):
                if isinstance(work, Gemm):
                    found[work.role, work.k, *sorted((work.m, work.n))] += work.batch
                elif isinstance(work, Attention):
                    found["attention", work.batch, work.heads, work.q, work.d, work.causal, work.backward] += 1
    return found


@pytest.mark.parametrize("micro", [2, 4, 6])
def test_a_captured_gpt_is_the_described_one(micro: int, tmp_path: Path) -> None:
    path = save(capture(Gpt, (Input((2, 64), "int64"),), name="gpt"), tmp_path / "gpt.model.json")
    spec = decoder("gpt", name="g", n_layers=3, hidden=128, n_heads=4, vocab_size=1000, positions=64, dropout=0.0)
    shape = Shape(micro=micro, seq=64, precision="fp32")
    captured, described = describe(load_model(str(path)), shape, PLAIN), describe(spec, shape, PLAIN)
    assert products(captured) == products(described)
    assert captured.parameters == described.parameters
    assert captured.flops_per_sample == described.flops_per_sample
    assert [name for name, _ in captured.blocks] == [name for name, _ in described.blocks]

    def moved(network: Network) -> float:
        block = network.blocks[1][1]
        return sum(work.bytes for part in block.parts for work in (*part.forward, *part.backward, *part.wgrad))

    assert moved(captured) == pytest.approx(moved(described), rel=0.05)
    saved = [sum(part.saved for part in network.blocks[1][1].parts) for network in (captured, described)]
    assert saved[0] == pytest.approx(saved[1], rel=0.01)


def test_convolutions_are_captured_as_described() -> None:
    def build() -> nn.Module:
        return nn.Sequential(*(Bottleneck(256) for _ in range(2)))

    captured = describe(capture(build, (Input((4, 256, 56, 56)),)), Shape(micro=4, seq=1, precision="fp32"), PLAIN)
    described = dict(describe(load_model("resnet50"), Shape(micro=4, seq=1, precision="fp32"), PLAIN).blocks)["S0.1"]

    def convolutions(parts: object) -> Counter[object]:
        works = [work for part in parts for work in (*part.forward, *part.backward, *part.wgrad)]  # type: ignore[attr-defined]
        return Counter((w.role, w.c_in, w.c_out, w.kh, w.out) for w in works if isinstance(w, Conv))

    doubled = Counter({key: 2 * count for key, count in convolutions(described.parts).items()})
    doubled["dgrad", 256, 64, 1, (56, 56)] -= 1  # the input itself needs no gradient
    assert convolutions([part for _, block in captured.blocks for part in block.parts]) == doubled


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 64))


def _encoder() -> nn.Module:
    # nn.TransformerEncoder copies its layer, and fake copies have two storages each in torch's own tracker
    return nn.Sequential(*(nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True) for _ in range(3)))


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Flatten()
    )


TEN: dict[str, tuple[Callable[[], nn.Module], Input]] = {
    "mlp": (_mlp, Input((512, 256))),
    "mlp-wide": (lambda: nn.Sequential(nn.Linear(64, 4096), nn.GELU(), nn.Linear(4096, 64)), Input((2048, 64))),
    "gpt": (Gpt, Input((8, 64), "int64")),
    "gpt-deep": (lambda: Gpt(h=64, n=8), Input((16, 64), "int64")),
    "gpt-words": (lambda: Gpt(v=8000), Input((8, 64), "int64")),
    "layer": (lambda: Layer(256, 8), Input((4, 128, 256))),
    "encoder": (_encoder, Input((8, 64, 128))),
    "bottlenecks": (lambda: nn.Sequential(*(Bottleneck(128) for _ in range(3))), Input((8, 128, 28, 28))),
    "convolutional": (_convolutional, Input((16, 3, 64, 64))),
    "norms": (
        lambda: nn.Sequential(*(nn.Sequential(nn.LayerNorm(512), nn.Linear(512, 512), nn.SiLU()) for _ in range(4))),
        Input((1024, 512)),
    ),
}


def _tracked(build: Callable[[], nn.Module], one: Input) -> int:
    """Peak bytes of one step by torch's MemTracker under fake tensors."""
    warnings.simplefilter("ignore")
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = build()
        x = torch.zeros(one.shape, dtype=torch.int64) if one.dtype == "int64" else torch.empty(one.shape)
        tracker = MemTracker()
        tracker.track_external(model, x)
        with tracker:
            out = model(x)
            (out if out.dim() == 0 else out.sum()).backward()
        peak = next(iter(tracker.get_tracker_snapshot("peak").values()))
        return int(peak["Total"])


@pytest.mark.no_cover
@pytest.mark.parametrize("name", TEN)
def test_memory_agrees_with_torch_s_tracker(name: str) -> None:
    build, one = TEN[name]
    micro = one.shape[0]
    spec = capture(build, (one,), name=name)
    network = describe(spec, Shape(micro=micro, seq=1, precision="fp32"), PLAIN)
    plan = Plan(model=name, precision="fp32", batch=Batch(micro=micro), optimizer=Optimizer(name="sgd"))
    assert memory_of(plan, network, PLAIN).allocated == pytest.approx(_tracked(build, one), rel=0.05)


def test_inputs_and_builders_are_read() -> None:
    assert read_input("8x128:int64") == Input((8, 128), "int64")
    for wrong in ("8y128", "8x128:int63", "", "0x3"):
        with pytest.raises(BadInput, match="cannot read input"):
            read_input(wrong)
    with pytest.raises(BadInput, match=r"Write package\.module:function"):
        load_builder("torch.nn", trust=True)
    with pytest.raises(BadInput, match="cannot load no_such_package"):
        load_builder("no_such_package:build", trust=True)
    assert load_builder("torch.nn:Identity", trust=True) is nn.Identity


class Named(nn.Module):
    """Functions called as their manuals allow: sizes by name, and as many matrices on both sides instead of offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.experts = nn.Parameter(torch.ones(32)), nn.Parameter(torch.ones(16, 32, 48))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.rms_norm(x.transpose(0, 1), normalized_shape=(32,), weight=self.scale)
        return F.silu(torch._grouped_mm(x, self.experts))


def test_functions_may_be_called_by_name_and_without_offsets() -> None:
    spec = capture(Named, (Input((4, 16, 32), "bf16"),), precision="bf16")
    works = [work for block in spec.low for part in block.parts for work in part.forward]
    assert [(w.m, w.n, w.k, w.batch) for w in works if isinstance(w, Gemm)] == [(4, 48, 32, 16)]
    assert "layernorm_apart" in {getattr(work, "what", "") for work in works}


def test_a_builder_may_copy_modules_without_torch_s_doubts(recwarn: pytest.WarningsRecorder) -> None:
    assert capture(lambda: nn.Sequential(*copies(nn.Linear(8, 8))), (Input((2, 8), "fp32"),)).order
    assert not [one for one in recwarn if "FakeTensor" in str(one.message)]


def copies(module: nn.Module) -> tuple[nn.Module, nn.Module]:
    return module, deepcopy(module)


def test_control_flow_on_data_names_the_place() -> None:
    with pytest.raises(BadInput, match=r"decides by the values of a tensor .*torch\.where"):
        capture(Branching, (Input((4, 8)),))


def test_what_a_capture_cannot_answer_is_refused() -> None:
    spec = capture(_mlp, (Input((8, 256)),))
    with pytest.raises(Refused, match="captured in fp32, the plan wants bf16"):
        describe(spec, Shape(micro=8, seq=1), PLAIN)
    with pytest.raises(Refused, match="set tp = cp = ep = 1"):
        describe(spec, Shape(micro=8, seq=1, tp=2, precision="fp32"), PLAIN)
    with pytest.raises(BadInput, match=r"ends in \.json"):
        save(spec, "x.pt")
