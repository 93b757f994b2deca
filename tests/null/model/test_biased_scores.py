"""Scores to which attention adds a bias, or which it bounds: torch's fused kernels do neither, and its models write attention out."""

from __future__ import annotations

from typing import Any

import pytest

from sim.files.planfile import load_plan
from sim.model.parts import Part
from sim.setting.bind import bind
from sim.work import Attention, MemoryBound
from topologies.errors import BadInput


def part(name: str, **more: Any) -> Part:
    tree = {"model": "gemma2-2b", "framework": "pytorch", "precision": "bf16", "seq_len": 512, "batch": {"micro": 1}} | more
    setting = bind(load_plan(tree), "dgx-h100")
    return next(part for _, block in setting.network.blocks for part in block.parts if part.name == name)


def _cores(model: Any) -> list[Part]:
    """Attention's core of each kind of block."""
    setting = bind(load_plan({"model": model, "framework": "pytorch", "seq_len": 2048}), "dgx-h100")
    return [part for block in setting.network.kinds for part in block.parts if part.name.endswith("attn.core")]


def _fused(core: Part) -> bool:
    return any(isinstance(work, Attention) for work in core.forward)


@pytest.mark.parametrize("model", ["t5-small", "bloom-560m", "mpt-7b", "gemma2-2b"])
def test_torchs_models_write_such_attention_out_unless_a_plan_says_otherwise(model: str) -> None:
    assert not _fused(part("attn.core", model=model))
    assert _fused(part("attn.core", model=model, attention="flash"))
    assert _fused(part("attn.core", model=model, framework="llm-foundry" if model != "t5-small" else "nemo"))
    if model == "t5-small":
        assert not _fused(part("cross.core", model=model))


def test_others_run_in_one_kernel() -> None:
    assert _fused(part("attn.core", model="llama3.2-1b")) and _fused(part("attn.core", model="transformer-big"))


def test_a_bound_of_scores_is_three_passes_over_them_each_way_whose_tanh_is_kept() -> None:
    bare: dict[str, Any] = {"base": "gemma2-2b", "capped_scores": False}
    capped, plain = part("attn.core"), part("attn.core", model=bare, attention="math")
    scores = 8 * 512 * 512
    assert len(capped.forward) == len(plain.forward) + 3 and len(capped.backward) == len(plain.backward) + 3
    assert capped.saved - plain.saved == 2 * scores == capped.dropped - plain.dropped
    assert _fused(part("attn.core", model=bare))
    assert len(part("attn.core", compile=True).forward) == len(part("attn.core", model=bare, attention="math", compile=True).forward)


def test_a_bound_stands_before_a_framework_s_fused_softmax() -> None:
    """Its passes are there where its result is kept."""
    bare: dict[str, Any] = {"base": "gemma2-2b", "capped_scores": False}
    told: dict[str, Any] = {"framework": "megatron-2022", "attention": "math"}
    capped, plain = part("attn.core", **told), part("attn.core", model=bare, **told)
    assert (len(capped.forward) - len(plain.forward), capped.saved - plain.saved) == (3, 2 * 8 * 512 * 512)


def test_a_decoder_behind_a_tower_is_written_out_alone() -> None:
    model: dict[str, Any] = {"base": "qwen2.5-vl-3b", "decoder": {"capped_scores": True}}
    assert [_fused(core) for core in _cores("qwen2.5-vl-3b")] == [
        True,
        True,
        True,
    ]  # in windows of the picture, over all of it, and over the text
    assert [_fused(core) for core in _cores(model)] == [True, True, False]


def test_latent_attention_has_no_such_scores() -> None:
    with pytest.raises(BadInput, match=r"latent attention .* has no scores with a bias or a bound"):
        part("attn.core", model={"base": "deepseek-v2-lite", "capped_scores": True})


def test_a_bound_of_logits_is_a_part_before_the_loss() -> None:
    cap, n = part("head.cap"), 512 * 256_000
    assert [work.what for work in cap.forward if isinstance(work, MemoryBound)] == ["scale", "activation", "scale"]
    assert sum(work.bytes for work in (*cap.forward, *cap.backward)) == 2 * n * (6 + 7) and cap.saved == 2 * n
    with pytest.raises(StopIteration):
        part("head.cap", compile=True)
    with pytest.raises(StopIteration):
        part("head.cap", model="gemma3-1b")
