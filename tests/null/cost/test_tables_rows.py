"""Rows of the optional tables, given as the reader of parquet gives them: medians, the fastest kernel, and what no GPU can do."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sim.cost import tables
from sim.work import Attention, Gemm
from topologies.devices import gpu
from topologies.errors import Refused

GEMMS: list[dict[str, list[Any]]] = [
    {"gemm_dtype": ["bfloat16", "bfloat16", "fp8", "int4"], "m": [1024, 4096, 1024, 1024], "n": [4096] * 4, "k": [4096] * 4, "latency": [0.05, 0.2, 0.04, 0.01]},
    {"gemm_dtype": ["bfloat16", "fp8", "bfloat16"], "m": [1024, 1024, 64], "n": [4096] * 3, "k": [4096] * 3, "latency": [0.07, 0.03, 1e-9]},
]  # fmt: skip
ATTENTIONS: list[dict[str, list[Any]]] = [
    {
        "batch_size": [1, 2, 2, 1], "isl": [4096] * 4, "num_heads": [32] * 4, "num_key_value_heads": [8, 8, 8, 0], "head_dim": [128] * 4,
        "attn_dtype": ["bfloat16", "bfloat16", "fp8", "bfloat16"], "kv_cache_dtype": ["bfloat16"] * 4, "step": [0] * 4,
        "latency": [0.25, 0.5, 0.1, 0.3],
    },
    {
        "batch_size": [1, 2], "isl": [4096] * 2, "num_heads": [32] * 2, "num_key_value_heads": [8] * 2, "head_dim": [128] * 2,
        "attn_dtype": ["bfloat16"] * 2, "kv_cache_dtype": ["bfloat16"] * 2, "window_size": [0, 128], "step": [0] * 2, "latency": [0.2, 0.1],
    },
]  # fmt: skip


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package is there, and its files hold the rows above."""
    (tmp_path / tables.PACKAGE).mkdir()
    (tmp_path / tables.PACKAGE / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))

    def rows(root: Path, folder: str, family: str, name: str, columns: list[str]) -> list[dict[str, list[Any]]]:
        assert root == tmp_path / tables.PACKAGE / "systems" / "data" and folder == "h100_sxm"
        return [{key: list(column) for key, column in one.items()} for one in (GEMMS if family == "gemm" else ATTENTIONS)]

    monkeypatch.setattr(tables, "_rows", rows)
    for cached in (tables._gemms, tables._attentions):
        cached.cache_clear()
    yield
    for cached in (tables._gemms, tables._attentions):
        cached.cache_clear()
    sys.modules.pop(tables.PACKAGE, None)


def seconds(work: Gemm | Attention, name: str = "h100-sxm") -> float | None:
    cost = tables.table_cost(work, gpu(name))
    assert cost is None or cost.source == "measured"
    return cost.seconds if cost else None


def test_16_bit_is_the_median_of_frameworks_and_8_bit_the_fastest() -> None:
    assert seconds(Gemm(1024, 4096, 4096)) == pytest.approx(0.06e-3)
    assert seconds(Gemm(1024, 4096, 4096, "fp16")) == pytest.approx(0.06e-3)
    assert seconds(Gemm(1024, 4096, 4096, "fp8")) == pytest.approx(0.03e-3)
    assert seconds(Gemm(1024, 4096, 4096, repeat=3)) == pytest.approx(0.18e-3)


def test_between_shapes_seconds_per_product_are_interpolated() -> None:
    near, far = 0.06e-3 / 1024, 0.2e-3 / 4096
    assert seconds(Gemm(2048, 4096, 4096)) == pytest.approx((near * far) ** 0.5 * 2048)


@pytest.mark.parametrize(
    "work",
    [
        Gemm(64, 4096, 4096),
        Gemm(8192, 4096, 4096),
        Gemm(1024, 4096, 4096, "fp32"),
        Gemm(1024, 4096, 4096, accumulate=True),
        Gemm(1024, 4096, 4096, batch=2),
        Attention(1, 32, 8, 4096, 4096, 128, backward=True),
        Attention(1, 32, 8, 4096, 4096, 128, window=128),
        Attention(1, 32, 8, 1, 4096, 128),
        Attention(1, 32, 8, 4096, 4096, 128, causal=False),
        Attention(1, 32, 8, 4096, 4096, 128, dtype="fp8"),
        Attention(1, 32, 8, 4096, 4096, 192, dv=128),
        Attention(1, 32, 4, 4096, 4096, 128),
        Attention(1, 32, 8, 8192, 8192, 128),
    ],
    ids=str,
)
def test_what_was_not_measured_has_no_cost(work: Gemm | Attention) -> None:
    assert seconds(work) is None


def test_attention_is_the_fastest_kernel_of_its_kind() -> None:
    assert seconds(Attention(1, 32, 8, 4096, 4096, 128)) == pytest.approx(0.2e-3)
    assert seconds(Attention(2, 32, 8, 4096, 4096, 128)) == pytest.approx(0.5e-3), "8-bit and windowed rows are others"
    assert seconds(Attention(1, 32, 32, 4096, 4096, 128)) == pytest.approx(0.3e-3), "0 key heads: as many as query heads"


def test_a_gpu_without_files_has_no_cost() -> None:
    assert seconds(Gemm(1024, 4096, 4096), "v100-sxm2-16gb") is None


def test_reading_files_needs_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else find(name))
    with pytest.raises(Refused, match="pyarrow"):
        tables.check_installed()
