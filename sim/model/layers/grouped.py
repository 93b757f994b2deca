"""The experts' products, one after the other or grouped, with what sorts their rows, quantises them and adds biases."""

from __future__ import annotations

from sim.model.layers.elementwise import elementwise
from sim.model.layers.linear import narrowing, operand, quantised, weight_casts
from sim.model.parts import Part, Seam
from sim.model.share import Share
from sim.routing import different
from sim.work import Gemm, GroupedGemm, MemoryBound, Work


def grouped(
    share: Share, name: str, local: int, routed: int, k: int, n: int, bias: bool, seam: Seam, seam_bytes: int, top_k: int, weights: int = 1
) -> Part:
    """One grouped product over the local experts; tokens that came from other ranks are first sorted by expert. `weights`: so many products
    on the same rows, each with an equal part of the `n` columns."""
    tensors = _tensors(share, local, k, n // weights, bias, weights)
    down, up = weight_casts(share, tensors)
    opens = seam == "ep.dispatch"
    spread, gather = _sorted(share, routed, local, k if opens else n, top_k)
    quantise: list[Work] = []
    quantise_grad: list[Work] = []
    narrowed: list[Work] = []
    if share.fp8:
        quantise, quantise_grad = quantised(share, routed * k, tensors=local), quantised(share, routed * n, tensors=local)
        narrowed = _each(narrowing(share, local * k * n, local * weights), local)
    products, products_grad, wgrad = _products(share, local, routed, k, n // weights, weights)
    if not share.framework.experts.grouped:
        quantise, quantise_grad = _each(quantise, local), _each(quantise_grad, local)
    if _pads(share):
        spread, gather = (*spread, *_padded(share, routed, k if opens else n)), (*_padded(share, routed, k if opens else n), *gather)
    apart = bias and seam == "ep.combine" and share.framework.experts.bias == "loop"
    late, late_back, nodes = _weighted_bias(share, routed * n, local) if apart else ([], [], 0)
    forward = (*down, *(spread if opens else ()), *quantise, *products, *late, *(() if opens else gather))
    backward = (*(() if opens else spread), *late_back, *quantise_grad, *products_grad, *(gather if opens else ()))
    sums: list[Work] = [MemoryBound("reduce", routed * n * share.e, local * n * share.e, share.act)] if bias and not apart else []
    return Part(
        name=name,
        forward=forward,
        backward=backward,
        wgrad=(*wgrad, *sums, *up),
        narrowing=tuple(narrowed),
        cls="moe",
        tensors=tensors,
        matrices=() if share.framework.experts.stacked else ((n, k),) * local,
        expert=True,
        saved=operand(share, routed * k, share.fp8),
        seam=seam if seam_bytes else "",
        seam_bytes=seam_bytes,
        seam_weights=4 * (seam_bytes // (k * share.e)) if opens and weighs_inside(share) else 0,
        seam_counts=_counts(share, local) if opens and seam_bytes else 0,
        copies=share.framework.experts.fused_dispatch * top_k if seam_bytes else 0,
        modules=2 + _pads(share),
        native=len(late) + max(0, len(quantise) - 1),
        nodes=nodes + max(0, len(quantise) - 1),
    )


def _tensors(share: Share, local: int, k: int, n: int, bias: bool, weights: int) -> tuple[int, ...]:
    """Elements of each parameter: expert by expert, or of all experts together (no matrix then: torch.optim.Muon leaves it to AdamW)."""
    one = (n * k, n) if bias else (n * k,)
    return tuple(local * size for size in one) * weights if share.framework.experts.stacked else one * weights * local


def _products(
    share: Share, local: int, routed: int, k: int, n: int, weights: int
) -> tuple[tuple[Work, ...], tuple[Work, ...], tuple[Work, ...]]:
    """Of each of the `weights`: the product, the gradients of its rows (which are added) and of itself."""
    add, main, dtype = share.framework.linears.accumulates, share.framework.precision.grad_dtype, share.gemm
    forward: Work
    rows: Work
    weight: Work
    if share.framework.experts.grouped:
        forward, rows = GroupedGemm(local, routed, n, k, dtype), GroupedGemm(local, routed, k, n, dtype, "dgrad")
        weight = GroupedGemm(local, routed, n, k, dtype, "wgrad", add, into=main)
    else:
        each = -(-routed // local)
        forward, rows = Gemm(each, n, k, dtype, 1, "fwd", False, local), Gemm(each, k, n, dtype, 1, "dgrad", False, local)
        weight = Gemm(n, k, each, dtype, 1, "wgrad", add, local, main)
    sums = (elementwise("add", share, routed * k, 2 * share.e, share.e),) * (weights - 1)
    return (forward,) * weights, (rows,) * weights + sums, (weight,) * weights


def weighs_inside(share: Share) -> bool:
    """Weights (fp32) follow the tokens by a second all_to_all where the experts' activation takes them (Megatron-Core's
    MoEAlltoAllTokenDispatcher.token_dispatch); HybridEP and DeepEP send both at once."""
    return (
        share.framework.tensor_parallel.style == "megatron"
        and share.framework.elementwise.fused_activation
        and not share.framework.experts.fused_dispatch
    )


def _counts(share: Share, local: int) -> int:
    """torchtitan's ExpertParallel (distributed/expert_parallel.py) sends each rank the counts of its rows (32 bits); Megatron-Core gathers all ranks'
    counts of all experts (64 bits: MoEAlltoAllTokenDispatcher.preprocess). Fused dispatch counts by itself; a capacity is known."""
    if share.framework.experts.fused_dispatch or share.shape.capacity:
        return 0
    ranks = share.shape.ep
    return 4 * local * ranks if share.framework.experts.stacked else 8 * local * ranks * ranks * share.shape.etp


def _pads(share: Share) -> bool:
    """Are rows padded by themselves? Not where every expert has its capacity, a multiple already."""
    return share.fp8 and share.framework.experts.pads_rows and not share.shape.capacity


def _padded(share: Share, routed: int, width: int) -> tuple[Work, ...]:
    """All rows into (or out of) segments that are multiples of what 8-bit products take, in one kernel. Some rows more: not counted."""
    return (MemoryBound("copy", routed * width * share.e, routed * width * share.e, share.act),)


def _sorted(share: Share, routed: int, local: int, width: int, top_k: int) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
    """What sorts `routed` rows that came from other ranks by expert, and what puts them back.

    A token that came once is copied to each of its experts here, and their results are summed before they go back (Megatron-Core's
    _DeepepManager.get_permuted_hidden_states_by_experts, HybridEP's dispatch_with_permute).
    """
    if share.shape.ep == 1 and not sorts_again(share):
        return (), ()
    all_rows = routed * width * share.e
    if share.shape.ep > 1 and share.framework.experts.fused_dispatch:
        came = round(routed / top_k * different(share.shape.ep, top_k) * width * share.e)
        return (MemoryBound("permute", came, all_rows, share.act),), (MemoryBound("permute", all_rows, came, share.act, routed * width),)
    order = (MemoryBound("permute", all_rows, all_rows, share.act),) if local > 1 else ()
    return order, order


def sorts_again(share: Share) -> bool:
    """Whether or not they travelled (`Experts.own_rows`)."""
    return share.framework.experts.own_rows and not share.framework.experts.fused_dispatch


def _weighted_bias(share: Share, elements: int, local: int) -> tuple[list[Work], list[Work], int]:
    """What Megatron-Core's TEGroupedMLP._apply_bias runs for `elements` of the experts' results, and its nodes for autograd: expert by expert,
    bias times weight and its sum with the result, then all joined and made 16-bit. Backward: the casts, each factor's gradient with its sum,
    and the experts' gradients joined again. fp32, as the weights are."""

    def step(what: str, read: int, written: int, times: int = 1) -> Work:
        each = elements // times
        return MemoryBound(what, read * each, written * each, "fp32", float(each), times)

    forward = [step("scale", 0, 4, local), step("add", share.e + 4, 4, local), step("copy", 4, 4), step("cast", 4, share.e)]
    factor = [step("scale", 4, 4, local), step("reduce", 4, 0, local)]
    join = step("copy", share.e, share.e)
    return forward, [step("cast", share.e, 4), step("cast", 4, share.e, local), *factor, *factor, join], 2 * local + 2


def _each(works: list[Work], local: int) -> list[Work]:
    """The same bytes in one kernel for each expert."""
    return [MemoryBound(w.what, w.read // local, w.written // local, w.dtype, 0.0, local) for w in works if isinstance(w, MemoryBound)]
