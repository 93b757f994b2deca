"""Adapters beside frozen models that are no decoders, by hand: where they stand, where gradients begin, what memory and messages follow, and what is
refused."""

from __future__ import annotations

from typing import Any

import pytest

from sim.memory.report import MemoryReport, memory_of
from sim.model.parts import Block, Part
from sim.setting.bind import Setting, bind
from sim.setting.program import program_for
from topologies.errors import BadInput, Refused


def setting(model: str | dict[str, Any], **plan: Any) -> Setting:
    return bind({"model": model, "framework": "pytorch", "task": "lora", "batch": {"global": plan.pop("ranks", 1)}} | plan, "dgx-h100")


def report(model: str | dict[str, Any], **plan: Any) -> MemoryReport:
    found = setting(model, **plan)
    return memory_of(found.plan, found.network, found.framework, found.topology.device(0), remedies=False)


def blocks(model: str | dict[str, Any]) -> dict[str, Block]:
    return dict(setting(model).network.blocks)


def trained(block: Block) -> dict[str, int]:
    return {part.name: part.params for part in block.parts if part.tensors and not part.frozen}


def part(block: Block, name: str) -> Part:
    return next(p for p in block.parts if p.name == name)


H = 3072


def test_flux_has_adapters_in_both_kinds_of_layers() -> None:
    """Of rank 4: a product's A and B."""
    found = blocks("flux.1-dev")
    qkv, proj = 4 * (H + 3 * H), 4 * (H + H)
    of = {f"{stream}.{name}.lora": size for stream in ("picture", "text") for name, size in (("qkv", qkv), ("proj", proj))}
    assert trained(found["L0"]) == trained(found["L18"]) == of
    assert trained(found["L19"]) == trained(found["L56"]) == {"up.lora": 4 * (H + 7 * H)}
    assert trained(found["embed"]) == trained(found["head"]) == {}
    every = blocks({"base": "flux.1-dev", "lora": {"rank": 16, "targets": ["qkv", "proj", "up", "down"]}})
    assert trained(every["L20"]) == {"up.lora": 16 * 8 * H, "down.lora": 16 * 6 * H}
    assert trained(every["L3"])["text.mlp.down.lora"] == 16 * 5 * H


def test_flux_s_gradients_begin_with_the_first_adapters_of_picture_and_text() -> None:
    """What steers a layer needs none anywhere: no sum over a picture's tokens, and nothing kept for it."""
    found = blocks("flux.1-dev")
    assert found["embed"].detached and found["L1"] is found["L18"] and found["L0"] is not found["L1"]
    for stream in ("picture", "text"):
        first, later = found["L0"], found["L1"]
        assert all(part(first, f"{stream}.{name}").detached for name in ("attn.norm", "attn.modulate", "qkv"))
        assert len(part(first, f"{stream}.qkv.lora").backward) < len(part(later, f"{stream}.qkv.lora").backward)
        assert part(first, f"{stream}.attn.residual").backward == part(later, f"{stream}.attn.residual").backward[:-1]
        assert part(first, f"{stream}.mlp.residual") is part(later, f"{stream}.mlp.residual")
        assert part(later, f"{stream}.condition").detached
        assert part(later, f"{stream}.attn.modulate").saved == part(later, f"{stream}.attn.residual").saved == 0
    whole = dict(setting("flux.1-dev", task="train").network.blocks)
    assert "reduce" in {getattr(work, "what", "") for work in part(whole["L1"], "picture.attn.residual").backward}
    assert "reduce" not in {getattr(work, "what", "") for work in part(found["L1"], "picture.attn.residual").backward}


def test_a_u_net_has_adapters_on_all_attentions() -> None:
    """On to_q, to_k, to_v and to_out.0 of both of a layer: diffusers' train_text_to_image_lora.py trains 797,184 numbers of Stable Diffusion 1.5."""
    found = setting("sd-1.5").network.blocks
    assert sum(sum(trained(block).values()) for _, block in found) == 797_184
    c, text = 320, 768
    assert trained(dict(found)["D0.0"]) == {
        **{f"tr.t0.attn.qkv.{at}.lora": 4 * 2 * c for at in range(3)},
        **{f"tr.t0.{name}.lora": 4 * 2 * c for name in ("attn.proj", "cross.q", "cross.proj")},
        **{f"tr.t0.cross.kv.{at}.lora": 4 * (text + c) for at in range(2)},
    }


def test_a_u_net_s_gradients_begin_with_its_first_transformer() -> None:
    """SDXL's first level has none: its maps need no gradient, neither on the way down nor where the way up reads them."""
    found = blocks("sdxl")
    assert all(found[name].detached for name in ("embed", "D0.0", "D0.1", "D0.down"))
    first, later = found["D1.0"], found["D1.1"]
    assert all(p.detached for p in first.parts if not p.name.startswith("tr."))
    assert part(first, "tr.join").backward == part(first, "tr.t0.self.residual").backward == ()
    assert part(later, "tr.join").backward and part(first, "tr.t0.cross.residual").backward
    assert all(
        p.detached
        for block in found.values()
        for p in block.parts
        if p.name.removeprefix("res0.").removeprefix("res1.") in ("time", "time.act")
    )
    cats = {name: bool(part(block, "cat").backward) for name, block in found.items() if name[0] == "U" and not name.endswith("up")}
    assert cats == {
        "U2.0": True,
        "U2.1": True,
        "U2.2": True,
        "U1.0": True,
        "U1.1": True,
        "U1.2": False,
        "U0.0": False,
        "U0.1": False,
        "U0.2": False,
    }
    assert part(later, "tr.t1.cross.kv").detached and not part(later, "tr.t1.cross.q").detached


def test_whisper_s_gradients_begin_in_the_encoder_and_in_the_decoder() -> None:
    """Of rank 32 on queries and values: the encoder's result has a gradient in each layer of the decoder, the embedded text has none."""
    found = blocks("whisper-small")
    h, rank = 768, 32
    assert trained(found["L0"]) == {f"attn.qkv.{at}.lora": rank * 2 * h for at in (0, 2)}
    own = [f"attn.qkv.{at}.lora" for at in (0, 2)]
    assert trained(found["D0"]) == dict.fromkeys([*own, "cross.q.lora", "cross.kv.1.lora"], rank * 2 * h)
    assert (
        found["embed"].detached and part(found["target"], "target.tokens").detached and not part(found["target"], "encoder.norm").detached
    )
    for first, later in (("L0", "L1"), ("D0", "D1")):
        assert part(found[first], "attn.qkv").detached and not part(found[later], "attn.qkv").detached
        assert len(part(found[first], "attn.residual").backward) == len(part(found[later], "attn.residual").backward) - 1
    assert part(found["D0"], "cross.kv") is part(found["D1"], "cross.kv") and part(found["D0"], "cross.residual").backward


def test_the_encoder_s_result_is_kept_once_where_adapters_make_no_copies() -> None:
    """With dropout each keeps its own; a frozen linear keeps none."""
    heard = 1500 * 768 * 2

    def kept(lora: dict[str, Any]) -> list[int]:
        found = blocks({"base": "whisper-small", "lora": lora})
        read = [p for p in found["D1"].parts if p.name.startswith("cross.kv")]
        rows = 1500 * 32 * 2 * (len(read) - 1)
        return [part(found["target"], "encoder.norm").saved // heard, (sum(p.saved for p in read) - rows) // heard]

    every = {"targets": ["qkv"]}
    assert kept({"dropout": 0.0}) == kept({"dropout": 0.0} | every) == kept({"dropout": 0.0, "targets": ["k"]}) == [2, 0]
    assert kept({"dropout": 0.05} | every) == [1, 3]  # a byte mask each beside its result
    assert kept({"dropout": 0.0, "targets": ["q"]}) == [1, 0]
    assert kept({"dropout": 0.0, "targets": ["proj"]}) == [1, 0]


def test_queries_and_values_alone_have_adapters_where_each_has_a_linear() -> None:
    """PEFT's default for Llama and Whisper; of one linear for all three there is no adapter for two."""
    llama = {"base": "llama3-8b", "layers": 2, "lora": {"rank": 8, "targets": ["v", "q"]}}
    found = dict(setting(llama, framework="huggingface").network.blocks)
    assert trained(found["L1"]) == {"attn.qkv.0.lora": 8 * (4096 + 4096), "attn.qkv.2.lora": 8 * (4096 + 1024)}
    whole = dict(setting(llama | {"lora": {"rank": 8, "targets": ["q", "k", "v"]}}, framework="huggingface").network.blocks)
    named = dict(setting(llama | {"lora": {"rank": 8, "targets": ["qkv"]}}, framework="huggingface").network.blocks)
    assert whole == named
    with pytest.raises(Refused, match=r"one linear \(attn\.qkv\) makes q, k, v and has one adapter, so q and v cannot .*huggingface"):
        setting(llama)
    latent = {"base": "deepseek-v3", "layers": 4, "lora": {"rank": 8, "targets": ["q"]}}
    assert set(trained(dict(setting(latent).network.blocks)["L1"])) == {"attn.q_down.lora", "attn.q_up.lora"}
    with pytest.raises(Refused, match=r"\(attn\.kv_down\) makes k, v .*so v cannot"):
        setting(latent | {"lora": {"targets": ["q", "v"]}})


MODELS = ["flux.1-dev", "sd-1.5", "sdxl", "whisper-small"]


@pytest.mark.parametrize("model", MODELS)
def test_states_and_messages_are_those_of_the_adapters(model: str) -> None:
    tuned, whole = setting(model), setting(model, task="train")
    size = sum(sum(trained(block).values()) for _, block in tuned.network.blocks)
    assert 0 < size < whole.network.parameters / 40
    assert tuned.network.parameters == whole.network.parameters + size
    found = report(model)
    assert found.optimizer == 2 * 2 * size
    assert found.parameters == 2 * tuned.network.parameters
    sends = program_for(setting(model, parallel={"dp_replicate": 2}, ranks=2), 1).ops(0)
    assert sum(op.bytes for _, op in sends if "all_reduce" in op.id and op.id.startswith("grad")) == 2 * size


@pytest.mark.parametrize(
    ("model", "more", "error", "words"),
    [
        ("flux.1-dev", {"lora": {"base": "nf4"}}, Refused, 'lora.base = "nf4" is supported for decoders alone. Leave lora.base out'),
        ("flux.1-dev", {"lora": {"rank": 4096}}, BadInput, "lora.rank = 4096 is more than hidden = 3072"),
        ("dit-xl-2", {}, Refused, "has adapters for decoders, .*; dit-xl-2 is none of these .dit.. Use another model"),
    ],
)
def test_refused_with_a_reason(model: str, more: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        setting({"base": model} | more if more else model)


@pytest.mark.parametrize(
    ("model", "layer", "name", "size"),
    [
        ("deepseek-v2-lite", "L1", "attn.kv_down", 512 * 2048),
        ("flux.1-dev", "L1", "text.qkv", 512 * H),
        ("flux.1-dev", "L1", "text.proj", 0),
    ],
)
def test_under_autocast_adapters_cast_what_their_linear_casts(model: str, layer: str, name: str, size: int) -> None:
    """A residual stream of fp32, for each linear of its own; attention's result has 16 bits."""
    found = bind({"model": model, "framework": "pytorch-amp", "task": "lora", "seq_len": 512, "batch": {"global": 1}}, "dgx-h100")
    block = dict(found.network.blocks)[layer]
    for one in (part(block, name), part(block, f"{name}.lora")):
        wide = [work for work in one.forward if getattr(work, "what", "") == "cast" and work.bytes == 6 * size]
        assert len(wide) == bool(size)
