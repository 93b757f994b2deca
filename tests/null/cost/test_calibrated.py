"""A GPU's calibration prices all that it has points for: host, copies, collectives, messages, and kernels as they were timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sim.cost.calibrated import CalibratedPricer
from sim.cost.calibration import Calibration, Sample, load_calibration, save_calibration
from sim.cost.gemm import gemm_cost
from sim.cost.gpu_pricer import GpuPricer
from sim.cost.host import MEMCPY, host_seconds
from sim.cost.kernel import kernel_cost
from sim.cost.nearest import nearest
from sim.cost.timed import prices
from sim.framework.framework import load_framework
from sim.predict import predict
from sim.program import COMPUTE, HOST, PINNER, Op
from sim.setting.bind import Setting, bind
from sim.setting.pricer import pricer_for
from sim.work import Attention, Conv, Gemm, HostWork, MemoryBound, Work, row_alignment
from topologies.devices import gpu
from topologies.load import load_topology

PLAN: dict[str, Any] = {
    "model": {"family": "decoder", "name": "g", "layers": 2, "hidden": 1024, "heads": 8, "vocab": 4096, "dropout": 0.0},
    "seq_len": 1024, "batch": {"micro": 2}, "parallel": {"dp_replicate": 8},
}  # fmt: skip
H100 = gpu("h100-sxm")
MIB = 1 << 20
HOST_ROWS = {"kernel": 20e-6, "collective": 90e-6, "event": 3e-6, "copy": 15e-6, "autograd": 11e-6, "log": 1.0, "optimizer_step": 1.0}


def calibrated(ranks: int = 8, loaded: bool = True, **tables: tuple[Sample, ...]) -> Calibration:
    return Calibration(device="cuda", date="2026", machine="test", cores=8, ranks=ranks, threads=1, loaded=loaded, tables=tables)


def row(name: str, shape: tuple[int, ...], seconds: float, dtype: str = "") -> Sample:
    return Sample(name, dtype, shape, seconds, seconds, seconds, 9)


HOSTED = calibrated(host=tuple(row(name, (), seconds) for name, seconds in HOST_ROWS.items()))


def pricers(calibration: Calibration, on: str = "dgx-h100", plan: dict[str, Any] = PLAN) -> tuple[CalibratedPricer, GpuPricer]:
    setting: Setting = bind(plan, on)
    return CalibratedPricer(setting.topology, setting.framework, calibration), GpuPricer(setting.topology, setting.framework)


def test_the_hosts_share_is_the_machines_own() -> None:
    own, catalog = pricers(HOSTED)
    product = Op("p", "compute", COMPUTE, (Gemm(128, 128, 128),))
    assert own.local(product, 0).host == 20e-6 and catalog.local(product, 0).host != 20e-6
    assert own.local(Op("c", "collective", "comm.dp", name="all_reduce", bytes=4, group="dp"), 0).host == 90e-6
    assert own.local(Op("e", "record", COMPUTE, event="x"), 0).host == 3e-6
    assert own.local(Op("d", "copy", "copy.h2d", bytes=MIB, how="pinned"), 0).host == 15e-6
    nodes = Op("n", "host", HOST, (HostWork("autograd", 2), HostWork("node", 3)))
    assert (own.local(nodes, 0).seconds, own.local(nodes, 0).source) == (pytest.approx(55e-6), "measured")
    assert catalog.local(nodes, 0).source == "fitted"


def test_in_a_step_host_work_takes_longer_than_in_loops_of_its_own() -> None:
    rows = (*HOSTED.tables["host"], row("launch", (), 2e-6), row("in_step", (), 1.8))
    own, _ = pricers(calibrated(host=rows))
    norm = MemoryBound("layernorm", 4096, 4096, "bf16", rows=2)
    assert own.local(Op("p", "compute", COMPUTE, (norm,)), 0).host == pytest.approx(36e-6)
    many = Op("m", "compute", COMPUTE, (replace(norm, repeat=3),))
    assert own.local(many, 0).host == pytest.approx(40e-6), "a loop of C++ is as it was timed"
    assert own.local(Op("h", "host", HOST, (HostWork("autograd", 2),)), 0).seconds == pytest.approx(1.8 * 22e-6)
    assert own.local(Op("e", "record", COMPUTE, event="x"), 0).host == 3e-6


def test_a_call_of_cudnn_takes_longer_than_a_kernel_s() -> None:
    rows = (*HOSTED.tables["host"], row("convolution", (), 8e-6), row("in_step", (), 1.5))
    own, catalog = pricers(calibrated(host=rows))
    conv, norm = Conv(1, 8, 4, 4, 8, 3, 3), MemoryBound("batchnorm", 4096, 4096, "bf16", rows=2)
    op = Op("p", "compute", COMPUTE, (conv, norm, MemoryBound("add", 4096, 4096)))
    assert own.local(op, 0).host == pytest.approx(1.5 * (3 * 20e-6 + 2 * 8e-6))
    spent = host_seconds("kernel", "python"), host_seconds("convolution", "python")
    assert catalog.local(op, 0).host == pytest.approx(3 * spent[0] + 2 * spent[1]) and spent[1] > 0


def test_pinning_is_as_it_was_timed_hand_over_and_all() -> None:
    batch, small = (Op("p", "host", PINNER, (HostWork("pin", size),)) for size in (4 * MIB, 512))
    own, catalog = pricers(calibrated(loader=(row("pin", (1024,), 1e-3), row("pin", (8 * MIB,), 9e-3)), host=HOSTED.tables["host"]))
    assert (own.local(batch, 0).seconds, own.local(batch, 0).source) == (pytest.approx(5e-3, rel=1e-3), "measured")
    assert own.local(small, 0).seconds == 1e-3
    assert catalog.local(batch, 0).seconds == pytest.approx(host_seconds("loader", "python") + 4 * MIB / MEMCPY)
    earlier, _ = pricers(calibrated(host=(row("loader", (), 7e-4),)))
    assert earlier.local(batch, 0).seconds == pytest.approx(7e-4 + 4 * MIB / MEMCPY), "of a probe that did not time it"
    assert earlier.local(batch, 0).source == "fitted"


def test_what_holds_more_than_the_work_itself_stays_as_the_catalog_says() -> None:
    """`.item()` was timed with its copy, an optimizer's call with its launches: a program has these as ops of their own."""
    own, catalog = pricers(HOSTED)
    for what in ("log", "optimizer_step", "module"):
        op = Op("h", "host", HOST, (HostWork(what),))
        assert own.local(op, 0) == catalog.local(op, 0)


@pytest.mark.parametrize(
    ("work", "bytes"),
    [
        (Gemm(8191, 768, 512), 16),  # of the first operand and the product nothing is stored along m
        (Gemm(8192, 50257, 768), 2),
        (Gemm(8192, 768, 50257, "bf16", 1, "dgrad"), 2),
        (Gemm(50257, 768, 8191, "bf16", 1, "wgrad"), 2),
        (Gemm(8192, 30522, 768), 4),
        (Gemm(8192, 1152, 588), 8),
        (Gemm(8192, 50257, 768, "fp32"), 4),
    ],
)
def test_rows_are_multiples_of_bytes(work: Gemm, bytes: int) -> None:
    assert row_alignment(work) == bytes


def test_products_of_odd_rows_are_priced_by_such() -> None:
    """Timed by themselves: no grid of even sizes tells what cuBLAS falls back to."""
    even = [row("fwd", (m, n, k), 2 * m * n * k / 6e14, "bf16") for m in (1024, 8192) for n in (1024, 65536) for k in (512, 2048)]
    odd = [row("fwd", (m, n + 1, k), 2 * m * (n + 1) * k / 1e14, "bf16") for m in (1024, 8192) for n in (1024, 65536) for k in (512, 2048)]
    table = prices(calibrated(gemm=(*even, *odd)))
    for work, rate, source in (
        (Gemm(8192, 50304, 768), 6e14, "measured"),
        (Gemm(8192, 50257, 768), 1e14, "measured"),
        (Gemm(8192, 30522, 768), 1e14, "fitted"),  # rows of 4 bytes were not timed: those of 2 are nearest
    ):
        seconds, told = table.price(work)
        assert (work.flops / seconds, told) == (pytest.approx(rate, rel=1e-6), source)
    one = prices(calibrated(gemm=tuple(even))).price(Gemm(8192, 50257, 768))
    assert one[1] == "fitted", "an older calibration says nothing of them"


def test_a_checkpoint_takes_what_torch_save_took() -> None:
    """Not what the disk could: on one thread, which sums and copies what it writes."""
    own, catalog = pricers(calibrated(file=(row("save", (MIB,), 1e-3), row("save", (32 * MIB,), 32e-3))))
    write = Op("output/write", "copy", HOST, bytes=160 * MIB, how="disk", cls="output")
    assert (own.local(write, 0).seconds, own.local(write, 0).source) == (pytest.approx(0.16), "fitted")
    assert own.local(replace(write, bytes=32 * MIB), 0).source == "measured"
    for other in (replace(write, lane="writer"), replace(write, how="store"), replace(write, cls="data"), replace(write, bytes=0)):
        assert own.local(other, 0) == catalog.local(other, 0)


@pytest.mark.parametrize(
    ("name", "n", "least", "most"),
    [
        ("h100-sxm", 50257, 2.5, 3.6),
        ("h100-sxm", 50260, 2.5, 3.6),  # rows of whole eight bytes
        ("a100-sxm-80gb", 50257, 2.2, 3.3),
        ("a100-sxm-80gb", 50260, 0.98, 1.02),
        ("rtx-4090", 50257, 1.2, 1.5),
        ("b200-sxm", 50257, 2.5, 3.6),  # loads by TMA as Hopper does
        ("gb300", 50260, 2.5, 3.6),
        ("rtx-pro-6000", 50260, 0.98, 1.02),  # does not
    ],
)
def test_unaligned_rows_take_longer_than_aligned_ones(name: str, n: int, least: float, most: float) -> None:
    even, odd = (gemm_cost(Gemm(8192, columns, 768), gpu(name))[0] for columns in (50304, n))
    assert least < odd / even < most


def test_rows_of_fp32_are_aligned_as_they_are() -> None:
    assert gemm_cost(Gemm(8192, 50257, 768, "fp32"), H100)[0] == pytest.approx(gemm_cost(Gemm(8192, 50304, 768, "fp32"), H100)[0], rel=0.02)


def test_only_eager_python_was_timed() -> None:
    """A compiled framework's launches are others."""
    framework = load_framework("maxtext")
    assert framework.host != "python"
    priced = CalibratedPricer(load_topology("dgx-h100"), framework, HOSTED)
    cpu = load_topology("dgx-h100").host(0)
    assert priced._spent("kernel", 0) == host_seconds("kernel", priced.host, cpu)


@pytest.mark.parametrize(
    ("size", "source", "seconds"), [(MIB, "measured", 1e-4), (4 * MIB, "measured", 4e-4), (16 * MIB, "fitted", 1.6e-3)]
)
@pytest.mark.parametrize("how", ["pinned", "pageable"])
def test_copies_take_what_they_took(size: int, source: str, seconds: float, how: str) -> None:
    rows = tuple(row(f"h2d.{how}", (n,), t) for n, t in ((MIB, 1e-4), (4 * MIB, 4e-4)))
    own, catalog = pricers(calibrated(copy=rows))
    op, back = (Op("c", "copy", lane, bytes=size, how=how) for lane in ("copy.h2d", "copy.d2h"))
    cost, plain = own.local(op, 0), catalog.local(op, 0)
    launch = plain.host if how == "pageable" else 0.0
    assert (cost.seconds, cost.source, cost.host) == (pytest.approx(seconds - launch), source, plain.host)
    assert [link for link, _ in cost.uses] == [link for link, _ in plain.uses]
    assert all(rate <= size / cost.seconds * 1.001 for _, rate in cost.uses), "no more than it copies"
    assert own.local(back, 0) == catalog.local(back, 0), "the other way was not timed"


def collective(size: int, how: str = "", lane: str = "comm.dp") -> Op:
    return Op("c", "collective", lane, name="all_reduce", bytes=size, group="dp", how=how)


@pytest.mark.parametrize("size", [MIB, 2 * MIB, 64 * MIB])
def test_collectives_are_as_much_longer_as_they_were(size: int) -> None:
    plain = pricers(calibrated())[1]
    members, sizes = tuple(range(8)), (MIB, 4 * MIB)
    rows = tuple(row("all_reduce", (8, n), 3.0 * plain.collective(collective(n), members, 1).seconds) for n in sizes)
    own, catalog = pricers(calibrated(collective=rows))
    found, model = own.collective(collective(size), members, 1), catalog.collective(collective(size), members, 1)
    assert found.seconds == pytest.approx(3.0 * model.seconds, rel=0.2 if size == 2 * MIB else 1e-6)
    assert found.latency / found.seconds == pytest.approx(model.latency / model.seconds)
    assert [amount for _, amount in found.uses] == pytest.approx([amount * model.seconds / found.seconds for _, amount in model.uses])
    assert found.source == ("measured" if size <= 4 * MIB else "fitted")


def test_collectives_of_other_groups_and_algorithms_are_the_models() -> None:
    own, catalog = pricers(
        calibrated(collective=(row("all_reduce", (8, MIB), 1.0),)), "2x dgx-h100", PLAN | {"parallel": {"dp_replicate": 16}}
    )
    for op, members in (
        (collective(MIB), tuple(range(4))),  # not so many
        (collective(MIB), tuple(range(0, 16, 2))),  # as many, of two nodes
        (collective(MIB, "ring"), tuple(range(8))),
        (collective(MIB, lane=HOST), tuple(range(8))),
    ):
        assert own.collective(op, members, 1) == catalog.collective(op, members, 1)
    assert own.collective(collective(MIB), tuple(range(8, 16)), 1).seconds == pytest.approx(1.0), "the other node's"


def test_messages_too() -> None:
    own, catalog = pricers(calibrated(collective=(row("send", (2, MIB), 1e-3), row("send", (2, 4 * MIB), 4e-3))))
    op = Op("m", "send", "comm.pp", bytes=MIB, group="pp", peer=1)
    assert own.message(op, 2, 3, 1).seconds == pytest.approx(
        1e-3 * catalog.message(op, 2, 3, 1).seconds / catalog.message(op, 0, 1, 4).seconds
    )
    assert own.message(op, 2, 3, 1).source == "measured"


CORNERS = tuple(row("fwd", (m, n, k), 1e-13 * m * n * k, "bf16") for m in (256, 8192) for n in (256, 8192) for k in (256, 8192))
PRODUCT = Gemm(8192, 8192, 8192, "bf16")


def test_what_was_timed_under_load_is_not_slowed_once_more() -> None:
    """A short benchmark is: a training's clock is lower than its."""
    alone = PLAN | {"parallel": {}}
    loaded, short = (pricers(calibrated(1, loaded, gemm=CORNERS), plan=alone)[0].kernel(PRODUCT, H100) for loaded in (True, False))
    assert loaded.seconds == pytest.approx(1e-13 * 8192**3) and loaded.source == "measured"
    assert short.seconds > 1.1 * loaded.seconds


def test_of_several_boards_the_slowest_is_waited_for() -> None:
    setting = bind(PLAN, "dgx-h100")
    same, slow = (
        CalibratedPricer(setting.topology, setting.framework, calibrated(gemm=CORNERS), board=board).kernel(PRODUCT, H100)
        for board in (1.0, 0.9)
    )
    assert 1.05 < slow.seconds / same.seconds < 1 / 0.9 + 1e-6


@pytest.mark.parametrize(("device", "width", "seconds"), [
    ("cuda", 512, 33.55e-6),  # sixteen blocks of threads, each through all rows
    ("cuda", 1024, 33.55e-6),
    ("cuda", 16384, 134.2e-6),  # the memory's bandwidth, as a sum's
    ("cpu", 512, 0.0),  # made by the kernel of its input's gradient
])  # fmt: skip
def test_gradients_of_a_norms_weights_take_a_gpu_as_long_as_it_has_rows(device: str, width: int, seconds: float) -> None:
    sizes = [rows * 2 * 2 * 1024 for rows in (1024, 8192, 131072)]
    tables = tuple(row(name, (n,), n / rate, "bf16") for name, rate in (("layernorm_weights", 1e12), ("reduce", 4e12)) for n in sizes)
    table = prices(replace(calibrated(1, memory=tables), device=device))
    found, source = table.price(MemoryBound("layernorm_apart", 8192 * 2 * 2 * width, 0, "bf16", 1.0, 1, 8192))
    assert (found, source) == (pytest.approx(seconds, rel=1e-3), "measured")


SCORES = Attention(8, 16, 16, 1024, 1024, 64)
LAYER = Conv(32, 256, 14, 14, 256, 3, 3, dtype="bf16")
OFF = {
    "gemm": (Gemm(8192, 1024, 1024), row("fwd", (8192, 1024, 1024), 1.0, "bf16")),
    "attention": (SCORES, row("fwd", (8, 16, 1024, 64), 1.0, "bf16")),
    "conv": (LAYER, row("fwd", (32, 256, 14, 14, 256, 3, 3, 1, 1), 1.0, "bf16")),
    "memory": (MemoryBound("add", 2 << 20, 1 << 20), row("add", (3 << 20,), 1.0, "bf16")),
}


@pytest.mark.parametrize("work", [
    Gemm(64, 1024, 1024),  # thinner than any
    Gemm(2048, 32768, 8192),
    Attention(2, 25, 25, 1024, 1024, 64),  # too few rows for all SMs
    Attention(4, 16, 16, 512, 512, 64, window=128),
    Conv(64, 256, 14, 14, 256, 3, 3, dtype="bf16"),  # of another batch
    MemoryBound("add", 2 << 27, 1 << 27),  # no rate within L2
])  # fmt: skip
def test_what_no_point_covers_is_as_the_model_by_what_that_is_off_nearby(work: Work) -> None:
    alone = PLAN | {"parallel": {}}
    plain = pricers(calibrated(1), plan=alone)[1]
    rows = {kind: (replace(at, median=1.5 * kernel_cost(one, H100).seconds),) for kind, (one, at) in OFF.items()}
    found, model = pricers(calibrated(1, **rows), plan=alone)[0].kernel(work, H100), plain.kernel(work, H100)
    assert (found.seconds, found.source) == (pytest.approx(1.5 * model.seconds), "fitted")
    assert pricers(calibrated(1, host=HOSTED.tables["host"]), plan=alone)[0].kernel(work, H100) == model, "nothing of its kind was timed"


def test_the_nearest_product_is_one_whose_rows_are_multiples_of_as_many_bytes() -> None:
    rows = tuple(row("fwd", shape, seconds, "bf16") for shape, seconds in (((8192, 50304, 768), 1.0), ((1024, 16385, 512), 2.0)))
    assert nearest(Gemm(8192, 50257, 768), calibrated(gemm=rows)) == (Gemm(1024, 16385, 512), 2.0)
    assert nearest(Gemm(1024, 16384, 512), calibrated(gemm=rows)) == (Gemm(8192, 50304, 768), 1.0)


LOGITS = 8192 * 50304
LOSS = MemoryBound("softmax", 4 * LOGITS, 4 * LOGITS, "fp32", 1.0, 1, 8192)


def _losses(largest: int) -> Calibration:
    """Narrow rows at 3 TB/s, wide ones at 2."""
    sizes = [size for size in (12 << 20, 384 << 20) if size <= largest]
    return calibrated(
        1, memory=tuple(row(name, (n,), n / rate, "fp32") for name, rate in (("softmax", 3e12), ("softmax_wide", 2e12)) for n in sizes)
    )


def test_a_loss_takes_what_wide_rows_took_however_many_there_are() -> None:
    """Three gigabytes of logits are more than any point; the rate of what no L2 holds is theirs. The catalog's had stood for a fifth of GPT-2's step."""
    own, catalog = pricers(_losses(384 << 20), plan=PLAN | {"parallel": {}})
    found = own.kernel(LOSS, H100)
    assert (found.seconds, found.source) == (pytest.approx(8 * LOGITS / 2e12), "measured")
    assert found.seconds != pytest.approx(catalog.kernel(LOSS, H100).seconds, rel=0.05)


def test_the_rate_within_l2_is_none_of_what_is_larger() -> None:
    """As of a probe that came to its end early."""
    assert prices(_losses(12 << 20)).price(LOSS)[1] == "fitted"


def test_passes_over_lists_have_points_of_their_own() -> None:
    """Small tensors fill a part of a block each: their launch is over with the largest one's, and no sooner than a plain kernel."""
    names = ("foreach_scale_", 3e-5), ("scale_", 1e-5)
    rows = [row(name, (n << 18,), seconds * n / 320, "bf16") for name, seconds in names for n in (1, 320)]
    table = prices(calibrated(1, memory=tuple(rows)))
    work = MemoryBound("foreach_scale_", 320 << 17, 320 << 17, "bf16", rows=1)
    assert table.price(work) == (pytest.approx(3e-5), "measured")
    assert table.price(replace(work, rows=640))[0] == pytest.approx(1.5e-5)
    assert table.price(replace(work, rows=6400))[0] == pytest.approx(1e-5)


def test_a_gpus_kernel_is_no_shorter_than_its_launch_only_on_a_cpu() -> None:
    rows = tuple(row("fwd", (1, 1, s, d), 1e-12 * s * s * d, "bf16") for s in (64, 1024) for d in (32, 128))
    table = prices(calibrated(attention=rows, host=(row("kernel", (), 1.0),)))
    assert table.price(Attention(1, 1, 1, 256, 256, 64))[0] < 1e-3


def test_a_prediction_rests_on_all_of_it(tmp_path: Path) -> None:
    save_calibration(HOSTED, tmp_path / "c.toml")
    assert load_calibration(tmp_path / "c.toml").loaded
    assert isinstance(pricer_for(bind(PLAN, "dgx-h100"), tmp_path / "c.toml"), CalibratedPricer)
    slow, plain = (predict(PLAN, "dgx-h100", calibration=path) for path in (tmp_path / "c.toml", None))
    assert slow.step_time_s > 1.5 * plain.step_time_s, "launches take more than twice as long here"
