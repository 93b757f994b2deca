"""Sequences packed of documents: fused attention stays inside each, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest

from sim.files.planfile import load_plan
from sim.framework.framework import load_framework
from sim.model import Block, Shape, describe
from sim.model.load import load_model
from sim.predict import predict
from sim.setting.bind import model_of, shape_of
from sim.work import Attention, Work
from topologies.errors import BadInput, Refused

SEQ = 4096
GPT: dict[str, Any] = {"model": {"base": "gpt2-124m", "layers": 2, "vocab": 4096}, "seq_len": SEQ, "batch": {"micro": 1}}


def _block(model: str, documents: int, attention: str = "flash", **how: Any) -> Block:
    network = describe(load_model(model), Shape(micro=2, seq=SEQ, documents=documents, **how), load_framework("pytorch"), attention)
    return dict(network.blocks)["L0"]


def _attention(works: tuple[Work, ...]) -> list[Attention]:
    return [work for work in works if isinstance(work, Attention)]


@pytest.mark.parametrize("model", ["llama3-8b", "deepseek-v2-lite", "gemma3-1b"])
@pytest.mark.parametrize("split", [{}, {"tp": 2, "sequence_parallel": True}, {"cp": 4}, {"cp": 4, "ulysses": 4}, {"cp": 4, "ulysses": 2}])
def test_pairs_are_those_within_documents(model: str, split: dict[str, int]) -> None:
    whole, cut = (_block(model, documents, **split) for documents in (1, 16))
    compared = 0
    for one, other in zip(whole.parts, cut.parts, strict=True):
        assert (one.saved, one.tensors, one.seam_bytes, one.seam_heads) == (other.saved, other.tensors, other.seam_bytes, other.seam_heads)
        for before, after in ((one.forward, other.forward), (one.backward, other.backward)):
            for a, b in zip(_attention(before), _attention(after), strict=True):
                compared += 1
                assert b.kv == SEQ // 16 and b.batch == 16 * a.batch and b.q * 16 == a.q
                assert b.batch * b.kv == a.batch * a.kv and b.bytes == a.bytes, "what is read is as much"
                assert b.window == 0, "a window wider than a document hides nothing"
                if not a.window:
                    assert b.flops == a.flops / 16
            assert [w for w in before if not isinstance(w, Attention)] == [w for w in after if not isinstance(w, Attention)]
    assert compared


def test_scores_that_are_written_out_are_whole_squares() -> None:
    assert _block("llama3-8b", 16, "math") == _block("llama3-8b", 1, "math")
    found = predict(GPT | {"attention": "math", "data": {"document": 512}}, "dgx-h100", detail=False)
    assert found.step_time_s == predict(GPT | {"attention": "math"}, "dgx-h100", detail=False).step_time_s
    assert any("data.document = 512 has no effect" in words for words in found.warnings)


def test_model_flops_are_those_within_documents() -> None:
    """Attention's share of a step's FLOPs goes down by the number of documents, the rest stays."""
    one, few, many = (predict(GPT | {"data": {"document": size}}, "dgx-h100", detail=False) for size in (SEQ, SEQ // 2, SEQ // 8))
    attention = 2 * (one.flops_per_step - few.flops_per_step)
    assert attention == pytest.approx(3 * 2 * 4 * 768 * SEQ**2 / 2)  # two layers, two products of half a square each, backward twice that
    assert many.flops_per_step == pytest.approx(one.flops_per_step - attention * 7 / 8)
    assert many.step_time_s < few.step_time_s < one.step_time_s
    assert many.peak_memory_bytes == one.peak_memory_bytes


def test_bert_packs_too() -> None:
    bert = {"model": "bert-large", "seq_len": 512, "batch": {"micro": 4}}
    short, long = (predict(bert | {"data": {"document": size}}, "dgx-a100", detail=False) for size in (128, 512))
    assert short.step_time_s < long.step_time_s


@pytest.mark.parametrize(
    ("split", "least"),
    [
        ({}, 1),
        ({"cp": 4}, 8),
        ({"cp": 4, "cp_kind": "all_gather"}, 4),
        ({"cp": 4, "cp_kind": "all_to_all"}, 1),
        ({"cp": 4, "cp_kind": "all_to_all+p2p", "cp_ulysses": 2}, 4),
    ],
)
def test_each_rank_has_a_piece_of_each(split: dict[str, Any], least: int) -> None:
    """A ring cuts each document into two pieces a rank; exchanged heads leave it whole."""
    plan = load_plan(GPT | {"parallel": split, "data": {"document": least}})
    assert shape_of(plan, model_of(plan)).documents == SEQ // least
    if least > 1:
        short = load_plan(GPT | {"parallel": split, "data": {"document": least - 1}})
        with pytest.raises(
            BadInput, match=f"packed of documents of {least} to {SEQ} tokens, which context parallelism cuts into {least} pieces each"
        ):
            shape_of(short, model_of(short))


@pytest.mark.parametrize(("document", "documents"), [(4096, 1), (4095, 1), (2730, 2), (300, 14), (200, 20)])
def test_documents_are_to_the_nearest_number_and_hold_all_tokens(document: int, documents: int) -> None:
    plan = load_plan(GPT | {"data": {"document": document}})
    shape = shape_of(plan, model_of(plan))
    assert shape.documents == documents
    (work,) = (work for part in _block("llama3-8b", documents).parts for work in _attention(part.forward))
    assert 0 <= work.batch * work.q - 2 * SEQ < work.batch and work.q == work.kv


def test_documents_longer_than_the_sequence_are_refused() -> None:
    with pytest.raises(BadInput, match=r"data.document = 8192: a sequence of seq_len = 4096 is packed of documents of 1 to 4096 tokens"):
        predict(GPT | {"data": {"document": 8192}}, "dgx-h100")


@pytest.mark.parametrize("model", ["resnet50", "t5-large", "dit-xl-2"])
def test_what_nobody_packs_is_refused(model: str) -> None:
    with pytest.raises(Refused, match="documents are packed for decoders and encoders of text"):
        predict({"model": model, "data": {"document": 16}}, "dgx-h100")
