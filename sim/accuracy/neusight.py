"""NeuSight's measured single-GPU passes in fp32 against the sum of our kernels: forward, and forward + backward.

The labels (NeuSight, MIT; PyTorch 2.1, Hugging Face models with unfused attention, no tf32, no optimizer step) name a
model, a sequence length and a batch. A pass is one chain: each kernel waits for its launch and for the one before.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, median

import msgspec

from sim.cost.fit.data import NEUSIGHT
from sim.cost.host import host_seconds
from sim.cost.kernel import kernel_cost
from sim.framework import Framework, load_framework
from sim.model import ModelSpec, Network, Shape, describe, load_model
from sim.model.spec import Decoder
from sim.work import Work
from topologies.devices import gpu as find_gpu
from topologies.errors import BadInput
from topologies.hardware import Gpu

MODELS = {"bert_large": "bert-large", "gpt2_large": "gpt2-774m", "opt_13": "gpt3-1.3b", "gpt3_xl": "gpt3-1.3b", "gpt3_27": "gpt3-2.7b"}
"""opt_13 is OPT-1.3B: the shape of GPT-3 1.3B. gpt3_xl takes 1.8 times as long as OPT on every GPU: 24 heads of 128, so 3072 wide
(the GPT-3 paper's table 2.1 prints 24 heads of 128 beside a width of 2048). The MoE rows (switch) are not scored."""
XL = {"hidden": 3072, "heads": 24}


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
                works = list(_works(_network(parts[0], int(parts[3]), int(parts[2])), training))
                measured, seconds, bound = float(row["e2e_latency"]) * 1e-3, _chain(works, gpu), roofline_seconds(works, gpu)
                found.append(Label(gpu=gpu.name, case=row["case"], training=training, measured=measured, predicted=seconds, roofline=bound))
    return found


def pass_seconds(model: str, gpu: Gpu, batch: int, seq: int, training: bool) -> float:
    """Seconds of forward, or of forward + backward."""
    return _chain(_works(_network(model, batch, seq), training), gpu)


def roofline_seconds(works: Iterable[Work], gpu: Gpu) -> float:
    """Seconds of fp32 kernels that each reach the peak or the bandwidth."""
    peak = gpu.flops["fp32"]
    return sum(max(work.flops / peak, work.bytes / gpu.bandwidth) for work in works)


def _network(model: str, batch: int, seq: int) -> Network:
    spec: ModelSpec = load_model(MODELS[model])
    if model == "gpt3_xl":
        assert isinstance(spec, Decoder)
        spec = msgspec.structs.replace(spec, **XL)
    return describe(spec, Shape(micro=batch, seq=seq, precision="fp32"), _framework(), "math")


def _framework() -> Framework:
    plain = {"attention": "math", "attention_efficiency": "math", "dropout": False}
    dtypes = {"param_dtype": "fp32", "grad_dtype": "fp32", "reduce_dtype": "fp32"}
    return msgspec.structs.replace(load_framework("pytorch"), **plain, **dtypes)


def _works(network: Network, training: bool) -> Iterable[Work]:
    parts = [part for _, block in network.blocks for part in block.parts]
    for part in parts:
        yield from part.forward
    if training:
        for part in reversed(parts):
            yield from part.backward
            yield from part.wgrad


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
            {"gpu": gpu, "rows": len(errors), "mean": fmean(size), "median": median(size), "bias": fmean(errors), "roofline": fmean(bound)}
        )
    return rows
