"""How scripts run a step, most of all on pictures: when pictures are decoded, where the loop waits for the device, how often it updates."""

from __future__ import annotations

import math
import re
from typing import Any

from sim.accuracy.row import Row
from sim.model.load import model_from
from sim.model.specs.spec import Cnn
from sim.sections import Data, Output

_AHEAD = Data(workers=4, handover="none")
"""Images are decoded and sent to the device ahead of their step by all that the table's sources run (DALI's pipeline and its prefetch
queue, tf.data, OneFlow's decoders): the copy beside a step is that of a later one, and no step waits for it."""
_BETWEEN = Data(preprocess=7.5e-3, handover="none")
"""NVIDIA's Mask R-CNN decodes on the training thread, between two steps (HybridDataLoader of its data/datasets/coco.py), but for fp32 on V100. A
photograph with its outlines takes 7.5 ms there: what its README's inference tables leave between images a second and latency (6.2-9.7 ms)."""
_PILLOW = 6.7e-3
"""Seconds in which torchvision's transforms (Pillow) make a training sample of an ImageNet photograph on one core: two loader processes on a Xeon
E5-2698 v4 make 290 a second (obilaniu/Benzina's README), one in 6.9 ms, of which 0.2 put it into its batch (`sim.lower.input`)."""
_LOADERS = 4
"""Loader processes of a node, where none are said (pytorch/examples, imagenet/main.py: --workers)."""
_WHOLE = {50: 2048, 101: 1024}
"""Images of one update of NVIDIA's ResNet-50 and its ResNeXts, by depth (ConvNets' configs.yml, optimizer_batch_size): on one GPU many steps."""


_SQUAD_EXAMPLE = 200
"""Tokens of a SQuAD example: a context of 117 words in the mean, a question of 10 and an answer of 3 (Rajpurkar et al. 2016), in a template,
at 4 tokens for 3 words."""
_PACKING = r"nemo|megatron-bridge"


def data_of(row: Row, model: dict[str, Any], framework: str, assumed: list[str]) -> Data:
    """The input path of a row of pictures; DLRM's pipelines send the next batch beside a step, too (TorchRec's TrainPipelineSparseDist, HugeCTR's
    asynchronous reader); all others' are ready. Fine-tuning recipes of NeMo and Megatron-Bridge pack SQuAD into sequences of 4096 when run for
    speed, and take sequences of 2048 when not (nemo/collections/llm/recipes/llama3_8b.py: finetune_recipe, performance_mode)."""
    if model.get("family") == "dlrm":
        return _AHEAD
    if row.batch_unit != "images":
        if model.get("family", "decoder") != "decoder" or not _packs(row):
            return Data()
        assumed.append(f"fine-tuning on packed sequences: SQuAD's examples of {_SQUAD_EXAMPLE} tokens")
        return Data(document=_SQUAD_EXAMPLE)
    if loaders := _loaders(row):
        return Data(workers=loaders, preprocess=_PILLOW, stream="compute")
    return _BETWEEN if _arch(model) == "mask-rcnn" and framework == "pytorch-detection" else _AHEAD


def _packs(row: Row) -> bool:
    tuned = re.search(r"\bsft\b|lora|\bpeft\b|fine-?tun", row.task.lower())
    words = f"{row.framework} {row.source_id}".lower()
    return tuned is not None and (row.seq_len or 0) >= 4096 and re.search(_PACKING, words) is not None and not row.submitted


def _loaders(row: Row) -> int:
    """Loader processes of each rank, where a row says that torch's DataLoader makes its batches: the node's are shared out (imagenet/main.py)."""
    text = f"{row.framework} {row.notes}".lower()
    if not re.search(r"\bdata ?loader\b", text):
        return 0
    said = re.search(r"\bworkers? ?= ?(\d+)", text)
    return math.ceil((int(said[1]) if said else _LOADERS) / min(row.gpus or 1, row.gpus_per_node or 8))


def output_of(row: Row, model: dict[str, Any]) -> Output:
    """NVIDIA's scripts in PyTorch wait for the device after each step: for its end (ConvNets' training.py, SSD's benchmark_train_loop), and
    (ConvNets) for the loss; BERT's run_squad.py for the loss that it may have to log at last; Transformer-XL's on several GPUs for what it logs, which
    it sums over them first (train.py: all_reduce_item; wt103_*.yaml, trainbench: log_interval: 1)."""
    arch = _arch(model)
    if _nvidia(row) and model.get("family") == "transformer-xl":
        return Output(log_every=int((row.gpus or 1) > 1))
    if _nvidia(row) and "squad" in row.task.lower():
        return Output(item_every=1)
    if not _nvidia(row) or arch not in ("resnet", "ssd300"):
        return Output()
    return Output(sync_every=1, log_every=int(arch == "resnet"))


def turns_of(row: Row, model: dict[str, Any], micro: int) -> int:
    """Of how many of the row's steps one ends with an update: ConvNets gathers gradients on a single GPU."""
    if not _nvidia(row) or _arch(model) != "resnet" or row.gpus != 1:
        return 1
    spec = model_from(model)
    assert isinstance(spec, Cnn)
    return max(1, _WHOLE.get(spec.depth, 0) // micro)


def _arch(model: dict[str, Any]) -> str:
    if model.get("family") != "cnn":
        return ""
    spec = model_from(model)
    assert isinstance(spec, Cnn)
    return spec.arch


def _nvidia(row: Row) -> bool:
    source = f"{row.source_id} {row.source}".lower()
    return re.search(r"nv-dle|deeplearningexamples", source) is not None and "pytorch" in row.framework.lower()
