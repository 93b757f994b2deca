"""What forward keeps, backward frees: whichever kernels a compiler has joined, and where backward has nothing to do."""

from __future__ import annotations

from typing import Any

import pytest

from sim.lower.checks.verify import verify
from sim.setting.bind import bind
from sim.setting.program import program_for

NEXT = {"family": "convnext", "depths": [1, 1], "widths": [16, 32], "image": 32, "classes": 16}
DIT = {"family": "dit", "layers": 2, "hidden": 64, "heads": 4, "image": 64}
FLUX = {
    "family": "flux", "double": 1, "single": 1, "hidden": 64, "heads": 4, "image": 64, "text": 16, "context": 32, "pooled": 16,
}  # fmt: skip
WAN = {"family": "wan", "layers": 2, "hidden": 64, "heads": 4, "ffn": 96, "frames": 5, "height": 32, "width": 64, "text": 16, "context": 32}
CLIP = {
    "family": "clip", "layers": 2, "hidden": 64, "heads": 4, "image": 32, "patch": 8, "text_layers": 2, "text_hidden": 32, "text_heads": 2, "width": 32,
}  # fmt: skip
WHISPER = {"family": "whisper", "layers": 2, "hidden": 64, "heads": 4, "vocab": 128, "frames": 64, "positions": 32}
LORA = {"family": "decoder", "layers": 2, "hidden": 64, "heads": 4, "vocab": 128, "lora": {"rank": 4}}


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("framework", ["pytorch", "maxtext"])
@pytest.mark.parametrize("model", [NEXT, DIT, FLUX, WAN, CLIP, WHISPER, LORA], ids=lambda model: str(model["family"]))
def test_what_forward_keeps_backward_frees(model: dict[str, Any], framework: str, recompute: str) -> None:
    sizes = {"seq_len": 16} if "vocab" in model else {}
    program = program_for(
        bind(
            {"model": model, "framework": framework, "memory": {"recompute": recompute}, "batch": {"global": 2, "micro": 2}, **sizes},
            "dgx-h100",
        ),
        2,
    )
    verify(program)
    kept = [op for _, op in program.ops(0) if op.id.split("/")[0] in ("fwd", "bwd", "wgrad", "recompute")]
    assert sum(op.alloc for op in kept) == sum(op.free for op in kept) > 0
