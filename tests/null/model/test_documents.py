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
    ("split", "document", "documents"),
    [
        ({}, 100, 41),
        ({"cp": 4}, 8, 512),
        ({"cp": 4, "cp_kind": "all_gather"}, 4, 1024),
        ({"cp": 4, "cp_kind": "all_to_all"}, 1, 4096),
        ({"cp": 4, "cp_kind": "all_to_all+p2p", "cp_ulysses": 2}, 4, 1024),
    ],
)
def test_ranks_share_whole_pieces_of_each(split: dict[str, Any], document: int, documents: int) -> None:
    """A ring cuts each document into two pieces a rank; exchanged heads leave it whole."""
    length = 4100 if not split else SEQ
    plan = load_plan(GPT | {"seq_len": length, "parallel": split, "data": {"document": document}})
    assert shape_of(plan, model_of(plan)).documents == documents
    if document > 1:
        short = load_plan(GPT | {"seq_len": length, "parallel": split, "data": {"document": document // 2 or 1}})
        if split:
            with pytest.raises(BadInput, match=f"data.document = {document // 2} does not divide seq_len = {SEQ}.* pieces each. Use"):
                shape_of(short, model_of(short))


def test_documents_that_leave_a_rest_are_refused() -> None:
    with pytest.raises(BadInput, match=r"data.document = 1000 does not divide seq_len = 4096. Use 256 or 512 or 1024"):
        predict(GPT | {"data": {"document": 1000}}, "dgx-h100")
    with pytest.raises(BadInput, match=r"data.document = 8192 does not divide seq_len = 4096"):
        predict(GPT | {"data": {"document": 8192}}, "dgx-h100")


def test_a_length_that_no_document_fits_says_so() -> None:
    with pytest.raises(BadInput, match=r"pieces each\. Use a multiple of 8 as seq_len"):
        predict(GPT | {"seq_len": 4, "parallel": {"cp": 4}, "data": {"document": 4}}, "dgx-h100")


@pytest.mark.parametrize("model", ["resnet50", "t5-large", "dit-xl-2"])
def test_what_nobody_packs_is_refused(model: str) -> None:
    with pytest.raises(Refused, match="documents are packed for decoders and encoders of text"):
        predict({"model": model, "data": {"document": 16}}, "dgx-h100")
