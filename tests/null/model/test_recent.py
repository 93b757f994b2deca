"""Models of 2024 to 2026: sizes, and what their layers do differently."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model import Network, Shape, describe
from sim.model.language.decoder import kind_of
from sim.model.parts import Part
from sim.model.readers.huggingface import from_config
from sim.model.specs.decoder import Decoder
from sim.model.specs.spec import spec_of
from sim.work import Attention, Gemm
from tests.null.model.hf_recent import RECENT
from topologies.errors import BadInput, Refused

PLAIN = Framework(name="plain", source="test")


def read(name: str, **more: Any) -> Decoder:
    spec = from_config(RECENT[name][1] | more, "config.json")
    assert isinstance(spec, Decoder)
    return spec


def names(network: Network, block: str) -> list[str]:
    return [part.name for part in dict(network.blocks)[block].parts]


def cores(network: Network) -> list[Attention]:
    return [w for _, block in network.blocks for part in block.parts for w in part.forward if isinstance(w, Attention)]


@pytest.mark.parametrize("name", RECENT)
def test_served_configs_have_the_published_parameters(name: str) -> None:
    count, config = RECENT[name]
    assert describe(from_config(config, "config.json"), Shape(micro=1, seq=512), PLAIN).parameters == count


@pytest.mark.parametrize(
    ("name", "active"),
    [
        ("llama4-scout-text", 17e9),
        ("llama4-maverick-text", 17e9),
        ("qwen3-coder-480b", 35e9),
        ("minimax-m2", 10e9),
        ("minimax-text-01", 45.9e9),
        ("granite-4-h-small", 9e9),
    ],
)
def test_active_parameters_as_advertised(name: str, active: float) -> None:
    network = describe(read(name), Shape(micro=1, seq=512), PLAIN)
    assert network.active_parameters == pytest.approx(active, rel=0.11)  # makers round, and some leave embeddings out
    assert network.active_parameters < network.parameters / 3


def test_llama_4_attends_inside_chunks_and_everywhere_without_positions_in_every_fourth_layer() -> None:
    spec = read("llama4-scout-text")
    network = describe(spec, Shape(micro=1, seq=32768), PLAIN)
    assert [work.flops * 4 == cores(network)[3].flops for work in cores(network)[:4]] == [True, True, True, False]
    assert [(work.batch, work.q) for work in cores(network)[2:4]] == [(4, 8192), (1, 32768)]
    assert ["attn.rope" in names(network, f"L{i}") for i in range(8)] == [True, True, True, False] * 2
    assert {part.params for part in dict(network.blocks)["L0"].parts if part.name == "attn.q_norm"} == {0}


def test_chunks_over_ranks_cost_what_they_cost_on_one() -> None:
    """Under context parallelism a chunk is a window of half its keys: nearly the same work, and far less than all keys."""
    spec = read("llama4-scout-text")
    whole, split = (sum(w.flops for w in cores(describe(spec, Shape(micro=1, seq=131072, cp=cp), PLAIN))) for cp in (1, 4))
    assert split * 4 == pytest.approx(whole, rel=0.02)
    assert split * 4 < 0.5 * sum(w.flops for w in cores(describe(replace(spec, window=0), Shape(micro=1, seq=131072), PLAIN)))


def test_maverick_alternates_dense_layers_and_experts() -> None:
    spec = read("llama4-maverick-text")
    assert [kind_of(spec, i)[0] for i in range(4)] == ["dense", "moe", "dense", "moe"]
    widths = {
        w.n for p in dict(describe(spec, Shape(micro=1, seq=512), PLAIN).blocks)["L0"].parts for w in p.forward if isinstance(w, Gemm)
    }
    assert 2 * 16384 in widths  # intermediate_size_mlp, not the experts' 8192


@pytest.mark.parametrize(("key", "agrees", "differs"), [("moe_layers", list(range(1, 48, 2)), [1, 3]), ("no_rope_layers", [1, 1, 1, 0] * 12, [0] * 48)])  # fmt: skip
def test_llama_4_lists_of_layers_say_what_the_step_between_them_says(key: str, agrees: list[int], differs: list[int]) -> None:
    """Llama4TextConfig takes the list where there is one: published files spell it out, or leave it empty."""
    name = "llama4-maverick-text"
    assert read(name, **{key: agrees}) == read(name, **{key: []}) == read(name)
    with pytest.raises(Refused, match=f"{key} = .* are not the layers of"):
        read(name, **{key: differs})


def test_command_a_sees_windows_and_rotates_only_there() -> None:
    network = describe(read("command-a"), Shape(micro=1, seq=16384), PLAIN)
    assert [work.window for work in cores(network)[:4]] == [4096, 4096, 4096, 0]
    assert ["attn.rope" in names(network, f"L{i}") for i in range(4)] == [True, True, True, False]


def test_qwen3_next_mixes_by_the_delta_rule_with_work_that_grows_with_the_length_alone() -> None:
    spec = read("qwen3-next-80b")
    assert [kind_of(spec, i)[0] for i in range(4)] == ["moeD", "moeD", "moeD", "moe"]

    def rule(seq: int, **split: int) -> float:
        parts = dict(describe(spec, Shape(micro=1, seq=seq, **split), PLAIN).blocks)["L0"].parts
        return sum(w.flops for p in parts if p.name == "delta.rule" for w in p.forward if isinstance(w, Gemm))

    assert rule(8192) == 4 * rule(2048) == 4 * 2 * rule(2048, tp=2, etp=2)
    per_token = 2 * 32 * (3 * 128 * 128 + 2 * 64 * 128 + 3 * 64 * 128 + 64 * 64)  # state; K K^T and Q K^T; times K, V and values; inverse
    assert rule(2048) == 2048 * per_token
    network = describe(spec, Shape(micro=1, seq=2048), PLAIN)
    gate = next(p for p in dict(network.blocks)["L3"].parts if p.name == "attn.qkv")
    assert gate.params == 2048 * 256 * (2 * 16 + 2 * 2)  # q and its gate, k, v
    assert "attn.gate" in names(network, "L3") and "moe.merge" in names(network, "L0")


def test_minimax_mixes_by_lightning_attention_with_work_that_grows_with_the_length_alone() -> None:
    spec = read("minimax-text-01")
    assert [kind_of(spec, i)[0] for i in range(8)] == ["moeL"] * 7 + ["moe"] and spec.rotary == 0.5

    def part(name: str, seq: int, **split: int) -> Part:
        return next(p for p in dict(describe(spec, Shape(micro=1, seq=seq, **split), PLAIN).blocks)["L0"].parts if p.name == name)

    def work(seq: int, **split: int) -> float:
        return sum(w.flops for w in part("lightning.attention", seq, **split).forward if isinstance(w, Gemm))

    assert work(8192) == 4 * work(2048) == 4 * 2 * work(2048, tp=2, etp=2)
    assert work(2048) == 2048 * 2 * 64 * (2 * 256 * 128 + 2 * 128 * 128)  # Q K^T and its product with V; the state, written and read
    assert part("lightning.in_proj", 2048).params == 6144 * 4 * 8192 and part("lightning.norm", 2048).params == 8192
    assert part("lightning.attention", 2048).saved == 2048 * 3 * 8192 * 2, "queries, keys and values; no states"


def test_transformers_own_minimax_says_its_layers_by_name_or_alternates() -> None:
    named = {"model_type": "minimax", "attn_type_list": None}
    assert read("minimax-text-01", **named).mixers == "*L" * 40
    assert read("minimax-text-01", **named, layer_types=["linear_attention", "full_attention"] * 40).mixers == "L*" * 40


def test_a_state_that_passes_along_the_sequence_is_not_split_over_context() -> None:
    for name in ("qwen3-next-80b", "mamba2-2.7b", "minimax-text-01"):
        with pytest.raises(Refused, match=r"cp = 1"):
            describe(read(name), Shape(micro=1, seq=2048, cp=2), PLAIN)


def test_granite_4_puts_mamba_in_the_place_of_attention() -> None:
    network = describe(read("granite-4-h-small"), Shape(micro=1, seq=1024), PLAIN)
    assert [("mamba.scan" in names(network, f"L{i}"), "attn.core" in names(network, f"L{i}")) for i in (4, 5)] == [
        (True, False),
        (False, True),
    ]
    assert all("moe.up" in names(network, f"L{i}") for i in range(40)) and len(network.blocks) == 42


def test_layer_types_decide_where_they_are_given() -> None:
    kinds = ["full_attention", "sliding_attention"] * 16
    with pytest.raises(Refused, match="layer_types follows no repeating pattern"):
        read("olmo3-7b", layer_types=kinds)
    assert [kind_of(read("olmo3-7b", layer_types=kinds[::-1]), i)[1] for i in range(4)] == [True, False, True, False]
    assert not any(kind_of(read("olmo3-7b", layer_types=["full_attention"] * 32), i)[1] for i in range(32))


def test_first_dense_layers_of_qwen_and_others_that_are_refused() -> None:
    assert [kind_of(read("qwen3-coder-480b", mlp_only_layers=[0, 1]), i)[0] for i in range(3)] == ["dense", "dense", "moe"]
    with pytest.raises(Refused, match="mlp_only_layers"):
        read("qwen3-coder-480b", mlp_only_layers=[3])


def test_mixers_are_checked() -> None:
    sizes = {"layers": 4, "hidden": 64, "heads": 4, "vocab": 100}
    delta = {"key_heads": 3, "value_heads": 4}
    for fields, words in (
        ({"mixers": "MM*"}, "mixers has 3 letters for layers = 4"),
        ({"mixers": "MM*E"}, "write one of M D L X [*]"),
        ({"mixers": "DDD*"}, "delta is not given"),
        ({"mixers": "LLL*"}, "lightning is not given"),
        ({"mixers": "DDD*", "delta": delta}, "delta.key_heads = 3 does not divide"),
        ({"mixers": "****", "pattern": "****"}, "exclude each other"),
    ):
        with pytest.raises(BadInput, match=words):
            spec_of(sizes | fields, "plan.toml")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("mamba", "selective scan.*plan capture"),
        ("wav2vec2", 'with family = "wav2vec"'),
        ("deepseek_v4", "compressed"),
        ("kimi_k25", "a vision tower"),
        ("kimi_k3", "residuals over blocks"),
        ("gemma4_text", "per-layer embeddings"),
    ],
)
def test_what_is_known_and_not_described_is_refused_with_its_reason(kind: str, words: str) -> None:
    with pytest.raises(Refused, match=words):
        from_config({"model_type": kind}, "config.json")


def test_kimi_linear_fades_by_channel() -> None:
    """Bottlenecks as wide as a head for the rates and the gate, whole on each rank of tp; latent attention's rotary columns are not turned."""
    spec = read("kimi-linear-48b")
    assert [spec.mixers[at] for at in (2, 3, 25, 26)] == ["D", "*", "D", "*"] and spec.delta is not None and spec.delta.channels
    one, two = (describe(spec, Shape(micro=1, seq=2048, tp=tp, sequence_parallel=tp > 1), PLAIN) for tp in (1, 2))
    parts = {part.name: part for part in dict(one.blocks)["L1"].parts}
    assert parts["delta.down"].params == 2 * 2304 * 128 and parts["delta.rates"].params == parts["delta.gate"].params == 128 * 4096
    assert parts["delta.decay"].tensors == (32, 4096), "rates of heads, biases of channels"
    assert parts["delta.decay"].saved == 2048 * 4096 * 4
    halved = {part.name: part for part in dict(two.blocks)["L1"].parts}
    assert halved["delta.down"].params == parts["delta.down"].params == sum(halved["delta.down"].whole)
    assert 2 * halved["delta.gate"].params == parts["delta.gate"].params and halved["delta.gate"].seam == "tp.copy"
    assert "attn.rope" not in names(one, "L3") and "attn.join" in names(one, "L3")
    assert "attn.rope" in names(describe(replace(spec, position="rope"), Shape(micro=1, seq=512), PLAIN), "L3")


def test_what_kimi_k3_has_beside_is_refused() -> None:
    with pytest.raises(Refused, match=r"attn_res_block_size = 12 .Kimi K3. is not supported"):
        read("kimi-linear-48b", attn_res_block_size=12)
