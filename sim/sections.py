"""The sections of a plan file, as typed values: how a batch, a model and its state are split, what memory, optimizer, input and output do.

Every key is a field, with its help text under it (`sim.files.planfile` reads and writes the TOML). Sizes are bytes, times seconds. A field that is
`None` is filled from the framework's defaults.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Ways = Annotated[int, msgspec.Meta(ge=2, le=10**6)]
Capacity = Annotated[float, msgspec.Meta(ge=0.0, le=1000.0)]

ScheduleName = Literal["gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-v", "dualpipe", "csv"]
LOOPS = ("interleaved", "looped-bfs", "zb-h1")
"""Schedules of `virtual_stages` stages a rank, dealt out round and round."""
VEES = ("zb-v", "dualpipe")
"""Schedules of two stages a rank, one on the way there and one on the way back."""
Module = Literal["core_attn", "layernorm", "mla_up_proj", "moe_act", "mlp", "shared_experts", "moe", "op"]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a plan file: keys that it does not know are refused."""


class Batch(Section, frozen=True, kw_only=True):
    """How many sequences (or images) make a step."""

    global_: Count | None = msgspec.field(default=None, name="global")
    """Samples per optimizer step over all ranks. Unsaid: micro x data-parallel ranks."""
    micro: Count = 1
    """Samples per rank and micro-batch; gradient accumulation follows from the rest."""


class Parallel(Section, frozen=True, kw_only=True):
    """How the model and the batch are split over ranks."""

    dp_replicate: Count = 1
    """Replicas that hold whole copies (of what dp_shard splits)."""
    dp_shard: Count = 1
    """Ranks that split parameters, gradients or optimizer state, as `zero` says."""
    zero: Literal[0, 1, 2, 3] | None = None
    """What dp_shard splits. 0: nothing (DDP)  1: optimizer  2: + gradients  3: + parameters (FSDP)."""
    reshard_after_forward: bool | Ways = True
    """zero = 3: free the gathered parameters after forward and gather again for backward. A number: from as many neighbours, which keep them among
    themselves till then (FSDP2; DeepSpeed's zero_hpz_partition_size): those of a node, say, so that backward gathers over NVLink."""
    prefetch: Natural = 1
    """zero = 3: blocks gathered ahead of use."""
    tp: Count = 1
    sequence_parallel: bool = True
    """With tp > 1: norms and residuals split along the sequence (all_gather / reduce_scatter for all_reduce)."""
    tp_overlap: bool | None = None
    """Tensor-parallel collectives pipelined with their GEMMs (user buffers, async TP)."""
    pp: Count = 1
    schedule: ScheduleName = "1f1b"
    """The order of a pipeline's work. A file `schedule = "mine.csv"` (torch.distributed.pipelining's, compute-only; torchtitan's
    pipeline_parallel_schedule_csv) is read with the plan: it becomes `csv`, and what it says `actions`."""
    actions: tuple[str, ...] = ()
    """schedule = "csv": for each pipeline rank what it computes, in order, by comma (`0F0,0F1,0B0,0B1`)."""
    virtual_stages: Count = 1
    """Model chunks per pipeline rank (interleaved, looped-bfs, zb-h1; zb-v and dualpipe have two, a file's own say how many)."""
    stages: tuple[Natural, ...] | None = None
    """Layers of each stage, first to last, where they are uneven. 0 for the first or the last: it holds the embedding or the head alone."""
    cp: Count = 1
    cp_kind: Literal["p2p", "all_gather", "all_to_all", "all_to_all+p2p"] = "p2p"
    """Context parallelism: ring attention, gathered keys and values, heads exchanged (Ulysses), or rings between groups that exchange heads
    (USP; Megatron-Core's a2a+p2p)."""
    cp_ulysses: Count | None = None
    """all_to_all+p2p: neighbours of cp that exchange heads (the first of Megatron-Core's hierarchical_context_parallel_sizes)."""
    ep: Count = 1
    etp: Count | None = None
    """Tensor parallelism inside experts; default: 1 when ep > 1, else tp."""
    capacity: Capacity = 0.0
    """Expert capacity factor, at most 1000; 0 = dropless."""
    placement: str = "tp,cp,dp,pp"
    """Mesh axes, innermost (neighbouring ranks) first; `dp` stands for dp_shard, dp_replicate."""

    @property
    def chunks(self) -> int:
        """Stages that each pipeline rank holds: `virtual_stages`, two in a V, one without a pipeline."""
        return 1 if self.pp == 1 else 2 if self.schedule in VEES else self.virtual_stages

    @property
    def ulysses(self) -> int:
        """Ranks of cp that exchange heads: all (all_to_all), so many (all_to_all+p2p), or each for itself."""
        if self.cp == 1 or self.cp_kind in ("p2p", "all_gather"):
            return 1
        return self.cp if self.cp_kind == "all_to_all" else self.cp_ulysses or 1

    @property
    def kept_among(self) -> int:
        """Neighbours that keep gathered parameters among them after forward; 1: nobody does, each keeps its own shard, or all."""
        asked = self.reshard_after_forward
        return 1 if isinstance(asked, bool) or asked == self.dp_shard * self.cp else asked

    @property
    def expert_tp(self) -> int:
        """Ranks that split one expert: `etp`, or what it comes to where it is left out."""
        return self.etp or (1 if self.ep > 1 else self.tp)


class Memory(Section, frozen=True, kw_only=True):
    """What is done to need less device memory."""

    recompute: Literal["none", "selective", "full"] = "none"
    """Activations recomputed in backward: none, some modules of each layer, or whole layers."""
    recompute_modules: tuple[Module, ...] = ()
    """selective: what of each layer, in Megatron-Core's words; default: attention's core alone. op: all but the results of fused attention and of
    every second product (torchtitan)."""
    recompute_layers: Natural = 0
    """full: only so many layers of each stage (0 = all)."""
    offload: Literal["none", "optimizer", "parameters", "activations"] = "none"
    """What lies in host memory. optimizer: its state, and the update runs there; parameters: these too, with zero = 3, from where each block's shard
    comes to be gathered (FSDP2's CPUOffloadPolicy, DeepSpeed's offload_param); activations: from forward to backward."""
    offload_layers: Natural = 0
    """activations: only those of the first so many layers of each stage (0 = all)."""

    @property
    def modules(self) -> tuple[Module, ...]:
        """What of each layer is recomputed by itself."""
        return (self.recompute_modules or ("core_attn",)) if self.recompute == "selective" else ()


class Optimizer(Section, frozen=True, kw_only=True):
    """The optimizer, and how its update is launched."""

    name: Literal["sgd", "momentum", "adam", "adamw", "lamb", "muon", "lion", "adagrad", "lars", "ademamix", "adafactor"] = "adamw"
    implementation: Literal["for-loop", "foreach", "fused"] | None = None
    """How the kernels are launched; default: the framework's."""
    states: Literal["fp32", "bf16", "fp8"] | None = None
    """What moments are kept in, by fused updates alone (Megatron's precision-aware optimizer, which keeps 16 bits of fp32 parameters beside those in
    bf16; 8-bit Adams); default: as what they update."""
    clip: bool | None = None
    """Gradient clipping by global norm; default: the framework's."""
    on: Literal["gpu", "cpu"] = "gpu"


class Update(Section, frozen=True, kw_only=True):
    """When and where ranks agree on parameters."""

    mode: Literal["sync", "local", "async"] = "sync"
    """sync; local: every rank updates alone and parameters are averaged; async: through a parameter server."""
    every: Count = 1
    """local: steps between averages."""
    outer: Literal["average", "nesterov"] = "average"
    """local: how ranks agree. average: the mean of their parameters; nesterov: an outer step of SGD with Nesterov momentum by the mean of what
    they have moved by (DiLoCo)."""
    aggregate: Literal["gpu", "cpu", "primary"] = "gpu"
    """Where gradients are summed: all_reduce among devices; a parameter server on the host; or the first device, which updates alone
    and broadcasts the parameters (as nn.DataParallel's coordinating GPU does; every rank loads its own inputs)."""

    @property
    def summed(self) -> bool:
        """Devices sum their gradients among themselves, in every step."""
        return self.mode == "sync" and self.aggregate == "gpu"


class Comm(Section, frozen=True, kw_only=True):
    """How gradients travel."""

    bucket: int | None = None
    """Gradient bucket in bytes, the first included; default: as the framework cuts them (DDP: 25 MiB, the first 1 MiB)."""
    overlap: bool = True
    """Gradient communication beside backward."""
    reduce_dtype: Literal["fp32", "bf16", "fp16"] | None = None
    """What gradients travel in; default: the framework's. FSDP2's MixedPrecisionPolicy(reduce_dtype), DDP's compress hooks, Megatron's
    grad_reduce_in_fp32 (whose buffer then keeps them in it too)."""
    algorithm: Literal["auto", "ring", "tree", "nvls", "pat", "collnet", "hierarchical"] = "auto"
    """NCCL's algorithm for the collectives that it exists for; the others, and for `pat`, `collnet` and `hierarchical` groups inside a node
    of a cluster, run NCCL's own choice."""


class Data(Section, frozen=True, kw_only=True):
    """The input path of each rank."""

    source: Literal["disk", "object-store", "database", "memory", "device"] = "memory"
    """Where samples lie; `device`: every micro-batch is one and the same, which lies there from the start, as benchmarks with synthetic data have it."""
    workers: Natural = 0
    """Loader processes per rank; 0: the training process loads."""
    sample: int = 0
    """Bytes read per sample; 0: as many as it has on the device (tokens of 8 bytes, pictures of fp32)."""
    preprocess: float = 0.0
    """CPU seconds per sample on one core."""
    prefetch: Count = 2
    """Batches ready per worker."""
    pinned: bool = True
    shuffle: bool = True
    """In what order a run reads its samples; a prediction takes all of them alike."""
    document: Natural = 0
    """Tokens of each of the documents that a sequence is packed of; 0: one, the whole sequence. Fused attention stays inside them (torchtitan's block-causal
    masks, TransformerEngine's thd, flash-attention's varlen). Of unequal ones their mean weighted by length (sum of squares over sum)."""
    stream: Literal["copy", "compute"] = "copy"
    """Lane of the host-to-device copy."""
    handover: Literal["event", "synchronize", "none"] = "event"
    """How compute learns that a batch copied on the copy stream has come: an event, the host that waits for the stream, or not
    at all (a race: the step may read half a batch; for showing what the event costs)."""
    create: Literal["none", "cpu", "device"] = "none"
    """A tensor as large as the batch that the loop makes anew for each micro-batch (noise, a mask): on the CPU and then moved,
    or on the device."""

    @property
    def stored(self) -> bool:
        """Do samples lie on a disk or in a store, from where they are read?"""
        return self.source not in ("memory", "device")


class Output(Section, frozen=True, kw_only=True):
    """What a step gives to people and disks, and how often."""

    log_every: Natural = 0
    """Steps between reads of the loss on the host, a host-device sync point; 0: never."""
    sync_every: Natural = 0
    """Steps between device synchronisations that the loop makes by itself; 0: never."""
    item_every: Natural = 0
    """Steps between `.item()` calls whose value nobody prints; 0: never."""
    print_every: Natural = 0
    """Steps between prints of a tensor as large as the loss; 0: never."""
    checkpoint_every: Natural = 0
    checkpoint_to: Literal["disk", "store"] = "disk"
    checkpoint_mode: Literal["full", "sharded", "async"] = "sharded"

    @property
    def periods(self) -> tuple[int, ...]:
        """Of each kind of output that there is, the steps from one to the next."""
        every = (self.log_every, self.sync_every, self.item_every, self.print_every, self.checkpoint_every)
        return tuple(filter(None, every))


class Noise(Section, frozen=True, kw_only=True):
    """Ranks that are not equal: slower ones, and ones with more samples."""

    stragglers: str = "none"
    """`r3: 1.3x, r7: 2x` or `lognormal(0.05), seed=1`: factors on a rank's compute time."""
    imbalance: str = "none"
    """`r0: 1.5x` (so many times the samples: input, forward, backward and activations grow, the update does not) or a distribution as above. Ranks that
    split a model or a sequence share their samples; tokens per second count the plan's own batch."""

    @property
    def even(self) -> bool:
        """All ranks are equal."""
        return self.stragglers == self.imbalance == "none"
