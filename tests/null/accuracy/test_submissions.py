"""What the scripts of NVIDIA's MLPerf submissions and of DLPerf's GPT set: which row runs how, and what follows for its step."""

from __future__ import annotations

import msgspec
import pytest

from sim.accuracy.row import Row
from sim.accuracy.rows.plans import Case, case_of
from sim.framework.framework import load_framework
from sim.model.parts import Network
from sim.predict import predict
from sim.setting.bind import bind
from sim.work import Attention, Gemm
from topologies.errors import Refused

LORA = Row(
    row_id="r", source_id="mlperf-nvidia", model_name="Llama-2-70B LoRA", model_type="llama", n_layers=4, hidden=8192, n_heads=64, n_kv_heads=8,
    ffn_hidden=28672, activation="swiglu", vocab_size=32000, gpu="H100", gpu_form="SXM5", system="DGX H100 (EOS)", gpus=8, nodes=1,
    gpus_per_node=8, task="lora", precision="fp8", seq_len=8192, micro_batch=1, global_batch=8, tp=4, pp=1, cp=1, flash_attn="yes",
    sequence_parallel="yes", framework="NeMo/Megatron-Core (MLPerf)", date="2024-06", step_time_s=1.0, quality="A",
)  # fmt: skip
L40S = {"gpu": "L40S", "gpu_form": "PCIe", "system": "L40S", "gpus_per_node": 4, "nodes": 2}
PICTURES = Row(
    row_id="r", source_id="mlperf-nvidia", model_name="ResNet-50 v1.5", model_type="cnn", gpu="H100", system="DGX H100 (EOS)", gpus=16, nodes=2,
    gpus_per_node=8, task="train", precision="mixed fp16", micro_batch=16, global_batch=256, batch_unit="images", framework="MXNet",
    step_time_s=1.0, quality="A",
)  # fmt: skip
GPT = Row(
    row_id="r", source_id="dlperf-gpt", model_name="GPT-2", model_type="gpt", n_layers=16, hidden=1536, n_heads=16, ffn_hidden=6144,
    activation="gelu", vocab_size=50257, gpu="V100", gpu_form="SXM2", gpu_mem_gb=16.0, inter_net="EDR 100 Gb/s, one NIC per node", gpus=8, nodes=1,
    gpus_per_node=8, task="pretrain", precision="fp16 (AMP)", seq_len=2048, micro_batch=8, global_batch=64, recompute="full", flash_attn="no",
    framework="OneFlow", date="2021-05", step_time_s=1.0, quality="A",
)  # fmt: skip


def row(base: Row, **changes: object) -> Row:
    return msgspec.structs.replace(base, **changes)


def _words(case: Case) -> int:
    """Columns of a rank's head."""
    head = dict(_network(case).blocks)["head"]
    (product,) = (work for part in head.parts if part.name == "head.logits" for work in part.forward if isinstance(work, Gemm))
    return product.n


@pytest.mark.parametrize(
    ("case", "framework"),
    [
        (row(LORA, model_name="GPT-3-175B", model_type="gpt", task="pretrain"), "mlperf-nvidia"),
        (row(LORA, model_name="Llama-3.1-405B", task="pretrain"), "mlperf-nvidia-mcore"),
        (LORA, "mlperf-nvidia-lora"),
        (row(LORA, gpu="B200", date="2025-06"), "mlperf-nvidia-lora-graphs"),
        (row(LORA, **L40S), "mlperf-nvidia-mcore"),
        (row(LORA, gpus=64, nodes=8, global_batch=64, date="2024-06"), "mlperf-nvidia-lora"),
        (row(LORA, gpus=64, nodes=8, global_batch=64, date="2024-11"), "mlperf-nvidia-mcore"),
        (row(LORA, gpu="B200", date="", framework_version="v5.0"), "mlperf-nvidia-lora-graphs"),
        (row(LORA, model_name="Llama-2-70B", task="finetune"), "mlperf-nvidia-lora"),
        (row(PICTURES, gpu="H100 SXM", gpus=8, nodes=1, micro_batch=400, global_batch=3200), "mlperf-mxnet-mainloop"),
        (row(PICTURES, model_name="ResNet"), "mlperf-mxnet"),
        (row(GPT, framework="PyTorch", model_name="ResNet-50", model_type="cnn", batch_unit="images"), "pytorch-planar"),
        (PICTURES, "mlperf-mxnet"),
        (row(PICTURES, framework="NGC (MLPerf)"), "mlperf-mxnet"),
        (row(PICTURES, gpus=8, nodes=1, micro_batch=400, global_batch=3200), "mlperf-mxnet-mainloop"),
        (row(PICTURES, gpus=8, nodes=2, gpus_per_node=4, gpu="L40S"), "mlperf-mxnet"),
        (row(PICTURES, source_id="dlperf-v1"), "mxnet-horovod-defaults"),
        (GPT, "oneflow-gpt"),
        (row(GPT, framework="LiBai"), "oneflow-gpt"),
        (row(GPT, model_name="ResNet-50", model_type="cnn"), "oneflow"),
    ],
)
def test_which_scripts_ran_a_row(case: Row, framework: str) -> None:
    assert case_of(case).plan.framework == framework


def _network(case: Case) -> Network:
    return bind(case.plan, case.topology, case.edits).network


def _attention(case: Case) -> set[str]:
    works = [work for _, block in _network(case).blocks for part in block.parts for work in (*part.forward, *part.backward)]
    return {work.dtype for work in works if isinstance(work, Attention)}


def test_adapters_attend_in_8_bits_where_the_gpu_has_kernels_for_it() -> None:
    """FP8_DPA=1 in config_common.sh, FP8_DPA=False in config_L40S_*.sh."""
    assert _attention(case_of(LORA)) == {"fp8"}
    assert _attention(case_of(row(LORA, **L40S))) == {"bf16"}


def test_user_buffers_need_nvlink() -> None:
    """TP_COMM_OVERLAP=True in config_DGXH100_*.sh, False in config_L40S_*.sh; a row that says so is believed."""
    assert case_of(LORA).plan.parallel.tp_overlap
    assert not case_of(row(LORA, **L40S)).plan.parallel.tp_overlap
    assert case_of(row(LORA, comm_overlap="tp-comm-overlap", **L40S)).plan.parallel.tp_overlap
    assert not case_of(row(LORA, gpu_form="PCIe", system="")).plan.parallel.tp_overlap


def test_gradients_of_pictures_travel_when_backward_has_ended() -> None:
    """One group of gradients, one message: nothing of it hides, and 64 MiB hold all 51 MB."""
    case = case_of(PICTURES)
    late = predict(case.plan, case.topology)
    early = predict(msgspec.structs.replace(case.plan, framework="mxnet-horovod"), case.topology)
    assert late.breakdown.exposed_comm_s > 2 * early.breakdown.exposed_comm_s > 0
    assert late.program is not None
    sums = {op.id for ops in late.program.segments.values() for op in ops if op.name == "all_reduce"}
    assert len(sums) == 1


def test_the_largest_pictures_are_summed_in_the_switches() -> None:
    """NCCL_ALGO=COLLNETCHAIN in config_DGXH100_multi_448x8x16.sh alone."""
    large = row(PICTURES, nodes=448, gpus=3584, global_batch=57344)
    assert case_of(large).plan.comm.algorithm == "collnet"
    for changes in ({"nodes": 316, "gpus": 2528, "global_batch": 40448}, {"source_id": "dlperf-v1"}):
        assert case_of(msgspec.structs.replace(large, **changes)).plan.comm.algorithm == "auto"


def test_oneflows_gpt_is_megatrons_model_in_16_bits() -> None:
    """Its stream between products keeps 16 bits, its vocabulary is padded, NCCL is on the compute stream where tensors are split."""
    case = case_of(GPT)
    plain = msgspec.structs.replace(case.plan, framework="oneflow")
    assert 2 * _network(case).boundary == bind(plain, case.topology).network.boundary
    assert _words(case) == 50304 and _words(case_of(row(GPT, tp=8))) == 51200 // 8
    assert case.plan.comm.overlap and not case_of(row(GPT, tp=8, global_batch=8)).plan.comm.overlap


def test_what_the_llama_submissions_share_and_what_not() -> None:
    """Megatron-Core's MLP leaves 16 bits for its second product; TransformerEngine's LayerNormMLP of the GPT-3 runs writes 8."""
    gpt, llama = load_framework("mlperf-nvidia"), load_framework("mlperf-nvidia-mcore")
    assert gpt.elementwise.quantising_activation and not llama.elementwise.quantising_activation
    assert (gpt.pipeline.defers_head, llama.pipeline.defers_head) == (0, 50)
    assert load_framework("mlperf-nvidia-lora").data_parallel.zero == 0 and llama.data_parallel.zero == 1


def test_blackwells_adapters_recompute_nothing_of_their_own() -> None:
    """Weights in 8 bits (fp8_params) leave room where 16 bits would not; context parallelism exchanges heads since v5.0."""
    case = case_of(row(LORA, n_layers=80, gpu="B200", system="DGX B200", tp=1, date="2025-06"))
    assert case.plan.memory.recompute == "none"
    wide = row(LORA, gpus=32, nodes=4, cp=4, tp=1, micro_batch=1)
    assert case_of(msgspec.structs.replace(wide, date="2025-06")).plan.parallel.cp_kind == "all_to_all"
    assert case_of(msgspec.structs.replace(wide, date="2024-11")).plan.parallel.cp_kind != "all_to_all"


def test_nodes_that_a_row_leaves_out_are_counted() -> None:
    """Pictures on 448 nodes are summed in the switches, whether the row counts them or their GPUs."""
    large = row(PICTURES, gpus=3584, nodes=448, global_batch=57344)
    said, blank = case_of(large), case_of(msgspec.structs.replace(large, nodes=None))
    assert said.plan == blank.plan and said.topology == blank.topology and blank.plan.comm.algorithm == "collnet"


def test_a_shipped_gpts_vocabulary_is_padded_as_its_framework_pads_it() -> None:
    bare = Row(
        row_id="r", source_id="mlperf-nvidia", model_name="GPT-3", gpu="H100", system="DGX H100", gpus=64, nodes=8, gpus_per_node=8, task="pretrain",
        precision="fp8", seq_len=2048, micro_batch=1, global_batch=64, tp=4, pp=8, framework="NeMo (MLPerf)", date="2024-11", quality="A",
    )  # fmt: skip
    case = case_of(bare)
    assert isinstance(case.plan.model, dict) and case.plan.model["layers"] == 96
    assert _words(case) == 50688 // 4


def test_bert_is_captured_and_shares_its_update_inside_nodes() -> None:
    """Half of the sequences on each GPU is hardly more than half of the step, on 128 nodes as on 64; launches bound both at 0.11 s."""
    bert = row(
        PICTURES, model_name="BERT-Large", model_type="bert", framework="PyTorch", batch_unit="sequences", seq_len=512, optimizer="LAMB",
        precision="fp16", gpus=512, nodes=64, micro_batch=8, global_batch=4096, date="2023-11",
    )  # fmt: skip
    cases = [case_of(bert), case_of(msgspec.structs.replace(bert, gpus=1024, nodes=128, micro_batch=4))]
    assert all(
        (case.plan.framework, case.plan.parallel.dp_shard, case.plan.parallel.zero) == ("mlperf-nvidia-bert", 8, 1) for case in cases
    )
    wide, narrow = (predict(case.plan, case.topology).step_time_s for case in cases)
    assert 0.5 < narrow / wide < 0.8 and wide < 0.05


def test_benchmarks_have_models_of_their_own() -> None:
    pictures = row(PICTURES, framework="PyTorch", gpus=8, nodes=1, micro_batch=32, global_batch=256)
    model = case_of(row(pictures, model_name="Stable Diffusion")).plan.model
    assert isinstance(model, dict) and model["name"] == "sd-2-base"
    for date, name in (("2022-11", "dlrm-terabyte"), ("2023-06", "dlrm-dcnv2")):
        plan = case_of(row(pictures, model_name="DLRM", model_type="recommender", batch_unit="samples", date=date)).plan
        assert isinstance(plan.model, dict) and plan.model["name"] == name
        assert (plan.framework, plan.seq_len, plan.data.handover) == ("pytorch-amp", None, "none")  # modules, and batches sent ahead
        for framework in ("HugeCTR", "NGC (MLPerf)"):
            captured = row(pictures, model_name="DLRM", model_type="recommender", batch_unit="samples", date=date, framework=framework)
            assert case_of(captured).plan.framework == "hugectr"
    for date in ("", "2021-12"):
        with pytest.raises(Refused, match="SSD on ResNet-34"):
            case_of(row(pictures, model_name="SSD", date=date))
    case = case_of(row(pictures, model_name="SSD", date="2022-06"))
    assert isinstance(case.plan.model, dict) and (case.plan.model["name"], case.plan.optimizer.name) == ("retinanet-resnext50", "adam")
    assert case.plan.framework == "mlperf-retinanet" and predict(case.plan, case.topology).fits


DEEP = Row(
    row_id="r", source_id="torchtitan", model_name="Llama-3.1-405B", model_type="llama", n_layers=126, hidden=16384, n_heads=128, n_kv_heads=8,
    ffn_hidden=53248, activation="swiglu", vocab_size=128256, gpu="H100", gpus=512, nodes=64, gpus_per_node=8, task="pretrain", precision="bf16",
    seq_len=8192, global_batch=256, grad_accum=1, tp=8, pp=8, dp=8, sharding="FSDP2", recompute="full", framework="torchtitan", date="2024-12",
    step_time_s=1.0, quality="B",
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "micro", "chunks"),
    [
        ({"notes": "interleaved 1F1B"}, 4, 2),
        ({"notes": "1F1B", "micro_batch": 32}, 4, 1),
        ({"notes": "interleaved 1F1B", "date": "2025-06"}, 1, 2),
        ({"notes": "1F1B", "micro_batch": 2, "grad_accum": 16}, 2, 1),
    ],
)
def test_torchtitans_pipelines_split_a_ranks_batch(changes: dict[str, object], micro: int, chunks: int) -> None:
    """As many micro-batches as ranks of the pipeline, two stages of a rank where schedules loop (pipelining_utils.py: generate_split_points)."""
    plan = case_of(row(DEEP, **changes)).plan
    assert (plan.batch.micro, plan.parallel.virtual_stages) == (micro, chunks)


def test_dlperfs_servers_have_one_nic() -> None:
    case = case_of(row(GPT, framework="Megatron-LM", inter_net="IB 100 Gb/s (no NVSwitch)", gpus=16, nodes=2, global_batch=128))
    assert case.topology.startswith("2x dlperf-v100") and case.plan.framework == "megatron-2021"
    later = case_of(row(GPT, framework="Megatron-LM", gpus=16, nodes=2, global_batch=128, date="2022-03"))
    assert load_framework(later.plan.framework).precision.reduce_dtype == "fp16"


@pytest.mark.parametrize("framework", ["torchtitan", "NeMo"])
@pytest.mark.parametrize("name", ["FLUX.1", "flux1", "FLUX.1-schnell", "Flux"])
def test_flux_is_trained_as_the_benchmark_does(name: str, framework: str) -> None:
    """On pictures of 256 x 256 and texts of 256 tokens, its parameters shared out (mlcommons/training: text_to_image)."""
    told = {"model_name": name, "model_type": "", "gpu": "B200", "precision": "bf16", "micro_batch": 32, "global_batch": 256}
    case = case_of(row(PICTURES, **(told | {"framework": framework, "optimizer": "adamw"})))
    assert isinstance(case.plan.model, dict) and (case.plan.model["image"], case.plan.model["text"]) == (256, 256)
    assert (case.plan.framework_name, case.plan.parallel.zero) == (("torchtitan", 3) if framework == "torchtitan" else ("nemo", 1))


def test_tensors_of_diffusion_transformers_are_counted_as_samples() -> None:
    """Half of the samples on twice as many data-parallel ranks; where samples are too few the row stays as it is, which is refused."""
    told = {
        "model_name": "FLUX.1",
        "model_type": "",
        "gpu": "B200",
        "precision": "bf16",
        "framework": "torchtitan",
        "tp": 2,
        "dp": 8,
        "micro_batch": 16,
    }
    case = case_of(row(PICTURES, **(told | {"global_batch": 128})))
    assert (case.plan.parallel.tp, case.plan.data_ranks, case.plan.batch.micro) == (1, 16, 8)
    assert any("counted as data-parallel" in note for note in case.assumed)
    assert case_of(row(PICTURES, **(told | {"global_batch": 8, "micro_batch": 1}))).plan.parallel.tp == 2


@pytest.mark.parametrize("framework", ["NeMo", "PyTorch", "NGC"])
def test_stable_diffusion_is_captured_whatever_the_row_counts(framework: str) -> None:
    told = {"model_name": "Stable Diffusion", "model_type": "", "precision": "fp16", "framework": framework}
    pictures, samples = (case_of(row(PICTURES, batch_unit=unit, **told)).plan for unit in ("images", "samples"))
    assert pictures == samples and (pictures.framework, pictures.parallel.zero) == ("mlperf-nvidia-diffusion", 0)
