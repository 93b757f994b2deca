"""What the table's words mean in a plan: frameworks, precisions, choices, overlap, optimizers.

The words are those that publications print ("Megatron-LM", "bf16 (autocast)", "yes (SDPA)").
"""

from __future__ import annotations

import re
from typing import Any

from sim.accuracy.architecture.adapters import FOUR_BITS, packed_base
from sim.accuracy.row import Row
from sim.accuracy.rows.eager import eager_of
from sim.accuracy.rows.recipes import recipe_of
from sim.accuracy.rows.scripts import graph_of, mxnet_of, nemo_of
from sim.accuracy.rows.submissions import submitted_pictures, submitted_text
from sim.framework.framework import load_framework
from topologies.errors import Refused

_AND = r" ?([-+/&,(]|and|with) ?"
_FRAMEWORKS: tuple[tuple[str, str], ...] = (
    (r"hugectr", "hugectr"),  # also in MLPerf
    (r"megatron[- ]?bridge", "megatron-bridge"),
    (r"metaseq|fairseq|fairscale", "pytorch"),  # also with layers split as Megatron's
    (r"oneflow|\blibai\b", "oneflow"),
    (r"mxnet", "mxnet-horovod"),
    (r"torch[- ]?titan", "torchtitan"),  # also in MLPerf, whose FLUX.1 it runs
    (r"mlperf", "mlperf-nvidia"),
    (r"nemo", "nemo"),
    (rf"megatron[- ]?deepspeed|deepspeed[- ]?megatron|megatron(-lm)?{_AND}deepspeed|deepspeed{_AND}megatron|neox", "megatron-deepspeed"),
    (r"megatron[- ]?core|\bmcore\b", "megatron-core"),
    (r"megatron|primus|megascale|vescale|mindspeed", "megatron-lm"),
    (r"internevo|internlm[- ]?train", "internevo"),
    (r"llm[- ]?foundry|composer|mosaic", "llm-foundry"),
    (r"\bpax(ml)?\b|praxis", "paxml"),
    (r"maxtext|\bjax(pp)?\b|\bflax\b|levanter|\bt5x\b|scalax|easylm|\balpa\b|gspmd|axlearn|maxdiffusion", "maxtext"),
    (r"tensorflow[- ]?2|tf[- ]?2|\bkeras", "tf2-horovod"),
    (r"tensorflow|tf[- ]?1|\btf\b|tensor2tensor|openseq2seq", "tf1-horovod"),
)
_LIBRARIES = r"lit-?gpt|lightning|deepspeed|hugging|transformers|accelerate|trainer|nano|pico|colossal|paddle|fairseq|fairscale|metaseq|olmo|\btimm\b"
_LIBRARIES += (
    r"|mmdet|mmpre|mmseg|detectron|diffusers|\btrl\b|\bpeft\b|unsloth|axolotl|llama-?factory|\bfabric\b|\blit-|tutel|\bapex\b|opendit"
)
"""Libraries that run models as PyTorch's modules."""
_TORCH = f"torch|fsdp|{_LIBRARIES}"
"""Words of rows that run them so."""


def framework_of_row(row: Row, assumed: list[str]) -> str:
    """The framework file that describes how the row was run; one that is not described is taken as plain PyTorch, which is noted."""
    text = _told(row)
    name = _named(text) or "pytorch"
    if name == "pytorch" and not re.search(_TORCH, text) and max(row.tp or 1, row.pp or 1, row.ep or 1) > 1:
        assumed.append(f"framework {row.framework!r} splits the model: taken as Megatron-LM")
        name = "megatron-lm"
    if name == "tf1-horovod" and row.date >= _TF1_ENDS and not re.search(r"(tensorflow|tf)[- ]?1", text):
        name = "tf2-horovod"
    if name in ("tf1-horovod", "oneflow") and _is(row, r"bert\b"):
        return graph_of(row, name)
    if name == "oneflow" and _is(row, r"gpt|llama"):
        return "oneflow-gpt"
    if row.submitted and name in ("mlperf-nvidia", "mxnet-horovod") and not _is(row, _MASKS) and _is(row, r"resnet|\bcnn\b"):
        return submitted_pictures(row)
    if name == "mlperf-nvidia" and _is(row, r"llama|bert\b"):
        return submitted_text(row)
    if name == "mlperf-nvidia" and _is(row, "flux"):
        name = "nemo" if "nemo" in row.framework.lower() else "torchtitan"
        if name == "torchtitan":
            assumed.append("MLPerf's FLUX.1 taken as its reference, torchtitan's")
    if name == "mlperf-nvidia" and _is(row, r"diffusion|\bsd-?[12]"):
        return "mlperf-nvidia-diffusion"
    if name == "mlperf-nvidia" and _is(row, "dlrm") and not re.search(r"torch", row.framework.lower()):
        return "hugectr"  # all submissions of NVIDIA's recommenders
    if name in ("mlperf-nvidia", "llm-foundry") and (row.batch_unit == "images" or _is(row, _MASKS + r"|resnet|\bcnn\b|\bvit\b|dlrm")):
        name, text = "pytorch", "torch"  # detection, translation, recommenders, and Composer's pictures are plain modules
    if "hai-llm" in text and row.n_experts:
        assumed.append("DeepSeek's trainer: DeepEP, exchanges beside another micro-batch")
        return "megatron-bridge-overlapped"
    if name == "megatron-bridge":
        return recipe_of(row, precision_of(row))
    if name == "mxnet-horovod":
        return mxnet_of(row)
    if name == "nemo":
        return nemo_of(row)
    if name == "torchtitan" and re.search(r"row-?wise", row.precision.lower()):
        return "torchtitan-rowwise"
    if name == "torchtitan" and re.search(r"(float|fp)8 all-?gather", row.precision.lower()):
        return "torchtitan-float8-gather"
    if name == "torchtitan" and row.date[:4] == "2024":
        return "torchtitan-2024"
    if name == "torchtitan" and "2025" <= row.date < "2025-08":
        return "torchtitan-2025"
    if name == "megatron-lm" and _written_out(row):
        later = row.date[:7] >= _ASYNCHRONOUS or said(row.sequence_parallel) or row.recompute == "selective"
        halves = precision_of(row) == "fp16"
        return "megatron-2022" + "-fp16" * halves if later else "megatron-2020" if _wrapped(row) else "megatron-2021"
    if name == "megatron-lm" and "CE fusion on" in row.notes:
        return "megatron-lm-te-loss"
    if name == "megatron-deepspeed":
        sciences = re.search(_BIGSCIENCE, f"{row.source_id} {row.model_name} {row.model_type} {row.system}".lower())
        return f"{name}-bf16" if sciences and precision_of(row) == "bf16" else name if sciences else f"{name}-async"
    if name != "pytorch":
        return name
    return eager_of(row, text, re.search(_TORCH, text) is not None, precision_of(row), assumed)


def _told(row: Row) -> str:
    """What tells the framework: the row's own word, with the benchmark that it was run for; where that names none, also the source's."""
    own = f"{row.framework} {'mlperf' if row.submitted else ''}".lower().strip()
    both = own if _named(_plain(own)) or re.search(_LIBRARIES, own) else f"{own} {row.source_id.lower()}"
    return _plain(both)


def _plain(text: str) -> str:
    return re.sub(r"[_ ]+", " ", text).replace("megatron lm", "megatron-lm")


def _named(text: str) -> str:
    """The first framework that the text names; "" where it names none."""
    return next((name for pattern, name in _FRAMEWORKS if re.search(pattern, text)), "")


_TF1_ENDS = "2021-07"
"""From when on a TensorFlow without its version is the second: 1.15's last patches are of January 2021, NGC's last container of it of 2023, and says 1."""
_BIGSCIENCE = r"bigscience|bloom|jean zay"


_MASKS = r"mask|ssd|retinanet|gnmt|rnn|transformer[-_ ](base|big)|transformer \(big\)"
"""What MLPerf trains with PyTorch beside language models."""
_ASYNCHRONOUS = "2021-11"
"""When Megatron-LM's tensor-parallel sums became asynchronous; sequence parallelism and selective recomputation are of 2022."""


def _written_out(row: Row) -> bool:
    """Megatron-LM without flash attention: the row says so, or is of before it came (2023), or its GPU has none (V100)."""
    flash = said(row.flash_attn)
    return flash is False or (flash is None and ("" < row.date < "2023" or "v100" in row.gpu.lower()))


_ITS_OWN = r"megatron|nvidia|narayanan|sc21"
"""Sources whose runs are those of Megatron-LM's authors."""
_PIPELINED, _WIDE = "2021", 4
"""When Megatron-LM got pipelines, which take its own gradient sums alone, and from how many ranks a layer on torch's were its choice before."""


def _wrapped(row: Row) -> bool:
    """Megatron-LM under torch's DistributedDataParallel. README of 2020: better for the models split 4 and 8 ways, worse for 1 and 2;
    in 2021 all of NVIDIA's own without a pipeline (examples/sc21/run_table_1.sh: DDP=torch for 1, 2, 4 and 8 ways, local with pipelines); who
    says nothing has the default, `--DDP-impl local` (arguments.py)."""
    least = _WIDE if row.date < _PIPELINED else 1
    if row.date >= _PIPELINED and not re.search(_ITS_OWN, row.source_id.lower()):
        return False
    return row.date != "" and (row.tp or 1) >= least and (row.nodes or 1) > 1 and (row.pp or 1) == 1


_YES = r"yes|true|on\b|y\b|1\b|enabled"
_NO = r"no|false|off\b|n\b|f$|0\b|disabled?\b|never|w/o\b|without|unused|eager|math|naive|standard|vanilla|unfused|baseline"
_AFTER_ALL = r"^[^,;]*\b(off|disabled|false|none)$"
"""What denies at the end of a cell: "activation checkpointing off"."""
_SILENT = r"unknown|un(stated|specified|clear)|not (stated|given|reported|mentioned|specified)|n/?a\b|n\.a\.|tbd$|auto$|default$|\?|[-–—]$"
_LABEL = r"^[\w ./-]+[:=]\s*(?=\S)"
"""What a cell says of itself before its word: "AC: none", "use_flash_attn=True"."""


def bare(text: str) -> str:
    """The cell's word, in lower case, without a label before it."""
    return re.sub(_LABEL, "", text.strip().lower())


def said(text: str) -> bool | None:
    """What a cell of a choice says: yes, no, or (None) nothing. Any other word names what was chosen, which is a yes."""
    word = bare(text)
    if not word or re.match(_SILENT, word):
        return None
    alone = re.sub(r"\((off|disabled)\)$", r" \1", word)
    return bool(re.match(_YES, word)) or not (re.match(_NO, word) or re.search(_AFTER_ALL, re.sub(r"\(.*", "", alone).strip()))


def _is(row: Row, pattern: str) -> bool:
    return re.search(pattern, f"{row.model_type} {row.model_name}".lower()) is not None


_DENIED = r"\b(no|not|non|without|w/o)[- ]+(nvidia )?({0})\b|\b({0}) (off|disabled)\b"
_LESS = r"fp-?8|float8|tf-?32|amp|automatic mixed precision|mixed[- ]precision"
"""What a cell may say that it does without: "BF16 (no FP8)", "FP32, TF32 disabled"."""
_PRECISIONS: tuple[tuple[str, str], ...] = (
    # (pattern, the plan's word); the first that is found counts, so that "bf16 (fp32 gradients)" is bf16
    (FOUR_BITS, "bf16"),  # QLoRA: weights stored in four bits, products in bf16
    (r"fp4", "nvfp4"),
    (r"\bmx[ _-]?f(loat|p)[ _-]?8|f(loat|p)[ _-]?8[ _(-]*mx|microscal", "mxfp8"),  # Megatron-Bridge prints "FP8-MX"
    (r"f(loat|p)[_ -]?8|e[45]m[23]|\b8[- ]?bit float", "fp8"),
    (r"bf[_ -]?16|bfloat", "bf16"),
    (r"f(loat|p)[_ -]?16|^16([- ]bit)?$|\b16[- ]?bit float|\bhalf\b|\b16-(mixed|true)|\bamp\b|\bmixed\b|^o[1-3]$|apex", "fp16"),
    (r"tf-?32|tensor ?float", "tf32"),
    (r"f(loat|p)[_ -]?32|\bsingle\b|\b32(-true|-bit)?$|\b32[- ]?bit float|^full( precision)?$|^float$|^o0$", "fp32"),
)


def precision_of(row: Row, assumed: list[str] | None = None) -> str:
    """The plan's precision; unsaid: that of most training on the GPU. Raises `Refused` for a word that is none."""
    text = row.precision.lower().strip()
    packed = packed_base(row, text)
    if said(text) is None or packed:
        old = re.search(r"v100|\bt4\b|p100", row.gpu.lower()) is not None
        name = "fp16" if old else "bf16"
        if assumed is not None:
            assumed.append(f"precision {row.precision!r} is the frozen base's: {name}" if packed else f"precision not stated: {name}")
        return name
    text = re.sub(_DENIED.format(_LESS), "", text) or "fp32"
    for pattern, name in _PRECISIONS:
        if re.search(pattern, text):
            return name
    raise Refused(f"precision {row.precision!r} is not known; a plan takes fp32 tf32 bf16 fp16 fp8 mxfp8 nvfp4")


_OF_TENSORS = r"\btp\b|tensor|user ?buf|tp[-_ ]comm|async[-_ ]tp"
"""Words of messages of tensor parallelism. Cells without them leave these as the framework has them: NVIDIA's NeMo scripts set ub_tp_comm_overlap on
the command line, over their yaml files (dgxc-benchmarking v24.11.1, nemotron/configure.sh and grok1/configure.sh)."""
_LISTED = r"overlap[-_](grad[-_]reduce|param[-_]gather)"
"""Options of Megatron-Core's command line, of which --tp-comm-overlap is one: who lists them and leaves it out ran without."""
_OF_DATA = r"\bd?dp\b|\bgrad|[-_]grad|\bparam|[-_]param|\bdata\b"
"""Words of messages of data parallelism."""
_ALL = r"(yes|true|on|y|1|enabled|all|full|overlap(ped)?)$"
"""Cells that say no more than that messages are overlapped."""
_NO_NVLINK = r"l40|\bl20\b|\bl4\b|\ba10g?\b|\ba40\b|rtx|\bt4\b|pcie"
"""GPUs without NVLink between all of a node: TransformerEngine's user buffers need it (its README of examples/pytorch/comm_gemm_overlap), and
MLPerf's config_L40S_*.sh say TP_COMM_OVERLAP=False."""


def overlap_of(row: Row, framework: str) -> tuple[bool, bool]:
    """(gradients beside backward, tensor-parallel messages beside products): the row's word, else the framework's.

    OneFlow's GPT puts all of NCCL on the compute stream where tensors are split (training.py: nccl_use_compute_stream). Megatron-LM's scripts of
    2021 say DDP=torch where there is no pipeline: "no overlap" is true of its own sums alone (`_wrapped`).
    """
    text = "" if framework == "megatron-2020" else row.comm_overlap.lower()
    tensor = load_framework(framework).tensor_parallel.overlap and not re.search(_NO_NVLINK, f"{row.gpu} {row.gpu_form}".lower())
    if not text and framework == "oneflow-gpt":
        return (row.tp or 1) == 1, False
    if said(text) is False and (re.match("none", text) or not _of_tensors_alone(re.split("[,;]", text)[0])):
        return False, False
    parts = re.split("[,;]", text)
    gradients = not any(said(part) is False and re.search(_OF_DATA, part) for part in parts)
    if not re.search(_OF_TENSORS, text):
        return gradients, tensor and not (framework == "megatron-core" and re.search(_LISTED, text))
    return gradients, not any(said(part) is False and _of_tensors_alone(part) for part in parts)


def _of_tensors_alone(words: str) -> bool:
    return re.search(_OF_TENSORS, words) is not None and re.search(_OF_DATA, words) is None


_ASKED = ("megatron-lm", "megatron-lm-te-loss")
"""Frameworks whose overlaps are options."""


def asked_overlaps(row: Row, framework: str) -> str | dict[str, Any]:
    """The plan's framework: with what the row says of gradients' and parameters' messages where its own scripts leave them for the end unless
    asked (Megatron-LM: --overlap-grad-reduce, --overlap-param-gather)."""
    text, known = row.comm_overlap.lower(), load_framework(framework).data_parallel
    if framework not in _ASKED or said(text) is False:
        return framework
    words = {
        "overlap_grad": r"overlap[-_ ]grad|\b(grad|d?dp\b|data)[^,;]*overlap",
        "overlap_param": r"overlap[-_ ]param|\bparam[^,;]*overlap",
    }
    asked = {key: True for key, word in words.items() if re.search(f"{word}|^{_ALL}", text) and not getattr(known, key)}
    return {"base": framework, "data_parallel": asked} if asked else framework


def compiled(row: Row) -> bool | None:
    """Elementwise kernels fused by a compiler: stated, or XLA or torch.compile by the framework's name; None = the framework's default.

    NVIDIA's BERT is tuned on SQuAD in fp32 without XLA: `run_squad.sh ... fp32 false`, against `fp16 true` (READMEs of its TensorFlow 1 and 2).
    Paxml's script runs TransformerEngine's layers, calls that XLA cannot look into (sim/framework/known/paxml.toml).
    """
    if re.search(r"\bpax(ml)?\b", row.framework.lower()):
        return None
    if re.search(r"tensorflow|tf[12]", row.framework.lower()) and "squad" in row.task.lower() and precision_of(row) == "fp32":
        return False
    named = "xla" if said(row.compile) is False else r"xla|torch[._ ]?compile|inductor"
    return True if said(row.compile) or re.search(named, row.framework.lower()) else None


_OTHERS = (
    r"\b(vs|versus|compared (with|to)|against|than|instead of|no|not|without)\b[. ]+(the |a )?(dual.?pipe|zero.?bubble|zb-?h1|zbpp|gpipe)"
)
"""Schedules that a note speaks of because the row had another."""


def schedule_of(row: Row) -> str:
    """A pipeline's schedule where the row names one that is no 1F1B: "DualPipe", "ZB-H1", "zero bubble", "GPipe"; else ""."""
    text = re.sub(_OTHERS, "", f"{row.comm_overlap} {row.framework} {row.notes}".lower())
    hai = "hai-llm" in text and (row.n_experts or 0) > 200  # DeepSeek-V3 brought it (2024, section 3.2.1)
    if hai or re.search(r"dual.?pipe", text):
        return "dualpipe"
    return "zb-h1" if re.search(r"zero.?bubble|\bzb-?h1|\bzbpp", text) else "gpipe" if "gpipe" in text else ""
