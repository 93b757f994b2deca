"""What torch keeps of a layer's forward for its backward, against what the described layer keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from executor.training.examples import example_of
from executor.training.models.build import model_for
from sim.framework.framework import load_framework
from sim.model import Shape, describe
from sim.model.load import model_from

SEQ, MICRO = 64, 2
SMALL = {"layers": 2, "hidden": 128, "heads": 4, "vocab": 500, "ffn": 512}
LAYERS: dict[str, dict[str, Any]] = {
    "one norm for both branches": {"base": "falcon-7b", **SMALL, "head_dim": 32},
    "a norm for each": {"base": "pythia-160m", **SMALL, "kv_heads": 2},
    "a norm for each, all columns rotated": {"base": "falcon-40b", **SMALL, "kv_heads": 2, "head_dim": 32},
    "some columns rotated": {"base": "gpt-j-6b", **SMALL},
    "experts": {"base": "mixtral-8x7b", **SMALL, "kv_heads": 4, "norm": "layernorm", "moe": {"ffn": 512, "experts": 8}},
    "nothing rotated": {"base": "gpt2-124m", **SMALL, "dropout": 0.0},
    "relu's result, which the next linear reads": {"base": "opt-125m", **SMALL, "dropout": 0.0},
}


def kept_by_torch(tree: dict[str, Any]) -> int:
    """Bytes of all storages that the second layer's graph holds, parameters and tables of angles aside."""
    framework = load_framework("pytorch").but(elementwise={"dropout": False})
    model = model_for(model_from(tree), framework, SEQ)
    ids = torch.stack([example_of(model.spec, SEQ, index)[0] for index in range(MICRO)])
    x = model.L0(model.embed(ids)).detach().requires_grad_()  # type: ignore[operator]
    fixed = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    held: dict[int, torch.Tensor] = {}

    def hold(tensor: torch.Tensor) -> torch.Tensor:
        held.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
        model.L1(x)  # type: ignore[operator]
    angles = {place for place, tensor in held.items() if tensor.dim() == 2 and tensor.shape[0] == SEQ}
    return sum(tensor.untyped_storage().nbytes() for place, tensor in held.items() if place not in fixed | angles)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_keeps_what_torch_keeps(name: str) -> None:
    """Two readers of one tensor keep it once; the values' view keeps all of a fused projection's result, whose other columns were rotated."""
    framework = load_framework("pytorch").but(elementwise={"dropout": False})
    network = describe(model_from(LAYERS[name]), Shape(micro=MICRO, seq=SEQ, precision="fp32"), framework)
    described = sum(part.saved for part in dict(network.blocks)["L1"].parts)
    assert described == pytest.approx(kept_by_torch(LAYERS[name]), rel=0.003)
