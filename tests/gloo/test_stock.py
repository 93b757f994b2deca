"""Stock training: every way of splitting a plan gives the losses of one process on the same data."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from executor.files import write_samples
from executor.ranks.launch import launch, partial_steps
from executor.stock import Request, StockResult, comm_class, run_stock
from executor.training.samples import Samples, check_shared
from sim.files.planfile import load_plan
from sim.plan import Plan
from sim.predict import predict
from sim.setting.bind import model_of
from tests.gloo.bodies_for_stock import Many
from topologies.errors import Refused, RunFailed

pytestmark = pytest.mark.usefixtures("forked")
MODEL = {"family": "decoder", "layers": 4, "hidden": 32, "heads": 4, "kv_heads": 2, "vocab": 64, "ffn": 64}
GPT = {**MODEL, "kv_heads": 4, "position": "learned", "norm": "layernorm", "activation": "gelu", "bias": True, "tied": True}


def _plan(parallel: dict[str, Any], micro: int, model: dict[str, Any] | None = None, **more: Any) -> Plan:
    tree = {
        "model": model or MODEL,
        "seq_len": 16,
        "precision": "fp32",
        "batch": {"micro": micro, "global": 8},
        "parallel": parallel,
        **more,
    }
    return load_plan(tree)


def _run(
    folder: Path, parallel: dict[str, Any], micro: int, model: dict[str, Any] | None = None, profile: int = 0, **more: Any
) -> StockResult:
    return run_stock(_plan(parallel, micro, model, **more), folder, steps=4, warmup=1, profile=profile, stall=60)


OWN = [
    "0F0,0F1,2F0,2F1,2I0,2B1,0I0,0B1,2W0,0W0,0F2,0F3,2F2,2F3,2B2,2B3,0B2,0B3",
    "1F0,1F1,3F0,3F1,3B0,3B1,1B0,1B1,1F2,1F3,3F2,3F3,3B2,3B3,1B2,1B3",
]
"""A schedule without a name: two micro-batches at a time, some backward passes in halves."""
CASES: tuple[tuple[dict[str, Any], int], ...] = (
    ({}, 4),
    ({"dp_replicate": 2}, 2),
    ({"dp_shard": 2, "zero": 3}, 4),
    ({"dp_shard": 2, "zero": 2}, 2),
    ({"tp": 2}, 8),
    ({"tp": 2, "sequence_parallel": False}, 8),
    ({"pp": 2, "schedule": "gpipe"}, 2),
    ({"pp": 2, "schedule": "1f1b"}, 2),
    ({"pp": 2, "schedule": "interleaved", "virtual_stages": 2}, 2),
    ({"dp_replicate": 2, "dp_shard": 2, "zero": 3}, 2),
    ({"tp": 2, "dp_shard": 2, "zero": 3}, 4),
    ({"pp": 2, "dp_shard": 2, "zero": 3}, 2),
    ({"pp": 2, "dp_replicate": 2}, 1),
    ({"pp": 2, "tp": 2}, 2),
    ({"pp": 2, "tp": 2, "sequence_parallel": False, "schedule": "gpipe"}, 4),
    ({"pp": 2, "schedule": "interleaved"}, 2),
    ({"pp": 2, "schedule": "looped-bfs", "virtual_stages": 2}, 2),
    ({"pp": 2, "schedule": "looped-bfs", "dp_replicate": 2}, 1),
    ({"pp": 2, "schedule": "zb-h1"}, 2),
    ({"pp": 2, "schedule": "zb-h1", "virtual_stages": 2}, 2),
    ({"pp": 2, "schedule": "zb-h1", "dp_shard": 2, "zero": 3}, 1),
    ({"pp": 2, "schedule": "zb-v"}, 2),
    ({"pp": 2, "schedule": "zb-v", "tp": 2}, 2),
    ({"pp": 2, "schedule": "zb-v", "dp_shard": 2, "zero": 3}, 1),
    ({"pp": 2, "schedule": "dualpipe"}, 2),
    ({"pp": 2, "schedule": "dualpipe", "dp_shard": 2, "zero": 3}, 1),
    ({"pp": 2, "schedule": "csv", "actions": OWN, "virtual_stages": 2}, 2),
)


ORTHOGONAL: tuple[tuple[dict[str, Any], int], ...] = (
    ({}, 4),
    ({"dp_replicate": 2}, 2),
    ({"pp": 2, "schedule": "1f1b"}, 2),
    ({"pp": 2, "dp_replicate": 2}, 1),
)
"""Trained by Muon."""
NARROW: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bf16 ddp": ({"dp_replicate": 2}, {"reduce_dtype": "bf16"}),
    "fp16 ddp": ({"dp_replicate": 2}, {"reduce_dtype": "fp16"}),
    "bf16 fsdp": ({"dp_shard": 2, "zero": 3}, {"reduce_dtype": "bf16"}),
}
"""Gradients that travel narrower than they are, or compressed."""
CLIPPED: tuple[tuple[dict[str, Any], int], ...] = (
    ({}, 4),
    ({"tp": 2, "sequence_parallel": False}, 8),
    ({"tp": 2, "dp_shard": 2, "zero": 3, "sequence_parallel": False}, 4),
)
"""Norms outside sequence parallelism are no distributed tensors, or ones of another mesh. The model's gradients have a norm of 1.6."""


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """Five losses of every case; one launch for each number of ranks."""
    found: dict[str, list[float]] = {}
    plans = [_plan(parallel, micro) for parallel, micro in CASES]
    plans += [_plan({"dp_replicate": 2}, 4, update=update, optimizer={"name": "sgd"}) for update in ({"mode": "local"}, {})]
    plans += [_plan(parallel, micro, MODEL | {"hidden": 256}, optimizer={"name": "sgd", "clip": True}) for parallel, micro in CLIPPED]
    plans += [_plan(parallel, micro, optimizer={"name": "muon"}) for parallel, micro in ORTHOGONAL]
    names = [*(str(parallel) for parallel, _ in CASES), "local", "sgd", *(f"clipped {parallel}" for parallel, _ in CLIPPED)]
    names += [f"muon {parallel}" for parallel, _ in ORTHOGONAL]
    outer = {"mode": "local", "outer": "nesterov"}
    plans += [_plan(parallel, micro, update=outer, optimizer={"name": "sgd"}) for parallel, micro in (({"dp_replicate": 2}, 4), ({}, 8))]
    names += ["outer", "outer alone"]
    splits: tuple[dict[str, Any], ...] = ({}, {"dp_replicate": 2}, {"dp_shard": 2, "zero": 3})
    for name, several in (("adagrad", splits), ("adafactor", splits[:2])):
        plans += [_plan(parallel, 4, optimizer={"name": name, "implementation": "foreach"}) for parallel in several]
        names += [f"{name} {parallel}" for parallel in several]
    plans += [_plan(parallel, 2, data={"source": "device"}) for parallel in splits[:2]]
    names += ["lying alone", "lying"]
    plans += [_plan(parallel, 2, comm=comm) for parallel, comm in NARROW.values()]
    names += NARROW
    for ranks in (1, 2, 4):
        mine = [i for i, plan in enumerate(plans) if plan.world == ranks]
        many = Many([Request(plans[i], 4, 1, 0) for i in mine])
        answers = launch("tests.gloo.bodies_for_stock:losses", many, ranks, tmp_path_factory.mktemp("many"), list[list[float]], stall=60)
        for k, i in enumerate(mine):
            known = [answer[k] for answer in answers if answer[k]]
            found[names[i]] = [sum(values) / len(values) for values in zip(*known, strict=True)]
    return found


def test_five_different_losses(losses: dict[str, list[float]]) -> None:
    assert len(set(losses["{}"])) == 5


def test_a_batch_that_lies_on_the_device_is_trained_on_again_and_again(losses: dict[str, list[float]]) -> None:
    """All of a step's micro-batches are the rank's first one: two ranks see two, one rank one."""
    alone, two = losses["lying alone"], losses["lying"]
    assert alone == sorted(alone, reverse=True) and two == sorted(two, reverse=True) and len(set(alone)) == 5
    assert two[0] != pytest.approx(alone[0], rel=1e-4)


@pytest.mark.parametrize("parallel", [str(parallel) for parallel, _ in CASES[1:]])
def test_losses_equal_one_process(parallel: str, losses: dict[str, list[float]]) -> None:
    assert losses[parallel] == pytest.approx(losses["{}"], rel=2e-4)


@pytest.mark.parametrize("parallel", [str(parallel) for parallel, _ in CLIPPED[1:]])
def test_gradients_are_clipped_by_the_norm_of_all(parallel: str, losses: dict[str, list[float]]) -> None:
    assert losses[f"clipped {parallel}"] == pytest.approx(losses["clipped {}"], rel=1e-5)


@pytest.mark.parametrize("parallel", [str(parallel) for parallel, _ in ORTHOGONAL[1:]])
def test_muon_trains_alike_however_it_is_split(parallel: str, losses: dict[str, list[float]]) -> None:
    assert losses[f"muon {parallel}"] == pytest.approx(losses["muon {}"], rel=2e-4)
    assert losses["muon {}"] != pytest.approx(losses["{}"], rel=5e-4), "not AdamW's"


@pytest.mark.parametrize("name", NARROW)
def test_narrow_gradients_train_nearly_alike(name: str, losses: dict[str, list[float]]) -> None:
    """The first loss is before any update; AdamW's updates hardly feel 8 bits of a mantissa, but they do."""
    assert losses[name][0] == pytest.approx(losses["{}"][0], rel=1e-5)
    assert losses[name] == pytest.approx(losses["{}"], rel=1e-2) and losses[name] != pytest.approx(losses["{}"], rel=1e-6)


def test_profile_and_buckets(tmp_path: Path) -> None:
    found = _run(
        tmp_path,
        {"dp_replicate": 2},
        4,
        GPT,
        profile=2,
        output={"log_every": 1, "checkpoint_every": 3},
        data={"source": "disk", "sample": "4 KiB", "workers": 1},
    )
    assert len(found.step_times) == 4 == len(partial_steps(tmp_path / "stock")[1])
    assert len(found.first_buckets) == 1 and sum(found.first_buckets) == sum(found.buckets)
    classes = {span.cls for span in found.trace.spans}
    assert {"gemm", "attention", "norm", "activation", "embedding", "loss", "optimizer", "data", "comm.dp", "grad.copy"} <= classes
    assert {span.rank for span in found.trace.spans} == {0, 1}
    assert len({span.step for span in found.trace.spans}) == 2
    ids = [span.id for span in found.trace.spans]
    assert len(ids) == len(set(ids))
    assert any("/bwd/L3.attn.qkv" in id for id in ids)
    parts = [torch.load(tmp_path / "stock" / f"checkpoint-{rank}.pt") for rank in (0, 1)]
    assert parts[0].keys().isdisjoint(parts[1].keys()), "replicas share the work"
    weights, moments = (sum(name in key for part in parts for key in part) for name in ("['model']", "exp_avg"))
    assert moments == 2 * (weights - 1), "the table and the head are one tensor"
    sizes = [sum({tensor.data_ptr(): tensor.nbytes for tensor in part.values()}.values()) for part in parts]
    assert max(sizes) < 1.2 * min(sizes)
    assert not list((tmp_path / "stock").glob("*.part"))


def test_replicas_along_the_axis_of_shards_share_a_checkpoint(tmp_path: Path) -> None:
    """Where zero = 0 they are replicas like any others."""
    _run(tmp_path, {"dp_shard": 2, "zero": 0}, 4, output={"checkpoint_every": 5})
    parts = [torch.load(tmp_path / "stock" / f"checkpoint-{rank}.pt") for rank in (0, 1)]
    assert parts[0].keys().isdisjoint(parts[1].keys())


def test_who_updates_alone_writes_a_whole_checkpoint(tmp_path: Path) -> None:
    _run(tmp_path, {"dp_replicate": 2}, 4, update={"mode": "local", "every": 3}, output={"checkpoint_every": 5})
    parts = [torch.load(tmp_path / "stock" / f"checkpoint-{rank}.pt") for rank in (0, 1)]
    assert parts[0]["model"].keys() == parts[1]["model"].keys()
    assert not torch.equal(*(part["model"]["head.logits.weight"] for part in parts)), "between two averages"


@pytest.mark.parametrize(
    ("framework", "zero", "said"), [("torchtitan", None, "comm.fsdp"), ("pytorch", None, "comm.dp"), ("pytorch", 3, "comm.fsdp")]
)
def test_collectives_are_called_as_the_prediction_calls_them(framework: str, zero: int | None, said: str) -> None:
    """Also where the plan leaves the level of sharding to its framework."""
    split = {"dp_shard": 2} | ({} if zero is None else {"zero": zero})
    plan = _plan(split, 4, framework=framework, optimizer={"clip": False})
    predicted = predict(plan, "cpu-host").trace
    assert predicted is not None
    assert {span.cls for span in predicted.spans if span.kind == "collective"} == {comm_class(plan)} == {said}


def test_local_updates_average_parameters(losses: dict[str, list[float]]) -> None:
    """With SGD and an average every step, averaging parameters or gradients is the same."""
    assert losses["local"] == pytest.approx(losses["sgd"], rel=2e-4)


def test_an_outer_step_is_that_of_one_process(losses: dict[str, list[float]]) -> None:
    """With SGD and an outer step after every step, two ranks move by the mean of what each moves by: one moves so on the whole batch."""
    assert losses["outer"] == pytest.approx(losses["outer alone"], rel=2e-4)
    assert losses["outer"] != pytest.approx(losses["sgd"], rel=1e-5), "momentum"


@pytest.mark.parametrize(
    ("name", "parallel"), [("adagrad", {"dp_replicate": 2}), ("adagrad", {"dp_shard": 2, "zero": 3}), ("adafactor", {"dp_replicate": 2})]
)
def test_other_optimizers_train_alike_however_they_are_split(name: str, parallel: dict[str, Any], losses: dict[str, list[float]]) -> None:
    assert losses[f"{name} {parallel}"] == pytest.approx(losses[f"{name} {{}}"], rel=2e-4)
    assert losses[f"{name} {{}}"] != pytest.approx(losses["{}"], rel=5e-4), "not AdamW's"


def test_a_second_run_in_a_folder_begins_its_logs_anew(tmp_path: Path) -> None:
    for _ in range(2):
        _run(tmp_path, {}, 8, output={"log_every": 1, "print_every": 5})
    assert [line.split()[1] for line in (tmp_path / "stock" / "train.log").read_text().splitlines()] == ["0", "1", "2", "3", "4"]
    assert (tmp_path / "stock" / "print-0.log").read_text().count("tensor(") == 1


@pytest.mark.parametrize("schedule", ["1f1b", "zb-v"])
def test_a_pipeline_logs_the_loss_that_its_last_stage_has(schedule: str, tmp_path: Path) -> None:
    """The first rank, which holds the first stage, wrote a loss of 0; in a V it holds the last stage, too."""
    found = _run(tmp_path, {"pp": 2, "schedule": schedule}, 2, output={"log_every": 1, "print_every": 5})
    logged = [float(line.split()[3]) for line in (tmp_path / "stock" / "train.log").read_text().splitlines()]
    assert logged == pytest.approx(found.losses, abs=1e-5) and min(logged) > 0.0
    assert [path.name for path in (tmp_path / "stock").glob("print-*.log")] == [f"print-{int(schedule == '1f1b')}.log"]


def test_vectors_are_learned_in_the_plans_precision_in_a_pipeline_too(tmp_path: Path) -> None:
    """Its last stage compared bf16 with fp32 vectors, which is done in fp32."""
    vectors = {"family": "mlp", "widths": [32, 32, 32, 32, 32]}
    first, piped = (_run(tmp_path, parallel, 8, vectors, precision="bf16").losses for parallel in ({}, {"pp": 2, "schedule": "gpipe"}))
    assert piped == first


def test_half_a_data_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _plan({}, 8, data={"source": "disk", "sample": "4 KiB", "workers": 1, "shuffle": False})
    monkeypatch.setattr("executor.stock.write_samples", _damaged)
    with pytest.raises(RunFailed, match=r"sample 17 in .*17.bin has 100 bytes instead of 4096") as caught:
        run_stock(plan, tmp_path, steps=4, warmup=1, profile=0, stall=60)
    assert caught.value.exit_code == 4


def _damaged(plan: Plan, folder: Path) -> None:
    write_samples(plan, folder)
    (folder / "17.bin").write_bytes(bytes(100))


def test_a_database_in_a_folder_of_any_name(tmp_path: Path) -> None:
    """What follows '#' and '?' in an address is no part of the file's name, and %41 is an A: another file was opened, and left there empty."""
    plan, folder = _plan({}, 8, data={"source": "database", "sample": "4 KiB"}), tmp_path / "run #1, 50%41?"
    write_samples(plan, folder)
    assert len(Samples(plan, model_of(plan), 16, folder, 4)[3][0]) == 16
    assert list(tmp_path.iterdir()) == [folder]


def test_a_disk_that_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    with pytest.raises(RunFailed, match="cannot write 128 samples of 4 KiB"):
        run_stock(_plan({}, 8, data={"source": "database", "sample": "4 KiB"}), tmp_path, steps=1)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"parallel": {"pp": 2, "schedule": "zb-h1", "dp_replicate": 2}},
            "zb-h1.* DDP does not sum gradients of weights that are made apart",
        ),
        ({"parallel": {"pp": 2, "schedule": "dualpipe", "dp_shard": 2, "zero": 0}, "batch": {"micro": 1, "global": 8}}, "dualpipe.* DDP"),
        ({"parallel": {"dp_shard": 2, "zero": 1}}, "zero = 1"),
        ({"parallel": {}, "data": {"source": "object-store", "sample": "1 KiB"}}, "object store"),
        ({"parallel": {}, "model": {**MODEL, "window": 8}}, "window"),
        ({"parallel": {}, "optimizer": {"name": "lion"}}, "not in torch.optim"),
        ({"parallel": {}, "optimizer": {"name": "lars"}}, "not in torch.optim"),
        ({"parallel": {"dp_shard": 2, "zero": 3}, "optimizer": {"name": "adafactor"}}, "whole matrices"),
        (
            {"parallel": {"dp_shard": 2, "zero": 3}, "optimizer": {"name": "sgd", "implementation": "fused"}},
            "kernels of Adam and AdamW alone",
        ),
        ({"parallel": {"tp": 2}, "optimizer": {"name": "adagrad", "implementation": "fused"}}, "kernels of Adam and AdamW alone"),
        ({"parallel": {"zero": 3}, "optimizer": {"name": "momentum", "implementation": "fused"}}, "kernels of Adam and AdamW alone"),
        ({"parallel": {"zero": 3}, "optimizer": {"name": "adafactor", "implementation": "foreach"}}, "whole matrices"),
        ({"parallel": {"pp": 2}, "batch": {"micro": 2, "global": 2}}, "1f1b.* at least 2 micro-batches, and a step has 1"),
        ({"parallel": {"pp": 2, "schedule": "dualpipe"}, "batch": {"micro": 2, "global": 6}}, "at least 4 micro-batches, and a step has 3"),
        ({"parallel": {"dp_replicate": 2}, "precision": "bf16", "comm": {"reduce_dtype": "fp32"}}, "narrower, not wider"),
        ({"parallel": {"zero": 0}, "precision": "bf16", "framework": "deepspeed"}, "updates fp32 copies of bf16 parameters"),
        ({"parallel": {"tp": 2}, "precision": "bf16", "framework": "torchtitan"}, "updates fp32 copies of bf16 parameters"),
        ({"parallel": {"dp_shard": 2, "zero": 2}, "framework": "deepspeed"}, "with zero = 2 reduces buckets"),
        ({"parallel": {"tp": 2}, "framework": "megatron-core"}, "splits linears in another way"),
        ({"parallel": {"dp_replicate": 2}, "framework": "megatron-core"}, "sums gradients in other messages"),
        ({"parallel": {"cp": 2}}, "context_parallel replaces CUDA's attention"),
        ({"parallel": {}, "framework": "internevo"}, "gate and up apart"),
    ],
)
def test_refused_with_a_reason(more: dict[str, Any], words: str, tmp_path: Path) -> None:
    tree = {"model": MODEL, "seq_len": 16, "precision": "fp32", "batch": {"micro": 2}, **more}
    with pytest.raises(Refused, match=words):
        run_stock(load_plan(tree), tmp_path, steps=1, warmup=0, profile=0, stall=60)


def test_more_steps_take_no_more_memory(tmp_path: Path) -> None:
    """What is kept of a step (its loss) must not lie where the next one's logits would."""
    plan = _plan({}, 8, {**MODEL, "layers": 1, "vocab": 65536})  # logits of 32 MiB
    few, many = (run_stock(plan, tmp_path / str(steps), steps=steps, warmup=6, profile=0, stall=60).memory for steps in (2, 22))
    assert many - few < 200 << 20  # of 20 such tensors less than a third


def test_batches_that_do_not_fit_into_shared_memory_are_refused_before_a_worker_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = load_plan({"model": {"family": "mlp", "widths": [1024, 8]}, "precision": "fp32", "batch": {"micro": 16}, "data": {"workers": 4}})
    samples = Samples(plan, model_of(plan), 1, tmp_path, 1)  # type: ignore[arg-type]
    each = 4 * 2 * 16 * (1024 + 8) * 4
    monkeypatch.setattr("executor.training.samples.shutil.disk_usage", lambda _: SimpleNamespace(total=2 * each))
    check_shared(plan, samples, 2)
    with pytest.raises(RunFailed, match=r"12 loader workers hold batches of 1\.512 MiB ready, and /dev/shm has 1\.008 MiB.*--shm-size"):
        check_shared(plan, samples, 3)
    monkeypatch.setattr("executor.training.samples.shutil.disk_usage", lambda _: SimpleNamespace(total=0))
    check_shared(load_plan({"model": "gpt2-124m", "data": {"workers": 0}}), samples, 3)
