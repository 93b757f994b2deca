"""What the table's words mean in a plan: frameworks, precisions, sharding, recomputation, overlap.

The words are those that publications print ("FSDP FULL_SHARD (ZeRO-3)", "bf16 (autocast)", "selective (op)").
"""

from __future__ import annotations

import re
from typing import Any

from sim.accuracy.recipes import recipe_of, recomputed
from sim.accuracy.rows import Row
from sim.accuracy.scripts import graph_of, nemo_of, shard_of
from sim.model.redo import MODULES
from sim.plan import Module
from topologies.errors import Refused

_FRAMEWORKS: tuple[tuple[str, str], ...] = (
    (r"megatron-bridge", "megatron-bridge"),
    (r"oneflow", "oneflow"),
    (r"mxnet", "mxnet-horovod"),
    (r"mlperf", "mlperf-nvidia"),
    (r"nemo", "nemo"),
    (r"megatron-deepspeed|neox", "megatron-deepspeed"),
    (r"megatron-core|\bmcore\b", "megatron-core"),
    (r"megatron|primus", "megatron-lm"),
    (r"internevo|internlm-train", "internevo"),
    (r"llm-foundry|composer|mosaic", "llm-foundry"),
    (r"torchtitan", "torchtitan"),
    (r"paxml", "paxml"),
    (r"maxtext|\bjax\b|\bflax\b|levanter|\bt5x\b", "maxtext"),
    (r"tensorflow ?2|tf2", "tf2-horovod"),
    (r"tensorflow|tf1", "tf1-horovod"),
)
_TORCH = r"torch|lit-?gpt|lightning|deepspeed|fsdp|hugging|transformers|accelerate|trainer|nano|pico|colossal|paddle|fairseq|fairscale|metaseq|olmo"
"""Words of libraries that run models as PyTorch's modules."""


def framework_of_row(row: Row, assumed: list[str]) -> str:
    """The framework file that describes how the row was run; one that is not described is taken as plain PyTorch, which is noted."""
    text = re.sub(r"[_ ]+", " ", f"{row.framework} {row.source_id}".lower()).replace("megatron lm", "megatron-lm")
    name = next((name for pattern, name in _FRAMEWORKS if re.search(pattern, text)), "pytorch")
    if name == "pytorch" and not re.search(_TORCH, text) and max(row.tp or 1, row.pp or 1, row.ep or 1) > 1:
        assumed.append(f"framework {row.framework!r} splits the model: taken as Megatron-LM")
        name = "megatron-lm"
    if name in ("tf1-horovod", "oneflow") and _is(row, r"bert\b"):
        return graph_of(row, name)
    if name == "mlperf-nvidia" and _is(row, r"resnet|\bcnn\b"):
        return "mxnet-horovod"  # what NVIDIA's submissions train images with
    if name == "megatron-bridge":
        return recipe_of(row)
    if name == "nemo":
        return nemo_of(row)
    if name == "torchtitan" and row.date[:4] == "2024":
        return "torchtitan-2024"
    if name == "megatron-lm" and _written_out(row):
        later = row.date[:7] >= _ASYNCHRONOUS or said(row.sequence_parallel) or row.recompute == "selective"
        return "megatron-2022" if later else "megatron-2021"
    if name != "pytorch":
        return name
    if re.search(_TORCH, text) and _is(row, r"bert\b"):
        return "pytorch-apex-jit" if row.pretrains and row.date >= _SCRIPTED else "pytorch-apex-ddp"
    if re.search(_TORCH, text) and _is(row, "transformer-xl"):
        return "pytorch-transformer-xl"
    if re.search(_TORCH, text) and _is(row, r"mask r-?cnn") and precision_of(row) != "fp32":
        return "pytorch-detection"  # in fp32 the script's README turns NHWC and the loader between steps off
    if re.search(_TORCH, text) and _is(row, r"resnet|resnext|\bcnn\b|ssd|mask|transformer-(base|big)|encoder-decoder|gnmt|rnn"):
        return "pytorch-native-amp"
    assumed.append(f"framework {row.framework!r} taken as plain PyTorch")
    return "pytorch"


_SCRIPTED = "2021-09"
"""When NVIDIA's BERT in PyTorch took to TorchScript, and to sequences binned by length (its README's release notes)."""
_ASYNCHRONOUS = "2021-11"
"""When Megatron-LM's tensor-parallel sums became asynchronous; sequence parallelism and selective recomputation are of 2022."""


def _written_out(row: Row) -> bool:
    """Megatron-LM without flash attention: the row says so, or is of before it came (2023), or its GPU has none (V100)."""
    flash = said(row.flash_attn)
    return flash is False or (flash is None and ("" < row.date < "2023" or "v100" in row.gpu.lower()))


_YES = r"yes|true|on\b|y\b|1\b|enabled"
_NO = r"no|false|off\b|n\b|0\b|disabled|eager|math"


def said(text: str) -> bool | None:
    """What a cell of a choice says: yes, no, or (None) nothing. Any other word names what was chosen, which is a yes."""
    word = text.strip().lower()
    if not word or re.match(r"unknown|not (stated|given|reported)|n/?a\b|auto$|default$|\?|-$", word):
        return None
    return bool(re.match(_YES, word)) or not re.match(_NO, word)


def _is(row: Row, pattern: str) -> bool:
    return re.search(pattern, f"{row.model_type} {row.model_name}".lower()) is not None


_PRECISIONS: tuple[tuple[str, str], ...] = (
    # (pattern, the plan's word); the first that is found counts, so that "bf16 (fp32 gradients)" is bf16
    (r"\bnf4\b|4-?bit", "bf16"),  # QLoRA: weights stored in four bits, products in bf16
    (r"fp4", "nvfp4"),
    (r"mxfp8", "mxfp8"),
    (r"f(loat|p)[_-]?8|e[45]m[23]", "fp8"),
    (r"bf16|bfloat", "bf16"),
    (r"f(loat|p)[_-]?16|\bhalf\b|\b16-(mixed|true)|\bamp\b|\bmixed\b|^o[12]$|apex", "fp16"),
    (r"tf32", "tf32"),
    (r"f(loat|p)[_-]?32|\bsingle\b|\b32(-true|-bit)?$", "fp32"),
)


def precision_of(row: Row, assumed: list[str] | None = None) -> str:
    """The plan's precision; unsaid: that of most training on the GPU. Raises `Refused` for a word that is none."""
    text = row.precision.lower().strip()
    if said(text) is None:
        old = re.search(r"v100|\bt4\b|p100", row.gpu.lower()) is not None
        name = "fp16" if old else "bf16"
        if assumed is not None:
            assumed.append(f"precision not stated: {name}")
        return name
    for pattern, name in _PRECISIONS:
        if re.search(pattern, text):
            return name
    raise Refused(f"precision {row.precision!r} is not known; a plan takes fp32 tf32 bf16 fp16 fp8 mxfp8 nvfp4")


def sharding_of(row: Row, dp: int, framework: str, assumed: list[str]) -> dict[str, Any]:
    """dp_shard, dp_replicate, zero and how parameters are kept, for `dp` data-parallel ranks (context ranks apart)."""
    text = row.sharding.lower()
    zero = _zero(text, framework, assumed, row)
    if zero == 0 or dp == 1:
        # With one rank nothing is split; FSDP still casts and copies as it does, so its level stays.
        return {"dp_replicate": dp if zero == 0 else 1, "dp_shard": 1 if zero == 0 else dp, "zero": zero}
    inside = row.gpus_per_node if re.search(r"hybrid.?shard", text) else None  # FSDP's HYBRID_SHARD: whole copies on each node
    size = min(row.fsdp_size or inside or shard_of(row, framework) or dp, dp)
    if found := re.search(r"within groups of (\d+)", text):
        size = min(int(found.group(1)), dp)
    if dp % size:
        assumed.append(f"sharding group of {size} does not divide dp = {dp}: all ranks share")
        size = dp
    found_sizes: dict[str, Any] = {"dp_shard": size, "dp_replicate": dp // size, "zero": zero}
    if "shard_grad_op" in text:
        found_sizes |= {"zero": 3, "reshard_after_forward": False}
    return found_sizes


_LEVELS: tuple[tuple[str, int], ...] = (
    (r"no_shard|^none|^no$|^false$|^replicat|^0$", 0),
    (r"fsdp|full_?shard|fully.?shard|hsdp|hybrid.?shard|zero\+\+|zero.?infinity", 3),
    (r"\bddp\b|^dp$|data.parallel$", 0),
    (r"shard_?grad|zero.?offload", 2),
    (r"distributed.?optimi|distopt|optimi[sz]er.?(state|shard)|zero.?redundancy", 1),
)
"""Words of sharding without a level's number, and the level that they mean."""


def _zero(text: str, framework: str, assumed: list[str], row: Row) -> int:
    if found := re.search(r"(?:zero|stage)[\s_-]*(?:stage)?[\s_-]*([0-3])", text) or re.search(r"^([0-3])$", text):
        return int(found.group(1))
    for pattern, level in _LEVELS:
        if re.search(pattern, text):
            return level
    from sim.framework import load_framework

    level = max(load_framework(framework).zero, 1 if "zero" in text else 0)
    assumed.append(
        f"sharding not stated: {framework}'s default, ZeRO-{level}" if not row.sharding else f"sharding {row.sharding!r}: ZeRO-{level}"
    )
    return level


_KEPT: tuple[tuple[str, float, str], ...] = (
    # (word, share of a layer's work that is done again, why)
    (r"every other", 1 / 2, "every second layer is recomputed"),
    (r"\(op\)|\bsac\b", 1 / 2, "torchtitan keeps attention and every second product: counted as every second layer"),
    (r"save_qkv_out_proj", 2 / 3, "qkv and output products are kept, a third of the layer: counted as two layers of three"),
    (r"save_qkv_proj", 7 / 8, "only the qkv products are kept: seven layers of eight"),
)
_UNSAID = {"maxtext": "save_qkv_proj"}
"""Recomputation that a framework's recipes use unless told: remat_policy of dgxc-benchmarking maxtext/configure.sh."""


def recompute_of(row: Row, layers_per_stage: int, framework: str, assumed: list[str]) -> dict[str, Any]:
    """The plan's recomputation; policies that keep some products count as recomputing so many of the layers."""
    text = "" if said(row.recompute) is None else row.recompute.lower()
    if not text and framework in _UNSAID:
        text = _UNSAID[framework]
        assumed.append(f"recomputation not stated: {text}, as {framework}'s recipes")
    if "save_dot_only" in text:
        assumed.append(f"recomputation {text!r}: products are kept; attention, a call of its own, runs again, and what XLA fuses away")
        return {"recompute": "selective"}
    for word, share, why in _KEPT:
        if re.search(word, text):
            assumed.append(f"recomputation {text!r}: {why}")
            layers = round(share * layers_per_stage)
            return {"recompute": "full", "recompute_layers": layers} if layers else {"recompute": "none"}
    if modules := _modules(row, framework, assumed):
        return {"recompute": "selective", "recompute_modules": modules}
    if re.search(r"selective|\bcore\b|attention( only)?$", text):
        return {"recompute": "selective"}
    if found := re.search(r"block\D*(\d+)|(\d+) (?:of \d+ )?layers", f"{text} {row.recompute_detail.lower()}"):
        return {"recompute": "full", "recompute_layers": min(int(found.group(1) or found.group(2)), layers_per_stage)}
    if not text:
        assumed.append("recomputation not stated: none")
    return {"recompute": "full" if said(text) else "none"}


def _modules(row: Row, framework: str, assumed: list[str]) -> tuple[Module, ...]:
    """What of each layer the row says in Megatron-Core's words; where it says nothing, what the recipe does."""
    text = f"{row.recompute} {row.recompute_detail}".lower()
    said_ones = tuple(module for module in MODULES if re.search(rf"\b{module}\b", text))
    if not any("_" in module for module in said_ones):
        said_ones = ()  # "mlp" and "moe" alone are words like any other
    if said_ones or said(row.recompute) is not None or not framework.startswith("megatron-bridge"):
        return said_ones
    found = recomputed(row)
    if found:
        assumed.append(f"recomputation not stated: {', '.join(found)}, as its recipe")
    return found


_OF_DATA = r"grad(ient)?s?[ -](reduce-scatter and param all-gather overlap|sync overlap)$"
"""Cells that speak of gradients and parameters alone. NVIDIA's NeMo scripts set ub_tp_comm_overlap on the command line, over their yaml files
(dgxc-benchmarking v24.11.1, nemotron/configure.sh and grok1/configure.sh)."""


def overlap_of(row: Row, framework: str) -> tuple[bool, bool]:
    """(gradients beside backward, tensor-parallel messages beside products): the row's word, else the framework's."""
    from sim.framework import load_framework

    text = row.comm_overlap.lower()
    if not text or text.startswith("horovod"):
        return True, load_framework(framework).tp_overlap
    if re.match(_OF_DATA, text):  # of tensor parallelism it says nothing
        return True, load_framework(framework).tp_overlap
    return said(text) is not False, bool(re.search(r"userbuffers|tp-comm-overlap|async tp", text))


def compiled(row: Row) -> bool | None:
    """Elementwise kernels fused by a compiler: stated, or XLA by the framework's name; None = the framework's default.

    NVIDIA's BERT is tuned on SQuAD in fp32 without XLA: `run_squad.sh ... fp32 false`, against `fp16 true` (READMEs of its TensorFlow 1 and 2).
    """
    if re.search(r"tensorflow|tf[12]", row.framework.lower()) and "squad" in row.task.lower() and precision_of(row) == "fp32":
        return False
    return True if said(row.compile) or "xla" in row.framework.lower() else None
