"""Puts StepTwin's op ids into a training loop of your own, so that `steptwin compare --measured` aligns op by op.

    with steptwin.marked(model):
        for number, batch in enumerate(loader):
            with record_function(f"step {number}"):     # for nsys: torch.cuda.nvtx.range
                train(batch)    # under torch.profiler, or nsys profile --trace=cuda,nvtx

Each module's forward runs inside a range `op:fwd/L3.attn.qkv`, and its nodes in backward inside ranges `op:bwd/L3.attn.qkv`. torch.profiler
records these ranges, and on CUDA so does Nsight Systems, as NVTX ranges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from executor.needs import needs_torch
from topologies.errors import BadInput

try:
    import torch
    from torch import nn
    from torch.profiler import record_function
    from torch.utils._pytree import tree_leaves
    from torch.utils.hooks import RemovableHandle
except ModuleNotFoundError:
    needs_torch("marking a model's ops")
    raise

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.(\d+)(?:\.|$)")
_TOWER = re.compile(r"(?:^|\.)(?:visual|vision_tower|vision_model|vision_encoder)\.")
"""Names that vision-language models give to their vision tower, whose layers are V0, V1 ... in a prediction."""
_PARTS = (
    (re.compile(r"(q_proj|k_proj|v_proj|qkv|query_key_value|c_attn|wq|wk|wv|Wqkv|linear_qkv)$"), "attn.qkv"),
    (re.compile(r"(attn|attention)\.(o_proj|wo|out_proj|c_proj|dense|proj|linear_proj)$"), "attn.proj"),
    (re.compile(r"(gate_proj|up_proj|w1|w3|c_fc|fc1|dense_h_to_4h|gate_up_proj|linear_fc1)$"), "mlp.up"),
    (re.compile(r"(down_proj|w2|fc2|dense_4h_to_h|linear_fc2|mlp\.c_proj)$"), "mlp.down"),
    (re.compile(r"(input_layernorm|ln_1|attention_norm|norm1|norm_1)$"), "norm1"),
    (re.compile(r"(post_attention_layernorm|ln_2|ffn_norm|norm2|norm_2)$"), "norm2"),
    (re.compile(r"(act|act_fn|activation)$"), "mlp.act"),
)
_ENDS = (
    (re.compile(r"(embed_tokens|wte|tok_embeddings|word_embeddings)$"), "embed.tokens"),
    (re.compile(r"(lm_head|output|output_layer)$"), "head.logits"),
    (re.compile(r"(^|\.)(norm|ln_f|final_layernorm|norm_f)$"), "head.norm"),
)
"""Names that Hugging Face, torchtitan, Megatron and nanoGPT give to the parts of a decoder."""


def op_name(module: str) -> str:
    """The op's name for a module's dotted name: `L3.attn.qkv` for `model.layers.3.self_attn.q_proj`, `V3.attn.qkv` for a vision tower's
    `visual.blocks.3.attn.qkv`; "" for modules that are not in a predicted decoder or tower."""
    layer, tower = _LAYER.search(module), _TOWER.search(module)
    if layer is not None:
        part = next((part for pattern, part in _PARTS if pattern.search(module)), "")
        return f"{'V' if tower else 'L'}{layer.group(1)}.{part}" if part else ""
    return "" if tower or "projector" in module else next((part for pattern, part in _ENDS if pattern.search(module)), "")


@contextmanager
def marked(model: nn.Module, name: Callable[[str], str] = op_name) -> Iterator[None]:
    """While open, the forward of each named module and each node of its backward run inside a range with the op's id.

    name: from a module's dotted name to StepTwin's (`L3.attn.qkv`), "" to leave the module unmarked. Raises `BadInput` if all are unmarked.
    """
    ops = [(module, op) for module_name, module in model.named_modules() if (op := name(module_name))]
    if not ops:
        deep = max((module_name for module_name, _ in model.named_modules()), key=lambda one: (one.count("."), len(one)))
        raise BadInput(
            f"marked: no module of {type(model).__name__} has a name that is known for a part of a decoder ({deep!r} has none): give name=, a "
            'function from a module\'s dotted name to the op\'s in `steptwin predict --out` (program.txt), such as "L3.attn.qkv", or to ""'
        )
    calls = _Calls()
    handles = [handle for module, op in ops for handle in calls.hooks(module, op)]
    try:
        yield
    finally:
        calls.on = False
        for handle in handles:
            handle.remove()


_CLAIMED = "steptwin.op"
_BARE = re.compile(r"(T|Transpose|Permute|Alias|Squeeze|Unsqueeze)Backward\d|.*AccumulateGrad$")
"""Autograd nodes that are not marked: views of the same memory, which compute nothing, and parameters, whose gradients may come from
several modules."""


class _Calls:
    """Ranges around each call of a module, and around its nodes in backward. The hooks are on the nodes: torch's backward hooks of modules
    wrap inputs and outputs, which then may not be changed in place."""

    def __init__(self) -> None:
        self.on = True
        """True until `marked` ends; a graph may live longer."""

    def hooks(self, module: nn.Module, op: str) -> list[RemovableHandle]:
        """Adds the hooks of one module. Returns their handles."""
        calls: list[tuple[Any, int]] = []

        def enter(*_: object) -> None:
            calls.append((_open(f"op:fwd/{op}"), _next_node()))

        def leave(module: nn.Module, given: object, found: object) -> None:
            if calls:
                mark, first = calls.pop()
                self._claim(found, first, f"op:bwd/{op}")
                _close(mark)

        return [
            module.register_forward_pre_hook(enter),
            module.register_forward_hook(leave, always_call=True),  # activation checkpointing ends a forward early by an exception
        ]

    def _claim(self, found: object, first: int, name: str) -> None:
        """Puts a range around each autograd node that a module's call has made (sequence numbers from `first`), except those that a module
        inside it has claimed. `found`: the module's output."""
        left: list[Any] = [one.grad_fn for one in tree_leaves(found) if isinstance(one, torch.Tensor)]
        seen = set[Any]()
        while left:
            node = left.pop()
            if node is None or node in seen or node._sequence_nr() < first:
                continue
            seen.add(node)
            left += [before for before, _ in node.next_functions]
            if _CLAIMED not in node.metadata and not _BARE.match(node.name()):
                node.metadata[_CLAIMED] = name
                self._around(node, name)

    def _around(self, node: Any, name: str) -> None:
        marks: list[Any] = []

        def enter(*_: object) -> None:
            if self.on:
                marks.append(_open(name))

        def leave(*_: object) -> None:
            if marks:
                _close(marks.pop())

        node.register_prehook(enter)
        node.register_hook(leave)


def _next_node() -> int:
    """The sequence number that the next autograd node of this thread gets."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def _open(name: str) -> Any:
    mark = record_function(name)
    mark.__enter__()  # type: ignore[no-untyped-call]
    if torch.cuda.is_available():
        torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
    return mark


def _close(mark: Any) -> None:
    if torch.cuda.is_available():
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
    mark.__exit__(None, None, None)
