"""The optional tables: a clear error without the package, interpolation inside, nothing outside."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.cost import tables
from sim.work import Attention, Gemm
from topologies.devices import gpu
from topologies.errors import Refused


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PACKAGE", "no_such_package_of_tables")
    with pytest.raises(Refused, match=r"pip install 'steptwin\[tables\]'"):
        tables.table_cost(Gemm(8, 8, 8), gpu("h100-sxm"))


def test_grid_is_exact_at_points_and_geometric_between() -> None:
    grid = tables.Grid({(1, 1): 1.0, (4, 1): 4.0, (1, 4): 1.0, (4, 4): 4.0})
    assert grid.at((4, 1)) == pytest.approx(4.0)
    assert grid.at((2, 2)) == pytest.approx(2.0)
    assert grid.at((5, 1)) is None
    assert grid.at((0, 1)) is None


def test_grid_with_a_hole_has_no_value_beside_it() -> None:
    grid = tables.Grid({(1, 1): 1.0, (4, 1): 4.0, (1, 4): 1.0, (8, 4): 4.0})
    assert grid.at((2, 2)) is None
    assert grid.at((2, 1)) == pytest.approx(2.0)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of the same layout with a few rows."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    root = tmp_path / tables.PACKAGE
    for folder, name in (("gemm", "gemm_perf"), ("attention", "context_attention_perf")):
        (root / "systems/data/h100_sxm" / folder / "vllm/0.1").mkdir(parents=True)
        columns: dict[str, list[object]]
        if folder == "gemm":
            columns = {
                "gemm_dtype": ["bfloat16"] * 3,
                "m": [1024, 4096, 64],
                "n": [4096] * 3,
                "k": [4096] * 3,
                "latency": [0.05, 0.2, 1e-9],
            }
        else:
            columns = {
                "batch_size": [1, 2], "isl": [4096, 4096], "num_heads": [32, 32], "num_key_value_heads": [8, 8], "head_dim": [128, 128],
                "attn_dtype": ["bfloat16"] * 2, "kv_cache_dtype": ["bfloat16"] * 2, "window_size": [0, 0], "step": [0, 0], "latency": [0.25, 0.5],
            }  # fmt: skip
        parquet.write_table(pyarrow.table(columns), root / "systems/data/h100_sxm" / folder / "vllm/0.1" / f"{name}.parquet")
    (root / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    tables._gemms.cache_clear()
    tables._attentions.cache_clear()
    yield root
    sys.modules.pop(tables.PACKAGE, None)


def test_rows_inside_are_measured_and_impossible_ones_dropped(package: Path) -> None:
    device = gpu("h100-sxm")
    cost = tables.table_cost(Gemm(2048, 4096, 4096), device)
    assert cost is not None
    assert cost.seconds == pytest.approx(1e-4)
    assert cost.source == "measured"
    assert tables.table_cost(Gemm(64, 4096, 4096), device) is None
    assert tables.table_cost(Gemm(2048, 4096, 4096, accumulate=True), device) is None
    assert tables.table_cost(Gemm(2048, 4096, 4096), gpu("v100-sxm2-16gb")) is None


def test_attention_rows(package: Path) -> None:
    device = gpu("h100-sxm")
    cost = tables.table_cost(Attention(2, 32, 8, 4096, 4096, 128), device)
    assert cost is not None
    assert cost.seconds == pytest.approx(5e-4)
    assert tables.table_cost(Attention(2, 32, 8, 4096, 4096, 128, backward=True), device) is None
    assert tables.table_cost(Attention(2, 16, 8, 4096, 4096, 128), device) is None
