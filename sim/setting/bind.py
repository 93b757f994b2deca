"""Binds a plan to its model, its framework and a machine: everything that lowering and pricing need, checked."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from sim.cost.device import peak_flops
from sim.engine.fold import Symmetry, alike
from sim.files.planfile import load_plan
from sim.framework.chosen import framework_of
from sim.framework.framework import Framework
from sim.model import ModelSpec, Network, Shape, describe
from sim.model.captured import Captured
from sim.model.check import check_documents
from sim.model.layers.redo import check_modules
from sim.model.load import model_from
from sim.model.reference import with_reference
from sim.model.specs.clip import Clip
from sim.model.specs.decoder import Decoder
from sim.model.specs.lora import Lora
from sim.model.specs.spec import Encoder
from sim.model.specs.vlm import VisionLanguage
from sim.model.stages import layout
from sim.plan import Plan
from sim.rules import mesh_of
from sim.setting.astride import astride
from sim.setting.folding import places_of
from topologies.cluster import parse
from topologies.errors import BadInput, Refused
from topologies.hardware import Gpu
from topologies.load import Topology, load_topology, machines

SEQ_LEN = 2048
"""Tokens of a sequence where neither the plan nor the model says anything."""


class Setting(msgspec.Struct, frozen=True):
    """A plan bound to its model, framework and machine."""

    plan: Plan
    topology: Topology
    framework: Framework
    network: Network
    fold: bool = True
    """One of several equal ranks is simulated for all of them. False: each rank is simulated."""

    @property
    def quiet(self) -> Setting:
        """The same setting with a plan that writes no output."""
        return msgspec.structs.replace(self, plan=self.plan.quiet)

    @property
    def flops(self) -> float:
        """Model FLOPs of one step on all ranks: forward and backward, or forward alone for task = "forward"."""
        network = self.network
        each = network.forward_flops_per_sample if self.plan.task == "forward" else network.flops_per_sample
        return each * self.plan.global_batch

    @property
    def places(self) -> Symmetry:
        """The places of its ranks on the machine, by which equal ranks are found. False: each rank is simulated."""
        return (self.fold and places_of(mesh_of(self.plan), self.topology)) or False

    @property
    def foldable(self) -> bool:
        """Whether one rank may stand for all ranks of a pipeline stage that do the same."""
        return alike(self.places)


def bind(plan: Plan | str | Path | dict[str, Any], topology: Topology | str | Path, edits: tuple[str, ...] = ()) -> Setting:
    """Loads and checks all inputs. Raises `BadInput` when the plan needs more ranks than the machine has."""
    plan = load_plan(plan)
    machine = load_topology(topology, edits)
    if plan.world > machine.gpus:
        # Raises first what no machine can mend: tp that divides nothing, stages without a layer.
        layout(network_of(plan, framework_of(plan)), plan)
        p = plan.parallel
        raise BadInput(
            f"the plan needs {plan.world} ranks (dp_replicate {p.dp_replicate} x dp_shard {p.dp_shard} x tp {p.tp} x pp {p.pp} x cp {p.cp}), "
            f"{machine.name} has {machine.gpus}. Use more machines{_enough(plan.world, machine)} or a smaller plan"
        )
    plan = _as_run(plan, machine)
    _supported(plan, machine)
    framework = _on_nodes(framework_of(plan), plan, machine)
    network = network_of(plan, framework)
    check_modules(plan.memory.recompute_modules, (block for _, block in network.blocks))
    return Setting(plan, machine, framework, network)


def _enough(world: int, machine: Topology) -> str:
    """As an expression for an error's text: as many nodes of the machine's kind as `world` ranks need. "" where the machine is not one
    term of the catalog or of a file."""
    try:
        terms = parse(machine.name)
    except BadInput:  # a file's own name for its cluster, which need be no expression
        return ""
    if len(terms) != 1 or not (terms[0].name in machines() or terms[0].name.endswith(".toml")):
        return ""
    (term,) = terms
    return f' ("{-(-world // machine.ranks_per_node)}x {term.name}{f":{term.ranks}" if term.ranks else ""}")'


def _as_run(plan: Plan, machine: Topology) -> Plan:
    """The plan as the machine runs it. tf32 is a mode of fp32: GPUs without such units run fp32, with its kernels, layouts and clocks."""
    device = machine.device(0)
    if plan.precision == "tf32" and isinstance(device, Gpu) and "tf32" not in device.flops:
        return msgspec.structs.replace(plan, precision="fp32")
    return plan


def _on_nodes(framework: Framework, plan: Plan, machine: Topology) -> Framework:
    """The framework as it behaves on this machine's nodes. TransformerEngine's user buffers reach only the ranks of one node (an NVLink
    domain): a framework that overlaps with them by default does not if a tensor-parallel group lies on several nodes."""
    habits = framework.tensor_parallel
    if habits.overlap and habits.style == "megatron" and plan.parallel.tp_overlap is None and astride(mesh_of(plan), machine, "tp"):
        return framework.but(tensor_parallel={"overlap": False})
    return framework


_ON_CPUS = ("fp32", "tf32", "bf16", "fp16")
"""tf32 is a mode of fp32, which a CPU leaves off."""


def _supported(plan: Plan, machine: Topology) -> None:
    """Raises `Refused` where the devices have no units for the plan's precision."""
    device = machine.device(0)
    if not isinstance(device, Gpu) and plan.precision not in _ON_CPUS:
        raise Refused(
            f'precision = "{plan.precision}": PyTorch has no kernels for it on a CPU ({machine.name}). Allowed on it: {", ".join(_ON_CPUS)}'
        )
    if isinstance(device, Gpu):
        try:
            peak_flops(device, plan.precision)
        except Refused as error:
            raise Refused(f'precision = "{plan.precision}": {error}') from None


def model_of(plan: Plan) -> ModelSpec:
    """The plan's model: a preset or file by name, or the [model] table (which may change one of those); adapters added for task = "lora"."""
    model = model_from(plan.model)
    if plan.task == "dpo" and not isinstance(model, Decoder):
        raise Refused(f'task = "dpo" needs a decoder; {plan.model_name} is none ({type(model).__name__.lower()})')
    if plan.task == "lora":
        if not hasattr(model, "lora"):
            raise Refused(
                f'task = "lora" has adapters for {_ADAPTED}; {plan.model_name} is none of these ({model.__struct_config__.tag}). '
                "Use another model, or another task"
            )
        return model if model.lora is not None else _adapted(model)
    return model


_ADAPTED = "decoders, vision-language models, flux, diffusion-unet and whisper"
"""Families with a `lora` table."""


def _adapted(model: ModelSpec) -> ModelSpec:
    """The model with its usual adapters. A vision-language model has them in its decoder, and its tower is then frozen, too."""
    if not isinstance(model, VisionLanguage):
        return msgspec.structs.replace(model, lora=model.adapters())  # type: ignore[union-attr]
    frozen = tuple(dict.fromkeys(("tower", *model.frozen)))
    return msgspec.structs.replace(model, decoder=msgspec.structs.replace(model.decoder, lora=Lora()), frozen=frozen)


def usual_length(model: ModelSpec) -> int:
    """Tokens of a sequence where the plan says nothing: as many as a captured model was captured with, else `SEQ_LEN`, or the length of
    its table of learned positions if that is less (in multiples of eight: the tables of OPT and RoBERTa have two rows more than there
    are tokens)."""
    if isinstance(model, Captured):
        return model.seq
    learned = getattr(model, "position", "learned") == "learned"
    rows: int = getattr(model, "positions", 0) if learned else 0
    return min(SEQ_LEN, rows - rows % 8 or rows) or SEQ_LEN


def length_of(plan: Plan, model: ModelSpec) -> int:
    """Tokens of a sample: as the plan says, or as the model says for pictures and videos, whichever is more. 0: neither says it."""
    return max(plan.seq_len or 0, getattr(model, "tokens", 0))


def shape_of(plan: Plan, model: ModelSpec) -> Shape:
    """The shape of one micro-batch of `model` as one rank sees it."""
    p, seq = plan.parallel, plan.seq_len or usual_length(model)
    return Shape(
        micro=plan.batch.micro,
        seq=seq,
        documents=_documents(plan, model, seq),
        tp=p.tp,
        sequence_parallel=p.sequence_parallel and p.tp > 1,
        cp=p.cp,
        dp=p.dp_replicate * p.dp_shard if isinstance(model, Clip) else 1,
        ulysses=p.ulysses,
        ep=p.ep,
        etp=p.expert_tp,
        precision=plan.precision,
        capacity=p.capacity,
    )


def _documents(plan: Plan, model: ModelSpec, seq: int) -> int:
    """Number of documents packed into one sequence; 1 if none are packed. Raises `BadInput` for documents that are too long or too
    short, `Refused` for models whose samples are not packed."""
    p, document = plan.parallel, plan.data.document
    if not document:
        return 1
    if not isinstance(model, (Decoder, Encoder)):
        raise Refused(
            f"data.document = {document}: documents are packed for decoders and encoders of text; {plan.model_name} is none "
            f"({type(model).__name__.lower()}). Leave it out"
        )
    ways = p.cp // p.ulysses  # a ring's causal halves are a piece each (`sim.lower.model_parallel.context`)
    return check_documents(seq, document, 2 * ways if ways > 1 and p.cp_kind != "all_gather" else ways)


def network_of(plan: Plan, framework: Framework) -> Network:
    """The model on one rank of the plan's split; equal splits share one description."""
    model = model_of(plan)
    pairs = plan.batch.micro if plan.task == "dpo" else 0
    return _described(model, shape_of(plan, model), framework, attention_of(framework, model), pairs)


def attention_of(framework: Framework, model: ModelSpec) -> Literal["flash", "math"]:
    """flash: in a fused kernel; math: written out, with scores in memory."""
    return framework.attention.of(getattr(model, "biased_scores", False))


@lru_cache(maxsize=512)
def _described(model: ModelSpec, shape: Shape, framework: Framework, attention: str, pairs: int) -> Network:
    """The network, kept for equal arguments. `pairs`: number of sequences that are compared in pairs (DPO), for which a reference model
    runs forward, too: a frozen copy, or, if adapters are trained, the model without them. 0: there is no reference."""
    network = describe(model, shape, framework, attention)
    if not pairs:
        return network
    adapted = getattr(model, "lora", None) is not None
    return with_reference(
        network, pairs, describe(msgspec.structs.replace(model, lora=None), shape, framework, attention) if adapted else None
    )
