"""Which framework file describes a row that ran as PyTorch's modules: by what was trained, in whose scripts, and when."""

from __future__ import annotations

import re

from sim.accuracy.architecture.adapters import trains_adapters
from sim.accuracy.row import Row
from sim.accuracy.rows.scripts import layout_of

_CAST = r"\bamp\b|amp_|autocast|\bmixed\b|-mixed|^o1$"
"""Precisions under which parameters stay fp32."""
_CASTING = r"nanogpt|\btimm\b|hugging ?face trainer|\bhf trainer|transformers trainer"
"""Libraries that train under autocast whatever their table calls it."""
_SCRIPTED = "2021-09"
"""When NVIDIA's BERT in PyTorch took to TorchScript, and to sequences binned by length (its README's release notes)."""
_NVIDIA = r"nv-?dle|nvidia|deeplearningexamples|\bngc\b|apex|dali|lddl"
"""Words of rows that ran NVIDIA's scripts."""
_OLDER = r"resnet|resnext|\bcnn\b|\bvgg|alexnet|inception|ssd|mask|transformer[-_ ](base|big)|encoder[-_ ]decoder|gnmt|rnn"
"""Classifiers, detectors and translation: scripts of before PyTorch 2.0."""
_PICTURES = (
    _OLDER.partition("|transformer")[0]
    + r"|\bvit\b|vit_|deit|swin|convnext|net-?v?\d|u-?net|inception|alexnet|wrn|diffusion|\bsdxl|\bdit\b|\bflux"
)
_TRAINERS = r"hugging|\btransformers\b|accelerate|\btrl\b|\bpeft\b|axolotl|llama-?factory|\b(hf|sft) ?trainer"
"""Libraries that train transformers' modules, by its Trainer or a loop like it. BERT and T5 among them are taken as any other modules."""
_LARGER = r"\bm?t5|\bt0\b|\bul2|\bm?bart|pegasus|nllb|m2m|whisper"
"""Encoders with decoders that no such script trains: modules of transformers."""


def eager_of(row: Row, text: str, torch: bool, precision: str, assumed: list[str]) -> str:
    """`text`: what the row says of its framework; `torch`: that it is a library of PyTorch's modules; `precision`: the plan's."""
    if torch and (found := _script(row, precision)):
        return found
    if torch and re.search(r"deep ?speed", text):
        return "deepspeed"
    model = f"{row.model_type} {row.model_name}".lower()
    seen = row.batch_unit == "images" or re.search(_PICTURES + "|dlrm", model)
    trainer = re.search(_TRAINERS, text) and not seen and not re.search(f"bert|{_LARGER}", model)
    modules, whose = ("huggingface", "transformers' modules in its Trainer") if trainer else ("pytorch", "plain PyTorch")
    assumed.append(f"framework {row.framework!r} taken as {whose}")
    replicas = r"^none|^no\b|ddp|^(?!.*(shard|zero)).*data.?parallel"
    whole = re.search(replicas, row.sharding.lower()) if row.sharding else not re.search("fsdp|zero", text)
    pictures = seen and precision in ("fp16", "bf16")  # nobody trains them in 16 bits alone
    cast = pictures or re.search(_CAST, row.precision.lower()) or re.search(_CASTING, text)
    # Adapters are tuned beside weights that are frozen in 16 bits.
    return (
        f"{modules}-amp" if whole and cast and not trains_adapters(row) and precision != "fp32" and "32" not in row.precision else modules
    )


def _script(row: Row, precision: str) -> str:
    """The file of a script for such a model; "" where any loop around its modules will do."""
    model = f"{row.model_type} {row.model_name}".lower()
    if re.search(r"(?<!hu)bert\b", model):
        return _bert(row)
    if re.search("transformer[-_ ]xl", model):
        return "pytorch-transformer-xl"
    if re.search(r"mask[-_ ]?r[-_ ]?cnn", model) and precision != "fp32":
        return "pytorch-detection"  # in fp32 the script's README turns NHWC and the loader between steps off
    if "retinanet" in model:
        if row.submitted:
            return "mlperf-retinanet"
        return "pytorch-foreach" if row.of_torch_2 else "pytorch-detection"  # the reference's --data-layout: channels_last
    if re.search(r"\bssd", model):
        return "pytorch-ssd"
    if not re.search(_OLDER, model) or re.search(_LARGER, model):
        return ""
    return "pytorch-foreach" if row.of_torch_2 and not _nvidias(row) else layout_of(row)


_OWN_LOOPS = r"hugging|transformers|accelerate|lightning|trainer|\bfabric\b|deepspeed"
"""Libraries with loops of their own around BERT."""


def _bert(row: Row) -> str:
    """The file of NVIDIA's script, where the row ran that or is a pretraining of its time; tuned on anything but SQuAD, or by a library's own loop,
    BERT is a module like any other."""
    if "squad" in row.task.lower():
        return "pytorch-apex-squad" if not row.of_torch_2 or _nvidias(row) else ""
    if not row.pretrains or (re.search(_OWN_LOOPS, row.framework.lower()) and not _nvidias(row)):
        return ""
    if row.date < _SCRIPTED and not row.of_torch_2:
        return "pytorch-apex-ddp"
    return "pytorch-apex-jit" if _nvidias(row) else ""


def _nvidias(row: Row) -> bool:
    return re.search(_NVIDIA, f"{row.source_id} {row.source} {row.framework} {row.framework_version}".lower()) is not None
