"""Stock attention over packed documents: the same numbers as under a block-causal mask, and the kernels that are predicted."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from executor.training.limits import check_stock  # noqa: E402
from executor.training.models.build import model_for, pack  # noqa: E402
from executor.training.models.parts import Core  # noqa: E402
from sim.files.planfile import load_plan  # noqa: E402
from sim.framework.chosen import framework_of  # noqa: E402
from sim.setting.bind import model_of, network_of  # noqa: E402
from sim.work import Attention  # noqa: E402
from topologies.errors import Refused  # noqa: E402

BATCH, SEQ, DOCUMENT = 2, 48, 12
LLAMA: dict[str, Any] = {"base": "llama3-8b", "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 256}
LATENT: dict[str, Any] = {"base": "deepseek-v2-lite", "layers": 1, "hidden": 64, "heads": 4, "vocab": 256, "first_dense": 1}
BERT: dict[str, Any] = {"base": "bert-base", "layers": 1, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 256, "positions": SEQ}


@pytest.mark.parametrize("causal", [True, False])
def test_the_numbers_are_those_of_a_block_mask(causal: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(BATCH, SEQ, heads, 8, requires_grad=True) for heads in (4, 2, 2))
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    core = Core(math=False, causal=causal)
    core.document = DOCUMENT
    place = torch.arange(SEQ)
    inside = place[:, None] // DOCUMENT == place[None, :] // DOCUMENT
    mask = inside & (place[:, None] >= place[None, :]) if causal else inside
    wanted = F.scaled_dot_product_attention(*heads, mask, enable_gqa=True).transpose(1, 2).flatten(2)
    found = core(*heads)
    assert found.shape == wanted.shape == (BATCH, SEQ, 32)
    torch.testing.assert_close(found, wanted)
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), (q, k, v)), torch.autograd.grad(wanted.square().sum(), (q, k, v)), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_heads_are_not_copied_for_it() -> None:
    core = Core(math=False)
    core.document = DOCUMENT
    x = torch.randn(BATCH, SEQ, 4, 8).transpose(1, 2)
    assert core._apart(x).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("model", [LLAMA, LATENT, BERT], ids=["grouped", "latent", "bert"])
def test_kernels_are_those_that_are_described(model: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plan = load_plan({"model": model, "seq_len": SEQ, "precision": "fp32", "batch": {"micro": BATCH}, "data": {"document": DOCUMENT}})
    spec, habits = model_of(plan), framework_of(plan)
    called: list[tuple[int, ...]] = []
    real = F.scaled_dot_product_attention

    def spy(q: Any, k: Any, v: Any, *how: Any, **more: Any) -> Any:
        called.append((q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3]))
        return real(q, k, v, *how, **more)

    monkeypatch.setattr("executor.training.models.parts.F.scaled_dot_product_attention", spy)
    built = model_for(spec, habits, SEQ)
    pack(built, DOCUMENT)
    assert built.L0(torch.randn(BATCH, SEQ, 64)).shape == (BATCH, SEQ, 64)  # type: ignore[union-attr,operator]
    works = [work for part in dict(network_of(plan, habits).blocks)["L0"].parts for work in part.forward if isinstance(work, Attention)]
    assert called == [(work.batch, work.heads, work.kv_heads, work.q, work.kv, work.d) for work in works] != []
    assert works[0].batch == BATCH * SEQ // DOCUMENT and works[0].kv == DOCUMENT


def test_documents_of_unequal_lengths_are_refused() -> None:
    plan = load_plan({"model": LLAMA, "seq_len": SEQ, "precision": "fp32", "data": {"document": 7}})
    with pytest.raises(Refused, match=r"data\.document = 7 does not divide the sequence"):
        check_stock(plan, model_of(plan))


def test_a_mask_of_scores_in_memory_is_refused() -> None:
    plan = load_plan({"model": LLAMA, "seq_len": SEQ, "precision": "fp32", "attention": "math", "data": {"document": DOCUMENT}})
    with pytest.raises(Refused, match=r'data\.document with attention = "math"'):
        check_stock(plan, model_of(plan))
