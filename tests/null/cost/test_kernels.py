"""Attention, memory-bound kernels, convolutions, host time and the dispatch over them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.cost.attention import attention_cost
from sim.cost.device import NEAREST, choose, table
from sim.cost.host import host_seconds
from sim.cost.kernel import kernel_cost
from sim.cost.memory_bound import memory_bound_cost
from sim.framework.framework import load_framework
from sim.model.layers.rotary import rope
from sim.model.parts import Shape
from sim.model.share import share_of
from sim.work import Attention, Conv, Gemm, HostWork, MemoryBound, Work
from topologies.devices import cpu, gpu, shelf
from topologies.errors import BadInput, Refused, UnknownName

GIB = 2**30


def rate(name: str, work: Attention, family: str) -> float:
    return work.flops / attention_cost(work, gpu(name), family)[0] / 1e12


def test_published_attention_rates() -> None:
    # kernels.md: causal d = 128, s = 4096, best kernel; many sequences, so that waves are full.
    def causal(s: int) -> Attention:
        return Attention(16, 32, 8, s, s, 128)

    assert rate("a100-sxm-80gb", causal(4096), "cudnn") == pytest.approx(194, rel=0.1)
    assert rate("h100-sxm", causal(4096), "cudnn") == pytest.approx(603, rel=0.1)
    assert rate("b200-sxm", causal(4096), "flash3") == pytest.approx(1143, rel=0.12)
    assert 300 < rate("h100-sxm", causal(4096), "flash2") < 400


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h100-sxm", "b200-sxm"])
def test_attention_backward_takes_about_three_forwards(name: str) -> None:
    forward = attention_cost(Attention(8, 32, 8, 4096, 4096, 128), gpu(name), "cudnn")[0]
    backward = attention_cost(Attention(8, 32, 8, 4096, 4096, 128, backward=True), gpu(name), "cudnn")[0]
    assert 2.6 < backward / forward < 3.4


def test_attention_masks_and_windows_save_time() -> None:
    device = gpu("h100-sxm")
    full = attention_cost(Attention(4, 32, 32, 8192, 8192, 128, causal=False), device)[0]
    causal = attention_cost(Attention(4, 32, 32, 8192, 8192, 128), device)[0]
    window = attention_cost(Attention(4, 32, 32, 8192, 8192, 128, window=1024), device)[0]
    assert window < 0.5 * causal < 0.3 * full


@pytest.mark.parametrize(("d", "batch"), [(108, 64), (150, 12)])
def test_a_batch_whose_rows_are_not_aligned_runs_without_matrix_units(d: int, batch: int) -> None:
    """BLOOM's sweeps: heads of 108 and 150 columns leave 10.0-10.6 TFLOP/s of A100 for the eight products of a layer."""
    device = gpu("a100-sxm-80gb")

    def tflops(width: int, count: int) -> float:
        works = Gemm(2048, 2048, width, "fp16", count), Gemm(2048, width, 2048, "fp16", count)
        return sum(work.flops for work in works) / sum(kernel_cost(work, device).seconds for work in works) / 1e12

    assert tflops(d, batch) == pytest.approx(10.3, rel=0.5)
    assert tflops(-(-d // 8) * 8, batch) > 5 * tflops(d, batch)
    assert tflops(d, 1) > 2 * tflops(d, batch)  # a product by itself is padded by the kernel


def test_unknown_attention_family_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="flash2"):
        attention_cost(Attention(1, 8, 8, 512, 512, 64), gpu("a100-sxm-80gb"), "flash22")


@given(size=st.integers(1, 2**33), what=st.sampled_from(["add", "layernorm", "softmax", "permute", "adam", "cross_entropy", "anything"]))
@settings(max_examples=100, deadline=None)
def test_memory_bound_time_grows_and_stays_under_peak_bandwidth(size: int, what: str) -> None:
    device = gpu("h100-sxm")
    one = memory_bound_cost(MemoryBound(what, size, size), device)[0]
    more = memory_bound_cost(MemoryBound(what, 2 * size, 2 * size), device)[0]
    assert one < more
    assert 2 * size / one < device.bandwidth or 2 * size < device.l2


def test_large_adds_reach_the_streaming_rate() -> None:
    for name, share in {"a100-pcie-80gb": 0.866, "v100-pcie-32gb": 0.909, "l4": 0.78, "t4": 0.75, "p100-pcie": 0.74}.items():
        device = gpu(name)
        found = 3 * GIB / memory_bound_cost(MemoryBound("add", 2 * GIB, GIB, "fp32"), device)[0]
        assert found / device.bandwidth == pytest.approx(share, abs=0.03), name


@pytest.mark.parametrize(("rows", "width", "measured"), [(2048, 14336, 82e-6), (4096, 8192, 91e-6), (8192, 2048, 48e-6)])
def test_halves_of_rows_are_read_value_by_value(rows: int, width: int, measured: float) -> None:
    """silu of the first half of a fused projection's columns, and its product with the second, in bf16 on one H200 (torch 2.11)."""
    n = rows * width
    silu, product = (
        MemoryBound("activation", 2 * n, 2 * n, rows=rows, halves=True),
        MemoryBound("scale", 4 * n, 2 * n, rows=rows, halves=True),
    )
    for work in (silu, product):
        assert memory_bound_cost(work, gpu("h200-sxm"))[0] == pytest.approx(measured, rel=0.1)
        together = replace(work, halves=False)
        assert memory_bound_cost(together, gpu("h200-sxm"))[0] < 0.7 * measured
        assert memory_bound_cost(work, gpu("a100-sxm-80gb")) == memory_bound_cost(together, gpu("a100-sxm-80gb")), "not measured"


_N = 8192 * 3072
SLOW = {
    "dropout": MemoryBound("dropout", 2 * _N, 3 * _N),
    "rotated heads": MemoryBound("strided", 2 * _N, 2 * _N),
    "widened": MemoryBound("cast", 2 * _N, 4 * _N, "fp32"),
    "an embedding's gradient": MemoryBound("embedding_backward", 2 * _N, 2 * _N, rows=8192),
    "a norm of short rows": MemoryBound("layernorm_apart", 2 * _N, 2 * _N, rows=_N // 768),
    "a half of each row": MemoryBound("activation", 2 * _N, 2 * _N, ops=5.0 * _N, rows=2048, halves=True),
}


@pytest.mark.parametrize("work", SLOW.values(), ids=list(SLOW))
@pytest.mark.parametrize("name", ["b200-sxm", "gb200", "b300-sxm", "gb300", "vr200"])
def test_kernels_that_hoppers_sms_hold_back_are_held_back_by_blackwells(name: str, work: MemoryBound) -> None:
    """By SM and cycle they do as much at most, whatever the memory: a B200 has 1.11 times an H200's, not 1.67 times."""
    device, h200 = gpu(name), gpu("h200-sxm")
    seconds, source = memory_bound_cost(work, device)
    cycles = [spent * one.sms * one.clock for spent, one in ((seconds, device), (memory_bound_cost(work, h200)[0], h200))]
    assert 0.85 < cycles[0] / cycles[1] < 1.3 and (source == "assumed" or work.halves)
    assert memory_bound_cost(work, gpu("a100-sxm-80gb"))[1] == "fitted", "not measured there, and its SMs are others"


def test_no_kernel_of_a_norm_streams_faster_than_an_add() -> None:
    wide = MemoryBound("layernorm_apart", 2**32, 2**32, rows=2**10)
    assert memory_bound_cost(wide, gpu("b200-sxm"))[0] >= memory_bound_cost(replace(wide, what="add"), gpu("b200-sxm"))[0]


LAUNCH = 320 * 65536
"""Elements of the largest launch of a pass over lists."""


@pytest.mark.parametrize(
    ("e", "read", "measured"), [(2, 1, 27e-6), (2, 2, 35e-6), (2, 3, 44e-6), (4, 1, 44e-6), (4, 2, 62e-6), (4, 3, 80e-6)]
)
def test_passes_over_lists_wait_for_their_blocks(e: int, read: int, measured: float) -> None:
    """Kernels of AdamW's foreach on one H200 (torch 2.11): bf16 states of Llama 3 8B and GPT-2, fp32 ones under autocast."""
    dtype = "bf16" if e == 2 else "fp32"
    work = MemoryBound("foreach_add_", read * LAUNCH * e, LAUNCH * e, dtype, rows=1)
    assert memory_bound_cost(work, gpu("h200-sxm"))[0] == pytest.approx(measured, rel=0.05)
    small = replace(work, read=work.read // 64, written=work.written // 64, rows=100)  # of 3,277 elements each
    plain = replace(small, what="add_")
    assert memory_bound_cost(plain, gpu("h200-sxm"))[0] <= memory_bound_cost(small, gpu("h200-sxm"))[0] < 5e-6
    assert memory_bound_cost(work, gpu("b200-sxm")) == memory_bound_cost(replace(work, what="add_"), gpu("b200-sxm")), "not measured"


@pytest.mark.parametrize(("rows", "seconds"), [(4096, 51.5e-6), (3072, 24.5e-6)])
def test_operands_of_8_bits_are_cast_beside_their_transpose_as_measured_on_hopper(rows: int, seconds: float) -> None:
    """TransformerEngine pull request 101: square halves on an H100 SXM, without the microsecond to the next kernel. Blackwell makes no transpose."""
    work = MemoryBound("cast_transpose", 2 * rows**2, 2 * rows**2)
    assert memory_bound_cost(work, gpu("h100-sxm"))[0] == pytest.approx(seconds + 1e-6, rel=0.12)
    assert memory_bound_cost(work, gpu("b200-sxm")) == memory_bound_cost(MemoryBound("cast", 2 * rows**2, rows**2), gpu("b200-sxm"))


def test_narrow_rows_are_read_once() -> None:
    device = gpu("v100-pcie-32gb")
    narrow = memory_bound_cost(MemoryBound("softmax", GIB, GIB, "fp32", rows=GIB // 4 // 512), device)[0]
    wide = memory_bound_cost(MemoryBound("softmax", GIB, GIB, "fp32", rows=GIB // 4 // 8192), device)[0]
    assert narrow < 0.85 * wide


def test_pointwise_convolution_costs_as_its_product() -> None:
    device = gpu("a100-sxm-80gb")
    conv = kernel_cost(Conv(64, 256, 56, 56, 512, 1, 1), device)
    product = kernel_cost(Gemm(64 * 56 * 56, 512, 256, dtype="fp16"), device)
    assert conv.seconds == pytest.approx(product.seconds, rel=0.15)
    assert conv.source == "assumed"


def test_winograd_multiplies_less_where_it_applies() -> None:
    """fp32, 3 x 3, stride 1, one group: faster than the product; every other convolution is not."""
    device = gpu("v100-sxm2-16gb")

    def over_product(dtype: str, kernel: int = 3, stride: int = 1, groups: int = 1) -> float:
        conv = Conv(64, 256, 28, 28, 256, kernel, kernel, stride, groups=groups, dtype=dtype)
        oh, ow = conv.out
        product = Gemm(64 * oh * ow, 256 // groups, 256 * kernel * kernel // groups, dtype, groups)
        return kernel_cost(conv, device).seconds / kernel_cost(product, device).seconds

    assert over_product("fp32") < 0.75
    assert min(over_product("fp32", kernel=5), over_product("fp32", stride=2), over_product("fp32", groups=2)) > 1.0
    assert over_product("fp16") > 0.85  # it reads its input once, the product each window


def _winograd(channels: int, side: int, role: str = "fwd", **changes: object) -> float:
    """Seconds over those of the same convolution in NHWC, where there is no such algorithm."""
    conv = Conv(64, channels, side, side, channels, 3, 3, dtype="fp32", role=role, **changes)  # type: ignore[arg-type]
    device = gpu("v100-sxm2-32gb")
    return kernel_cost(conv, device).seconds / kernel_cost(replace(conv, channels_last=True), device).seconds


def test_winograd_in_kernels_of_its_own_saves_more_the_more_channels_there_are() -> None:
    """It multiplies four times less, and moves its transformed operands: bytes in proportion to the channels, products to their square."""
    saved = [_winograd(channels, 28, "wgrad") for channels in (32, 128, 512)]
    assert saved[0] > saved[1] > saved[2] > 0.25
    assert saved[0] == 1.0  # the product is the faster
    assert _winograd(512, 28) < 0.8 / 1.6  # faster than in one kernel


def test_winograd_s_tiles_of_four_waste_places_at_the_rim() -> None:
    assert _winograd(512, 14) > 1.1 * _winograd(512, 16)  # 16 tiles both


def test_convolution_roles_and_depthwise() -> None:
    device = gpu("v100-sxm2-16gb")
    roles = {role: kernel_cost(Conv(64, 128, 28, 28, 128, 3, 3, role=role), device).seconds for role in ("fwd", "dgrad", "wgrad")}
    assert max(roles.values()) < 2 * min(roles.values())
    depthwise = Conv(64, 128, 56, 56, 128, 3, 3, groups=128)
    assert kernel_cost(depthwise, device).seconds < kernel_cost(Conv(64, 128, 56, 56, 128, 3, 3), device).seconds
    assert kernel_cost(depthwise, device).seconds > depthwise.bytes / device.bandwidth


WORKS: list[Work] = [
    Gemm(1024, 1024, 1024, dtype="fp16"), Attention(1, 8, 8, 512, 512, 64, dtype="fp16"), Conv(8, 64, 56, 56, 64, 3, 3), MemoryBound("add", 2**20, 2**20),
]  # fmt: skip


@pytest.mark.parametrize("name", shelf("gpus"))
def test_every_gpu_of_the_catalog_has_a_price(name: str) -> None:
    device = gpu(name)
    for work in WORKS:
        if getattr(work, "dtype", "") == "fp16" and "fp16" not in device.flops and not isinstance(work, MemoryBound):
            with pytest.raises(Refused):
                kernel_cost(work, device)
            continue
        cost = kernel_cost(work, device)
        assert 0 < cost.seconds < 1
        assert cost.source in ("fitted", "assumed")


def test_prices_are_kept_by_value_and_by_device() -> None:
    first = kernel_cost(Gemm(777, 777, 777), gpu("h100-sxm"))
    assert kernel_cost(Gemm(777, 777, 777), gpu("h100-sxm")) is first
    assert kernel_cost(Gemm(777, 777, 777), gpu("h100-pcie")).seconds > first.seconds


def test_host_work_has_no_price_on_a_gpu() -> None:
    with pytest.raises(BadInput, match="host_seconds"):
        kernel_cost(HostWork("module"), gpu("h100-sxm"))


def test_hosts() -> None:
    for kind in (*table("host", "python", dict[str, float]), "preprocess"):
        python, light, graph = (host_seconds(kind, host) for host in ("python", "light", "graph"))
        assert python >= light
        assert graph >= 0.0
    assert 5e-6 <= host_seconds("kernel", "python") <= 15e-6
    assert 20e-6 <= host_seconds("collective", "python") <= 60e-6
    assert host_seconds("kernel", "graph") < host_seconds("kernel", "light")
    assert host_seconds("kernel", "python", cpu("xeon-e5-2698v4")) > host_seconds("kernel", "python", cpu("epyc-9654"))


def test_unknown_host_work_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="module"):
        host_seconds("modul", "python")
    with pytest.raises(UnknownName, match="python"):
        host_seconds("kernel", "pyhton")


def test_kinship_reaches_every_architecture() -> None:
    for arch in NEAREST:
        stand_in = gpu("a100-sxm-80gb")
        import msgspec

        name, source = choose(msgspec.structs.replace(stand_in, name="new", arch=arch), {"only": "sm80"})
        assert name == "only"
        assert source == ("fitted" if arch == "sm80" else "assumed")


def test_vector_units_keep_their_clock_under_load() -> None:
    # Training's clock is that of matrix units near the power limit; fp32 on A100 does not reach it.
    work = Gemm(8192, 4096, 4096, dtype="fp32")
    device = gpu("a100-pcie-40gb")
    assert kernel_cost(work, device).seconds == pytest.approx(kernel_cost(work, device, sustained=False).seconds, rel=0.1)


def norm(rows: int, width: int, e: int) -> list[MemoryBound]:
    """PyTorch's layer norm: forward, the input's gradient, the weights' gradients."""
    n, dtype = rows * width, "bf16" if e == 2 else "fp32"
    moved = ((n * e, n * e), (2 * n * e, n * e), (2 * n * e, 0))
    return [MemoryBound("layernorm_apart", read, written, dtype, 8.0 * n, 1, rows) for read, written in moved]


def of(what: str, n: float, read: float, written: float, ops: float = 1.0) -> MemoryBound:
    return MemoryBound(what, int(n * read), int(n * written), "bf16", ops * n)


MAPS = 64 * 112 * 112 * 64  # what ResNet-50's first norm and its pooling take, of 64 pictures


@pytest.mark.parametrize(
    ("work", "seconds"),
    [
        *zip(norm(8192, 768, 2), (19.3e-6, 15.4e-6, 28.1e-6), strict=True),
        *zip(norm(12608, 768, 2), (28.3e-6, 22.4e-6, 53e-6), strict=True),
        (norm(8192, 768, 4)[0], 26e-6),
        (norm(98304, 1024, 2)[0], 228e-6),
        (norm(49152, 1024, 4)[2], 224e-6),
        (norm(98304, 1024, 2)[2], 146e-6),  # rows are split
        (of("cast", 8192 * 50304, 2, 4), 1176e-6),
        (of("cast", 8192 * 50304, 4, 2), 561e-6),
        (of("reduce", 8192 * 3072, 2, 1 / 8192), 26.8e-6),
        (of("reduce", 8192 * 768, 2, 1 / 8192), 16e-6),
        (of("embedding_backward", 2048 * 4096, 2, 4), 113e-6),
        (of("batchnorm", MAPS, 4, 2), 224e-6),
        (of("batchnorm", MAPS, 8, 2), 183e-6),
        (of("pool", MAPS, 2, 2.5), 213e-6),
        (of("pool_backward", MAPS, 2.5, 2), 456e-6),
        (of("dropout", 8192 * 768, 2, 3), 12e-6),
        (of("dropout", 8192 * 768, 3, 2), 7e-6),
        (of("activation", 8192 * 3072, 2, 2, 8.0), 35.7e-6),
        (of("activation", 8192 * 3072, 4, 2, 12.0), 47e-6),
        (Conv(64, 3, 224, 224, 64, 7, 7, 2, dtype="bf16"), 387e-6),
        (Conv(64, 3, 224, 224, 768, 16, 16, 16, 0, dtype="bf16"), 381e-6),
    ],
    ids=str,
)
def test_torch_s_kernels_that_hopper_s_sms_hold_back_take_as_long_as_measured(work: Work, seconds: float) -> None:
    """Of whole steps on an H200 (torch 2.11), and of a probe."""
    assert kernel_cost(work, gpu("h200-sxm")).seconds == pytest.approx(seconds, rel=0.35 if work.bytes < 4e7 else 0.12)


def test_rotations_written_out_take_as_long_as_measured_where_heads_lie_between_tokens() -> None:
    """Queries of 2048 tokens by 32 heads of 128 and keys of 8: 158 us, 178 of their gradients, on an H200."""
    share = share_of(Shape(micro=1, seq=2048), load_framework("pytorch"))
    turned = rope(share, 32 + 8, 128)
    forward, backward = (sum(kernel_cost(work, gpu("h200-sxm")).seconds for work in works) for works in (turned.forward, turned.backward))
    assert (forward, backward) == pytest.approx((158e-6, 178e-6), rel=0.2)


def test_what_holds_sms_back_takes_as_long_whatever_the_memory() -> None:
    """An H100 has as many SMs as an H200, and 0.7 of its bandwidth: sums over few columns take as long, adds do not."""

    def ratio(work: MemoryBound) -> float:
        return memory_bound_cost(work, gpu("h100-sxm"))[0] / memory_bound_cost(work, gpu("h200-sxm"))[0]

    assert ratio(of("batchnorm", MAPS, 4, 2)) == 1.0 == pytest.approx(ratio(norm(49152, 1024, 2)[2]))
    assert ratio(of("batchnorm_fused", MAPS, 4, 2)) > 1.4 < ratio(of("add", MAPS, 4, 2))


@pytest.mark.parametrize("seq", [128, 512, 1024, 8192])
def test_heads_of_64_without_a_mask_run_at_cudnn_s_rate_on_hopper(seq: int) -> None:
    """Forward and backward of about 8192 tokens and 16 heads, as measured on an H200."""
    measured = {128: 120.7e-6, 512: 207.7e-6, 1024: 328.1e-6, 8192: 2014.9e-6}[seq]
    ways = [Attention(8192 // seq, 16, 16, seq, seq, 64, causal=False, backward=back) for back in (False, True)]
    assert sum(attention_cost(way, gpu("h200-sxm"), "cudnn")[0] for way in ways) == pytest.approx(measured, rel=0.13)
