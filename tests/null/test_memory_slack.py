"""What the caching allocator has reserved and no tensor uses."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sim.files.planfile import load_plan
from sim.framework.framework import Framework
from sim.memory.overhead import constants
from sim.memory.report import DoesNotFit, MemoryReport, memory_of
from sim.model import Shape, describe, load_model
from sim.plan import Plan
from sim.sections import Batch, Parallel
from sim.setting.bind import bind
from topologies.devices import gpu
from topologies.hardware import Gpu

PLAIN = Framework(name="plain", source="test").but(precision={"param_dtype": "bf16", "grad_dtype": "bf16"})


def test_flat_tensors_of_the_step_are_reserved_beside_activations() -> None:
    """DeepSpeed's ZeRO-1 makes 6 bytes for each parameter of a shard in its step, and a copy of its largest gradient (a table of 128,256 x 2,048)
    or of a bucket (of no more than all gradients) for the message; the segments of freed activations are too small for them. Allocated, the two
    never meet."""
    plain = PLAIN.but(optimizer={"implementation": "fused"})
    plan = Plan(model="llama3.2-1b", batch=Batch(global_=16, micro=2), parallel=Parallel(dp_shard=8, zero=1))
    network = describe(load_model("llama3.2-1b"), Shape(micro=2, seq=1024), PLAIN)
    before = memory_of(plan, network, plain, gpu("h100-sxm"))
    for bucket, copied in ((0, 2 * 128_256 * 2048), (954, 954 << 20), (9540, 2 * 1_235_814_400)):
        flat = plain.but(optimizer={"flat_step": 6.0}, data_parallel={"bucket": bucket})
        after = memory_of(plan, network, flat, gpu("h100-sxm"))
        assert after.allocated == before.allocated
        assert after.slack - before.slack == 6 * 1_235_814_400 // 8 + copied


def test_without_zero_all_gradients_are_cast_and_then_joined() -> None:
    """DeepSpeed's FP16_Optimizer: 4 bytes for each in tensors as large as the parameters, 4 more in one."""
    flat = PLAIN.but(optimizer={"implementation": "fused", "flat_step": 6.0})
    network = describe(load_model("llama3.2-1b"), Shape(micro=1, seq=128), flat)
    found = memory_of(Plan(model="llama3.2-1b", batch=Batch(global_=2)), network, flat, gpu("h100-sxm"))
    assert (found.working, found.gradients) == (8 * 1_235_814_400, 2 * 1_235_814_400)


def test_shards_of_gradients_have_segments_of_their_own() -> None:
    """FSDP's are reduced in another stream, so that activations take no room of theirs, which backward has not made yet at the fullest moment."""
    plan = Plan(model="llama3-8b", seq_len=8192, framework="torchtitan", parallel=Parallel(dp_shard=8, zero=3), batch=Batch(global_=8))
    setting = bind(plan, "dgx-h200")
    found = memory_of(setting.plan, setting.network, setting.framework, setting.topology.device(0))
    between = constants()["allocator.fragmentation"] * (found.activations + found.working)
    assert found.gradients == 0 and found.slack - between == pytest.approx(4 * 8_030_261_248 / 8, abs=2)


def test_what_no_tensor_uses_is_given_back_before_an_allocation_fails() -> None:
    plan = load_plan("llama3-8b-fsdp8")
    setting = bind(plan, "dgx-h100")
    device = setting.topology.device(0)
    assert isinstance(device, Gpu)

    def held(memory: int) -> MemoryReport:
        return memory_of(setting.plan, setting.network, setting.framework, replace(device, memory=memory), remedies=False)

    roomy = held(1 << 40)
    tight = held(roomy.peak - roomy.slack // 2)
    assert tight.peak == roomy.peak - roomy.slack // 2 and tight.allocated == roomy.allocated
    least = held(roomy.allocated)
    assert tight.check(replace(device, memory=tight.peak)) is None
    assert least.slack < roomy.slack // 3 and least.check(replace(device, memory=roomy.allocated)) == DoesNotFit(
        least.peak, roomy.allocated
    )
