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
    """That are packed into a sequence: fused attention stays inside each."""
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
    """What makes its 16-bit weights 8- or 4-bit, where products take them so: neither of `forward` nor of `backward`, as it may run once a step."""
    cls: str = "other"
    """gemm attention norm activation elementwise embedding loss conv moe rnn regions."""
    tensors: tuple[int, ...] = ()
    """Elements of each parameter tensor on this rank, in the order of registration."""
    matrices: tuple[tuple[int, int], ...] = ()
    """(rows, columns) of those of `tensors` that are matrices; `describe` leaves those of layers alone, which Muon takes."""
    tables: tuple[tuple[int, int], ...] = ()
    """The same of the model's ends: embeddings and the head, which Muon leaves alone."""
    whole: tuple[int, ...] = ()
    """Elements of those `tensors` that every rank of tp has, and each finds a part of their gradient where it sees a part of the tokens, or of what
    becomes of them: norms, routers, biases after a reduction."""
    expert: bool = False
    """Parameters live on one expert-parallel rank (gradients average over `edp`, not `grad`)."""
    frozen: bool = False
    """No gradient for the parameters (the base of LoRA)."""
    stored: float = 0.0
    """Bytes of an element of its parameters, where they lie in a form of their own (packed in four bits); 0: in the plan's dtype."""
    own_state: int | None = None
    """fp32 numbers of optimizer state of parameters that its backward updates itself, so that no optimizer sees them; None: it updates none."""
    saved: int = 0
    """Bytes kept from forward to backward."""
    working: int = 0
    """Bytes that live only while the part runs forward or backward, beside what is saved; 0: the largest that one kernel needs."""
    ahead: int = 0
    """Bytes that live at the fullest moment of its forward beside what it and the parts before it save (captured models)."""
    seam: Seam = ""
    """Where parallelism communicates. tp.gather: before this part's forward, its input is gathered (column-parallel), and what each rank finds
    of its gradient is reduced; tp.spread: gathered, too, but each rank finds all of the gradient, and keeps its own part; tp.copy: all ranks have
    its input, and only the gradient is reduced; tp.reduce: after it, its output is reduced (row-parallel); tp.sum: after it, numbers of all
    tokens that need no gradient are summed; tp.columns: before it, the columns of its input are gathered, of all tokens; ep.dispatch / ep.combine: token exchange BEFORE / AFTER this part; cp.attention: keys and values travel; tp.loss: vocabulary-parallel loss;
    tp.embedding: vocabulary-parallel lookup; dp.features: before this part, features of all samples are gathered;
    dp.ring: the part is run on each other rank's features, which come in turn."""
    seam_bytes: int = 0
    """Size of that message: the whole (gathered) tensor for tp, cp and dp, this rank's part for ep and rings of dp."""
    seam_heads: tuple[int, ...] = ()
    """cp.attention: bytes of this rank's queries, keys and values, where they change places with heads."""
    seam_weights: int = 0
    """ep.dispatch: bytes of the routing weights, where they travel in a message of their own."""
    seam_counts: int = 0
    """ep.dispatch: bytes of the counts of rows that go before the rows, to know the sizes of what comes: a rank's own, or what all have gathered."""
    copies: int = 0
    """ep: experts of each token, where it travels once to every node that holds one of them and is handed on there; 0: once for each."""
    modules: int = 1
    """nn.Module calls that this part stands for (host time)."""
    views: int = 0
    """Views that forward takes of its tensors beside its kernels, where they are many: calls without a launch, a node each in backward."""
    untracked: int = 0
    """Forward kernels that autograd has no node for."""
    native: int = 0
    """Forward kernels that are torch's own operators among a framework's fused functions: their gradients need no Python."""
    nodes: int = 0
    """Autograd's nodes of these, where a loop calls them more than once; 0: one each."""
    recompute: bool = False
    """Recomputed under recompute = "selective"."""
    dropped: int = 0
    """Of `saved`, the bytes that selective recomputation does without (the scores; q, k and v stay)."""
    rope: bool = False
    normed: bool = False
    """A linear that reads what the norm before it makes: a framework's own may hold that norm."""
    reads: bool = False
    """The host reads a device value before it can launch this part (tokens of each expert): it waits for all queued compute."""
    read_bytes: int = 8
    """Of what it reads."""
    detached: bool = False
    """Without autograd: under no_grad, or of frozen parameters before all that is trained. It has no backward."""
    shapeless: bool = False
    """Its shapes depend on the data: a compiler leaves it to Python, call by call."""

    @cached_property
    def params(self) -> int:
        return sum(self.tensors)

    @cached_property
    def narrow(self) -> int:
        """Elements of its parameters, where products take them in 8 bits or 4; else 0."""
        return self.params if any(isinstance(work, (Gemm, GroupedGemm)) and BYTES[work.dtype] < 2 for work in self.forward) else 0

    @cached_property
    def factored(self) -> tuple[int, int]:
        """(elements of all matrices and tables, their rows and columns): what factors of second moments stand for, and are."""
        both = (*self.matrices, *self.tables)
        return sum(rows * columns for rows, columns in both), sum(rows + columns for rows, columns in both)

    @cached_property
    def in_matrices(self) -> int:
        """Elements of `matrices`."""
        return sum(rows * columns for rows, columns in self.matrices)


def still(part: Part) -> Part:
    """Neither its parameters nor anything before it needs a gradient: it keeps nothing, and has no backward."""
    return msgspec.structs.replace(part, frozen=True, detached=True, backward=(), wgrad=(), saved=0)


def everywhere(part: Part) -> Part:
    """Its parameters are whole on each rank of tp (`Part.whole`)."""
    return msgspec.structs.replace(part, whole=part.tensors)


class Block(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The unit of pipelining, FSDP and recomputation."""

    kind: str
    """embed | layer | mtp | head."""
    parts: tuple[Part, ...]
    saved_input: int = 0
    """Bytes of the block's input: all that full recomputation keeps."""
    beside: int = 0
    """Bytes of earlier results that it reads beside its input (an encoder's, in each layer of the decoder): pipelines hand them on."""
    chosen: int = 0
    """Bytes of numbers that it reads so (sparse attention's choice of keys): they have no gradient that a pipeline would hand back."""

    @cached_property
    def params(self) -> int:
        return sum(part.params for part in self.parts)

    @cached_property
    def detached(self) -> bool:
        """None of its parts has a backward: they are frozen, and so is all before them."""
        return all(part.detached for part in self.parts)

    @property
    def end(self) -> bool:
        """It is an end of the network, an embedding or the head, and no layer."""
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
    """Its data set hands out batches, not samples to be put together."""
    compares: tuple[str, ...] = ()
    """The axis of the mesh over which its loss compares the samples of a whole batch: by gathering features, or in a ring."""
    chain: bool = True
    """Each block reads the one before it alone; False: no pipeline can cut it."""
    end_layers: int = 0
    """Layers that its first block, and its last, count as where a pipeline's stages are dealt out."""
    tied: tuple[str, ...] = ()
    """Blocks that read one table of embeddings, first the one that has it: where a pipeline parts them, each rank with one of them has a copy,
    and the copies' gradients are summed."""
    heads: tuple[str, ...] = ()
    """Blocks that multiply by one head's weight which is no table of embeddings, first the one that has it: all on the last stage."""
    unseen: tuple[str, ...] = ()
    """Ops of a captured module that count by the bytes that they move alone."""
    lent: bool = False
    """Some of its blocks run on parameters that others hold (`sim.model.reference`, beside adapters)."""
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
