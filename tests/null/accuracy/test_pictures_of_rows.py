"""Models of pictures that are no decoders: plain vision transformers by name and by columns, and those that neither describes."""

from __future__ import annotations

from typing import Any

import pytest

from sim.accuracy.architecture.models import model_of
from sim.accuracy.rows.plans import case_of
from sim.model.load import model_from
from sim.model.specs.spec import Vit
from tests.null.accuracy.test_kin import SILENT
from tests.null.accuracy.test_spellings import row
from topologies.errors import Refused

PICTURES = SILENT | {"batch_unit": "images", "seq_len": None, "task": ""}
LARGE: dict[str, Any] = {"n_layers": 24, "hidden": 1024}


@pytest.mark.parametrize(
    ("changes", "layers", "hidden", "image", "patch"),
    [
        ({"model_name": "BEiT-L", "model_type": "vision transformer", **LARGE}, 24, 1024, 224, 16), ({"model_name": "BEiT-L"}, 24, 1024, 224, 16),
        ({"model_name": "beit_base_patch16_384"}, 12, 768, 384, 16), ({"model_name": "EVA-02-L", "batch_unit": "samples"}, 24, 1024, 224, 16),
        ({"model_name": "DINOv2 ViT-L/14", "task": "finetune"}, 24, 1024, 224, 14), ({"model_name": "MAE ViT-H", "task": "classification"}, 32, 1280, 224, 14),
        ({"model_name": "ViT-22B", "n_layers": 48, "hidden": 6144}, 48, 6144, 224, 16), ({"model_name": "our encoder", **LARGE}, 24, 1024, 224, 16),
    ],
)  # fmt: skip
def test_transformers_on_pictures_are_no_llamas(changes: dict[str, Any], layers: int, hidden: int, image: int, patch: int) -> None:
    """A ViT's layers under other names, or under none, where the row counts images or says what it reads."""
    plan = case_of(row(**(PICTURES | changes))).plan
    assert isinstance(plan.model, dict) and plan.seq_len is None
    spec = model_from(plan.model)
    assert isinstance(spec, Vit) and (spec.layers, spec.hidden, spec.image, spec.patch) == (layers, hidden, image, patch)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model_name": "Swin-L", "model_type": "swin", "n_layers": 24, "hidden": 1536}, "inside windows"), ({"model_name": "SwinV2-G", "batch_unit": "samples", "params": 3_000_000_000}, "inside windows"),
        ({"model_name": "MAE ViT-L", "task": "pretrain"}, "a quarter of the patches"), ({"model_name": "DINOv2 ViT-g"}, "a teacher"),
        ({"model_name": "V-MoE", "n_experts": 32, **LARGE}, "experts"), ({"model_name": "our encoder"}, "not stated"), ({"model_name": "RegNet-Y", **LARGE}, "convolve"),
    ],
)  # fmt: skip
def test_models_of_pictures_that_columns_do_not_describe_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(Refused, match=why):
        model_of(row(**(PICTURES | changes)), [])


def test_a_shipped_network_is_itself_whatever_columns_say_and_a_decoder_stays_one() -> None:
    assert model_of(row(**(PICTURES | {"model_name": "ConvNeXt-L"} | LARGE)), [])["family"] == "convnext"
    assert model_of(row(batch_unit="images"), [])["family"] == "decoder"
