"""Whether a row's attention was fused or written out: said, or what its framework, its date and its GPU tell."""

from __future__ import annotations

import re
from typing import Any

from sim.accuracy.row import TORCH_2, Row
from sim.accuracy.rows.wording import said
from sim.framework.framework import load_framework

_FLASH = "2023-02"
"""When GPT-NeoX and Megatron-DeepSpeed took to flash attention (GPT-NeoX 2.0; Megatron-DeepSpeed --use-flash-attn)."""
_HOPPER = r"h[12]00|h800|h20|gh200|b[23]00|mi3"
"""GPUs of later."""


def _before_flash(row: Row) -> bool:
    """Of before May 2022 (Dao et al., FlashAttention), or on GPUs older than Ampere before PyTorch 2.0's scaled_dot_product_attention."""
    old = re.search(r"v100|p100|k80|\bt4\b|titan|2080|1080|\bp40|\bp4\b|rtx ?8000", row.gpu.lower()) is not None
    return "" < row.date[:7] < (TORCH_2 if old else "2022-05") or (old and not row.date and not row.of_torch_2)


def attention_of(row: Row, cp: int, framework: str, assumed: list[str]) -> Any:
    """Context parallelism came with fused attention: who splits sequences has it."""
    flash = said(row.flash_attn)
    if cp > 1 and (flash is False or (flash is None and load_framework(framework).attention.implementation == "math")):
        assumed.append(f"attention {'not stated' if flash is None else 'written out'}: flash, for sequences are split")
        flash = True
    if (
        flash is None
        and load_framework(framework).attention.implementation == "flash"
        and _before_flash(row)
        and framework.startswith(("pytorch", "huggingface"))
    ):
        assumed.append("attention not stated: written out, as before FlashAttention")
        flash = False
    if flash is None and framework.startswith("megatron-deepspeed") and (row.date[:7] >= _FLASH or re.search(_HOPPER, row.gpu.lower())):
        assumed.append("attention not stated: flash, which its successors have had since 2023")
        flash = True
    return None if flash is None else "flash" if flash else "math"
