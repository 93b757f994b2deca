"""Context and expert parallelism: whole lists, hidden communication, bytes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from sim.cost.price import Cost
from sim.engine.run import simulate
from sim.files.planfile import load_plan
from sim.framework.framework import load_framework
from sim.lower.step import lower
from sim.model.parts import Part
from sim.program import Op
from sim.setting.bind import bind
from sim.work import Attention, Gemm, MemoryBound
from tests.null.lower.tiny import Constant, linear, messages, network, program, show, traffic
from topologies.errors import BadInput, Refused

KV, QKV = 4096, (4096, 1024, 512)


def attention(**more: Any) -> Part:
    forward, backward = (Attention(1, 2, 2, 64, 256, 8, dtype="fp32", backward=back) for back in (False, True))
    return Part(
        name="core",
        forward=(forward,),
        backward=(backward,),
        cls="attention",
        saved=7,
        seam="cp.attention",
        seam_bytes=KV,
        seam_heads=QKV,
        **more,
    )


def test_ring_attention_passes_keys_on_while_it_computes() -> None:
    p = program({"parallel": {"cp": 3}, "task": "forward"}, network(1, (attention(),)))
    assert show(p.segments["fwd"])[:-1] == [
        "compute: fwd/L0.core.hop0.out.record",
        "comm.cp.send: fwd/L0.core.hop0.out.wait",
        "comm.cp.recv: fwd/L0.core.hop0.in.wait",
        "comm.cp.send: fwd/L0.core.hop0.send",
        "comm.cp.recv: fwd/L0.core.hop0.recv",
        "comm.cp.recv: fwd/L0.core.hop0.done.record",
        "compute: fwd/L0.core.0",
        "compute: fwd/L0.core.hop0.done.wait",
        "comm.cp.send: fwd/L0.core.hop1.pass.wait",
        "comm.cp.send: fwd/L0.core.hop1.send",
        "comm.cp.recv: fwd/L0.core.hop1.recv",
        "comm.cp.recv: fwd/L0.core.hop1.done.record",
        "compute: fwd/L0.core.1",
        "compute: fwd/L0.core.hop1.done.wait",
        "compute: fwd/L0.core.2",
    ]


@pytest.mark.parametrize("ways", [2, 4, 8])
def test_ring_attention_moves_each_chunk_past_all_ranks_and_gradients_home(ways: int) -> None:
    p = program({"parallel": {"cp": ways}}, network(1, (attention(),)))
    hops = 2 * (ways - 1) + ways  # keys and values forward and backward, their gradients backward
    assert traffic(p, "cp") == hops * KV / ways
    works = [w for call, op in p.ops(0) if call.step == 1 for w in op.works if isinstance(w, Attention)]
    whole = Attention(1, 2, 2, 64, 256, 8)
    assert sum(w.flops for w in works if not w.backward) == whole.flops
    assert sum(w.flops for w in works if w.backward) == 2.5 * whole.flops


@pytest.mark.parametrize(("te", "width"), [(True, 1), (False, 2)])
def test_gradients_of_keys_go_round_in_fp32_where_torch_sums_them(te: bool, width: int) -> None:
    """Beside keys and values of 16 bits: as many bytes (TransformerEngine), or twice as many."""
    framework = load_framework("megatron-core" if te else "pytorch")
    assert framework.te_attention is te
    half = replace(
        attention(),
        forward=(Attention(1, 2, 2, 64, 256, 8, dtype="bf16"),),
        backward=(Attention(1, 2, 2, 64, 256, 8, dtype="bf16", backward=True),),
    )
    p = program({"parallel": {"cp": 4}}, network(1, (half,)), framework=framework)
    assert traffic(p, "cp") == (2 * 3 + width * 4) * KV / 4


@pytest.mark.parametrize("ways", [2, 4])
def test_every_step_of_a_ring_adds_to_what_the_steps_before_left(ways: int) -> None:
    """Output: rescaled once, added ways - 1 times. Gradients of queries, keys and values: copied once, then added as often."""
    p = program({"parallel": {"cp": ways}}, network(1, (attention(),)))
    works = [w for call, op in p.ops(0) if call.step == 1 and op.cls == "attention" for w in op.works if isinstance(w, MemoryBound)]
    out = 1 * 2 * 64 * 8 * 4  # the gradient of the queries is as large
    half = KV // ways // 2  # earlier half of an arriving chunk: the mask hides the rest
    forward, backward = 2 * out + (ways - 1) * 3 * out, 2 * out + (ways - 1) * 3 * out + 2 * KV // ways + (ways - 1) * 3 * half
    again = (ways - 1) * (2 * out + 2 * out // 4 * 4 + out)  # rowsum(dO * O); dQ from fp32
    pieces = 2 * (ways - 1) * 2 * half
    assert sum(w.bytes for w in works) == forward + backward + again + pieces


def test_chunks_that_arrive_need_no_mask() -> None:
    p = program({"parallel": {"cp": 4}, "task": "forward"}, network(1, (attention(),)))
    works = [w for call, op in p.ops(0) if call.step == 1 for w in op.works if isinstance(w, Attention)]
    assert [(w.kv, w.causal) for w in works] == [(64, True), (32, False), (32, False), (32, False)]


class Timed(Constant):
    """Attention takes what the test says, a hop one second."""

    def __init__(self, attention: float) -> None:
        super().__init__()
        self.attention = attention

    def local(self, op: Op, rank: int) -> Cost:
        if op.kind != "compute":
            return Cost(0.0)
        return Cost(self.attention if op.cls == "attention" else 0.0)

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        return Cost(1.0)


@pytest.mark.parametrize("ways", [2, 4])
@pytest.mark.parametrize(("compute", "total"), [(1.5, lambda n: 1.5 * n), (0.5, lambda n: (n - 1) + 0.5)])
def test_ring_attention_hides_all_communication_that_compute_covers(ways: int, compute: float, total: Any) -> None:
    p = program({"parallel": {"cp": ways}, "task": "forward"}, network(1, (attention(),)), steps=1)
    trace = simulate(p, Timed(compute))
    assert max(span.end for span in trace.spans) == pytest.approx(total(ways))


def test_gathered_keys_and_exchanged_heads() -> None:
    output = 1 * 2 * 64 * 8 * 4
    gathered = program({"parallel": {"cp": 2, "cp_kind": "all_gather"}}, network(1, (attention(),)))
    assert messages(gathered) == [("all_gather", "cp", KV), ("all_gather", "cp", KV), ("reduce_scatter", "cp", KV)]
    swapped = program({"parallel": {"cp": 2, "cp_kind": "all_to_all"}}, network(1, (attention(),)))
    assert messages(swapped) == [("all_to_all", "cp", size) for size in (sum(QKV), output, output, sum(QKV))]


def test_rings_go_round_among_ranks_with_the_same_heads() -> None:
    """Twelve ranks: heads are exchanged among three neighbours, and rings of four ranks pass a quarter of the keys."""
    split = {"cp": 12, "cp_kind": "all_to_all+p2p", "cp_ulysses": 3}
    p = program({"parallel": split}, network(1, (attention(),)))
    output = 1 * 2 * 64 * 8 * 4
    exchanges = [message for message in messages(p) if message[0] == "all_to_all"]
    assert exchanges == [("all_to_all", "cp_ulysses", size) for size in (sum(QKV), output, output, sum(QKV))]
    assert traffic(p, "cp_ring") == (3 + 3 + 4) * KV / 4 and traffic(p, "cp") == 0
    assert p.mesh.group("cp_ulysses", 4) == (3, 4, 5) and p.mesh.group("cp_ring", 4) == (1, 4, 7, 10)
    order = show(program({"parallel": split, "task": "forward"}, network(1, (attention(),))).segments["fwd"])
    assert order[:3] == [f"compute: fwd/L0.core.to_heads{part}" for part in (".before", "", ".after")]
    assert order[-4:-1] == [f"compute: fwd/L0.core.to_sequence{part}" for part in (".before", "", ".after")]
    assert sum(line.startswith("compute: fwd/L0.core.") and line[-2] == "." for line in order) == 4


@pytest.mark.parametrize(("framework", "waited"), [("pytorch", (5632, 5632)), ("megatron-core", (4096, 512))])
def test_what_is_exchanged_is_copied_before_and_after(framework: str, waited: tuple[int, int]) -> None:
    """TransformerEngine copies one tensor while another travels: the first's copy and the last's are seen."""
    plan = load_plan({"model": "tiny", "precision": "fp32", "parallel": {"cp": 2, "cp_kind": "all_to_all"}, "task": "forward"})
    p = lower(plan, network(1, (attention(),)), load_framework(framework), "cuda", 1)
    copied = [sum(w.read for w in op.works if isinstance(w, MemoryBound)) for _, op in p.ops(0) if op.id.endswith((".before", ".after"))]
    assert copied == [*waited, 4096, 4096]


@pytest.mark.parametrize(("framework", "times"), [("pytorch", 1), ("megatron-core", 2)])
def test_between_rings_te_brings_the_result_back_beside_its_gradient(framework: str, times: int) -> None:
    plan = load_plan({"model": "tiny", "precision": "fp32", "parallel": {"cp": 4, "cp_kind": "all_to_all+p2p", "cp_ulysses": 2}})
    p = lower(plan, network(1, (attention(),)), load_framework(framework), "cuda", 1)
    assert next(op.bytes for _, op in p.ops(0) if op.id == "bwd/L0.core.to_heads") == 4096 * times


@pytest.mark.parametrize(("ulysses", "same"), [(1, "p2p"), (4, "all_to_all")])
def test_between_rings_and_exchanged_heads_lie_both(ulysses: int, same: str) -> None:
    """One rank exchanges nothing; where all do there are no rings."""
    tree: dict[str, Any] = {
        "model": "llama3-8b",
        "seq_len": 8192,
        "parallel": {"cp": 4, "cp_kind": "all_to_all+p2p", "cp_ulysses": ulysses},
    }
    both, one = (bind(t, "dgx-h100") for t in (tree, {**tree, "parallel": {"cp": 4, "cp_kind": same}}))
    first, second = (lower(s.plan, s.network, s.framework, "cuda", 2) for s in (both, one))
    assert first.segments == second.segments and first.mesh == second.mesh


def test_a_hybrid_says_how_many_ranks_exchange_heads() -> None:
    tree: dict[str, Any] = {"model": "llama3-8b", "seq_len": 8192, "parallel": {"cp": 4, "cp_kind": "all_to_all+p2p"}}
    with pytest.raises(BadInput, match=r"needs parallel.cp_ulysses: how many neighbours"):
        bind(tree, "dgx-h100")
    with pytest.raises(BadInput, match="cp_ulysses = 3 must divide cp = 4"):
        bind({**tree, "parallel": tree["parallel"] | {"cp_ulysses": 3}}, "dgx-h100")
    few = tree["parallel"] | {"cp": 16, "cp_ulysses": 16}
    with pytest.raises(BadInput, match=r"cp \(all_to_all\) = 16 does not divide key-value heads"):
        bind({**tree, "framework": "megatron-core", "parallel": few}, "2x dgx-h100")
    with pytest.raises(BadInput, match=r"tp x cp_ulysses = 64 does not divide attention heads"):
        bind({**tree, "parallel": few | {"cp": 128, "cp_ulysses": 64}}, "16x dgx-h100")
    bind({**tree, "framework": "megatron-core", "parallel": few | {"cp_ulysses": 8}}, "2x dgx-h100")


def test_rings_over_fewer_messages_and_the_same_work() -> None:
    """Two nodes of eight: heads change places inside, keys go round between the two."""
    tree: dict[str, Any] = {"model": "llama3-8b", "seq_len": 65536, "framework": "megatron-core", "task": "forward"}
    kinds = ({"cp_kind": "p2p"}, {"cp_kind": "all_to_all+p2p", "cp_ulysses": 8})
    ring, both = (bind({**tree, "parallel": {"cp": 16, **kind}}, "2x dgx-h100") for kind in kinds)
    ops = [lower(s.plan, s.network, s.framework, "cuda", 1) for s in (ring, both)]
    sent = [[op.bytes for _, op in p.ops(0) if op.kind == "send"] for p in ops]
    assert len(sent[0]) == 15 * len(sent[1]) and set(sent[0]) == set(sent[1])


def test_a_ring_needs_fused_attention() -> None:
    from msgspec.structs import replace

    written = replace(attention(), forward=(Gemm(8, 8, 8),), backward=(Gemm(8, 8, 8),))
    with pytest.raises(Refused, match="ring attention"):
        program({"parallel": {"cp": 2}}, network(1, (written,)))


@pytest.mark.parametrize("kind", ["p2p", "all_gather", "all_to_all"])
def test_windows_go_by_no_ring_and_else_compute_a_rank_s_share_of_their_pairs(kind: str) -> None:
    tree: dict[str, Any] = {"model": "gpt-oss-20b", "seq_len": 8192, "parallel": {"cp": 8, "cp_kind": kind, "ep": 8}}
    if kind == "p2p":
        with pytest.raises(Refused, match=r"no ring attention .* takes sliding windows, chunks or choices of keys"):
            attention_flops(tree)
        return
    split, alone = (attention_flops(one) for one in (tree, {**tree, "parallel": {}}))
    assert split * 8 == pytest.approx(alone)


def attention_flops(tree: dict[str, Any]) -> float:
    s = bind({**tree, "framework": "megatron-bridge"}, "dgx-h100")
    p = lower(s.plan, s.network, s.framework, "cuda", 2)
    return sum(w.flops for call, op in p.ops(0) if call.step == 1 for w in op.works if isinstance(w, Attention))


def test_parameters_are_averaged_over_data_and_context_ranks() -> None:
    p = program({"parallel": {"cp": 2, "dp_replicate": 2, "cp_kind": "all_gather"}}, network(1, (linear(),)))
    assert messages(p) == [("all_reduce", "grad", 4 << 20)]


UP = linear("up", seam="ep.dispatch", seam_bytes=99, expert=True)
DOWN = linear("down", seam="ep.combine", seam_bytes=99, expert=True)


def test_tokens_travel_to_their_experts_and_back() -> None:
    p = program({"parallel": {"dp_replicate": 4, "ep": 2}}, network(1, (linear(), UP, DOWN)))
    assert show(p.segments["fwd"])[1:-1] == [
        "compute: fwd/L0.up.all_to_all",
        "compute: fwd/L0.up",
        "compute: fwd/L0.down",
        "compute: fwd/L0.down.all_to_all",
    ]
    assert [m for m in messages(p) if m[1] == "ep"] == [("all_to_all", "ep", 99)] * 4
    assert sorted(m for m in messages(p) if m[1] != "ep") == [
        ("all_reduce", "dp", 4 << 20),
        ("all_reduce", "edp", 4 << 20),
        ("all_reduce", "edp", 4 << 20),
    ]


def test_weights_follow_the_tokens_and_their_gradients_go_before_the_tokens() -> None:
    up = linear("up", seam="ep.dispatch", seam_bytes=99, seam_weights=8, expert=True)
    p = program({"parallel": {"dp_replicate": 4, "ep": 2}}, network(1, (linear(), up, DOWN)))
    assert [size for _, group, size in messages(p) if group == "ep"] == [99, 8, 99, 99, 8, 99]


def test_sharded_experts_gather_over_fewer_ranks() -> None:
    p = program({"parallel": {"dp_shard": 4, "ep": 2, "zero": 3}}, network(1, (linear(), UP, DOWN)))
    sizes = {(name, group): size for name, group, size in messages(p) if name != "all_to_all"}
    assert sizes == {
        ("all_gather", "fsdp"): 4 << 20,
        ("all_gather", "efsdp"): 8 << 20,
        ("reduce_scatter", "fsdp"): 4 << 20,
        ("reduce_scatter", "efsdp"): 8 << 20,
    }


def test_exchanged_heads_of_keys_are_copied_where_there_are_fewer_than_ranks() -> None:
    """DeepSpeed's UlyssesSPAttentionHF: "if we have 4 kv heads and sp 8": each rank gets one, which two ranks share."""
    tokens, e, width = 8192 // 16, 2, 128
    assert _sent("pytorch", 16) == tokens * (32 + 2 * 16) * width * e
    assert _sent("pytorch", 8) == 2 * tokens * (32 + 2 * 8) * width * e


def test_transformer_engine_exchanges_no_heads_that_it_cannot_deal_out_evenly() -> None:
    with pytest.raises(BadInput, match=r"cp \(all_to_all\) = 16 does not divide key-value heads of a tp rank = 8"):
        _sent("megatron-core", 16)
    assert _sent("megatron-core", 8) == _sent("pytorch", 8)
    with pytest.raises(BadInput, match=r"cp \(all_to_all\) = 8 does not divide key-value heads of a tp rank = 3"):
        _sent("pytorch", 8, heads=24, kv_heads=3)


def _sent(framework: str, cp: int, **model: int) -> int:
    """Bytes of the first exchange of queries, keys and values."""
    tree = {"base": "llama3-8b", "layers": 1, "heads": 32, "kv_heads": 8, "head_dim": 128} | model
    s = bind({"model": tree, "framework": framework, "seq_len": 8192, "parallel": {"cp": cp, "cp_kind": "all_to_all"}}, "2x dgx-h100")
    p = lower(s.plan, s.network, s.framework, "cuda", 1)
    return next(op.bytes for _, op in p.ops(0) if op.name == "all_to_all")
