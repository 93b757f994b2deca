"""Sparse attention behind a lightning indexer (DeepSeek-V3.2, GLM-5): what is computed, kept, sent and learned."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from sim.files.planfile import load_plan
from sim.framework.framework import load_framework
from sim.lower.step import lower
from sim.model import Block, Shape, describe
from sim.model.language.decoder import kind_of
from sim.model.load import load_model
from sim.model.parts import Part
from sim.model.specs.decoder import Decoder, Indexer, Mla
from sim.predict import predict
from sim.program import Program
from sim.setting.bind import Setting, bind
from sim.work import Attention, Gemm, MemoryBound, Scores, Work
from topologies.errors import BadInput, Refused

SEQ, H, KV, ROPE, NOPE, VALUE, Q, TOP = 8192, 8, 128, 32, 64, 96, 192, 512
INDEX = Indexer(heads=4, dim=64, top_k=TOP)
MODEL: dict[str, Any] = {
    "family": "decoder", "layers": 4, "hidden": 256, "heads": H, "ffn": 512, "vocab": 4096, "dropout": 0.0,
    "mla": {"q_lora": Q, "kv_lora": KV, "rope": ROPE, "nope": NOPE, "value": VALUE, "index": {"heads": 4, "dim": 64, "top_k": TOP}},
}  # fmt: skip
PLAN: dict[str, Any] = {"model": MODEL, "framework": "megatron-core", "seq_len": SEQ, "batch": {"global": 4, "micro": 1}}


def _spec(**index: Any) -> Decoder:
    return Decoder(
        layers=4, hidden=256, heads=H, ffn=512, vocab=4096, dropout=0.0,
        mla=Mla(q_lora=Q, kv_lora=KV, rope=ROPE, nope=NOPE, value=VALUE, index=replace(INDEX, **index)),
    )  # fmt: skip


def _layer(spec: Decoder | None = None, name: str = "L0", framework: str = "megatron-core", **how: Any) -> Block:
    return dict(describe(spec or _spec(), Shape(micro=2, seq=SEQ, **how), load_framework(framework)).blocks)[name]


def _part(block: Block, name: str) -> Part:
    return next(part for part in block.parts if part.name == name)


def _of(works: tuple[Work, ...], kind: type[Any]) -> Any:
    return next(work for work in works if isinstance(work, kind))


def _pairs(seq: int, most: int) -> float:
    """Counted one query after the other; half of its own key, as everywhere (a causal half is half of the square)."""
    return sum(min(t + 1, most) for t in range(seq)) - (seq / 2 if most >= seq else most / 2)


def test_attention_sees_the_chosen_latents_alone() -> None:
    core: Attention = _of(_part(_layer(), "attn.core").forward, Attention)
    assert (core.heads, core.kv_heads, core.d, core.dv, core.chosen) == (H, 1, KV + ROPE, KV, TOP)
    assert core.pairs == pytest.approx(_pairs(SEQ, TOP), rel=1e-3)
    assert core.flops == 2 * 2 * H * core.pairs * (2 * KV + ROPE)
    assert core.bytes == 2 * 2 * SEQ * (H * (2 * KV + ROPE) + KV + ROPE), "values are columns of the keys"


def test_all_keys_of_a_short_sequence_are_chosen() -> None:
    few = dict(describe(_spec(), Shape(micro=1, seq=256), load_framework("megatron-core")).blocks)["L0"]
    core: Attention = _of(_part(few, "attn.core").forward, Attention)
    assert core.pairs == 256 * 256 / 2
    assert _of(_part(few, "attn.index_scores").forward, MemoryBound).written == 4 * 256 * 256


def test_the_indexer_scores_all_keys_and_learns_from_the_chosen() -> None:
    part = _part(_layer(), "attn.index_scores")
    scores, back = _of(part.forward, Scores), _of(part.backward, Scores)
    assert scores.flops == 2 * 2 * 4 * 64 * SEQ * SEQ / 2
    assert back.flops == pytest.approx(3 * 2 * 2 * 4 * 64 * _pairs(SEQ, TOP), rel=1e-3)
    target = _of(_part(_layer(), "attn.index_loss").forward, Scores)
    assert target.flops == pytest.approx(2 * 2 * H * (KV + ROPE) * _pairs(SEQ, TOP), rel=1e-3), "attention's scores, made again"


def test_what_the_indexer_reads_gets_no_gradient_of_it() -> None:
    for name in ("attn.index_q", "attn.index_k"):
        part = _part(_layer(), name)
        assert part.backward == () and all(isinstance(work, Gemm) and work.role == "wgrad" for work in part.wgrad) and part.wgrad


def test_an_indexer_that_is_not_trained_only_chooses() -> None:
    block = _layer(_spec(trained=False))
    mine = [part for part in block.parts if "index" in part.name]
    assert "attn.index_loss" not in [part.name for part in mine] and mine
    assert all(part.frozen and not (part.backward or part.wgrad) for part in mine)
    assert _part(block, "attn.index_scores").saved == 4 * 2 * SEQ * TOP, "backward of attention needs the choice"
    assert sum(part.saved for part in block.parts) < sum(part.saved for part in _layer().parts)


def test_heads_work_on_latents() -> None:
    """The products of Q' = q W_K and of o W_V, which latent attention has as one product over all keys."""
    block = _layer()
    absorbed, values = (_of(_part(block, name).forward, Gemm) for name in ("attn.kv_up", "attn.value_up"))
    assert (absorbed.m, absorbed.n, absorbed.k, absorbed.batch) == (2 * SEQ, KV, NOPE, H)
    assert (values.m, values.n, values.k, values.batch) == (2 * SEQ, VALUE, KV, H)
    plain = dict(
        describe(replace(_spec(), mla=replace(_spec().mla, index=None)), Shape(micro=2, seq=SEQ), load_framework("megatron-core")).blocks
    )
    assert _part(block, "attn.kv_up").params == _part(plain["L0"], "attn.kv_up").params
    assert block.params - plain["L0"].params == Q * 4 * 64 + 256 * (64 + 4) + 2 * 64


def test_tensor_parallel_ranks_have_the_whole_indexer() -> None:
    one, two = _layer(), _layer(tp=2, sequence_parallel=True)
    for name in ("attn.index_q", "attn.index_k", "attn.index_norm"):
        assert _part(two, name).params == _part(one, name).params == sum(_part(two, name).whole)
        assert _part(two, name).forward == _part(one, name).forward
    assert _part(two, "attn.kv_up").params * 2 == _part(one, "attn.kv_up").params
    loss = _part(two, "attn.index_loss")
    assert (loss.seam, loss.seam_bytes) == ("tp.sum", 4 * 2 * SEQ * TOP)


def _lowered(setting: Setting) -> Program:
    return lower(setting.plan, setting.network, setting.framework, "cuda", 1)


def _ops(**split: Any) -> list[tuple[str, str, float]]:
    setting = bind(load_plan(PLAN | {"parallel": split}), "dgx-h100")
    program = _lowered(setting)
    return [(op.id, op.name, op.bytes) for segment in program.segments.values() for op in segment if op.name and "L1." in op.id]


def test_messages_over_tp() -> None:
    found = {id.split("/")[-1]: size for id, name, size in _ops(tp=2) if id.startswith("fwd/")}
    assert found["L1.attn.index_loss.all_reduce"] == 4 * SEQ * TOP
    assert found["L1.attn.index_q.all_gather"] == 2 * SEQ * Q and found["L1.attn.index_k.all_gather"] == 2 * SEQ * 256
    assert found["L1.attn.join.all_gather"] == 2 * SEQ * (KV + ROPE)
    back = {id.split("/")[-1] for id, _, _ in _ops(tp=2) if id.startswith("bwd/")}
    assert "L1.attn.join.reduce_scatter" in back and not any("index_q" in id or "index_k" in id for id in back)


def test_context_parallel_ranks_gather_keys_of_both() -> None:
    part = _part(_layer(cp=4), "attn.core")
    assert part.seam_bytes == 2 * SEQ * (KV + ROPE + 64) * 2
    whole = _part(_layer(), "attn.core").saved
    assert 4 * part.saved == whole == 2 * SEQ * (2 * (H * (KV + ROPE) + KV + ROPE) + 4 * H), (
        "queries, keys, a sum for each row; the result is the reader's"
    )
    assert _of(part.forward, Attention).pairs * 4 == pytest.approx(_pairs(SEQ, TOP), rel=1e-3)
    for kind in ("p2p", "all_to_all"):
        with pytest.raises((BadInput, Refused), match="all_gather"):
            predict(PLAN | {"parallel": {"cp": 2, "cp_kind": kind}}, "dgx-h100")


def test_documents_are_apart() -> None:
    core: Attention = _of(_part(_layer(documents=32), "attn.core").forward, Attention)
    scores: Scores = _of(_part(_layer(documents=32), "attn.index_scores").forward, Scores)
    assert (core.batch, core.kv, scores.batch, scores.kv) == (64, 256, 64, 256)


def test_layers_take_over_the_choice_of_one_before() -> None:
    model = load_model("glm-5.2")
    assert isinstance(model, Decoder) and model.mla and model.mla.index
    own = [at for at in range(78) if model.mla.index.chooses(at)]
    assert own[:5] == [0, 1, 2, 6, 10] and len(own) == 21  # of its config.json's indexer_types
    assert [kind_of(model, at)[0] for at in (2, 3, 5, 6)] == ["dense", "moeI", "moeI", "moe"]
    two, three = (_layer(_spec(every=3), name) for name in ("L0", "L1"))
    assert any("index" in part.name for part in two.parts) and not any("index" in part.name for part in three.parts)
    assert (two.chosen, three.chosen) == (0, 4 * 2 * SEQ * TOP)


def test_a_pipeline_hands_the_choice_on() -> None:
    """Between stages 1 and 2 only: the third layer takes the choice of the second stage's. Numbers have no gradient."""
    plan = PLAN | {"model": MODEL | {"mla": MODEL["mla"] | {"index": {"heads": 4, "dim": 64, "top_k": TOP, "every": 2}}}}
    sizes = []
    for pp in (2, 4):
        program = _lowered(bind(load_plan(plan | {"parallel": {"pp": pp}}), "dgx-h100"))
        sizes.append({(op.id[1:], op.bytes) for segment in program.segments.values() for op in segment if op.kind == "send"})
    stream, numbers = 2 * SEQ * 256, 4 * SEQ * TOP
    assert sizes == [{("SEND_F", stream), ("SEND_B", stream)}, {("SEND_F", stream), ("SEND_B", stream), ("SEND_F", stream + numbers)}]


def test_multi_token_prediction_chooses_by_itself() -> None:
    spec = replace(_spec(every=3), mtp=1, layers=5)
    assert kind_of(spec, 4) == ("denseI", False)
    assert any(part.name == "attn.index_scores" for part in _layer(spec, "mtp0").parts)


def test_what_is_not_described_is_refused() -> None:
    with pytest.raises(BadInput, match=r'sparse attention .* Use attention = "flash"'):
        predict(PLAN | {"attention": "math"}, "dgx-h100")
    with pytest.raises(BadInput, match="adapters beside sparse attention"):
        predict(PLAN | {"task": "lora"}, "dgx-h100")


def test_it_pays_for_long_sequences_alone() -> None:
    """Attention over latents is wider than over heads' own keys: 2,048 of 4,096 keys cost more than all, of 131,072 far less."""
    times = {}
    for model in ("deepseek-v3", "deepseek-v3.2"):
        table = {"base": model, "layers": 5}
        for seq in (4096, 131072):
            plan = {
                "model": table,
                "framework": "megatron-core",
                "seq_len": seq,
                "batch": {"global": 32, "micro": 1},
                "parallel": {"ep": 32, "dp_shard": 32, "zero": 1},
            }
            times[model, seq] = predict(plan, "4x dgx-b200", detail=False).step_time_s
    assert times["deepseek-v3.2", 4096] > times["deepseek-v3", 4096]
    assert times["deepseek-v3.2", 131072] < 0.6 * times["deepseek-v3", 131072]
