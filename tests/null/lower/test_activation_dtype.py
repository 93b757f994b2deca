"""The dtype of activations: one rule for the model's kernels, the program's messages and the trace that names them."""

from __future__ import annotations

import pytest

from sim.files.nccl import wires_of
from sim.files.planfile import load_plan
from sim.framework.chosen import framework_of
from sim.lower.binding import job_of
from sim.model.load import load_model
from sim.model.network import describe
from sim.model.parts import Shape
from sim.model.share import share_of

DTYPES = {"fp32": "fp32", "tf32": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "bf16", "nvfp4": "bf16"}


@pytest.mark.parametrize(("precision", "dtype"), DTYPES.items())
def test_kernels_messages_and_traces_agree(precision: str, dtype: str) -> None:
    plan = load_plan({"model": "gpt2-124m", "seq_len": 128, "precision": precision})
    framework, shape = framework_of(plan), Shape(micro=1, seq=128, precision=precision)
    network = describe(load_model("gpt2-124m"), shape, framework)
    assert share_of(shape, framework).act == dtype
    assert job_of(plan, network, framework, "cuda", 2).act == dtype
    assert wires_of(plan).activations == dtype
