"""cuDNN's attention held against what NVIDIA measured: results of cudnn-frontend's benchmark/sdpa_benchmark_training (cuDNN 9.19)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sim.cost.attention import attention_cost
from sim.work import Attention
from topologies.devices import gpu

LLAMA = Attention(1, 64, 8, 4096, 4096, 128)
DEEPSEEK = Attention(1, 128, 128, 4096, 4096, 192, 128)
GPT_OSS = Attention(2, 64, 8, 4096, 4096, 64, window=1024)


def both(name: str, work: Attention, dtype: str) -> tuple[float, float]:
    """Milliseconds forward and backward."""
    one = replace(work, dtype=dtype)
    return tuple(attention_cost(replace(one, backward=back), gpu(name), "cudnn")[0] * 1e3 for back in (False, True))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("name", "work", "dtype", "measured"),
    [
        ("gb200", LLAMA, "bf16", (0.206, 0.607)),
        ("gb200", LLAMA, "fp8", (0.161, 0.559)),
        ("gb300", LLAMA, "bf16", (0.164, 0.575)),
        ("gb300", LLAMA, "fp8", (0.118, 0.525)),
        ("h200-sxm", LLAMA, "bf16", (0.465, 1.450)),
        ("gb200", DEEPSEEK, "bf16", (0.509, 1.613)),
        ("gb200", DEEPSEEK, "fp8", (0.359, 1.310)),
        ("gb300", DEEPSEEK, "bf16", (0.454, 1.544)),
        ("gb300", DEEPSEEK, "fp8", (0.285, 1.197)),
        ("h200-sxm", DEEPSEEK, "bf16", (1.148, 4.424)),
        ("gb200", GPT_OSS, "bf16", (0.209, 0.487)),
        ("gb300", GPT_OSS, "bf16", (0.178, 0.472)),
        ("h200-sxm", GPT_OSS, "bf16", (0.358, 1.042)),
    ],
)
def test_measured_times_both_ways(name: str, work: Attention, dtype: str, measured: tuple[float, float]) -> None:
    assert both(name, work, dtype) == pytest.approx(measured, rel=0.08)


def test_heads_of_64_in_8_bits_gain_nothing_from_a_window_backward() -> None:
    for name, measured in (("gb200", (0.203, 0.862)), ("gb300", (0.148, 0.792))):
        assert both(name, GPT_OSS, "fp8") == pytest.approx(measured, rel=0.08)
    windowed = Attention(2, 64, 8, 16384, 16384, 64, dtype="fp8", backward=True, window=1024)
    assert attention_cost(windowed, gpu("gb200"), "cudnn")[0] == pytest.approx(11.33e-3, rel=0.08)


@pytest.mark.parametrize("dtype", ["fp32", "tf32"])
@pytest.mark.parametrize(
    ("batch", "heads", "tokens", "columns", "seconds"),
    [(256, 16, 4096, 64, 0.6566), (2, 160, 8192, 128, 0.4582), (150, 16, 256, 64, 1.6327e-3), (64, 12, 256, 64, 0.5442e-3)],
)
def test_attention_of_32_bits_is_three_products_of_tf32(
    dtype: str, batch: int, heads: int, tokens: int, columns: int, seconds: float
) -> None:
    """A100 (cutlass pull request 662), TF32 allowed or not."""
    work = Attention(batch, heads, heads, tokens, tokens, columns, 0, False, dtype)
    assert attention_cost(work, gpu("a100-sxm-40gb"))[0] == pytest.approx(seconds, rel=0.06)


def test_whoever_has_no_such_units_multiplies_in_fp32() -> None:
    work = Attention(8, 16, 16, 2048, 2048, 64, dtype="fp32")
    assert attention_cost(work, gpu("v100-sxm2-32gb"))[0] > work.flops / gpu("v100-sxm2-32gb").flops["fp32"]


@pytest.mark.parametrize("family", ["flash2", "cudnn"])
@pytest.mark.parametrize("name", ["h100-sxm", "b200-sxm", "gb200", "l40s", "mi300x"])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_a_wider_head_takes_no_less_time(name: str, family: str, backward: bool, causal: bool) -> None:
    """Between two kernels one fills up the wider, with a mask and without: 96 columns took up to half longer than 128."""
    work = replace(LLAMA, backward=backward, causal=causal)
    times = [attention_cost(replace(work, d=d), gpu(name), family)[0] for d in (72, 80, 96, 104, 112, 128)]
    assert times == sorted(times)
