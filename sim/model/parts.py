"""A model as the lowering sees it: blocks of parts, each part a few kernels on one rank.

A *part* is one module (or fused chain) such as `attn.qkv`: its kernels forward and backward, its parameters,
what it keeps for backward, and where tensor, context or expert parallelism must communicate. A *block* is the
unit of pipelining, of FSDP wrapping and of recomputation: the embedding, one layer, the head.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import msgspec

from sim.work import BYTES, Gemm, GroupedGemm, Work

Seam = Literal[
    "",
    "tp.gather",
    "tp.spread",
    "tp.copy",
    "tp.reduce",
    "tp.sum",
    "tp.columns",
    "ep.dispatch",
    "ep.combine",
    "cp.attention",
    "tp.loss",
    "tp.embedding",
    "dp.features",
    "dp.ring",
]


ADAPTER = ".lora"
"""Ends the name of a part that is a low-rank adapter of the linear before it."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank sees of one micro-batch."""

    micro: int
    seq: int
    """Whole sequence length; a rank holds seq / cp of it."""
    documents: int = 1
    """Documents packed into each sequence; fused attention stays inside each document."""
    tp: int = 1
    sequence_parallel: bool = False
    cp: int = 1
    ulysses: int = 1
    """Ranks of cp that exchange heads of attention."""
    ep: int = 1
    etp: int = 1
    dp: int = 1
    """Ranks of data parallelism, whose samples a contrastive loss compares."""
    precision: str = "bf16"
    capacity: float = 0.0


class Part(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One module of a block, on one rank, for one micro-batch. All sizes are this rank's."""

    name: str
    forward: tuple[Work, ...] = ()
    backward: tuple[Work, ...] = ()
    """Gradient of the input, and all that is not `wgrad`."""
    wgrad: tuple[Work, ...] = ()
    """Gradients of the weights: apart, since zero-bubble schedules move them."""
    narrowing: tuple[Work, ...] = ()
    """Kernels that make the 8- or 4-bit copies of 16-bit weights. Apart from `forward` and `backward`, as they may run once a step or in each pass."""
    cls: str = "other"
    """gemm attention norm activation elementwise embedding loss conv moe rnn regions."""
    tensors: tuple[int, ...] = ()
    """Elements of each parameter tensor on this rank, in the order of registration."""
    matrices: tuple[tuple[int, int], ...] = ()
    """(rows, columns) of those of `tensors` that are matrices; `describe` leaves those of layers alone, which Muon takes."""
    tables: tuple[tuple[int, int], ...] = ()
    """The same of the model's ends: embeddings and the head, which Muon leaves alone."""
    whole: tuple[int, ...] = ()
    """Elements of those `tensors` that every tp rank holds whole, while each computes only a part of their gradient, from its part of the tokens or of the
    columns: norms, routers, biases after a reduction."""
    expert: bool = False
    """Parameters live on one expert-parallel rank (gradients average over `edp`, not `grad`)."""
    frozen: bool = False
    """No gradient for the parameters (the base of LoRA)."""
    stored: float = 0.0
    """Bytes of one parameter element where it is not stored in the plan's dtype (0.5: packed in four bits); 0: in the plan's dtype."""
    own_state: int | None = None
    """Where backward itself updates the parameters, so that no optimizer sees them: fp32 numbers of optimizer state; None: the optimizer updates them."""
    saved: int = 0
    """Bytes kept from forward to backward."""
    working: int = 0
    """Bytes that live only while the part runs forward or backward, beside what is saved; 0: the largest that one kernel needs."""
    ahead: int = 0
    """Captured models: bytes at the fullest moment of its forward beyond what it and the parts before it save."""
    seam: Seam = ""
    """Where parallelism communicates. tp.gather: before this part's forward, its input is gathered (column-parallel), and the ranks'
    partial gradients of it are reduced; tp.spread: gathered, too, but each rank computes the whole gradient, and keeps its own slice; tp.copy: all
    ranks have its input, and only the gradient is reduced; tp.reduce: after it, its output is reduced (row-parallel); tp.sum: after it, numbers of all
    tokens that need no gradient are summed; tp.columns: before it, the columns of its input are gathered, of all tokens; ep.dispatch / ep.combine: token exchange BEFORE / AFTER this part; cp.attention: keys and values travel; tp.loss: vocabulary-parallel loss;
    tp.embedding: vocabulary-parallel lookup; dp.features: before this part, features of all samples are gathered;
    dp.ring: the part is run on each other rank's features, which come in turn."""
    seam_bytes: int = 0
    """Size of that message: the whole (gathered) tensor for tp, cp and dp, this rank's part for ep and rings of dp."""
    seam_heads: tuple[int, ...] = ()
    """cp.attention by all_to_all: bytes of this rank's queries, keys and values, which are exchanged for whole sequences of fewer heads."""
    seam_weights: int = 0
    """ep.dispatch: bytes of the routing weights, where they travel in a message of their own."""
    seam_counts: int = 0
    """ep.dispatch: bytes of the row counts that are sent before the rows, so that each rank knows how many it receives: its own counts, or the gathered
    counts of all ranks."""
    copies: int = 0
    """ep: experts of each token, where a token is sent once to each node that holds any of them and forwarded inside the node; 0: once for each expert."""
    modules: int = 1
    """nn.Module calls that this part stands for (host time)."""
    views: int = 0
    """Views (reshape, transpose, slice) in forward, where they are many: each costs the host a call without a launch, and an autograd node in backward."""
    untracked: int = 0
    """Forward kernels that autograd has no node for."""
    native: int = 0
    """Forward kernels that are torch's own operators beside a framework's fused functions: their backward runs without Python."""
    nodes: int = 0
    """Autograd nodes of the `native` kernels, where a loop calls them more than once; 0: one for each kernel."""
    recompute: bool = False
    """Recomputed under recompute = "selective"."""
    dropped: int = 0
    """Bytes of `saved` that selective recomputation does not keep (attention's scores; queries, keys and values stay)."""
    rope: bool = False
    """The part rotates queries and keys."""
    normed: bool = False
    """A linear that reads the output of the norm before it: some frameworks fuse the two into one module."""
    reads: bool = False
    """The host must read a value from the device before it can launch this part (tokens of each expert), so it waits for all queued kernels."""
    read_bytes: int = 8
    """Bytes of that value."""
    detached: bool = False
    """Not in autograd's graph: under no_grad, or frozen with nothing trained before it. It has no backward."""
    shapeless: bool = False
    """Its shapes depend on the data: a compiler leaves it to Python, call by call."""

    @cached_property
    def params(self) -> int:
        return sum(self.tensors)

    @cached_property
    def narrow(self) -> int:
        """Elements of its parameters if its products run in 8 or 4 bits; else 0."""
        return self.params if any(isinstance(work, (Gemm, GroupedGemm)) and BYTES[work.dtype] < 2 for work in self.forward) else 0

    @cached_property
    def factored(self) -> tuple[int, int]:
        """(elements of all matrices and tables, sum of their rows and columns): what Adafactor's second moments stand for, and what it stores of them."""
        both = (*self.matrices, *self.tables)
        return sum(rows * columns for rows, columns in both), sum(rows + columns for rows, columns in both)

    @cached_property
    def in_matrices(self) -> int:
        """Elements of `matrices`."""
        return sum(rows * columns for rows, columns in self.matrices)


def still(part: Part) -> Part:
    """The same part where neither its parameters nor anything before it needs a gradient: it saves nothing, and has no backward."""
    return msgspec.structs.replace(part, frozen=True, detached=True, backward=(), wgrad=(), saved=0)


def everywhere(part: Part) -> Part:
    """The same part with its parameters whole on each rank of tp (`Part.whole`)."""
    return msgspec.structs.replace(part, whole=part.tensors)


class Block(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The unit of pipelining, FSDP and recomputation."""

    kind: str
    """embed | layer | mtp | head."""
    parts: tuple[Part, ...]
    saved_input: int = 0
    """Bytes of the block's input: all that full recomputation keeps."""
    beside: int = 0
    """Bytes of earlier results that it reads beside its input (the encoder's output, in each layer of a decoder): pipeline stages forward them."""
    chosen: int = 0
    """Bytes that it also reads in this way and that have no gradient to send back (sparse attention's choice of keys)."""

    @cached_property
    def params(self) -> int:
        return sum(part.params for part in self.parts)

    @cached_property
    def detached(self) -> bool:
        """None of its parts has a backward: they are frozen, and so is all before them."""
        return all(part.detached for part in self.parts)

    @property
    def end(self) -> bool:
        """True for the embedding and the head, False for layers."""
        return self.kind in ("embed", "head")


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """A whole model on one rank of a (tp, cp, ep) split: named blocks, first to last; equal layers share one Block."""

    name: str
    """The model's, or its family where it has none."""
    blocks: tuple[tuple[str, Block], ...]
    """("embed", ...), ("L0", ...), ("L1", ...), ("head", ...)."""
    boundary: int
    """Bytes that a pipeline stage sends to the next for one micro-batch on this rank, unless its first block says what it reads
    (`Block.saved_input`, `Block.beside`, `Block.chosen`)."""
    parameters: int
    """Of the whole model, all ranks together, shared tensors once."""
    active_parameters: int
    """That one token passes through (MoE: top-k experts); equals `parameters` for dense models."""
    flops_per_sample: float
    """Model FLOPs of forward + backward for one sample (sequence or image), no recomputation, causal attention once."""
    forward_flops_per_sample: float = 0.0
    """Of these, forward's."""
    sample_unit: str = "sequences"
    seq: int = 1
    """Tokens per sample (1 for images)."""
    sample_bytes: int = 0
    """Bytes of one sample as the step's input on the device."""
    whole_batches: bool = False
    """The data set yields whole batches, so nothing has to be collated from samples."""
    compares: tuple[str, ...] = ()
    """The axis of the mesh over which its loss compares the samples of a whole batch: by gathering features, or in a ring."""
    chain: bool = True
    """Each block reads the one before it alone; False: no pipeline can cut it."""
    end_layers: int = 0
    """How many layers the first block, and the last one, each count as when layers are divided into pipeline stages."""
    tied: tuple[str, ...] = ()
    """Blocks that read one table of embeddings, first the one that has it: where a pipeline parts them, each rank with one of them has a copy,
    and the copies' gradients are summed."""
    heads: tuple[str, ...] = ()
    """Blocks that multiply by one head's weight which is no table of embeddings, first the one that has it: all on the last stage."""
    unseen: tuple[str, ...] = ()
    """Names of a captured module's ops that have no cost model of their own: they are priced by the bytes that they move."""
    lent: bool = False
    """Some of its blocks run on parameters that belong to other blocks (`sim.model.reference`, beside adapters)."""
    captured: bool = False
    """Recorded from a module that ran, not described: its kernels are those that it launched."""

    @property
    def kinds(self) -> list[Block]:
        """Each block once, in the order in which they first stand."""
        return list({id(block): block for _, block in self.blocks}.values())

    @property
    def has_experts(self) -> bool:
        """Are there parts that an expert has of its own?"""
        return any(part.expert for block in self.kinds for part in block.parts)

    @property
    def stored_apart(self) -> bool:
        """Do some of its parameters lie in a form of their own (packed in four bits)?"""
        return any(0.0 < part.stored < 1.0 for block in self.kinds for part in block.parts)

    @property
    def ends_tied(self) -> bool:
        """Does the network's end read the embedding's table: as the head's weight, or to look up in it (multi-token prediction)?"""
        return any(name != "target" for name in self.tied[1:])
