"""Which of Megatron-Bridge's performance recipes a row ran: its releases change how tokens travel, what is captured, recomputed and offloaded.

Source: NVIDIA-NeMo/Megatron-Bridge, scripts/performance/configs/*/*_workload_base_configs.py through its releases (moe_a2a_overlap,
moe_flex_dispatcher_backend, cuda_graph_impl, cuda_graph_scope, recompute_modules, cpu_offloading_num_layers), with what the page of results
says of the release.
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeVar

from sim.accuracy.row import Row
from sim.sections import Module

Release = tuple[int, int, int]
"""Of the container: 26.04.01 is (26, 4, 1)."""
_FIRST: Release = (0, 0, 0)
_LAST: Release = (99, 0, 0)
_LATEST: Release = (26, 0, 0)
"""What a row that says neither its release nor its date is taken for; containers are called by their months."""
_RACKS = r"GB200|GB300"


class Rows(NamedTuple):
    """Rows that match everything said here."""

    kind: str = ""
    """Of the model (`_kind`), as a pattern."""
    gpus: str = ""
    """As a pattern."""
    since: Release = _FIRST
    before: Release = _LAST
    precision: str = ""
    """The plan's word."""
    micro: int = 0
    """Samples of a micro-batch, where they tell two recipes apart."""
    spread: bool = False
    """Experts lie on several servers."""
    drops: bool = False
    """Tokens beyond an expert's capacity are dropped, as the row says."""
    hidden: int = 0
    """The model's width, where it tells two recipes apart."""


_FRAMEWORKS: tuple[tuple[str, Rows], ...] = (
    ("megatron-bridge-captured", Rows("small", f"{_RACKS}|B200|B300")),
    ("megatron-bridge", Rows("small|dense")),
    # Mixtures of experts. Dropping tokens turns DeepEP off ("Using token drop, disabling DeepEP"); with fixed capacities iterations of
    # Qwen3 were captured whole on Blackwell.
    ("megatron-bridge-capacity", Rows("narrow", f"{_RACKS}|B200", drops=True)),
    ("megatron-bridge-capacity", Rows("wide", _RACKS, drops=True)),
    ("megatron-bridge", Rows(drops=True)),
    # Kimi K2: nothing beside the exchanges, by DeepEP or HybridEP; small graphs on GB200 alone. Its MXFP8 on GB300 is captured whole where a
    # micro-batch is one sample (KIMI_K2_PRETRAIN_CONFIG_GB300_FP8_MX).
    ("megatron-bridge-iteration", Rows("kimi", "GB300", since=(26, 6, 0), precision="mxfp8", micro=1)),
    ("megatron-bridge-graphs", Rows("kimi", "GB200")),
    ("megatron-bridge-deepep", Rows("kimi")),
    # Whole iterations in one graph; exchanges beside another micro-batch.
    ("megatron-bridge-iteration-head", Rows("latent|gpt-oss", _RACKS, since=(26, 6, 0), precision="mxfp8")),
    ("megatron-bridge-iteration-head", Rows("gpt-oss", "B300", since=(26, 6, 0), precision="mxfp8")),
    ("megatron-bridge-iteration", Rows("", _RACKS, since=(26, 6, 0), precision="mxfp8")),
    # Exchanges beside another micro-batch, launched from Python: by DeepEP, or by all_to_all.
    ("megatron-bridge-overlapped", Rows("latent", "B200", spread=True)),
    ("megatron-bridge-overlapped", Rows("latent", "H100", before=(26, 2, 0))),
    ("megatron-bridge-alltoall-overlapped", Rows("wide", "H100", since=(25, 11, 0))),
    ("megatron-bridge-alltoall-overlapped", Rows("narrow", "H100", since=(25, 11, 0), before=(26, 4, 0))),
    ("megatron-bridge-alltoall-overlapped", Rows("wide", "B200", since=(25, 11, 0), before=(26, 2, 0))),
    # Parts of each layer in graphs, by HybridEP or by all_to_all.
    ("megatron-bridge-graphs", Rows("gpt-oss", "B300", since=(26, 2, 1))),
    ("megatron-bridge-alltoall-graphs", Rows("gpt-oss", "B300|GB300", since=(26, 2, 0))),
    # HybridEP, launched from Python: src/megatron/bridge/perf_recipes/qwen/b300/qwen3_moe.py. No page says with which release it came; this one is
    # the only choice among all rows' that their times decided: 26.04 shows all_to_all's rate, 26.04.01 this one's.
    ("megatron-bridge-deepep", Rows("wide", "B300", since=(26, 4, 1))),
    # all_to_all, nothing beside it.
    ("megatron-bridge", Rows("gpt-oss")),
    ("megatron-bridge", Rows("wide", "H100|B200|B300")),
    # HybridEP, parts of each layer in graphs; HybridEP or DeepEP alone.
    ("megatron-bridge-deepep", Rows("narrow", "H100", since=(26, 4, 0))),
    ("megatron-bridge-graphs", Rows("", _RACKS, since=(25, 11, 0))),
    ("megatron-bridge-graphs", Rows("", "B300", since=(26, 4, 0))),
    ("megatron-bridge-graphs", Rows("narrow", "B200", since=(26, 2, 1))),
    ("megatron-bridge-deepep", Rows("latent")),
    ("megatron-bridge", Rows()),
)
"""The first that matches counts."""
_MODULES: tuple[tuple[tuple[Module, ...], Rows], ...] = (
    ((), Rows("kimi", "GB300", since=(26, 6, 0), precision="mxfp8", micro=1)),
    (("mla_up_proj",), Rows("kimi")),
    ((), Rows("", _RACKS, since=(26, 6, 0), precision="mxfp8")),
    ((), Rows("latent", "GB300", since=(25, 11, 0), before=(26, 2, 0))),
    (("moe_act",), Rows("latent", "GB300", since=(26, 2, 0), precision="bf16")),
    (("mla_up_proj",), Rows("latent")),
    (("layernorm", "moe_act"), Rows("gpt-oss", "GB200|B200|H100", since=(26, 2, 0))),
    ((), Rows()),
)
"""recompute_modules of the recipes; the first that matches counts."""
_AWAY: tuple[tuple[int, Rows], ...] = (
    (30, Rows("dense", "GB300", precision="bf16", hidden=8192)),
    (20, Rows("dense", "GB300", precision="fp8", hidden=8192)),
    (20, Rows("dense", "GB200", precision="bf16", hidden=8192)),
    (40, Rows("dense", "GB200", precision="fp8", hidden=8192)),
    (5, Rows("dense", "B200", precision="fp8", hidden=8192)),
    (40, Rows("dense", "GB300", precision="bf16", hidden=16384)),
    (10, Rows("dense", "GB300", precision="fp8", hidden=16384)),
    (92, Rows("dense", "GB200", precision="fp8", hidden=16384)),
    (0, Rows()),
)
"""cpu_offloading_num_layers of the recipes with use_megatron_fsdp (Llama 3 70B and 3.1 405B); the first that matches counts."""


def recipe_of(row: Row, precision: str) -> str:
    """The framework file of the recipe that a row of Megatron-Bridge ran, in the plan's `precision`."""
    return _first(row, precision, _FRAMEWORKS)


def recomputed(row: Row, precision: str) -> tuple[Module, ...]:
    """What of each layer that recipe recomputes (but the dense layers' mlp, which not every row's description has)."""
    latent = re.search(r"\bmla\b|latent", f"{row.model_type} {row.arch_note}".lower())
    return tuple(module for module in _first(row, precision, _MODULES) if latent or module != "mla_up_proj")


def offloaded(row: Row, precision: str) -> int:
    """Layers whose activations that recipe keeps in host memory: of Megatron-FSDP's alone, which pretrain."""
    return _first(row, precision, _AWAY) if "fsdp" in row.sharding.lower() and row.pretrains else 0


T = TypeVar("T")


def _first(row: Row, precision: str, table: tuple[tuple[T, Rows], ...]) -> T:
    found = re.search(r"(\d\d)\.(\d\d)(?:\.(\d\d))?", row.framework_version) or re.match(r"20(\d\d)-(\d\d)()", row.date)
    release: Release = (int(found[1]), int(found[2]), int(found[3] or 0)) if found else _LATEST
    return next(what for what, rows in table if _in(row, precision, rows, release))


def _in(row: Row, precision: str, rows: Rows, release: Release) -> bool:
    return (
        rows.since <= release < rows.before
        and re.fullmatch(rows.kind or ".*", _kind(row)) is not None
        and re.fullmatch(rows.gpus or ".*", _board(row)) is not None
        and rows.precision in ("", precision)
        and (not rows.micro or row.micro_batch == rows.micro)
        and (not rows.spread or (row.ep or 1) > 8)
        and (not rows.drops or row.drops_tokens)
        and rows.hidden in (0, row.hidden)
    )


def _board(row: Row) -> str:
    """ "NVIDIA GB200 NVL72" is a GB200."""
    found = re.search(r"GB[23]00|B[23]00|H[12]00", row.gpu.upper())
    return found[0] if found else row.gpu.upper()


def _kind(row: Row) -> str:
    """Of the model, as recipes differ: dense ones small enough to be captured, mixtures of experts by attention and width."""
    if not row.n_experts:
        return "small" if (row.hidden or 0) <= 4096 and row.pretrains else "dense"
    name = f"{row.model_type} {row.model_name}".lower()
    if "kimi" in name:
        return "kimi"
    if "deepseek" in name:
        return "latent"
    if re.search(r"gpt[-_ ]?oss", name):
        return "gpt-oss"
    return "wide" if (row.hidden or 0) == 4096 and row.n_experts >= 64 else "narrow" if (row.hidden or 0) <= 2048 else "other"
