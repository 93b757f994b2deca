"""Vision-language models: sizes as published, configs as they are served, and what a frozen tower does without in every split."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model import Shape, describe, load_model
from sim.model.readers.huggingface import from_config
from sim.model.specs.vlm import VisionLanguage
from sim.predict import predict_setting
from sim.program import Program
from sim.setting.bind import bind, model_of
from sim.setting.program import program_for
from sim.work import Gemm
from tests.null.model.hf_recent import RECENT
from topologies.errors import BadInput, Refused

PLAIN = Framework(name="plain", source="test")
QWEN_TEXT: dict[str, Any] = {
    "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
    "hidden_act": "silu", "vocab_size": 152064, "tie_word_embeddings": False, "use_sliding_window": False, "max_window_layers": 28,
}  # fmt: skip
QWEN3_TEXT: dict[str, Any] = {"attention_bias": False, "head_dim": 128, "hidden_act": "silu", "vocab_size": 151936}
QWEN3_TOWER: dict[str, Any] = {
    "deepstack_visual_indexes": [8, 16, 24], "depth": 27, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1152, "in_channels": 3,
    "intermediate_size": 4304, "num_heads": 16, "num_position_embeddings": 2304, "patch_size": 16, "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}  # fmt: skip
SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16, "num_hidden_layers": 27,
    "patch_size": 14, "vision_use_head": False,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llava-1.5-7b": {
        "model_type": "llava", "vision_feature_layer": -2, "vision_feature_select_strategy": "default", "image_token_index": 32000,
        "text_config": {"model_type": "llama", "vocab_size": 32064, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
                        "num_attention_heads": 32},
        "vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096,
                          "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768},
    },
    "qwen2-vl-7b": {"model_type": "qwen2_vl", **QWEN_TEXT, "vision_config": {
        "depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "in_chans": 3, "hidden_size": 3584, "patch_size": 14,
        "spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2}},
    "qwen2.5-vl-7b": {"model_type": "qwen2_5_vl", "text_config": QWEN_TEXT, "vision_config": {
        "depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "in_chans": 3,
        "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31]}},
    "qwen3-vl-8b": {"model_type": "qwen3_vl", "tie_word_embeddings": False, "vision_config": QWEN3_TOWER | {"out_hidden_size": 4096}, "text_config": {
        **QWEN3_TEXT, "model_type": "qwen3_vl_text", "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
        "num_hidden_layers": 36, "num_key_value_heads": 8}},
    "qwen3-vl-30b-a3b": {"model_type": "qwen3_vl_moe", "tie_word_embeddings": False, "vision_config": QWEN3_TOWER | {"out_hidden_size": 2048}, "text_config": {
        **QWEN3_TEXT, "model_type": "qwen3_vl_moe_text", "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 32,
        "num_hidden_layers": 48, "num_key_value_heads": 4, "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 768,
        "norm_topk_prob": True, "num_experts": 128, "num_experts_per_tok": 8}},
    "internvl3-8b": {
        "model_type": "internvl", "downsample_ratio": 0.5, "text_config": {"model_type": "qwen2", **QWEN_TEXT, "vocab_size": 151674},
        "vision_config": {"model_type": "internvl_vision", "attention_bias": True, "hidden_size": 1024, "image_size": [448, 448],
                          "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": [14, 14]},
    },
    "gemma3-4b-vision": {
        "model_type": "gemma3", "mm_tokens_per_image": 256, "vision_config": {**SIGLIP, "image_size": 896},
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
                        "sliding_window": 1024},
    },
    "paligemma-3b": {
        "model_type": "paligemma", "projection_dim": 2048, "vision_config": {**SIGLIP, "image_size": 224},
        "text_config": {"model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384, "num_attention_heads": 8,
                        "num_hidden_layers": 18, "num_key_value_heads": 1, "vocab_size": 257216},
    },
    "llama3.2-11b-vision": {
        "model_type": "mllama", "image_token_index": 128256,
        "text_config": {"model_type": "mllama_text_model", "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38], "hidden_act": "silu",
                        "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 40,
                        "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False},
        "vision_config": {"model_type": "mllama_vision_model", "attention_heads": 16, "hidden_act": "gelu", "hidden_size": 1280,
                          "image_size": 560, "intermediate_layers_indices": [3, 7, 15, 23, 30], "intermediate_size": 5120,
                          "max_num_tiles": 4, "num_global_layers": 8, "num_hidden_layers": 32, "patch_size": 14, "vision_output_dim": 7680,
                          "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]]},
    },
    "pixtral-12b": {
        "model_type": "llava", "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
        "text_config": {"model_type": "mistral", "hidden_size": 5120, "head_dim": 128, "intermediate_size": 14336, "num_hidden_layers": 40,
                        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 131072},
        "vision_config": {"model_type": "pixtral", "head_dim": 64, "hidden_act": "gelu", "image_size": 512},
    },
}  # fmt: skip


def spec(name: str) -> VisionLanguage:
    found = load_model(name)
    assert isinstance(found, VisionLanguage)
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_a_served_config_is_the_shipped_model(name: str) -> None:
    read, shipped = from_config(CONFIGS[name], "config.json"), spec(name)
    assert isinstance(read, VisionLanguage)
    assert (read.tower, read.projector, read.tokens) == (shipped.tower, shipped.projector, shipped.tokens)
    both = [describe(one, Shape(micro=1, seq=4096), PLAIN) for one in (read, shipped)]
    assert both[0].parameters == both[1].parameters and both[0].flops_per_sample == pytest.approx(both[1].flops_per_sample, rel=0.01)


def test_the_tower_of_qwen3_5_is_read_at_its_end_alone() -> None:
    """Parameters as Qwen3_5VisionModel has them: patches of two frames, a table of positions, 27 layers, one merger."""
    text = RECENT["qwen3.5-9b"]
    tower = {key: value for key, value in QWEN3_TOWER.items() if key != "deepstack_visual_indexes"}
    found = from_config({"model_type": "qwen3_5", "vision_config": tower, "text_config": text[1]}, "config.json")
    layer = 4 * 1152 + 4 * (1152**2 + 1152) + 2 * 1152 * 4304 + 4304 + 1152
    merger = 2 * 1152 + 4608**2 + 4608 + 4608 * 4096 + 4096
    patches = 3 * 2 * 16**2 * 1152 + 1152 + 2304 * 1152
    assert describe(found, Shape(micro=1, seq=4096), PLAIN).parameters == text[0] + 27 * layer + merger + patches


@pytest.mark.parametrize(
    ("name", "change", "word"),
    [
        ("llava-1.5-7b", {"vision_feature_select_strategy": "full"}, "class token among the patches"),
        ("llava-1.5-7b", {"vision_config": {"model_type": "dinov2"}}, "tower's model_type 'dinov2' is not supported. Allowed: clip"),
        ("llava-1.5-7b", {"text_config": {"model_type": "rwkv"}}, "the language model's model_type 'rwkv' is not read"),
        ("qwen2.5-vl-7b", {"vision_config": {"fullatt_block_indexes": [3, 5]}}, "is not every n-th layer"),
        ("internvl3-8b", {"vision_config": {"model_type": "internvl_vision", "use_qk_norm": True}}, "use_qk_norm"),
        (
            "internvl3-8b",
            {"vision_config": {"model_type": "internvl_vision", "attention_bias": True, "image_size": [448, 224]}},
            "no squares",
        ),
    ],
)
def test_variants_that_are_not_described_are_refused(name: str, change: dict[str, Any], word: str) -> None:
    with pytest.raises(Refused, match=word):
        from_config(CONFIGS[name] | change, "config.json")


def setting(model: Any, parallel: dict[str, Any], **more: Any) -> Any:
    return bind({"model": model, "seq_len": 1024, "parallel": parallel, **more}, "dgx-h100")


def ops(program: Program) -> list[Any]:
    return [op for call, op in program.ops(0) if call.step == 1]


SMALL: dict[str, Any] = {"base": "qwen2.5-vl-3b", "decoder": {"layers": 4}, "tower": {"layers": 4}}
FROZEN = {**SMALL, "frozen": ["tower"]}


@pytest.mark.parametrize(
    "parallel", [{"dp_replicate": 2}, {"dp_shard": 4, "zero": 3}, {"tp": 2}, {"tp": 2, "dp_shard": 2, "zero": 3}], ids=str
)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_nothing_of_a_frozen_tower_comes_back(parallel: dict[str, Any], recompute: str) -> None:
    seen = {}
    for model in (SMALL, FROZEN):
        s = setting(model, parallel, memory={"recompute": recompute})
        seen[len(model)] = [op for op in ops(program_for(s, 2)) if op.id.split("/")[0] in ("bwd", "wgrad", "recompute") and "/V" in op.id]
    assert seen[3] and not seen[4]


def test_a_frozen_tower_is_gathered_but_neither_updated_nor_summed() -> None:
    def sent(model: dict[str, Any], name: str) -> int:
        return sum(op.bytes for op in ops(program_for(setting(model, {"dp_shard": 4, "zero": 3}), 2)) if op.name == name)

    tower = sum(block.params for name, block in setting(SMALL, {}).network.blocks if name == "patches" or name.startswith("V"))
    assert sent(SMALL, "reduce_scatter") - sent(FROZEN, "reduce_scatter") == pytest.approx(2 * tower, rel=0.01)
    layers = sum(block.params for name, block in setting(SMALL, {}).network.blocks if name.startswith("V"))
    assert sent(SMALL, "all_gather") - sent(FROZEN, "all_gather") == pytest.approx(2 * layers, rel=0.01)  # forward's are left
    found = [predict_setting(setting(model, {"dp_replicate": 2})) for model in (SMALL, FROZEN)]
    assert found[1].step_time_s < found[0].step_time_s
    assert found[0].peak_memory_bytes - found[1].peak_memory_bytes > 8 * tower  # gradients, moments and activations


def test_pipelines_cut_between_layers_but_leave_no_stage_without_training() -> None:
    names = [[name for name, _ in stage] for stage in stages(SMALL, {"pp": 2})]
    assert names == [["patches", "V0", "V1", "V2", "V3"], ["embed", "L0", "L1", "L2", "L3", "head"]]
    with pytest.raises(Refused, match=r"stage 0 holds patches to V3, which are frozen: .* Set parallel.stages"):
        stages(FROZEN, {"pp": 2})
    moved = setting(FROZEN, {"pp": 2, "stages": [6, 2]}, batch={"global": 4, "micro": 1})
    assert predict_setting(moved).step_time_s > 0.0
    last = setting(
        {**SMALL, "frozen": ["tower", "decoder"]}, {"pp": 2, "stages": [6, 2]}, batch={"global": 4, "micro": 1}, optimizer={"clip": True}
    )
    assert predict_setting(last).step_time_s > 0.0, "the last stage trains nothing, and is asked for its part of the norm"
    assert stages(FROZEN, {"pp": 2}, task="forward")


DEEP: dict[str, Any] = {
    "base": "qwen3-vl-2b", "decoder": {"layers": 4, "tied": False}, "tower": {"layers": 4}, "projector": {"deepstack": [1, 2]},
}  # fmt: skip


def test_what_deepstack_hands_on_crosses_each_cut_until_it_is_added() -> None:
    """Two mergers behind the tower's second and third layer; each makes as many bytes as the pictures' tokens in the decoder."""
    cut = setting(DEEP, {"pp": 4}, batch={"global": 8, "micro": 1})
    names = [[name for name, _ in stage] for stage in stages(DEEP, {"pp": 4})]
    assert names == [
        ["patches", "V0", "V1"],
        ["merger1", "V2", "merger2", "V3"],
        ["embed", "L0", "deepstack0", "L1"],
        ["deepstack1", "L2", "L3", "head"],
    ]
    model = model_of(cut.plan)
    assert isinstance(model, VisionLanguage)
    deep, tower, stream = 2 * 2048 * model.tokens, 2 * 1024 * model.tower.patches, 2 * 2048 * 1024
    program = program_for(cut, 2)
    sent = [{op.bytes for call, op in program.ops(rank) if op.kind == "send" and call.step == 1} for rank in range(4)]
    assert sent == [{tower}, {tower + 2 * deep, tower}, {stream + deep, tower + 2 * deep}, {stream + deep}]
    assert predict_setting(cut).step_time_s > 0.0


TILED: dict[str, Any] = {
    "base": "llama3.2-11b-vision", "decoder": {"layers": 4, "mixers": "**X*"}, "tower": {"layers": 4, "gated_layers": 1},
    "projector": {"beside": [0, 2]},
}  # fmt: skip


def test_layers_that_read_pictures_are_handed_them() -> None:
    """A picture is four tiles of 1,601 tokens, filled up to 1,608 in the tower; it stands for one word, whatever its size."""
    cut = setting(TILED, {"pp": 4}, batch={"global": 8, "micro": 1})
    names = [[name for name, _ in stage] for stage in stages(TILED, {"pp": 4})]
    assert names == [["patches", "V0", "V1"], ["V2", "middle", "V3"], ["embed", "L0", "L1"], ["L2", "L3", "head"]]
    tower, stream, pictures = 2 * 1280 * 4 * 1608, 2 * 4096 * 1024, 2 * 4096 * 4 * 1601
    program = program_for(cut, 2)
    sent = [{op.bytes for call, op in program.ops(rank) if op.kind == "send" and call.step == 1} for rank in range(4)]
    assert sent == [{2 * tower}, {3 * tower, 2 * tower}, {stream + pictures, 3 * tower}, {stream + pictures}]
    assert setting({**TILED, "images": 20}, {}).network.seq == 1024
    with pytest.raises(BadInput, match=r"mixers has 'X' layers, which read pictures. Make it the decoder of a model of family vlm"):
        setting({"base": "llama3-8b", "layers": 2, "mixers": "X*"}, {})


def test_words_pay_for_pictures_where_they_read_them() -> None:
    """One layer of four: keys and values of 6,404 tokens, for which the gates and norms are all that is learned beside the linears."""
    blocks = {name: block for name, block in setting(TILED, {}).network.blocks if name in ("L0", "L2")}
    assert blocks["L2"].params - blocks["L0"].params == 2 * 128 + 2
    rows = [work.m for part in blocks["L2"].parts for work in part.forward if part.name == "attn.kv"]
    assert set(rows) == {6404}
    frozen = {op.id for op in ops(program_for(setting({**TILED, "frozen": ["tower"]}, {}), 2)) if op.id.startswith(("bwd/", "wgrad/"))}
    assert not [name for name in frozen if "/V" in name or "middle" in name or "columns" in name] and [
        name for name in frozen if "projector.down" in name
    ]
    lora = setting(TILED, {}, task="lora").network.blocks
    trained = {part.name for name, block in lora if name == "L2" for part in block.parts if part.tensors and not part.frozen}
    assert trained == {"attn.q.lora", "attn.kv.lora", "attn.proj.lora"}


def test_mergers_train_behind_a_frozen_tower() -> None:
    frozen = {**DEEP, "frozen": ["tower"]}
    back = {op.id for op in ops(program_for(setting(frozen, {"dp_shard": 4, "zero": 3}), 2)) if op.id.startswith(("bwd/", "wgrad/"))}
    assert "wgrad/merger1.up" in back and not [name for name in back if "/V" in name or "patches" in name]
    still = {
        op.id
        for op in ops(program_for(setting({**frozen, "frozen": ["tower", "projector"]}, {}), 2))
        if op.id.startswith(("bwd/", "wgrad/"))
    }
    assert not [name for name in still if "merger" in name]
    times = [predict_setting(setting({**DEEP, "projector": {"deepstack": read}}, {})).step_time_s for read in ([], [1], [1, 2])]
    assert times == sorted(times)


def stages(model: Any, parallel: dict[str, Any], **more: Any) -> Any:
    from sim.model.stages import layout

    s = setting(model, parallel, **more)
    return layout(s.network, s.plan)


def test_more_pictures_take_longer_and_must_fit_the_sequence() -> None:
    times = [predict_setting(setting({**SMALL, "images": n}, {})).step_time_s for n in (1, 2, 4)]
    assert times == sorted(times) and times[2] > 1.2 * times[0]
    with pytest.raises(BadInput, match=r"5 pictures of 256 tokens do not fit seq_len = 1024. Set seq_len to at least 1280"):
        setting({**SMALL, "images": 5}, {})


def test_adapters_go_to_the_decoder_and_the_tower_stays() -> None:
    network = setting(SMALL, {}, task="lora").network
    parts = {name: block.parts for name, block in network.blocks}
    assert all(part.detached for part in parts["V0"])
    trained = {part.name for name in ("embed", "L0") for part in parts[name] if part.tensors and not part.frozen}
    assert trained == {"projector.norm", "projector.up", "projector.down", "attn.qkv.lora", "attn.proj.lora"}


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        ({"tower": {"image": 450}}, BadInput, "tower.image = 450 is no multiple of 28"),
        ({"tower": {"unread": 4}}, BadInput, "tower.unread = 4 leaves none of 4 layers"),
        ({"frozen": ["tower", "projector", "decoder"]}, BadInput, "nothing is trained"),
        ({"frozen": ["projector"]}, Refused, "a frozen projector behind a trained tower"),
        ({"projector": {"deepstack": [2, 1]}}, BadInput, r"projector.deepstack = \[2, 1\] must name layers of the tower, 0 to 3"),
        ({"projector": {"deepstack": [4]}}, BadInput, "0 to 3, each once and in order"),
        ({"projector": {"deepstack": [1, 2]}, "decoder": {"layers": 1}}, BadInput, "for which the decoder's 1 are too few"),
        ({"projector": {"deepstack": [1]}, "tower": {"frames": 1}}, Refused, "order patches square by square"),
        ({"decoder": {"mixers": "*X**"}}, Refused, "layers that read pictures, are supported only together"),
        ({"tower": {"tiles": 4}}, Refused, "tower.tiles is supported with tower.ratios"),
        ({"tower": {"gated_layers": 1}}, BadInput, "the last of 4 layers of a tower with tiles > 1"),
        ({"projector": {"beside": [1]}}, Refused, "projector.beside is supported for layers that read pictures"),
        ({"projector": {"beside": [9]}}, BadInput, r"projector.beside = \[9\] must name"),
        ({"decoder": {"further_rows": 8}}, BadInput, "a tied head has logits for all rows"),
        ({"decoder": "bert-base"}, BadInput, "decoder"),
        ({"decoder": "nobody-7b"}, BadInput, "nobody-7b"),
    ],
    ids=str,
)
def test_what_fits_no_model_is_said(change: dict[str, Any], error: type[Exception], word: str) -> None:
    changed = {key: {**SMALL.get(key, {}), **value} if isinstance(value, dict) else value for key, value in change.items()}
    with pytest.raises(error, match=word):
        setting({**SMALL, **changed}, {})


@pytest.mark.no_cover
@pytest.mark.parametrize("more", [{"cp": 2}, {"cp": 4, "cp_kind": "all_to_all"}, {"cp": 2, "tp": 2}, {"cp": 2, "pp": 2}], ids=str)
def test_context_parallel_ranks_see_all_pictures_and_share_the_words(more: dict[str, Any]) -> None:
    """Of a layer of the tower each rank has all rows, of a layer of the decoder its share."""
    one, split = (setting(DEEP, parallel, batch={"global": 4, "micro": 1}) for parallel in ({**more, "cp": 1}, more))
    rows = [
        {name: max(work.m for part in block.parts for work in part.forward if isinstance(work, Gemm)) for name, block in s.network.blocks if name in ("V0", "merger1", "L0")}
        for s in (one, split)
    ]  # fmt: skip
    assert rows[1] == rows[0] | {"L0": rows[0]["L0"] // more["cp"]}
    assert one.network.parameters == split.network.parameters and one.network.flops_per_sample == split.network.flops_per_sample
    parts = [{part.name: part for name, block in s.network.blocks for part in block.parts} for s in (one, split)]
    assert "split" not in parts[0] and parts[1]["split"].forward[0].bytes * more["cp"] == 2 * 2 * 2048 * 1024 * 1
    moved = [p["deepstack0.add"].forward[2].bytes for p in parts]
    assert moved[1] * more["cp"] == pytest.approx(moved[0], rel=0.03)
    assert predict_setting(split).step_time_s > 0.0


def test_context_parallelism_of_layers_that_read_pictures_is_refused() -> None:
    with pytest.raises(Refused, match="context parallelism of layers that read pictures is not supported; set cp = 1"):
        setting(TILED, {"cp": 2})


def test_the_first_that_is_trained_makes_no_gradient_of_its_input() -> None:
    """LLaVA's first linear reads the frozen tower: two products of it, not three."""
    shape = Shape(micro=1, seq=1024)
    for frozen, products in ((("tower",), 0), ((), 1)):
        blocks = dict(describe(replace(spec("llava-1.5-7b"), frozen=frozen), shape, PLAIN).blocks)
        up = next(part for part in blocks["embed"].parts if part.name == "projector.up")
        assert sum(getattr(work, "role", "") == "dgrad" for work in up.backward) == products
        assert up.wgrad


@pytest.mark.parametrize("tied", [True, False])
def test_of_a_frozen_decoder_the_head_gets_no_gradient_either(tied: bool) -> None:
    model = {**SMALL, "decoder": {"layers": 4, "tied": tied}, "frozen": ["decoder"]}
    head = dict(setting(model, {}).network.blocks)["head"]
    assert not any(part.wgrad for part in head.parts) and any(part.backward for part in head.parts)


def test_a_decoder_may_have_experts() -> None:
    plan = bind(
        {"model": {"base": "qwen2.5-vl-3b", "decoder": "qwen3-30b-a3b"}, "seq_len": 1024, "parallel": {"dp_shard": 8, "ep": 8}}, "dgx-h100"
    ).plan
    model = model_of(plan)
    network = describe(model, Shape(micro=1, seq=1024), PLAIN)
    assert network.has_experts and network.active_parameters < network.parameters / 5
