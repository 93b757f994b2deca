"""Low-rank adapters: what stock PyTorch trains beside a frozen model is what is described: messages, products, parameters, what is kept, each kernel."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from executor.training.limits import check_stock  # noqa: E402
from executor.training.models.adapters import widen  # noqa: E402
from executor.training.models.build import Model, model_for  # noqa: E402
from sim.files.planfile import load_plan  # noqa: E402
from sim.framework.chosen import framework_of  # noqa: E402
from sim.model.parts import Block  # noqa: E402
from sim.model.specs.decoder import Decoder  # noqa: E402
from sim.plan import Plan  # noqa: E402
from sim.setting.bind import model_of, network_of  # noqa: E402
from tests.conformance import products  # noqa: E402
from tests.conformance.plans import DEEPSEEK, GPT, LATENT, LLAMA, MOE, NEOX, OLMO2, SMALL  # noqa: E402
from tests.conformance.test_stock import agree, by_lane  # noqa: E402
from topologies.errors import Refused  # noqa: E402

ALL = {"lora": {"rank": 4, "targets": ["qkv", "proj", "up", "down"]}}
FALCON = LLAMA | {"parallel_block": True, "norm": "layernorm", "kv_heads": 1}
TINY = {"bucket": "2 KiB"}


def tuned(model: dict[str, Any], framework: str = "pytorch", precision: str = "fp32", micros: int = 1, **more: Any) -> Plan:
    """`micros` micro-batches of one sample; sections of the plan by their names, all else of [parallel]."""
    sections = {key: more.pop(key) for key in ("comm", "memory", "attention", "batch", "seq_len") if key in more}
    ranks = more.get("dp_replicate", 1) * more.get("dp_shard", 1)
    tree = {
        "model": model,
        "task": "lora",
        "framework": framework,
        "precision": precision,
        "seq_len": 16,
        "batch": {"global": micros * ranks},
    }
    return load_plan(tree | {"parallel": more} | sections)


PLANS = {
    "DDP": tuned(LLAMA | ALL, dp_replicate=2, micros=2, comm=TINY),
    "DDP, tied": tuned(GPT | ALL, dp_replicate=2, comm=TINY),
    "FSDP2": tuned(LLAMA | {"lora": {}}, dp_shard=2, zero=3, micros=2),
    "FSDP2, all linears": tuned(LLAMA | ALL, dp_shard=4, zero=3),
    "FSDP2, kept": tuned(LLAMA | ALL, dp_shard=2, zero=2),
    "HSDP": tuned(LLAMA | ALL, dp_replicate=2, dp_shard=2, zero=3, precision="bf16"),
    "run again": tuned(LLAMA | ALL, dp_shard=2, zero=3, memory={"recompute": "full"}),
    "beside experts": tuned(MOE | ALL, dp_shard=2, zero=3),
    "fp32 beside bf16": tuned(LLAMA | ALL, "huggingface", "bf16", dp_replicate=2, comm=TINY),
    "under autocast": tuned(LLAMA | ALL, "huggingface-amp", "bf16", dp_replicate=2, comm=SMALL),
    "Trainer with FSDP2": tuned(LLAMA | ALL, "huggingface", "bf16", dp_shard=2, zero=3),
    "queries and values": tuned(LLAMA | {"lora": {"targets": ["q", "v"]}}, "huggingface", "bf16", dp_replicate=2, comm=TINY),
}


@pytest.mark.no_cover
@pytest.mark.parametrize("name", PLANS)
def test_stock_and_program_send_the_same(name: str) -> None:
    check_stock(PLANS[name], model_of(PLANS[name]))
    agree(PLANS[name], 1, by_lane)


MODELS = {
    "llama": LLAMA,
    "gpt": GPT,
    "neox": NEOX,
    "falcon": FALCON,
    "olmo2": OLMO2,
    "mixtral": MOE,
    "deepseek": DEEPSEEK,
    "deepseek-v3": LATENT,
}
TARGETS = (["qkv", "proj"], ["qkv", "proj", "up", "down"], ["proj", "down"], ["up"])


@pytest.mark.no_cover
@pytest.mark.parametrize(("name", "targets"), [(name, at) for name in MODELS for at in range(len(TARGETS)) if name != "mixtral" or at < 3])
def test_products_and_parameters_are_those_of_the_description(name: str, targets: int) -> None:
    """No product before the first adapter is that of a gradient, nor that of its own input's."""
    model = MODELS[name] | {"lora": {"rank": 4, "targets": TARGETS[targets], "dropout": 0.1}}
    plan = tuned(model, attention="math", batch={"micro": 2})
    made = model_for(model_of(plan), framework_of(plan), products.SEQ)
    assert products.described(plan) == products.run(made)
    parts = [part for _, block in network_of(plan, framework_of(plan)).blocks for part in block.parts]
    trained = [p for p in made.parameters() if p.requires_grad]
    assert [p.numel() for p in trained] == [size for part in parts if not part.frozen for size in part.tensors]
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in trained)
    assert not any(p.grad is not None for p in made.parameters() if not p.requires_grad)


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("model", "targets", "less"), [("llama", ["q", "v"], 1), ("llama", ["k"], 2), ("neox", ["v", "up"], 3), ("deepseek", ["q", "k"], 1)]
)
def test_letters_of_attention_are_those_linears_alone(model: str, targets: list[str], less: int) -> None:
    """Written out, attention of the first layer leaves the products out whose gradients no adapter asks for, which the description counts."""
    plan = tuned(
        MODELS[model] | {"fused_qkv": False, "lora": {"rank": 4, "targets": targets, "dropout": 0.1}}, attention="math", batch={"micro": 2}
    )
    spec = model_of(plan)
    made = model_for(spec, framework_of(plan), products.SEQ)
    square = 2 * products.MICRO * products.SEQ**2 * spec.hidden  # of all heads
    assert products.described(plan) - less * square == products.run(made)
    parts = [part for _, block in network_of(plan, framework_of(plan)).blocks for part in block.parts]
    trained = [p for p in made.parameters() if p.requires_grad]
    assert [p.numel() for p in trained] == [size for part in parts if not part.frozen for size in part.tensors]
    assert all(p.grad is not None for p in trained)


VIEWS = {
    "view", "_unsafe_view", "t", "transpose", "expand", "detach", "reshape", "split", "split_with_sizes", "slice", "unsqueeze", "alias", "select",
    "empty_like", "clone",
}  # fmt: skip
"""What launches nothing; and what copies heads on a CPU alone, whose attention gives gradients that lie otherwise."""
SEQ, MICRO, HIDDEN = 48, 2, 128
LAYER = {"base": "llama3-8b", "layers": 2, "hidden": HIDDEN, "heads": 4, "kv_heads": 2, "vocab": 500, "ffn": 512}


class Kernels(TorchDispatchMode):
    """Counts what launches kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        self.count += 2 if name == "slice_backward" else name not in VIEWS  # it fills with zeros, then copies
        return func(*args, **(kwargs or {}))


def second_layer(plan: Plan) -> tuple[Model, Any, Block]:
    """The model as it is trained, what its second layer reads, and the layer's description; nothing is dropped out (a CPU takes three kernels)."""
    spec, habits = model_of(plan), framework_of(plan)
    assert isinstance(spec, Decoder) and spec.lora is not None
    model = model_for(spec, habits, SEQ)
    if plan.precision == "bf16":
        model = model.to(torch.bfloat16)
        widen(model)
    x = torch.randn(MICRO, SEQ, spec.hidden, dtype=torch.bfloat16 if plan.precision == "bf16" else torch.float32, requires_grad=True)
    return model, x, dict(network_of(plan, habits).blocks)["L1"]


@pytest.mark.parametrize("targets", TARGETS[:2], ids=["attention", "all"])
def test_each_kernel_of_a_layer_is_described(targets: list[str]) -> None:
    """Written-out norms, casts of the adapters' input to fp32 and back, of their weights, and the gradients of it all."""
    plan = tuned(
        LAYER | {"lora": {"rank": 4, "targets": targets, "dropout": 0.0}}, "huggingface", "bf16", seq_len=SEQ, batch={"micro": MICRO}
    )
    model, x, block = second_layer(plan)
    with torch.autocast("cpu", torch.bfloat16), Kernels() as forward:
        y = model.L1(x)  # type: ignore[operator]
    given = torch.ones_like(y)
    with Kernels() as backward:
        y.backward(given)
    assert forward.count == sum(len(part.forward) for part in block.parts)
    assert backward.count == sum(len(part.backward) + len(part.wgrad) for part in block.parts)


@pytest.mark.parametrize("name", ["llama", "gpt", "neox", "falcon"])
@pytest.mark.parametrize("framework", ["pytorch", "huggingface"])
@pytest.mark.parametrize("targets", [TARGETS[0], TARGETS[1], TARGETS[3]], ids=["attention", "all", "up"])
def test_a_layer_keeps_what_torch_keeps(name: str, framework: str, targets: list[str]) -> None:
    """Adapters of one input that make no copy of it keep it once. 16-bit copies of their weights are counted apart (`sim.memory.static`)."""
    small = {
        "hidden": HIDDEN,
        "heads": 4,
        "kv_heads": 2 if name == "llama" else MODELS[name].get("kv_heads", 4),
        "ffn": 512,
        "dropout": 0.0,
    }
    lora = {"lora": {"rank": 4, "targets": targets, "dropout": 0.0}}
    precision = "bf16" if framework == "huggingface" else "fp32"
    plan = tuned(MODELS[name] | small | lora, framework, precision, seq_len=SEQ, batch={"micro": MICRO})
    model, x, block = second_layer(plan)
    fixed = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    weights = {shape for p in model.parameters() if p.requires_grad for shape in (p.shape, p.shape[::-1])}
    held: dict[int, Any] = {}

    def hold(tensor: Any) -> Any:
        held.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"), torch.autograd.graph.saved_tensors_hooks(hold, lambda x: x):
        model.L1(x)  # type: ignore[operator]
    tables = {place for place, tensor in held.items() if tensor.shape in weights or tensor.shape == (SEQ, tensor.shape[-1])}
    kept = sum(tensor.untyped_storage().nbytes() for place, tensor in held.items() if place not in fixed | tables)
    sums = 8 * MICRO * SEQ  # of a norm's rows, which a CPU keeps in 16 bits
    assert sum(part.saved for part in block.parts) == pytest.approx(kept, rel=0.003, abs=sums)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"parallel": {"tp": 2}}, "Use tp = 1, pp = 1 and ep = 1"),
        ({"model": LLAMA | {"lora": {"base": "nf4"}}}, "`lora.base`"),
        ({"task": "dpo", "batch": {"micro": 2}}, "has no reference model"),
    ],
)
def test_refused_with_a_reason(more: dict[str, Any], words: str) -> None:
    plan = load_plan({"model": LLAMA | {"lora": {}}, "task": "lora", "seq_len": 16, "precision": "fp32"} | more)
    with pytest.raises(Refused, match=words):
        check_stock(plan, model_of(plan))
