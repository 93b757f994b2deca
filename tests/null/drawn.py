"""Ops and programs drawn by hypothesis: any text in names, any shape of program; not meant to make sense."""

from __future__ import annotations

from hypothesis import strategies as st

from sim.mesh import AXES, Mesh
from sim.program import KINDS, Call, Op, Program, Role
from sim.work import Attention, Conv, Gemm, HostWork, MemoryBound, Work

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SMALL = st.integers(0, 2**40)
SIZES = st.integers(1, 4096)
WORKS: st.SearchStrategy[Work] = st.one_of(
    st.builds(Gemm, m=SIZES, n=SIZES, k=SIZES, dtype=st.sampled_from(["bf16", "fp32"]), accumulate=st.booleans()),
    st.builds(Attention, batch=SIZES, heads=SIZES, kv_heads=SIZES, q=SIZES, kv=SIZES, d=SIZES, causal=st.booleans()),
    st.builds(Conv, batch=SIZES, c_in=SIZES, h=SIZES, w=SIZES, c_out=SIZES, kh=SIZES, kw=SIZES),
    st.builds(MemoryBound, what=st.sampled_from(["add", "cast"]), read=SMALL, written=SMALL, ops=st.floats(0, 1e30)),
    st.builds(HostWork, what=st.just("module"), count=st.floats(0, 1e6), seconds=st.floats(0, 10)),
)
OPS = st.builds(
    Op,
    id=NAMES,
    kind=st.sampled_from(KINDS),
    lane=NAMES,
    works=st.lists(WORKS, max_size=3).map(tuple),
    name=NAMES,
    bytes=SMALL,
    group=NAMES,
    peer=st.integers(-64, 64),
    event=NAMES,
    shift=st.none() | st.integers(-8, 8),
    cls=NAMES,
    blocking=st.booleans(),
    how=NAMES,
    alloc=SMALL,
    free=SMALL,
)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Two ranks or one; all names lead somewhere."""
    segments = draw(st.dictionaries(NAMES, st.lists(OPS, max_size=4).map(tuple), min_size=1, max_size=3))
    calls = st.lists(st.builds(Call, st.sampled_from(sorted(segments)), NAMES, st.integers(0, 99), st.integers(0, 9)), max_size=3)
    roles = draw(st.dictionaries(NAMES, st.builds(Role, st.dictionaries(NAMES, calls.map(tuple), max_size=2)), min_size=1, max_size=2))
    sizes = draw(st.dictionaries(st.sampled_from(AXES), st.integers(1, 2), max_size=3))
    mesh = Mesh(sizes, draw(st.permutations(AXES).map(tuple)))
    return Program(
        name=draw(NAMES),
        device=draw(st.sampled_from(["cuda", "cpu"])),
        mesh=mesh,
        segments=segments,
        roles=roles,
        role_of=tuple(draw(st.lists(st.sampled_from(sorted(roles)), min_size=mesh.world, max_size=mesh.world))),
        steps=draw(st.integers(1, 9)),
        resident=draw(st.dictionaries(NAMES, SMALL, max_size=2)),
        notes=draw(st.lists(NAMES, max_size=2).map(tuple)),
    )
