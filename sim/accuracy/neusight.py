"""NeuSight's measured single-GPU passes in fp32 against the sum of our kernels: forward, and forward + backward.

What was timed is what its script runs (sitar-lab/NeuSight, `neusight/Tracing/trace.py`, MIT; PyTorch 2.1, transformers' eager
modules built from the configs beside it, no tf32, the five fastest of 25 calls):

* inference: `eval()` under `no_grad`, from the ids to the logits, without a loss. BERT is a sequence classifier: no head of the vocabulary;
* training: `train()`, so dropout is drawn. Forward and backward are timed apart, each from an idle GPU, the loss between them by neither.
  Gradients are never cleared: backward adds to those of the call before. BERT predicts all positions, not the masked ones. No optimizer step.

A label names a model, a sequence length and a batch. A pass is one chain: each kernel waits for its launch and for the one before.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec

from sim.cost.fit.data import NEUSIGHT
from sim.cost.host import host_seconds
from sim.cost.kernel import kernel_cost
from sim.framework.framework import Framework, load_framework
from sim.model import ModelSpec, Network, Part, Shape, describe, load_model
from sim.model.specs.spec import Encoder
from sim.work import MemoryBound, Work
from topologies.devices import gpu as find_gpu
from topologies.errors import BadInput
from topologies.hardware import Gpu

GPT: dict[str, Any] = {"activation": "gelu_new", "dropout": 0.1}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert_large": ("bert-large", {}),
    "gpt2_large": ("gpt2-774m", GPT),
    "opt_13": ("opt-1.3b", {"attention_dropout": 0.0, "fused_qkv": False}),
    "gpt3_xl": ("gpt3-1.3b", {**GPT, "hidden": 3072, "heads": 24}),
    "gpt3_27": ("gpt3-2.7b", GPT),
}
"""Its configs as changes to ours: 24 heads of 128 make gpt3_xl 3072 wide. The MoE rows (switch) are not scored."""
ADD = 12
"""Bytes for each parameter of a gradient added to the one that is there."""


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """One measured pass and its prediction, in seconds."""

    gpu: str
    case: str
    training: bool
    measured: float
    predicted: float
    roofline: float = 0.0
    """The sum over kernels of max(FLOPs / peak, bytes / bandwidth): what knows neither kernels nor launches."""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1.0


def neusight_labels(facts: Path) -> list[Label]:
    """Every label of a single GPU and of a dense model. Raises `BadInput` without the file."""
    path = facts / "neusight_e2e_labels.csv"
    if not path.is_file():
        raise BadInput(f"{path} does not exist. Give the folder of measured kernels")
    names = {name.replace(" ", "_"): key for name, key in NEUSIGHT.items()}
    found = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            parts = row["case"].split("-")
            if len(parts) == 4 and parts[0] in MODELS and row["gpu"] in names:
                gpu, training = find_gpu(names[row["gpu"]]), parts[1] == "train"
                network, measured = _network(parts[0], int(parts[3]), int(parts[2]), training), float(row["e2e_latency"]) * 1e-3
                works = [work for stage in _stages(network, training) for work in stage]
                seconds, bound = _seconds(network, training, gpu), roofline_seconds(works, gpu)
                found.append(Label(gpu=gpu.name, case=row["case"], training=training, measured=measured, predicted=seconds, roofline=bound))
    return found


def _seconds(network: Network, training: bool, gpu: Gpu) -> float:
    """Of forward, or of forward + backward."""
    return sum(_chain(stage, gpu) for stage in _stages(network, training))


def roofline_seconds(works: Iterable[Work], gpu: Gpu) -> float:
    """Seconds of fp32 kernels that each reach the peak or the bandwidth."""
    peak = gpu.flops["fp32"]
    return sum(max(work.flops / peak, work.bytes / gpu.bandwidth) for work in works)


def _network(model: str, batch: int, seq: int, training: bool) -> Network:
    name, changes = MODELS[model]
    spec: ModelSpec = load_model(name)
    if isinstance(spec, Encoder):
        changes = {"predictions": seq} if training else {"head": "none"}
    if not training:
        changes = {**changes, "dropout": 0.0}
    spec = msgspec.structs.replace(spec, **changes)
    return describe(spec, Shape(micro=batch, seq=seq, precision="fp32"), _framework(), "math")


def _framework() -> Framework:
    written_out = {"implementation": "math", "kernels": "math"}
    dtypes = {"param_dtype": "fp32", "grad_dtype": "fp32", "reduce_dtype": "fp32"}
    return load_framework("pytorch").but(attention=written_out, elementwise={"dropout": False}, precision=dtypes)


def _stages(network: Network, training: bool) -> list[list[Work]]:
    """The kernels of forward; in training also those of backward, which starts at the loss."""
    parts = [part for _, block in network.blocks for part in block.parts]
    forward = [work for part in parts if part.cls != "loss" for work in part.forward]
    if not training:
        return [forward]
    backward = [work for part in reversed(parts) for work in (*part.backward, *part.wgrad, *_added(part))]
    return [forward, backward]


def _added(part: Part) -> list[Work]:
    return [MemoryBound("add", ADD * 2 * size // 3, ADD * size // 3, "fp32") for size in part.tensors]


def _chain(works: Iterable[Work], gpu: Gpu) -> float:
    launch = host_seconds("kernel", "python")
    issued = end = 0.0
    for work in works:
        issued += launch * work.repeat
        end = max(end, issued) + kernel_cost(work, gpu, "math").seconds
    return end


def summarise(labels: list[Label]) -> list[dict[str, object]]:
    """Mean and median error by GPU, and of all."""
    rows: list[dict[str, object]] = []
    for gpu in [*dict.fromkeys(label.gpu for label in labels), "all"]:
        errors = [label.error for label in labels if gpu in (label.gpu, "all")]
        size = [abs(error) for error in errors]
        bound = [abs(label.roofline / label.measured - 1.0) for label in labels if gpu in (label.gpu, "all")]
        rows.append(
            {
                "gpu": gpu,
                "rows": len(errors),
                "mape": fmean(size),
                "median_ape": median(size),
                "bias": fmean(errors),
                "roofline": fmean(bound),
            }
        )
    return rows
