"""Whisper by hand: its convolutions, what the layers keep and exchange, autocast, and what is refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model import Network, Part, Shape, describe, load_model
from sim.model.readers.huggingface import from_config
from sim.model.specs.spec import Wav2Vec, Whisper
from sim.model.stages import layout
from sim.plan import Plan
from sim.sections import Batch, Parallel
from sim.work import Attention, Conv, MemoryBound
from topologies.errors import BadInput, Refused

PLAIN = Framework(name="plain", source="test")
AMP = PLAIN.but(precision={"autocast": True})
TINY = load_model("whisper-tiny")


def of(framework: Framework = PLAIN, seq: int = 100) -> Network:
    return describe(TINY, Shape(micro=2, seq=seq), framework)


def part(block: str, name: str, framework: Framework = PLAIN) -> Part:
    return next(p for p in dict(of(framework).blocks)[block].parts if p.name == name)


def test_the_second_convolution_halves_the_frames() -> None:
    one, two = (part("embed", f"conv{i}").forward[0] for i in (1, 2))
    assert isinstance(one, Conv) and isinstance(two, Conv)
    assert (one.out, two.out, one.kh, one.kw) == ((1, 3000), (1, 1500), 1, 3)
    assert one.flops == 2 * 2 * 3000 * 384 * 80 * 3
    assert part("embed", "conv1").backward == ()  # a spectrum needs no gradient


def test_keys_have_no_biases() -> None:
    h = 384
    assert part("L0", "attn.qkv").tensors == (h * h, h, h * h, h * h, h)
    assert part("D0", "cross.kv").tensors == (h * h, h * h, h)
    sums = [w for w in part("L0", "attn.qkv").wgrad if isinstance(w, MemoryBound) and w.what == "reduce"]
    assert len(sums) == 2


def test_texts_attend_to_the_sound() -> None:
    own, across = (part("D1", f"{name}.core").forward[0] for name in ("attn", "cross"))
    assert isinstance(own, Attention) and isinstance(across, Attention)
    assert (own.q, own.kv, own.causal) == (100, 100, True)
    assert (across.q, across.kv, across.causal) == (100, 1500, False)


def test_longer_texts_cost_the_decoder_alone() -> None:
    short, long = of(seq=100), of(seq=200)
    assert dict(short.blocks)["L0"] == dict(long.blocks)["L0"]
    assert dict(short.blocks)["D0"].saved_input * 2 == dict(long.blocks)["D0"].saved_input
    assert long.sample_bytes - short.sample_bytes == 16 * 100


def test_autocast_keeps_the_stream_in_32_bits() -> None:
    n = 2 * 1500 * 384
    assert dict(of(AMP).blocks)["L0"].saved_input == 4 * n
    assert part("embed", "positions", AMP).backward[0].bytes == 6 * n
    assert part("embed", "conv2", AMP).saved == 2 * 2 * 384 * 3000


def test_a_config_is_its_preset() -> None:
    config = {"model_type": "whisper", "d_model": 1280, "encoder_layers": 32, "decoder_layers": 4, "encoder_attention_heads": 20}
    config |= {"decoder_attention_heads": 20, "encoder_ffn_dim": 5120, "decoder_ffn_dim": 5120, "num_mel_bins": 128, "vocab_size": 51866}
    read, shipped = (
        describe(spec, Shape(micro=1, seq=448), PLAIN)
        for spec in (from_config(config, "config.json"), load_model("whisper-large-v3-turbo"))
    )
    assert (read.blocks, read.parameters) == (shipped.blocks, shipped.parameters)
    with pytest.raises(Refused, match="decoder_ffn_dim differs from the encoder's 5120"):
        from_config(config | {"decoder_ffn_dim": 2560}, "config.json")
    with pytest.raises(Refused, match="tie_word_embeddings = false of whisper is not supported"):
        from_config(config | {"tie_word_embeddings": False}, "config.json")


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(Refused, match="a model of speech is split by data parallelism only; set tp = cp = ep = 1"):
        describe(TINY, Shape(micro=1, seq=100, tp=2), PLAIN)
    with pytest.raises(BadInput, match=r"seq_len = 2048 is more than positions = 448\. Set seq_len = 448 or less"):
        of(seq=2048)
    with pytest.raises(BadInput, match="frames = 2999 must be even"):
        Whisper(layers=1, hidden=64, heads=4, frames=2999)
    with pytest.raises(Refused, match="so no pipeline can cut it"):
        layout(of(), Plan(model="whisper-tiny", batch=Batch(micro=1), parallel=Parallel(pp=2)))


def test_a_wave_becomes_a_frame_each_20_ms() -> None:
    base = load_model("wav2vec2-base")
    assert isinstance(base, Wav2Vec) and base.frames == 781 and replace(base, samples=16_000).frames == 49
    network = describe(base, Shape(micro=2, seq=1), PLAIN)
    first = [p for p in dict(network.blocks)["embed"].parts if p.name.startswith("conv") and p.cls == "conv"]
    assert [p.forward[0].out[1] for p in first if isinstance(p.forward[0], Conv)][-1] == 781
    assert first[0].backward == () and first[1].backward and network.sample_unit == "samples"
    seen = next(w for p in dict(network.blocks)["L0"].parts for w in p.forward if isinstance(w, Attention))
    assert (seen.q, seen.causal) == (781, False)


def test_places_are_told_by_a_convolution_in_groups() -> None:
    network = describe(load_model("wav2vec2-base"), Shape(micro=1, seq=1), PLAIN)
    found = next(p for p in dict(network.blocks)["embed"].parts if p.name == "positions")
    assert found.tensors == (768 * 48 * 128, 128, 768)
    works = [w for w in found.forward if isinstance(w, Conv)]
    assert [w.flops for w in works] == [2.0 * 782 * 768 * 48 * 128]  # one place more than frames, which is dropped


def test_characters_take_the_place_of_the_quantised_sound() -> None:
    base = load_model("wav2vec2-base")
    tuned = describe(replace(base, characters=32), Shape(micro=1, seq=1), PLAIN)
    assert tuned.parameters == 94_396_320  # wav2vec2-base-960h
    assert not any("codes" in p.name for p in dict(tuned.blocks)["head"].parts)


def test_longer_recordings_cost_more_and_splits_are_refused() -> None:
    base = load_model("wav2vec2-base")
    short, long = (describe(replace(base, samples=n), Shape(micro=1, seq=1), PLAIN) for n in (100_000, 200_000))
    assert 1.9 < long.flops_per_sample / short.flops_per_sample < 2.2 and long.parameters == short.parameters
    with pytest.raises(Refused, match="a model of speech"):
        describe(base, Shape(micro=1, seq=1, tp=2), PLAIN)
    with pytest.raises(BadInput, match="no frame"):
        describe(Wav2Vec(layers=1, hidden=64, heads=1, samples=100), Shape(micro=1, seq=1), PLAIN)
