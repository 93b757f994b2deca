"""Text and files of programs: what is written is read back, exactly; what is wrong is named."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings

from sim.files.text import load_program, parse_op, parse_program, save_program, show_program
from sim.mesh import Mesh
from sim.program import Call, Op, Program, Role
from sim.work import Gemm, MemoryBound
from tests.null.drawn import OPS, programs
from topologies.errors import BadInput, UnknownName

TEXT = """\
program demo device=cuda steps=1
mesh pp=1 tp=2 order=pp,dp_replicate,dp_shard,cp,tp ep=1
resident parameters 128
note "kept whole"
segment fwd
  collective comm.tp L0.gather name=all_gather bytes=4096 group=tp cls=comm.tp
  compute compute L0.qkv gemm(m=8,n=8,k=8) cls=gemm alloc=128
  wait compute L0.in event="L0 in" blocking
role all
  thread host
    call fwd s0/mb0/fwd index=0 step=0
ranks 2 all
"""


def demo() -> Program:
    ops = (
        Op("L0.gather", "collective", "comm.tp", name="all_gather", bytes=4096, group="tp", cls="comm.tp"),
        Op("L0.qkv", "compute", "compute", (Gemm(8, 8, 8),), cls="gemm", alloc=128),
        Op("L0.in", "wait", "compute", event="L0 in", blocking=True),
    )
    roles = {"all": Role({"host": (Call("fwd", "s0/mb0/fwd"),)})}
    mesh = Mesh({"pp": 1, "tp": 2})
    return Program("demo", "cuda", mesh, {"fwd": ops}, roles, ("all", "all"), 1, {"parameters": 128}, ("kept whole",))


def test_a_program_reads_as_lines() -> None:
    assert show_program(demo()) == TEXT
    assert parse_program(TEXT) == demo()


def test_comments_and_indentation_do_not_matter() -> None:
    assert parse_program("# a remark\n\n" + TEXT.replace("  ", "")) == demo()


def test_an_op_prints_as_one_line() -> None:
    op = Op("a b", "send", "comm.pp", bytes=8, group="pp", peer=-1, works=(MemoryBound("add", 8, 4),))
    assert str(op) == 'send comm.pp "a b" memorybound(what=add,read=8,written=4) bytes=8 group=pp peer=-1'


@given(OPS)
def test_an_op_is_read_back(op: object) -> None:
    assert isinstance(op, Op)
    line = str(op)
    assert len(line.splitlines()) == 1
    assert parse_op(line) == op


@pytest.mark.no_cover
@settings(max_examples=60, deadline=None)
@given(programs())
def test_a_program_is_read_back(program: Program) -> None:
    assert parse_program(show_program(program)) == program


@pytest.mark.no_cover
@settings(max_examples=30, deadline=None)
@given(programs())
def test_a_saved_program_is_loaded(tmp_path_factory: pytest.TempPathFactory, program: Program) -> None:
    folder = tmp_path_factory.mktemp("programs")
    for name in ("p.jsonl", "p.jsonl.gz"):
        save_program(program, folder / name)
        assert load_program(folder / name) == program
    assert sorted(path.name for path in folder.iterdir()) == ["p.jsonl", "p.jsonl.gz"]


def test_equal_programs_are_equal_bytes(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        save_program(demo(), tmp_path / name)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_one_op_stands_on_one_line_of_the_file(tmp_path: Path) -> None:
    save_program(demo(), tmp_path / "p.jsonl")
    lines = (tmp_path / "p.jsonl").read_text().splitlines()
    assert [line[:16] for line in lines] == [
        '{"line":"program',
        '{"line":"segment',
        *['{"id":"L0.gather', '{"id":"L0.qkv","', '{"id":"L0.in","k'],
        '{"line":"role","',
    ]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    save_program(demo(), path)
    before = path.read_bytes()
    broken = Program("x", "cuda", Mesh({}), {"s": ("no op", object())}, {}, ("r",), 1)  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        save_program(broken, path)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["p.jsonl"]


@pytest.mark.parametrize(
    ("line", "wrong", "message"),
    [
        ("ranks 2 all", "ranks 3 all", "roles for 3 ranks, its mesh has 2"),
        ("ranks 2 all", "ranks 99999999 all", "at most 1048576 ranks"),
        ("call fwd s0", "call bwd s0", "unknown segment 'bwd'"),
        ("gemm(m=8,", "gem(m=8,", "line 7: cannot read work 'gem"),
        ("  compute compute", "  compte compute", "line 7: unknown word 'compte'.*compute"),
        ("alloc=128", "alloc=many", "line 7: alloc of op .* must be a whole number, got 'many'"),
        ("alloc=128", "aloc=128", "line 7: unknown op field 'aloc'.*Did you mean alloc"),
        ('"L0 in"', '"L0 in', "line 8: cannot read"),
        ("device=cuda", "device=tpu", "unknown device 'tpu'"),
        ("tp=2", "tpp=2", "line 2: unknown mesh axis 'tpp'"),
        ("index=0 step=0", "index=0", "line 11: expected index=... step=..."),
    ],
)
def test_what_is_wrong_is_named(line: str, wrong: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_program(TEXT.replace(line, wrong))


@pytest.mark.parametrize("content", [b"", b"{}\n", b'{"line":"segment","name":"s","ops":1}\n', b"\xff\xfe"])
def test_a_file_that_is_no_program_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p.jsonl").write_bytes(content)
    with pytest.raises(BadInput, match=r"program file .*p\.jsonl"):
        load_program(tmp_path / "p.jsonl")
    with pytest.raises(BadInput, match="does not exist"):
        load_program(tmp_path / "absent.jsonl")


def test_a_file_that_ends_early_is_refused(tmp_path: Path) -> None:
    save_program(demo(), tmp_path / "p.jsonl")
    lines = (tmp_path / "p.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "p.jsonl").write_bytes(b"".join(lines[:3]))
    with pytest.raises(BadInput, match=r"p\.jsonl"):
        load_program(tmp_path / "p.jsonl")
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(b"".join(lines))[:-9])
    with pytest.raises(BadInput, match="cannot be unpacked"):
        load_program(tmp_path / "p.jsonl.gz")


def test_reading_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_program(demo(), tmp_path / "p.jsonl.gz")
    monkeypatch.setattr("sim.files.programfile.LARGEST", 200)
    with pytest.raises(BadInput, match="at most 200 bytes"):
        load_program(tmp_path / "p.jsonl.gz")


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean compute"):
        parse_op("compue compute a")
