"""Valid samples of everything that StepTwin reads, written here by hand or by the project itself: where fuzzing starts."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

PLANS = (
    'model = "gpt2-124m"\nseq_len = 1024\n[batch]\nglobal = 16\nmicro = 2\n[parallel]\ndp_replicate = 2\ntp = 2\npp = 2\n',
    'name = "x"\nmodel = "llama3-8b"\nprecision = "bf16"\n[parallel]\ndp_shard = 8\nzero = 3\n[memory]\nrecompute = "full"\n'
    '[comm]\nbucket = "25 MiB"\n[data]\nsource = "disk"\nworkers = 2\nsample = "150 KiB"\npreprocess = "2 ms"\n',
    '[model]\nfamily = "mlp"\nname = "m"\nwidths = [64, 128, 64]\n[batch]\nglobal = 8\nmicro = 4\n[parallel]\ndp_replicate = 2\n'
    '[noise]\nstragglers = "r1: 1.3x"\n[output]\nlog_every = 10\ncheckpoint_every = 100\n',
    'model = "gpt2-124m"\nseq_len = 64\n[parallel]\ndp_shard = 4\n[framework]\nbase = "torchtitan"\noptimizer = { implementation = "fused", clip = false }\n'
    'data_parallel = { zero = 2, bucket = 10, cycle = 0.005 }\nattention = { kernels = "cudnn" }\n',
)
TOPOLOGIES = (
    'base = "dgx-h100"\nname = "mine"\n[fabric]\nrails = 8\noversubscription = 2\n',
    'name = "box"\ngpu = "a100-sxm-80gb"\n[cpu]\nbase = "epyc-7742"\n[tree]\nsocket0 = ["root0"]\nroot0 = ["gpu0", "gpu1"]\n',
)
XML = (
    '<system version="1"><cpu numaid="0" affinity="ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">'
    '<pci busid="0000:10:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">'
    '<pci busid="0000:1a:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"><gpu dev="0" sm="80" rank="0" gdr="1">'
    '<nvlink target="0000:1b:00.0" count="12" tclass="0x030200"/></gpu></pci>'
    '<pci busid="0000:1b:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"><gpu dev="1" sm="80" rank="1" gdr="1">'
    '<nvlink target="0000:1a:00.0" count="12" tclass="0x030200"/></gpu></pci>'
    '<pci busid="0000:1c:00.0" class="0x020700" link_speed="16 GT/s" link_width="16"><nic><net name="mlx5_0" dev="0" speed="200000"'
    ' port="1" guid="0x1" maxconn="262144" gdr="1"/></nic></pci></pci></cpu></system>',
)
MATRICES = (
    "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\nGPU0\t X \tNV12\tPXB\t0-23\nGPU1\tNV12\t X \tSYS\t24-47\nmlx5_0\tPXB\tSYS\t X \t\n\nLegend:\n\n  X    = Self\n",
)
CONFIGS = (
    json.dumps(
        {
            "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_hidden_layers": 2,
            "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 128, "tie_word_embeddings": False,
        }
    ),
    json.dumps({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 64, "vocab_size": 100}),
)  # fmt: skip
NCCL_TESTS = (
    "# nThread 1 nGpus 2 minBytes 8 maxBytes 16\n# Using devices\n#  Rank  0 Group  0 Pid 1 on h device  0 [0x07] NVIDIA A100\n"
    "#  Rank  1 Group  0 Pid 1 on h device  1 [0x0b] NVIDIA A100\n# all_reduce_perf\n"
    "           8             2     float     sum      -1     9.12    0.00    0.00      0     8.95    0.00    0.00      0\n",
)
ROWS = (
    "row_id,source_id,family,model_name,n_layers,hidden,n_heads,vocab_size,gpu,gpus,gpus_per_node,nodes,framework,seq_len,micro_batch,"
    "global_batch,batch_unit,tp,pp,dp,precision,step_time_s,quality\n"
    "a1,x,dense-llm,gpt2-124m,12,768,12,50257,A100-SXM4,8,8,1,Megatron-LM,1024,8,64,sequences,1,1,8,bf16,0.5,A\n",
)
PRICES = ('currency = "USD"\n[gpu_hour]\ndgx-h100 = 2.5\n', "energy_kwh = 0.1\n")
EXPRESSIONS = ("8x dgx-h100", "dgx-a100", "2x dgx-h100:4 + 1x dgx-a100", "this-machine")
SPACES = ("tp=1,2,4 pp=1..8 gpus=64 micro=1,2", "zero=1,3 recompute=none,full")


def traces() -> tuple[str, ...]:
    """A short prediction's trace, as Kineto-shaped JSON."""
    from sim.files.chrome import to_kineto

    return (json.dumps(to_kineto(_predicted().trace)),)


def programs() -> tuple[str, ...]:
    """The same program in its saved form."""
    from sim.files.programfile import save_program

    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "p.json"
        program = _predicted().program
        assert program is not None
        save_program(program, path)
        return (path.read_text(),)


def calibrations() -> tuple[str, ...]:
    """A small calibration."""
    from sim.cost.calibration import Calibration, Sample, show_calibration

    tables = {
        "gemm": (Sample("fwd", "fp32", (8, 8, 8), 1e-5, 9e-6, 1.2e-5, 20, 0.0),),
        "host": (Sample("module", "", (), 3e-6, 2e-6, 4e-6, 20, 0.0),),
        "collective": (Sample("all_reduce", "", (2, 1024), 1e-4, 9e-5, 2e-4, 20, 5e-5),),
        "again": (Sample("all_reduce", "", (2, 1024), 5e-5, 4e-5, 1e-4, 20, 0.0),),
    }
    return (show_calibration(Calibration(device="cpu", date="2026-01-01", machine="m", cores=2, ranks=2, threads=1, tables=tables)),)


def _predicted():  # type: ignore[no-untyped-def]
    from sim.predict import predict

    plan = {
        "model": {"family": "mlp", "name": "m", "widths": [64, 64]},
        "parallel": {"dp_replicate": 2},
        "batch": {"global": 4, "micro": 2},
    }
    return predict(plan, "dgx-h100", steps=1)
