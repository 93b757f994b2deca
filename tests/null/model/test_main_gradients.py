"""Weight gradients are added into buffers of the framework's gradient dtype."""

from __future__ import annotations

import msgspec

from sim.cost.gemm import gemm_cost
from sim.work import Gemm, GroupedGemm
from topologies.devices import gpu

WGRAD = Gemm(4096, 4096, 256, role="wgrad", accumulate=True, into="bf16")


def test_narrow_buffers_move_half_the_bytes() -> None:
    """Few rows: the buffer's traffic bounds the product."""
    wide = msgspec.structs.replace(WGRAD, into="fp32")
    assert wide.bytes - WGRAD.bytes == 4 * 4096 * 4096
    assert 1.4 < gemm_cost(wide, gpu("b200-sxm"))[0] / gemm_cost(WGRAD, gpu("b200-sxm"))[0] < 2.0
    experts = GroupedGemm(8, 2048, 1024, 4096, role="wgrad", accumulate=True)
    assert experts.bytes - msgspec.structs.replace(experts, into="bf16").bytes == 4 * 8 * 1024 * 4096


def test_products_that_add_nothing_know_no_buffer() -> None:
    """`into` counts where a product is added."""
    plain = msgspec.structs.replace(WGRAD, accumulate=False)
    assert plain.bytes == msgspec.structs.replace(plain, into="fp32").bytes == (4096 * 256 * 2 + 4096 * 4096) * 2
