"""Refuses what stock training cannot do, before any process starts. Imports no torch."""

from __future__ import annotations

from sim.framework.chosen import framework_of, sharded_alone, sharding_of
from sim.framework.framework import Framework
from sim.model.specs.decoder import Decoder, Moe
from sim.model.specs.pictures import ConvNext, EfficientNet, UNet
from sim.model.specs.spec import Cnn, EncDec, Encoder, Mlp, ModelSpec, Vit
from sim.model.specs.vlm import VisionLanguage
from sim.optimizers import OPTIMIZERS
from sim.plan import Plan
from sim.schedule import splits
from sim.schedule.interleaved import makes_rounds
from sim.schedule.reading import name_of
from sim.setting.bind import attention_of, shape_of
from sim.work import BYTES
from topologies.errors import Refused

PLAY = "Use `--how play`, which plays the predicted program"
Refusals = tuple[tuple[bool, str], ...]
"""(condition, message) of each thing that stock training cannot do: a plan is refused with the message if the condition is true."""


def check_stock(plan: Plan, spec: ModelSpec) -> None:
    """Raises `Refused` with the reason and what to use instead."""
    check_quiet(plan)
    _check_model(plan, spec)
    for asked, words in (
        *_of_the_step(plan),
        *_of_the_update(plan),
        *_of_the_split(plan, spec),
        *_of_the_framework(plan),
        *_of_the_data(plan),
    ):
        if asked:
            raise Refused(words)


def check_quiet(plan: Plan) -> None:
    """Raises `Refused` for noise, which only scales predicted times: neither PyTorch's own machinery nor the player can add it."""
    if not plan.noise.even:
        raise Refused(
            "noise is for predictions: a real machine brings its own. Leave noise.stragglers and noise.imbalance out to run the plan"
        )


def _of_the_step(plan: Plan) -> Refusals:
    p, habits = plan.parallel, framework_of(plan)
    return (
        (plan.task == "dpo", f'task = "dpo": stock training has no reference model. {PLAY}'),
        (plan.task == "forward" and p.pp > 1, f'task = "forward" through a pipeline is not done by the stock run. {PLAY}'),
        (
            plan.precision not in ("fp32", "tf32", "bf16", "fp16"),
            f'precision = "{plan.precision}" needs a library of its own. Use "bf16", or: {PLAY}',
        ),
        (
            habits.precision.autocast and (p.tp > 1 or p.pp > 1 or plan.optimizer.name == "muon"),
            f'framework = "{plan.framework_name}" casts under autocast, which stock training does on whole models with torch.optim. {PLAY}',
        ),
        (
            habits.linears.gate_apart or habits.elementwise.norm_in_fp32,
            f'framework = "{plan.framework_name}" keeps gate and up apart or copies norms to fp32, which stock training does not do. {PLAY}',
        ),
        (habits.compile, f"compile = true is not done by stock training yet. {PLAY}"),
        (
            not OPTIMIZERS[plan.optimizer.name].torch,
            f'optimizer.name = "{plan.optimizer.name}" is not in torch.optim. Use "adamw", or: {PLAY}',
        ),
        (plan.optimizer.states is not None, "optimizer.states: torch.optim keeps moments as wide as the parameters. Leave it out"),
        (plan.optimizer.on == "cpu" or plan.memory.offload != "none", f"offload to the CPU is not done by stock training. {PLAY}"),
        (plan.memory.recompute == "selective", 'memory.recompute = "selective" is not done by stock training. Use "none" or "full"'),
        (
            plan.update.aggregate == "primary",
            f'update.aggregate = "primary" is not done by stock training, which is DistributedDataParallel. {PLAY}',
        ),
        (plan.update.mode == "async", f"PyTorch has no parameter server to train through. {PLAY}"),
        (plan.update.aggregate == "cpu", f"sums on the host are not done by stock training. {PLAY}"),
    )


def _of_the_update(plan: Plan) -> Refusals:
    """What torch's optimizers cannot do with distributed tensors, those of FSDP2 and of tensor parallelism."""
    p, habits = plan.parallel, framework_of(plan)
    several = p.tp > 1 or sharding_of(plan, habits)[0] > 0
    distributed = several or sharded_alone(plan)
    fused = habits.optimizer.implementation == "fused"
    return (
        (
            plan.optimizer.name == "muon" and several,
            f'optimizer.name = "muon": torch.optim.Muon takes whole matrices. Use tp = 1 and zero = 0, or: {PLAY}',
        ),
        (
            plan.optimizer.name == "adafactor" and (distributed or fused),
            'optimizer.name = "adafactor": torch.optim.Adafactor takes whole matrices, and has no fused kernels. Use tp = 1, zero = 0 and '
            'optimizer.implementation = "foreach", or "adamw"',
        ),
        (
            # torch 2.13, torch/distributed/tensor/_ops/_pointwise_ops.py: "fused optimizer ops"
            fused and distributed and plan.optimizer.name not in ("adam", "adamw"),
            f'optimizer.name = "{plan.optimizer.name}": torch\'s distributed tensors (FSDP2, tensor parallelism) know the fused kernels of Adam and '
            f'AdamW alone. Use optimizer.implementation = "foreach", or "adamw", or: {PLAY}',
        ),
    )


def _of_the_split(plan: Plan, spec: ModelSpec) -> Refusals:
    p, habits = plan.parallel, framework_of(plan)
    level, _ = sharding_of(plan, habits)
    # As many micro-batches as there are stages (torch 2.13, torch/distributed/pipelining/schedules.py: Schedule1F1B, ScheduleDualPipeV).
    least = {"1f1b": p.pp, "dualpipe": 2 * p.pp}.get(str(name_of(p)), 1) if p.pp > 1 else 1
    return (
        (
            p.cp > 1,
            f"context parallelism: torch's context_parallel replaces CUDA's attention kernels only, and its loader is not ours. {PLAY}",
        ),
        (
            p.ep > 1 and level < 2,
            f"expert parallelism beside DDP: torch's sums each gradient over all replicas. Use dp_shard with zero = 2 or 3, or: {PLAY}",
        ),
        (
            p.dp_shard % p.ep > 0,
            f"ep = {p.ep} does not divide dp_shard = {p.dp_shard}: FSDP2 shards experts inside dp_shard. Use a smaller ep or a larger dp_shard",
        ),
        (level == 1, f"zero = 1: PyTorch's FSDP2 splits gradients too. Use zero = 2, or: {PLAY}"),
        (p.tp > 1 and plan.data_ranks > 1 and level == 0, "DDP around tensor parallelism: use dp_shard with zero = 3"),
        (
            p.pp > 1 and p.dp_replicate > 1 and p.dp_shard > 1 and level == 0,
            f"DDP over dp_replicate and dp_shard at once in a pipeline: use one of the two, or zero = 3, or: {PLAY}",
        ),
        (p.tp > 1 and isinstance(spec, Mlp), "tensor parallelism of an MLP: use tp = 1"),
        (
            (p.tp > 1 or p.pp > 1) and not isinstance(spec, (Mlp, Decoder)),
            f"tensor or pipeline parallelism of models of family {type(spec).__name__.lower()}: use tp = 1 and pp = 1, or: {PLAY}",
        ),
        (
            p.tp > 1 and getattr(spec, "position", "") == "learned",
            f'learned positions under tensor parallelism. Use position = "rope", or: {PLAY}',
        ),
        (
            # torch/distributed/pipelining/_backward.py: stage_backward_weight computes weights' gradients by autograd.grad, which calls no
            # hook of DDP: in 2.13 each replica trains on its own gradients. FSDP2's are reduced by the schedule (perform_reduce_grad).
            p.pp > 1 and plan.data_ranks > 1 and level == 0 and splits(name_of(p)),
            f'schedule = "{p.schedule}" splits backward, and torch\'s DDP does not sum gradients of weights that are made apart. Use dp_shard '
            f"with zero = 3, a schedule of whole backward passes (1f1b, interleaved, looped-bfs), or: {PLAY}",
        ),
        (
            p.pp > 1 and p.schedule == "interleaved" and p.virtual_stages > 1 and not makes_rounds(p.pp, plan.microbatches),
            f"rounds of unequal micro-batches, which torch's ScheduleInterleaved1F1B does not take. {PLAY}",
        ),
        (
            plan.microbatches < least,
            f'schedule = "{p.schedule}" over pp = {p.pp}: torch\'s takes at least {least} micro-batches, and a step has {plan.microbatches}. Use a '
            'larger batch.global, a smaller batch.micro or schedule = "gpipe"',
        ),
        (p.pp > 1 and getattr(spec, "tied", False), f"an embedding tied across pipeline stages. {PLAY}"),
        (
            getattr(spec, "lora", None) is not None and (p.tp * p.pp * p.ep > 1 or not isinstance(spec, Decoder)),
            f"adapters (lora) are trained beside decoders of text that each rank has whole or under FSDP2. Use tp = 1, pp = 1 and ep = 1, or: {PLAY}",
        ),
    )


def _of_the_framework(plan: Plan) -> Refusals:
    """Precision and messages of a framework that differ from those of PyTorch's DDP, FSDP2 and DTensor."""
    p, habits = plan.parallel, framework_of(plan)
    level, _ = sharding_of(plan, habits)
    return (
        (
            level == 2,
            f'framework = "{plan.framework_name}" with zero = 2 reduces buckets, and PyTorch\'s FSDP2 layers. Use zero = 3, or framework = "pytorch", '
            f"or: {PLAY}",
        ),
        (
            p.tp > 1 and habits.tensor_parallel.style != "dtensor",
            f'framework = "{plan.framework_name}" splits linears in another way than PyTorch\'s DTensor. Use framework = "pytorch", or: {PLAY}',
        ),
        (
            level == 0 and plan.data_ranks > 1 and plan.update.mode == "sync" and _sums_otherwise(habits),
            f'framework = "{plan.framework_name}" sums gradients in other messages than PyTorch\'s DDP. Use framework = "pytorch", or: {PLAY}',
        ),
        (
            habits.precision.autocast and level > 0,
            f'framework = "{plan.framework_name}" casts under autocast, which stock training does not do with FSDP2. {PLAY}',
        ),
        (
            # torchtitan, Megatron, DeepSpeed: fp32 copies in the optimizer. With autocast the parameters themselves are fp32.
            habits.precision.master and not habits.precision.autocast and level == 0 and not sharded_alone(plan),
            f'framework = "{plan.framework_name}" updates fp32 copies of {plan.precision} parameters, which stock training does with FSDP2. Use '
            f'zero = 3, on one rank or with dp_shard, or framework = "pytorch", or: {PLAY}',
        ),
        (
            _widens(plan) and level == 0 and plan.data_ranks > 1,
            f'comm.reduce_dtype = "{habits.precision.reduce_dtype}": DDP\'s hooks make gradients narrower, not wider. Use zero = 2 or 3, whose '
            f"MixedPrecisionPolicy does, or: {PLAY}",
        ),
    )


def _sums_otherwise(habits: Framework) -> bool:
    """True if gradients are not reduced in DDP's buckets during backward, but in the framework's own buffers or buckets, at the end of
    backward, or in cycles of a thread."""
    how = habits.data_parallel
    return habits.linears.accumulates or how.bucket > 0 or how.cycle > 0.0 or not how.overlap_grad


def _widens(plan: Plan) -> bool:
    """True if gradients are reduced in a wider dtype than they are computed in."""
    how = framework_of(plan).precision
    return plan.update.mode == "sync" and BYTES[how.reduce_dtype] > BYTES[how.param_dtype]


def _of_the_data(plan: Plan) -> Refusals:
    """Input and output."""
    p = plan.parallel
    return (
        (
            plan.data.source == "object-store",
            'data.source = "object-store": no object store runs here. Use "disk" or "database" to measure',
        ),
        (
            plan.output.checkpoint_every > 0 and plan.output.checkpoint_mode == "async",
            f'output.checkpoint_mode = "async": stock training stops while it saves. Use "sharded" or "full", or: {PLAY}',
        ),
        (
            plan.output.checkpoint_every > 0 and plan.output.checkpoint_mode == "full" and p.dp_shard * p.tp * p.pp > 1,
            f'output.checkpoint_mode = "full" of a model that is split: in stock training each rank saves what it holds. Use "sharded", or: {PLAY}',
        ),
    )


def _check_model(plan: Plan, spec: ModelSpec) -> None:
    if plan.data.document and shape_of(plan, spec).seq % plan.data.document:
        raise Refused(
            f"data.document = {plan.data.document} does not divide the sequence: stock training packs equal documents. Use one that does, or: {PLAY}"
        )
    if plan.data.document and attention_of(framework_of(plan), spec) == "math":
        raise Refused(
            f'data.document with attention = "math" needs a mask that stock training does not make. Use attention = "flash", or: {PLAY}'
        )
    if isinstance(spec, Decoder):
        _check_decoder(plan, spec)
    elif isinstance(spec, Encoder) and spec.head == "none":
        raise Refused(f'head = "none" of model {spec.name or "encoder"} has no loss to train with. Use "masked", or: {PLAY}')
    elif isinstance(spec, Cnn) and spec.arch not in CNNS:
        raise Refused(f'stock training does not do arch = "{spec.arch}" of model {spec.name or "cnn"} yet. {PLAY}')
    elif isinstance(spec, VisionLanguage):
        _check_decoder(plan, spec.decoder)
        if spec.tower.unread and "tower" not in spec.frozen:
            raise Refused(
                f"the last layers of the tower of model {spec.name or 'vlm'} get no gradient (unread = {spec.tower.unread}), which DDP and FSDP2 "
                f'wait for. Use frozen = ["tower"], or: {PLAY}'
            )
    elif not isinstance(spec, (Mlp, Encoder, Vit, Cnn, EfficientNet, ConvNext, EncDec, UNet)):
        raise Refused(f"stock training does not know models of family {type(spec).__name__.lower()}. {PLAY}")


CNNS = ("resnet", "vgg", "alexnet", "cifar")
"""Architectures of convolutional networks that stock training knows."""
_SPLIT = ("mla", "embed_norm", "qk_norm", "post_norms", "parallel_block", "head_bias")
"""Features of a decoder that are trained only with tp = 1."""


def _check_experts(plan: Plan, spec: Decoder, moe: Moe) -> None:
    p, habits = plan.parallel, framework_of(plan)
    name = spec.name or "decoder"
    for field in ("bias", "limited", "latent"):
        if getattr(moe, field):
            raise Refused(f"stock training does not do `moe.{field}` of model {name} yet. {PLAY}")
    align = 16 // int(BYTES[habits.precision.param_dtype])
    sharers = max(1, p.dp_shard // p.ep) if sharding_of(plan, habits)[0] > 1 else 1
    asked: Refusals = (
        (p.tp > 1, f"experts of model {name} under tensor parallelism: use tp = 1, or: {PLAY}"),
        (p.capacity > 0, f"parallel.capacity: torch.nn.functional.grouped_mm drops and pads nothing. Leave it out, or: {PLAY}"),
        (habits.precision.autocast, f'framework = "{plan.framework_name}" casts under autocast, which does not reach grouped_mm. {PLAY}'),
        (
            not habits.experts.stacked,
            f'framework = "{plan.framework_name}" keeps each expert\'s weights apart, and grouped_mm takes them as one tensor. Use framework = "pytorch" or "torchtitan", or: {PLAY}',
        ),
        (
            bool(spec.hidden % align or moe.ffn % align),
            f"experts of model {name}: grouped_mm takes rows that are multiples of 16 bytes. Use multiples of {align} as hidden and moe.ffn, or: {PLAY}",
        ),
        (
            moe.experts // p.ep % sharers > 0 and (spec.hidden % sharers > 0 or moe.ffn % sharers > 0),
            f"experts of model {name}: FSDP2 shards {moe.experts // p.ep} of them over {sharers} ranks by their rows, evenly alone. Use a dp_shard / ep "
            f"that divides moe.experts / ep, or hidden and moe.ffn, or: {PLAY}",
        ),
    )
    for refused, words in asked:
        if refused:
            raise Refused(words)


def _check_decoder(plan: Plan, spec: Decoder) -> None:
    seq = shape_of(plan, spec).seq
    if spec.moe is not None:
        _check_experts(plan, spec, spec.moe)
    asked = {
        "mamba": spec.mamba, "lora.base": spec.lora and spec.lora.base, "mla.index": spec.mla and spec.mla.index, "sinks": spec.sinks, "window": 0 < spec.window < seq,
        "pattern": spec.pattern, "mtp": spec.mtp, "mixers": set(spec.mixers) - {"X", "*"}, "gated_attention": spec.gated_attention,
        "rope_scaled": spec.rope_scaled, "position = alibi": spec.position == "alibi",
        "capped_scores with attention = flash": spec.capped_scores and attention_of(framework_of(plan), spec) == "flash",
    }  # fmt: skip
    for name, value in asked.items():
        if value:
            raise Refused(f"stock training does not do `{name}` of model {spec.name or 'decoder'} yet. {PLAY}")
    if plan.parallel.tp > 1:
        for name in (*_SPLIT, *(("rotary",) if spec.rotary < 1 else ())):
            if getattr(spec, name):
                raise Refused(f"`{name}` of model {spec.name or 'decoder'} under tensor parallelism: use tp = 1, or: {PLAY}")
