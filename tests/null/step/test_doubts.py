"""What runs as the plan says and is hardly meant so is said; what is usual is not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from executor.recording.capture import save
from sim.model.captured import Captured
from sim.model.parts import Block, Part
from sim.predict import predict
from sim.work import Attention, Gemm
from topologies.load import load_topology

SMALL: dict[str, Any] = {"family": "decoder", "name": "small", "layers": 4, "hidden": 1024, "heads": 16, "vocab": 32000}
PLAN: dict[str, Any] = {"model": SMALL, "seq_len": 1024, "framework": "megatron-core", "batch": {"micro": 1}}
EXPERTS = SMALL | {"moe": {"experts": 32, "top_k": 2, "ffn": 512}}


def said(plan: dict[str, Any], on: str, *edits: str) -> list[str]:
    """Models here are small, and their GPUs wait for the host."""
    return [one for one in predict(PLAN | plan, on, edits=edits).warnings if "wait for their host" not in one]


@pytest.mark.parametrize(
    ("plan", "on", "edits", "words"),
    [
        ({"parallel": {"dp_shard": 8}}, "3x dgx-h100", (), "8 ranks leave 2 of 3 nodes of 3x dgx-h100 without one"),
        ({}, "4x dgx-h100", (), "the plan's one rank leaves 3 of 4 nodes"),
        ({"parallel": {"tp": 16}}, "2x dgx-h100", (), "tp = 16: ranks 0 to 15 lie on 2 nodes.* use tp = 8 at most"),
        (
            {"model": EXPERTS, "parallel": {"dp_replicate": 96, "ep": 32}, "batch": {"global": 96, "micro": 1}},
            "2x gb200-nvl72",
            (),
            r"ep = 32: ranks 64 to 95 lie on 2 nodes.* With ranks_per_node=64 \(--set\)",
        ),
        (
            {"parallel": {"tp": 2, "dp_replicate": 8, "placement": "dp,tp,cp,pp"}, "batch": {"global": 8, "micro": 1}},
            "2x dgx-h100",
            (),
            "tp = 2: ranks 0 to 8 lie on 2 nodes.* Let placement begin with tp",
        ),
        ({"model": EXPERTS, "cuda_graphs": True}, "dgx-h100", (), "how many rows an expert gets depends on the data"),
        ({"model": SMALL | {"lora": {"rank": 8}}, "task": "finetune"}, "dgx-h100", (), "adapters alone are trained"),
        ({"model": "resnet50", "data": {"source": "disk"}}, "dgx-h100", (), "reads images as the tensors .*588 KiB each.* data.preprocess"),
        ({"memory": {"recompute": "selective"}}, "dgx-h100", (), 'recompute = "selective" runs attention\'s core again'),
        (
            {"model": EXPERTS, "parallel": {"tp": 2, "ep": 4, "dp_replicate": 4}, "batch": {"global": 4, "micro": 1}},
            "dgx-h100",
            (),
            r"megatron-core splits them over tp = 2 too .*parallel.etp = 2 predicts that",
        ),
    ],
    ids=["idle nodes", "one rank", "wide tp", "astride", "placement", "captured", "adapters", "undecoded", "for nothing", "whole experts"],
)  # fmt: skip
def test_what_is_hardly_meant_is_said(plan: dict[str, Any], on: str, edits: tuple[str, ...], words: str) -> None:
    assert [text for text in said(plan, on, *edits) if re.search(words, text)], said(plan, on, *edits)


@pytest.mark.parametrize(
    ("plan", "on", "edits"),
    [
        ({}, "dgx-h100", ()),  # one rank of a node of eight
        ({"parallel": {"tp": 8, "dp_replicate": 2}}, "2x dgx-h100", ()),
        ({"model": EXPERTS, "parallel": {"dp_replicate": 16, "ep": 16}}, "2x dgx-h100", ()),  # experts are spread over nodes
        ({"parallel": {"tp": 8, "cp": 2}}, "2x dgx-h100", ()),  # so are long sequences, beside tensor ranks that fill a node
        ({"memory": {"recompute": "selective"}, "attention": "math"}, "dgx-h100", ()),
        ({"model": SMALL | {"lora": {"rank": 8}}, "task": "lora"}, "dgx-h100", ()),
        ({"task": "finetune"}, "dgx-h100", ()),
        ({"model": EXPERTS, "parallel": {"tp": 2, "ep": 4, "etp": 1, "dp_replicate": 4}}, "dgx-h100", ()),
        ({"model": EXPERTS, "parallel": {"tp": 2, "ep": 4, "dp_replicate": 4}, "framework": "megatron-bridge"}, "dgx-h100", ()),
        ({"memory": {"recompute": "selective", "recompute_modules": ["mlp"]}}, "dgx-h100", ()),
        ({"data": {"source": "database"}}, "dgx-h100", ()),  # tokens need no decoding
    ],
)
def test_what_is_usual_is_not(plan: dict[str, Any], on: str, edits: tuple[str, ...]) -> None:
    ranks = plan.get("parallel", {}).get("dp_replicate", 1)
    assert not said(plan | {"batch": {"micro": 1, "global": ranks}}, on, *edits)


@pytest.mark.parametrize(
    ("keys", "words"),
    [({}, ()), ({"compile": True}, ("without a compiler",)), ({"attention": "math"}, ('attention = "math" has no effect',))],
)
def test_a_captured_model_keeps_its_kernels(keys: dict[str, Any], words: tuple[str, ...], tmp_path: Path) -> None:
    """A plan that asks for others is told so."""
    works = (Gemm(m=512, n=256, k=256, dtype="bf16"), Attention(batch=1, heads=4, kv_heads=4, q=512, kv=512, d=64))
    parts = tuple(
        Part(name=name, forward=(work,), backward=(work,), cls=name) for name, work in zip(("gemm", "attention"), works, strict=True)
    )
    block = Block(kind="layer", parts=parts, saved_input=1 << 18)
    file = save(Captured(name="mine", precision="bf16", order=(("L0", 0),), low=(block,), high=(block,)), tmp_path / "mine.model.json")
    found = predict({"model": str(file), **keys}, "dgx-h100")
    told = [text for text in found.warnings if "compile" in text or "attention" in text]
    assert len(told) == len(words) and all(word in text for word, text in zip(words, told, strict=True))


@pytest.mark.parametrize(("share", "warns"), [(0.97, True), (0.85, False)])
def test_a_device_that_tensors_fill_is_named(share: float, warns: bool) -> None:
    memory = predict(PLAN, "dgx-h100").memory
    room = round((memory.allocated + memory.context) / share)
    found = predict(PLAN, "dgx-h100", edits=(f"gpu.memory={room} B",))
    assert found.fits and any("tensors and context take" in text for text in found.warnings) is warns


@pytest.mark.parametrize("more", [{"source": "memory"}, {"source": "disk", "sample": "588 KiB"}, {"source": "disk", "preprocess": "8 ms"}])
def test_pictures_that_are_said_to_be_read_so_are_no_doubt(more: dict[str, Any]) -> None:
    assert not [text for text in predict({"model": "resnet50", "data": more}, "dgx-h100").warnings if "reads images" in text]


def test_user_buffers_end_with_the_node() -> None:
    """What a framework overlaps by itself; who asks for it is heard."""
    wide, near = ({"parallel": {"tp": 16}}, "2x dgx-h100"), ({"parallel": {"tp": 8}}, "dgx-h100")
    for (plan, on), beside in ((wide, False), (near, True)):
        steps = [predict(PLAN | {"parallel": plan["parallel"] | {"tp_overlap": asked}}, on).step_time_s for asked in (None, True, False)]
        assert (steps[0] == steps[1], steps[0] == steps[2]) == (beside, not beside)


def test_an_object_store_that_nobody_described() -> None:
    """A GPU machine has a parallel file system in its place, which gives a connection twenty times as much."""
    plan = {"model": "vit-b16", "batch": {"micro": 64}, "data": {"source": "object-store", "workers": 2, "sample": "110 KB"}}
    told = predict(plan, "dgx-h100", detail=False)
    assert any("describes none" in one and "store.latency=150 ms" in one for one in told.warnings)
    described = predict(plan, load_topology("dgx-h100", ("store.stream=90 MB/s", "store.latency=150 ms")), detail=False)
    assert not any("describes none" in one for one in described.warnings) and described.step_time_s > 2 * told.step_time_s


def test_a_step_that_waits_for_its_host_says_what_helps() -> None:
    plan = {"model": "gpt2-124m", "seq_len": 128, "batch": {"micro": 1}}
    slow, graphs = (predict(plan | more, "dgx-h100", detail=False) for more in ({}, {"cuda_graphs": True}))
    words = next(one for one in slow.warnings if "wait for their host" in one)
    assert "cuda_graphs = true" in words and slow.breakdown.host_s > 0.4 * slow.step_time_s
    assert not any("wait for their host" in one for one in graphs.warnings)
