"""Plans on clusters of unlike machines: whose memory must suffice, and what MFU is counted against."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.result.figures import figures_of_memory, mfu_of
from sim.setting.bind import Setting, bind
from topologies.load import load_topology

PLAN = {"model": "llama3-8b", "seq_len": 4096, "parallel": {"dp_shard": 16, "zero": 3}, "batch": {"global": 32, "micro": 2}}


def on(cluster: str) -> Setting:
    return bind(PLAN, cluster)


def test_the_smallest_memory_must_suffice_wherever_it_is() -> None:
    found = [figures_of_memory(on(cluster))[1] for cluster in ("dgx-h100 + rtx-4090-x8", "rtx-4090-x8 + dgx-h100", "2x rtx-4090-x8")]
    assert all(missing is not None for missing in found)
    assert figures_of_memory(on("2x dgx-h100"))[1] is None


def test_mfu_is_counted_against_all_devices() -> None:
    one, other = (mfu_of(on(cluster), 1.0) for cluster in ("dgx-h100 + dgx-a100", "dgx-a100 + dgx-h100"))
    fast, slow = (mfu_of(on(cluster), 1.0) for cluster in ("2x dgx-h100", "2x dgx-a100"))
    assert one is not None and fast is not None and slow is not None
    assert one == other and 2 / one == pytest.approx(1 / fast + 1 / slow)


def test_devices_have_their_shares_of_the_ranks_in_use(tmp_path: Path) -> None:
    shares = [(device.name, share) for device, share in load_topology("2x dgx-h100 + dgx-a100").devices(20)]
    assert shares == [("h100-sxm", 0.8), ("a100-sxm-80gb", 0.2)]
    (tmp_path / "own.toml").write_text('base = "dgx-h100"\ngpu = { base = "h100-sxm", memory = "64 GiB" }\n')
    for cluster, ranks in (("64x dgx-h100", 512), ("dgx-h100", 4), (f"3x {tmp_path}/own.toml", 20)):
        assert [share for _, share in load_topology(cluster).devices(ranks)] == [1.0]
