"""Classes by kernels' names, as PyTorch, cuDNN, cuBLAS, TransformerEngine and DeepEP give them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import asdict

from sim.align import ClassError, align_by_class, align_by_id, breakdowns
from sim.files.chrome import write_trace
from sim.imported import read_measured
from sim.imported.names import NAMED, kernel_class, told
from sim.predict import predict
from sim.program import ORDERS
from sim.result.compare import compare, doubts
from sim.timeline.metrics import breakdown, step_time
from sim.trace import Span, Trace


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "gemm"),
        ("nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_NTN", "gemm"),
        ("cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>", "gemm"),
        ("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage3_kernel_cudnn", "conv"),
        ("cutlass_tensorop_f16_s16816fprop_optimized_f16_128x128_32x5_nhwc_align8", "conv"),
        ("implicit_convolve_sgemm", "conv"),
        ("cudnn::winograd_nonfused::winogradForwardData4x4", "conv"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>", "norm"),
        ("void cudnn::batchnorm_bwtr_nhwc_semiPersist<__half>", "norm"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>", "norm"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(...)::{lambda()#1}>", "elementwise"),
        (
            "void at::native::distribution_elementwise_grid_stride_kernel<float, 4, at::native::templates::cuda::normal_kernel>",
            "elementwise",
        ),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("multi_tensor_apply_kernel<LAMBStage1Functor>", "optimizer"),
        ("void pytorch_flash::flash_fwd_kernel<>", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6_128x128x128_4x1x1_kernel0_0", "attention"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "comm"),
        ("void deep_ep::intranode::dispatch<8, 768>", "comm"),
        ("nvshmemi_transfer_rma_v2", "comm"),
        ("userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>", "comm"),
        ("void transformer_engine::normalization::ln_fwd_tuned_kernel<transformer_engine::normalization::Kernel_traits<>>", "norm"),
        ("void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<c10::BFloat16, float>", "norm"),
        ("void at::native::(anonymous namespace)::compute_grad_weight<c10::BFloat16, int, long>", "embedding"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1", "gemm"),
        ("attn_fwd.kd", "attention"),
        ("void (anonymous namespace)::cunn_SoftMaxForward<8>", "loss"),
        ("triton_poi_fused_addmm_gelu_5", "elementwise"),
        ("triton_red_fused_convolution_backward_sum_3", "elementwise"),
        ("triton_poi_fused__scaled_dot_product_flash_attention_clone_view_2", "elementwise"),
        ("triton_per_fused_addmm_native_layer_norm_4", "norm"),
        ("triton_tem_fused_addmm_0", "gemm"),
        ("void splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>", "gemm"),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16>", "gemm"),
        ("void at::native::convert_float8_kernel", "elementwise"),
        ("void at::native::(anonymous namespace)::indexSelectLargeIndex", "embedding"),
        ("void my_company::FusedThing<256>(Params)", "other"),
        ("_helion_step_kernel", "other"),
        ("rcclGenericKernel<4>", "comm"),
        ("mscclKernel_Sum_half_Simple_false", "comm"),
        ("void c10d::symmetric_memory::(anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>", "comm"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>", "comm"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>", "comm"),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", "norm"),
        ("triton_per_fused__fused_rms_norm_0", "norm"),
        ("triton_poi_fused__native_batch_norm_legit_functional_relu_3", "norm"),
        ("triton_poi_fused__to_copy_add_transpose_view_norm", "elementwise"),
        ("triton_for_fused_0", "optimizer"),
        ("triton_poi_fused_addcdiv_addcmul_lerp_sqrt_3", "optimizer"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwoOps<float>>>", "optimizer"),
        ("triton_mm", "gemm"),
        ("triton_tem_fused__grouped_mm_1", "gemm"),
        ("void c10d::symm_barrier", "other"),
        ("fused_moe_kernel", "gemm"),
        ("Custom_Cijk_Alik_Bljk_BBS_BH", "gemm"),
        ("RNN_blockPersist_fp_LSTM", "gemm"),
        ("kernel_cutlass_kernel_quackcross_entropyCrossEntropy_object", "loss"),
        ("_cce_lse_forward_kernel", "loss"),
        ("void cudnn::engines_precompiled::nchwToNhwcKernel<__half>", "elementwise"),
        ("void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 10, false, true>", "attention"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>", "loss"),
        ("void scaled_upper_triang_masked_softmax_warp_forward<__half, __half, float, 11>", "attention"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float, SoftMaxForwardEpilogue>", "attention"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float, LogSoftMaxForwardEpilogue>", "loss"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor<c10::BFloat16, float, 2, 1, 1>>", "elementwise"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<1>, ZeroFunctor<float, 1, 1, 0>>", "elementwise"),
        ("void at::native::(anonymous namespace)::vectorized_gather_kernel<16, long>", "embedding"),
        ("void at::native::(anonymous namespace)::sum_and_scatter<c10::BFloat16, long>", "embedding"),
        ("void at::native::indexing_backward_kernel<float, 4>", "embedding"),
        ("CopyHostToDevice", "data"),
        ("CopyDeviceToHost", "output"),
        ("CopyDeviceToDevice", "elementwise"),
        ("void fused_rope_forward_kernel", "elementwise"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<OpaqueType<2u>>", "elementwise"),
        ("void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<>", "elementwise"),
    ],
)
def test_a_kernel_is_what_its_name_says(name: str, cls: str) -> None:
    assert kernel_class(name) == cls


@pytest.mark.parametrize(("share", "said"), [(0.5, True), (0.01, False)])
def test_kernels_that_no_pattern_knows_are_told(share: float, said: bool) -> None:
    """Their own row in the table, and the largest of their names beside it."""
    predicted = predict({"model": "gpt2-124m", "seq_len": 256}, "dgx-h100")
    names = ["sm90_gemm", *(f"void mine::part{number}(Params)" for number in range(4))]
    lasts = [1.0 - share, *(share * part for part in (0.1, 0.4, 0.2, 0.3))]
    kernels = [(name, kernel_class(name), part) for name, part in zip(names, lasts, strict=True)]
    spans = [Span(0, "stream 7", name, at, at + long, "compute", cls, name=name) for at, (name, cls, long) in enumerate(kernels)]
    trace = Trace(spans, "imported")
    assert _of("other", compare(predicted, trace).classes).measured == pytest.approx(share)
    notes = [note for note in doubts(predicted, trace) if "tell no class" in note]
    assert len(notes) == said
    assert not said or (notes[0].endswith("'mine::part1(Params)', 'mine::part3(Params)', 'mine::part2(Params)'") and "50%" in notes[0])


def by_name(span: Span) -> Span:
    """The span as a profiler that knows no classes of ours records it, read by its kernel's name."""
    return msgspec.structs.replace(span, cls=told(span.cls), source="measured")


@pytest.mark.no_cover
@pytest.mark.parametrize(("plan", "on"), [("gpt2-ddp8", "dgx-h100"), ("resnet50-ddp8", "dgx-a100"), ("mixtral-8x7b-64", "8x dgx-h100")])
def test_a_step_that_went_as_predicted_has_no_class_that_is_off(plan: str, on: str) -> None:
    """Kernels and copies of the devices alone, with only the classes that names tell."""
    found = predict(plan, on).trace
    assert found is not None
    step = max(span.step for span in found.spans) + found.reported + 1
    spans = [
        by_name(span)
        for span in found.spans
        if span.step == step and span.kind != "host" and span.lane.startswith(("compute", "comm", "copy"))
    ]
    comparison = align_by_class(found, Trace(spans, "imported", found.world, 1, found.weight), [1.0])
    assert {row.cls for row in comparison.classes} <= NAMED
    for row in comparison.classes:
        assert row.predicted == pytest.approx(row.measured, rel=1e-6), row.cls


@pytest.mark.no_cover
def test_messages_of_a_trace_that_tells_no_waits_hold_them() -> None:
    """NCCL's kernels spin until their peers have come, and profilers time them from their begin."""
    plan = {"model": "gpt2-124m", "batch": {"global": 8, "micro": 1}, "parallel": {"pp": 4}}
    found = predict(plan, "dgx-h100").trace
    assert found is not None and any(span.wait for span in found.spans)
    step = max(span.step for span in found.spans) + found.reported + 1
    spans = [msgspec.structs.replace(span, wait=0.0) for span in found.spans if span.step == step]
    for align in (align_by_class, align_by_id):
        rows = align(found, Trace(spans, "played", found.world, 1, found.weight), [1.0]).classes
        assert {row.cls: row.predicted for row in rows} == pytest.approx({row.cls: row.measured for row in rows})
        told_apart = align(found, found, [1.0]).classes
        assert _of("comm.pp", told_apart).predicted < 0.5 * _of("comm.pp", rows).predicted


@pytest.mark.parametrize(
    "plan",
    [
        {"model": "gpt2-124m", "batch": {"global": 8, "micro": 1}, "parallel": {"pp": 4}},
        {"model": "gpt2-124m", "seq_len": 256, "batch": {"global": 1, "micro": 1}},
    ],
    ids=["pipeline", "launch-bound"],
)
def test_a_step_that_went_as_predicted_goes_where_it_was_predicted(plan: dict[str, object]) -> None:
    """A profile of the devices tells neither whom a message waits for nor why a device does nothing."""
    found = predict(plan, "dgx-h100").trace
    assert found is not None
    seen = [span for span in found.spans if span.lane.startswith(("compute", "comm", "copy")) and span.kind not in ORDERS]
    spans = [msgspec.structs.replace(span, wait=0.0, launch=0.0) for span in seen]
    ours, theirs = breakdowns(found, msgspec.structs.replace(found, spans=spans, origin="imported"))
    assert ours == pytest.approx(theirs, abs=1e-9) and sum(ours.values()) == pytest.approx(step_time(found), rel=1e-3)
    assert "host_s" not in ours
    told_all, same = breakdowns(found, found)
    assert told_all == same == asdict(breakdown(found))


@pytest.mark.no_cover
def test_a_prediction_s_own_file_goes_where_it_goes(tmp_path: Path) -> None:
    """Files hold no waits between lanes, without which some of a bubble is a host's gap."""
    found = predict({"model": "gpt2-124m", "seq_len": 256, "batch": {"global": 8, "micro": 1}, "parallel": {"pp": 4}}, "dgx-h100").trace
    assert found is not None
    ours, theirs = breakdowns(found, read_measured(write_trace(found, tmp_path / "predicted.json")))
    assert ours == pytest.approx(theirs, abs=1e-7) and sum(ours.values()) == pytest.approx(step_time(found))


def _of(cls: str, rows: tuple[ClassError, ...]) -> ClassError:
    return next(row for row in rows if row.cls == cls)
