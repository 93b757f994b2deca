"""Which optimizer a row trained with, and how its update was launched."""

from __future__ import annotations

import re
from typing import Any

from sim.accuracy.row import Row
from sim.sections import Optimizer

_IMAGES = (
    r"resnet|resnext|\bcnn\b|ssd|mask|\bvgg|alexnet|inception|googlenet|densenet|mobilenet|shufflenet|squeezenet|efficientnet|regnet|\bwrn"
    r"|faster[-_ ]?r[-_ ]?cnn|yolo"
)

_OTHERS = r"mini|[01][ _-]?bit|0/1"
"""Adams that keep or send less than Adam: Adam-mini, and DeepSpeed's 1-bit and 0/1 Adam."""


def optimizer_of(row: Row, precision: str, assumed: list[str] | None = None) -> Optimizer:
    """The row's word (RMSprop, which keeps one state too, as SGD with momentum); images are trained by SGD with momentum, MLPerf's RetinaNet by Adam
    (mlcommons/training, single_stage_detector/ssd/train.py), DLRM by SGD alone (facebookresearch/dlrm, dlrm_s_pytorch.py: --optimizer), with
    a cross network by Adagrad (mlcommons/training, recommendation_v2), all else by Adam, as what a word that is not known is taken for.

    BERT is tuned on SQuAD by Adam, also where a table speaks of its pretraining's LAMB: in PyTorch by one fused kernel for fp16 (apex
    FusedAdam), else by BertAdam, which calls each kernel for each tensor (NVIDIA DeepLearningExamples, PyTorch/LanguageModeling/BERT:
    run_squad.py, optimization.py); MLPerf's BERT by LAMB (its rules); in TensorFlow by AdamWeightDecayOptimizer (run_squad.py: create_optimizer).
    Adam and Lion in 8 bits (bitsandbytes) keep their moments so.
    Kimi K2 and Moonlight by Muon, their authors' optimizer; Megatron-Bridge's performance recipes of Kimi K2 pass `optimizer_type="muon"`, also where
    a table says adam of all the framework's models.
    """
    text, model = row.optimizer.lower(), f"{row.model_type} {row.model_name}".lower()
    if "bert" in model and "squad" in row.task.lower():
        written = "torch" in row.framework.lower() and precision != "fp16" and not row.of_torch_2
        return Optimizer(name="adamw", implementation="for-loop" if written else None)
    if "lamb" in text or (not text and "bert" in model and row.submitted):
        return Optimizer(name="lamb")
    if "muon" in text or _by_muon(row, model):
        if text and "muon" not in text and assumed is not None:
            assumed.append(f"optimizer {row.optimizer!r} taken as muon: the recipe's")
        return Optimizer(name="muon")
    small: dict[str, Any] = {"states": "fp8", "implementation": "fused"} if re.search(r"8[ _-]?bit", text) else {}
    if re.search(r"(?<![a-z])lionw?(?![a-z])", text):
        return Optimizer(name="lion", **small)
    if re.search(r"(?<![a-z])lars(?![a-z])", text):
        return Optimizer(name="lars")
    if not text and "retinanet" in model:
        return Optimizer(name="adam")
    if "ademamix" in text:
        return Optimizer(name="ademamix")
    if "adagrad" in text:
        return Optimizer(name="adagrad")
    if re.search(r"sgd|momentum|rmsprop", text) or ("adam" not in text and re.search(_IMAGES, model)):
        if text and not re.search("sgd|momentum", text) and assumed is not None:
            assumed.append(f"optimizer {row.optimizer!r} taken as SGD with momentum")
        return Optimizer(name="momentum")
    if not text and "dlrm" in model:
        return Optimizer(name="adagrad" if re.search(r"dcn|v2", model) else "sgd")
    if text and ("adam" not in text or re.search(_OTHERS, text)) and assumed is not None:
        assumed.append(f"optimizer {row.optimizer!r} taken as adamw")
    return Optimizer(name="adamw", **small)


def _by_muon(row: Row, model: str) -> bool:
    if not re.search("kimi|moonlight", model):
        return False
    return not row.optimizer or ("kimi" in model and "bridge" in row.framework.lower())
