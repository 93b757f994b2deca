"""What to train and how it is split: the plan, as typed values.

Every key of a plan file is a field here or in its sections (`sim.sections`), with its help text under it (`sim.files.planfile` reads and writes the
TOML). A field that is `None` is filled from the framework's defaults.
"""

from __future__ import annotations

from math import lcm
from typing import Any, Literal

from msgspec.structs import replace

from sim.sections import Batch, Comm, Count, Data, Memory, Noise, Optimizer, Output, Parallel, Section, Update

Task = Literal["train", "finetune", "lora", "dpo", "forward"]
Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "mxfp8", "fp4", "nvfp4"]


class Plan(Section, frozen=True, kw_only=True):
    """One training step, fully said. `model` alone is required."""

    model: str | dict[str, Any]
    """A preset, the path of an HF config.json or *.model.json, or a [model] table: the shape itself, or `base` and what differs from it."""
    name: str = ""
    task: Task = "train"
    """lora: adapters on a frozen model (decoders, vision-language models, flux, diffusion-unet, whisper); dpo: pairs of sequences (batch.micro is even), which go through a frozen copy first (beside adapters, through the model without them); forward: no training."""
    framework: str | dict[str, Any] = "pytorch"
    """Whose defaults fill what is not said (`sim/framework/known/*.toml`), or a [framework] table: its `base` and what differs from it."""
    seq_len: Count | None = None
    precision: Precision = "bf16"
    attention: Literal["flash", "math"] | None = None
    compile: bool | None = None
    """Fused kernels and fewer launches."""
    cuda_graphs: bool | None = None
    seed: int = 0
    """Of a run's first weights and order of samples, and of `noise` where that names none."""
    batch: Batch = Batch()
    parallel: Parallel = Parallel()
    memory: Memory = Memory()
    optimizer: Optimizer = Optimizer()
    update: Update = Update()
    comm: Comm = Comm()
    data: Data = Data()
    output: Output = Output()
    noise: Noise = Noise()

    @property
    def model_name(self) -> str:
        """What to call the model: its preset or file, or the table's own name."""
        if isinstance(self.model, str):
            return self.model
        base = self.model.get("base")
        return str(self.model.get("name") or (f"{base} (changed)" if base else self.model.get("family")) or "model")

    @property
    def framework_base(self) -> str:
        """The shipped framework that the plan's own is, or was made of."""
        return self.framework if isinstance(self.framework, str) else str(self.framework.get("base", ""))

    @property
    def framework_name(self) -> str:
        """What to call the framework."""
        own = "" if isinstance(self.framework, str) else self.framework.get("name", f"{self.framework_base} (changed)")
        return str(own or self.framework_base)

    @property
    def world(self) -> int:
        """Ranks in all."""
        p = self.parallel
        return p.dp_replicate * p.dp_shard * p.tp * p.pp * p.cp

    @property
    def data_ranks(self) -> int:
        """Ranks that see different samples."""
        return self.parallel.dp_replicate * self.parallel.dp_shard

    @property
    def global_batch(self) -> int:
        return self.batch.global_ or self.batch.micro * self.data_ranks

    @property
    def host_optimizer(self) -> bool:
        """The optimizer's state lies in host memory, and the update runs there."""
        return self.optimizer.on == "cpu" or self.memory.offload in ("optimizer", "parameters")

    @property
    def parameters_offloaded(self) -> bool:
        """Sharded parameters lie in host memory between their uses."""
        return self.memory.offload == "parameters"

    @property
    def asynchronous(self) -> bool:
        """Ranks meet at a server when each comes to it, and wait for nobody else."""
        return self.update.mode == "async" and self.task != "forward"

    @property
    def local(self) -> bool:
        """Ranks update alone, each its own parameters, and average them now and then."""
        return self.update.mode == "local" and self.task != "forward"

    @property
    def averages_every(self) -> int:
        """Steps from one average of parameters to the next; 1 without local updates."""
        return self.update.every if self.local else 1

    @property
    def period(self) -> int:
        """Steps after which everything that does not happen in each of them has happened once."""
        return lcm(*self.output.periods, self.averages_every)

    @property
    def served(self) -> bool:
        """A server in host memory sums the gradients and updates."""
        return self.asynchronous or self.update.aggregate == "cpu"

    @property
    def one_updates(self) -> bool:
        """One place has the optimizer's state and updates for all ranks: a server, or the primary rank."""
        return self.asynchronous or (self.task != "forward" and self.update.aggregate != "gpu")

    @property
    def host_updates(self) -> bool:
        """The update runs on the host's cores, by its own state or a server's: devices keep none."""
        return self.host_optimizer or self.served

    @property
    def microbatches(self) -> int:
        """Micro-batches that each data-parallel rank runs per step (gradient accumulation, or pipeline fill)."""
        return self.global_batch // (self.batch.micro * self.data_ranks)

    @property
    def quiet(self) -> Plan:
        """Without output."""
        return replace(self, output=Output())
