"""Experts as plain PyTorch writes them: stacked weights for grouped products, a router of small operators, a correction that nothing trains."""

from __future__ import annotations

from sim.framework.framework import Framework, load_framework
from sim.model import Shape, describe
from sim.model.parts import Part
from sim.model.specs.decoder import Decoder, Moe
from sim.work import Gemm, GroupedGemm, MemoryBound, Work

PYTORCH = load_framework("pytorch")
APART = PYTORCH.but(experts={"stacked": False})


def parts(framework: Framework, **more: object) -> dict[str, Part]:
    spec = Decoder(name="m", layers=1, hidden=64, heads=4, vocab=128, moe=Moe(**({"experts": 8, "top_k": 2, "ffn": 96} | more)))  # type: ignore[arg-type]
    network = describe(spec, Shape(micro=2, seq=16), framework, "flash")
    return {part.name: part for name, block in network.blocks if name == "L0" for part in block.parts}


def kinds(works: tuple[Work, ...]) -> list[str]:
    return [work.what if isinstance(work, MemoryBound) else type(work).__name__ for work in works]


def test_one_tensor_holds_all_experts_and_is_no_matrix() -> None:
    up, each = parts(PYTORCH)["moe.up"], parts(APART)["moe.up"]
    assert (up.tensors, up.matrices) == ((8 * 192 * 64,), ())
    assert (each.tensors, each.matrices) == ((192 * 64,) * 8, ((192, 64),) * 8)
    assert (up.forward, up.backward, up.wgrad) == (each.forward, each.backward, each.wgrad)
    assert parts(PYTORCH, bias=True)["moe.up"].tensors == (8 * 192 * 64, 8 * 192)


def test_torchtitan_multiplies_by_gate_and_up_apart() -> None:
    found = parts(load_framework("torchtitan"))
    up, down = found["moe.up"], found["moe.down"]
    assert up.tensors == (8 * 96 * 64,) * 2 and down.tensors == (8 * 96 * 64,)
    assert up.forward == (GroupedGemm(8, 64, 96, 64),) * 2
    assert up.backward == (*(GroupedGemm(8, 64, 64, 96, role="dgrad"),) * 2, MemoryBound("add", 64 * 64 * 4, 64 * 64 * 2, ops=64.0 * 64))
    assert [work.role for work in up.wgrad if isinstance(work, GroupedGemm)] == ["wgrad"] * 2
    assert "copy" not in kinds(found["moe.act"].backward) and "copy" in kinds(parts(PYTORCH)["moe.act"].backward)


def test_a_router_is_an_operator_after_the_other() -> None:
    router = parts(PYTORCH)["moe.router"]
    chosen = ["embedding", "reduce", "scale", "reduce", "topk", "scale", "embedding"]
    assert kinds(router.forward) == ["Gemm", "softmax", "topk", *chosen]
    quotient = ["scale"] * 5 + ["reduce", "add"]
    placed = ["zero", "copy", "scatter_add"]
    assert kinds(router.backward) == [*placed, *quotient, *placed, "softmax", "Gemm", "add"]
    rows, scores, taken = 2 * 16, 2 * 16 * 8, 2 * 16 * 2
    moved = [work.read + work.written for work in (*router.forward, *router.backward) if isinstance(work, MemoryBound)]
    forward = [6 * scores, 4 * scores + 12 * taken, 16 * taken, 4 * taken + 4 * rows, 8 * taken + 4 * rows]
    forward += [4 * taken + 32, 24 * taken, 16 * taken, 16 * taken]
    rule = [8 * taken + 4 * rows] * 3 + [8 * taken, 12 * taken, 4 * taken + 4 * rows, 8 * taken + 4 * rows]
    backward = [4 * taken, 8 * taken, 20 * taken, *rule, 4 * scores, 8 * scores, 20 * taken, 12 * scores, 6 * rows * 64]
    assert moved == forward + backward
    compiled = parts(PYTORCH.but(compile=True))["moe.router"]
    assert kinds(compiled.forward) == ["Gemm", "softmax", "topk", "scale"]


def test_one_expert_a_token_needs_no_sum_of_weights() -> None:
    one = parts(PYTORCH, top_k=1)["moe.router"]
    assert kinds(one.forward) == ["Gemm", "softmax", "topk", "embedding", "reduce", "topk", "scale", "embedding"]
    assert len(parts(PYTORCH)["moe.router"].backward) - len(one.backward) == 7


def test_a_correction_is_frozen_where_autograd_sees_it() -> None:
    found = parts(PYTORCH, correction=True)
    assert found["moe.correction"].frozen and found["moe.correction"].tensors == (8,)
    assert found["moe.router"].tensors == (8 * 64,)
    assert kinds(found["moe.router"].forward)[3] == "add"
    assert "moe.correction" not in parts(PYTORCH)
    megatron = parts(load_framework("megatron-bridge"), correction=True)
    assert "moe.correction" not in megatron and megatron["moe.router"].tensors == (8 * 64, 8)


def test_a_gate_of_shared_experts_is_a_product_of_one_column() -> None:
    merge, plain = (parts(PYTORCH, shared=64, shared_gate=gate)["moe.merge"] for gate in (True, False))
    assert [kinds(plain.forward), kinds(plain.backward)] == [["add"], ["add"]]
    assert kinds(merge.forward) == ["Gemm", "activation", "scale", "add"]
    assert kinds(merge.backward) == ["scale", "scale", "reduce", "activation", "Gemm", "add", "add"]
    assert merge.tensors == (64,) and merge.wgrad == (Gemm(1, 64, 32, role="wgrad", into="bf16"),)


def test_results_meet_their_weights_in_fp32() -> None:
    found = parts(PYTORCH)["moe.unpermute"]
    n = 2 * 16 * 2 * 64
    assert kinds(found.forward) == ["cast", "scale", "cast", "zero", "copy", "scatter_add"]
    assert kinds(found.backward) == ["embedding", "cast", "scale", "reduce", "scale", "cast"]
    assert [work.read + work.written for work in found.forward[:3] if isinstance(work, MemoryBound)] == [6 * n, 8 * n, 6 * n]
    assert [work.read + work.written for work in found.backward[1:] if isinstance(work, MemoryBound)] == [
        6 * n,
        12 * n,
        4 * n,
        8 * n,
        6 * n,
    ]
    assert found.saved == 4 * n, "as wide as its gradient's factor"
    assert parts(PYTORCH.but(compile=True))["moe.unpermute"].saved == 2 * n
