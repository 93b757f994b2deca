"""Which round of MLPerf a row is of, and what its benchmark trains, however its source writes both."""

from __future__ import annotations

import pytest

from sim.accuracy.rows.submissions import completed
from tests.null.accuracy.test_spellings import row


@pytest.mark.parametrize(
    ("changes", "date"),
    [
        ({"source": "MLPerf Training v4.1", "source_id": "dell-xe9680"}, "2024-11"), ({"source": "MLPerf Training v5.0", "framework": "NeMo 2.0"}, "2025-06"),
        ({"framework": "NeMo 2.0 (MLPerf Training v5.0)"}, "2025-06"), ({"framework_version": "PyTorch 2.1.0", "source": "MLPerf v3.1 results"}, "2023-11"),
        ({"source_id": "mlperf-nvidia", "framework_version": "PyTorch 2.1.0"}, ""), ({"source_id": "mlperf-nvidia", "framework_version": "2.0", "framework": "NeMo"}, ""),
        ({"source_id": "mlperf-nvidia", "framework_version": "v5.0"}, "2025-06"), ({"source_id": "mlperf-nvidia", "framework_version": "5.1"}, "2025-11"),
        ({"source_id": "mlperf", "source": "mlcommons/training_results_v0.6"}, "2019-07"), ({"source": "MLPerf v0.5"}, "2018-12"), ({"source_id": "mlperf-v4.0"}, "2024-06"),
        ({"framework_version": "PyTorch NVIDIA Release 23.09"}, "2023-09"), ({"framework_version": "nvcr.io/nvidia/pytorch:24.02-py3"}, "2024-02"), ({"source": "a study of v4.1"}, ""),
    ],
)  # fmt: skip
def test_rounds_are_behind_the_benchmarks_name(changes: dict[str, str], date: str) -> None:
    """A library's version is no round."""
    assert completed(row(**({"date": "", "framework": "PyTorch"} | changes))).date == date


@pytest.mark.parametrize(
    ("name", "date", "found"),
    [
        ("image_classification", "", "ResNet-50"), ("single_stage_detector", "2023-06", "RetinaNet"), ("single_stage_detector (retinanet)", "", "RetinaNet"), ("object_detection (maskrcnn)", "", "Mask R-CNN"),
        ("object_detection", "", "Mask R-CNN"), ("language_model", "", "BERT"), ("language_model (BERT)", "", "BERT"), ("large_language_model", "", "GPT-3-175B"), ("rnn_translator", "", "GNMT"),
        ("recommendation_v2", "", "DLRM-DCNv2"), ("recommendation", "2021-06", "DLRM (Criteo 1TB)"), ("text_to_image", "", "FLUX.1-schnell (256x256)"), ("Llama-3.1-405B", "", "Llama-3.1-405B"),
    ],
)  # fmt: skip
def test_benchmarks_by_their_directories(name: str, date: str, found: str) -> None:
    assert completed(row(model_name=name, date=date, source="MLPerf Training")).model_name == found
    assert completed(row(model_name=name, date=date)).model_name == name
