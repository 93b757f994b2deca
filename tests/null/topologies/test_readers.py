"""Readers of NCCL's XML and of nvidia-smi topo -m: what they find, what they refuse, and that nothing else comes out."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.null.topologies import samples
from topologies.build import build
from topologies.errors import BadInput
from topologies.load import Topology, load_topology
from topologies.readers import LARGEST, read_file, read_text
from topologies.readers.dump import dump
from topologies.readers.parts import assumed_nvlink
from topologies.table import parse_toml

SHARED = Path(__file__).parents[4] / "shared" / "topo_samples"
FILES = sorted(path.name for path in SHARED.glob("*.*") if path.suffix in (".xml", ".txt")) if SHARED.is_dir() else []


def loaded(folder: Path, text: str, gpu: str = "") -> Topology:
    """Through the TOML file, as a person would use it."""
    file = folder / "read.toml"
    file.write_text(read_text(text, "read", gpu).toml())
    return load_topology(str(file))


def test_a_dump_of_nccl(tmp_path: Path) -> None:
    found = loaded(tmp_path, samples.DUMP)
    machine = found.machine(0)
    assert found.gpus == 2 and found.device(0).name == "h100-sxm" and machine.chips == (9, 9)
    # Ranks follow NCCL's dev numbers: dev 0 is the card on the second socket, at half of gen4 x16.
    assert machine.up["gpu0"] == "socket1" and machine.up["gpu1"] == "sw0" and machine.up["nic0"] == "sw0"
    assert found.path(0, 1).kind == "NVL" and found.path(0, 1).rate == 450e9
    assert found.host_path(1, True).rate == 53e9 and found.rates["n0/socket1>n0/gpu0"] == 12.5e9
    assert machine.nics["nic0"].rate == 50e9 and found.host(0).name == "xeon-8480c" and found.cores(0) == 32


def test_a_mesh_and_a_virtual_nic(tmp_path: Path) -> None:
    found = loaded(tmp_path, samples.MESH)
    assert found.path(0, 1).kind == "NVL" and found.path(0, 1).rate == 56.25e9
    use = found.nic_of(0)
    assert use is not None and use.kind == "PHB" and use.nics[0].rate == 1.25e9 and found.cores(0) == 8


def test_a_graph_file_and_a_peer_matrix(tmp_path: Path) -> None:
    assert loaded(tmp_path, samples.GRAPHS).path(0, 1).kind == "PHB"
    assert "not the machine" in read_text(samples.GRAPHS, "g").notes[0]
    assert loaded(tmp_path, samples.PEERS).path(0, 1).staged


def test_graphs_of_gpus_joined_by_nvlink(tmp_path: Path) -> None:
    """As many links as there are channels."""
    found = loaded(tmp_path, samples.GRAPHS.replace('typeintra="PHB"', 'typeintra="NVL"'), gpu="a100-sxm-80gb")
    assert found.path(0, 1).kind == "NVL" and found.path(0, 1).rate == 50e9


def test_links_that_the_catalog_does_not_know(tmp_path: Path) -> None:
    """The file counts: where the directions differ the smaller number, and where there are more than the catalog's."""
    uneven = samples.MESH.replace('target="0000:02:00.0" count="4"', 'target="0000:02:00.0" count="2"')
    assert loaded(tmp_path, uneven).path(0, 1).rate == 28.125e9
    assert "differ by direction" in " ".join(read_text(uneven, "m").notes)
    many = samples.MESH.replace('count="4"', 'count="6"')
    found = loaded(tmp_path, many)
    assert found.path(0, 1).rate == pytest.approx(6 / 4 * 56.25e9)
    assert "the file shows 6" in " ".join(read_text(many, "m").notes)


def test_mixed_gpus_and_other_hosts(tmp_path: Path) -> None:
    two = samples.DUMP.replace('device="0x2330"', 'device="0x20b0"', 1)
    assert any(note.startswith("GPUs of several models: a100") for note in read_text(two, "m").notes)
    arm = samples.MESH.replace('arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1"', 'arch="arm64"')
    assert loaded(tmp_path, arm).host(0).name == "grace"


def test_a_matrix(tmp_path: Path) -> None:
    found = loaded(tmp_path, samples.MATRIX, gpu="l40s")
    assert (found.path(0, 1).kind, found.path(0, 1).staged) == ("PIX", False)
    assert (found.path(0, 2).kind, found.path(0, 2).staged) == ("SYS", True)
    first, third = found.nic_of(0), found.nic_of(2)
    assert first is not None and (first.kind, first.sharers, first.nics[0].name) == ("PIX", 2, "mlx5_0")
    assert third is not None and (third.kind, third.names) == ("SYS", ("nic1",)) and found.cores(0) == 32
    assert found.machine(0).nics["nic1"].name == "mlx5_bond_0"


def test_a_matrix_of_an_old_driver(tmp_path: Path) -> None:
    found = loaded(tmp_path, samples.OLD)
    assert found.path(0, 1).kind == "NVL" and found.path(0, 1).rate == 50e9
    assert found.nic_of(1).kind == "PHB" and found.nic_of(0).kind == "SYS"  # type: ignore[union-attr]


@pytest.mark.skipif(not FILES, reason="no folder of samples")
@pytest.mark.parametrize("name", FILES)
def test_every_sample_file(name: str) -> None:
    found = read_file(SHARED / name)
    assert parse_toml(found.toml(), name) == found.document
    machine = build(found.document)
    topology = load_topology(str(SHARED / name))
    assert topology.gpus == machine.size >= 2
    assert all(topology.path(0, rank).rate > 0 for rank in range(topology.gpus))


@pytest.mark.skipif(not FILES, reason="no folder of samples")
@pytest.mark.parametrize(
    ("name", "gpus", "nics", "kind", "nic"),
    [
        ("nccl_aws_p4d.xml", 8, 4, "NVL", "PIX"),
        ("nccl_azure_ndv5_h100.xml", 8, 8, "NVL", "PIX"),
        ("nccl_mlperf_hpe_675d_a100.xml", 8, 4, "NVL", "PXB"),
        ("nccl_aws_g5_48xl.xml", 8, 1, "PHB", "SYS"),
        ("nccl_azure_ncv4_a100_pcie.xml", 4, 1, "SYS", "PHB"),
        ("topo_m_gcp_a3ultra_h200.txt", 8, 8, "NVL", "PIX"),
        ("topo_m_gcp_a3ultra_h200_ansi.txt", 8, 8, "NVL", "PIX"),
        ("rerendered_topo_m_dgx_a100_12nic.txt", 8, 12, "NVL", "PXB"),
        ("rerendered_topo_m_dgx2_16xnv6_8nic.txt", 16, 8, "NVL", "PIX"),
        ("topo_m_v100_sxm2_8gpu_1ib.txt", 8, 1, "NVL", "PHB"),
        ("topo_m_v100_sxm2_8gpu_2ib_handedited_tabs.txt", 8, 2, "NVL", "PHB"),
        ("topo_m_4gpu_pcie_SOC_legacy.txt", 4, 1, "PHB", "SYS"),
    ],
)
def test_what_the_samples_show(name: str, gpus: int, nics: int, kind: str, nic: str) -> None:
    found = load_topology(str(SHARED / name))
    use = found.nic_of(0)
    assert (found.gpus, len(found.machine(0).nics), found.path(0, 1).kind) == (gpus, nics, kind)
    assert use is not None and use.kind == nic


BOMB = '<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]><system><cpu numaid="&b;"/></system>'
OUTSIDE = '<!DOCTYPE s [<!ENTITY x SYSTEM "file:///etc/passwd">]><system version="1"><cpu affinity="&x;"/></system>'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "document type or entities"),
        (OUTSIDE, "document type or entities"),
        ('<! DOCTYPE s><system version="1"/>', "document type or entities"),
        ('<!doctype s><system version="1"/>', "document type or entities"),
        ("<system>&undeclared;</system>", "not valid XML"),
        ("<system>", "not valid XML"),
        ("<system\x00/>", "not UTF-8"),
        ("<a>" * 100 + "</a>" * 100, "nested deeper"),
        ("<system>" + "<cpu/>" * 30_000 + "</system>", "more than"),
        ("<lstopo/>", "not NCCL's <system>"),
        ('<system version="1"/>', "no <cpu>"),
        ('<system version="1"><cpu numaid="0"/></system>', "no GPU"),
        ("<graphs/>", "without channels"),
        (samples.GRAPHS.replace('typeintra="PHB"', 'typeintra="FAR"'), "unknown typeintra 'FAR'"),
        ("", "no header line"),
        ("hello", "no header line"),
        ("\tGPU0\tGPU1\nGPU0\t X \tSYS\n", "no row for it"),
        ("\tGPU0\tGPU1\nGPU0\t X \t\nGPU1\tSYS\t X \n", "row GPU0 lacks the cell below GPU1"),
        ("\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\t\t X \n", "row GPU1"),
        ("\tGPU0\tGPU1\nGPU0\t X \tFAR\nGPU1\tSYS\t X \n", "lacks the cell below GPU1"),
        ("\tGPU0\tGPU1\nGPU0\tSYS\t X \nGPU1\tSYS\t X \n", "diagonal"),
        ("\tGPU0\tNIC0\nGPU0\t X \tNV2\nNIC0\tNV2\t X \n", "NVLink joins GPUs only"),
        ("\tGPU0\tGPU0\nGPU0\t X \tSYS\n", "twice"),
        ("\t" + "\t".join(f"GPU{i}" for i in range(500)), "at most"),
        ("x" * 300_000, "larger than"),
        ("<" + "x" * (2 << 20), "larger than"),
    ],
)
def test_refused(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        read_text(text, "file")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot read"):
        read_file(tmp_path / "none.xml")
    with pytest.raises(BadInput, match="cannot read"):
        read_file(tmp_path)
    (tmp_path / "binary.xml").write_bytes(b"\xff\xfe<\x00s\x00")
    with pytest.raises(BadInput, match="not UTF-8"):
        read_file(tmp_path / "binary.xml")
    (tmp_path / "large.xml").write_bytes(b" " * (LARGEST + 1))
    with pytest.raises(BadInput, match="MiB: this is no topology file"):
        read_file(tmp_path / "large.xml")
    with pytest.raises(BadInput, match="unknown GPU"):
        read_text(samples.OLD, "x", gpu="h100")


def readable(text: str) -> None:
    """Reads, or refuses clearly; what is read goes through TOML unchanged."""
    try:
        found = read_text(text, "fuzz")
    except BadInput as error:
        assert str(error)
        return
    assert parse_toml(found.toml(), "fuzz") == found.document
    assert build(found.document).size >= 1


ALL = [samples.DUMP, samples.MESH, samples.GRAPHS, samples.MATRIX, samples.OLD, samples.PEERS]


@pytest.mark.no_cover
@settings(max_examples=300)
@given(
    base=st.sampled_from(ALL),
    at=st.integers(0, 4000),
    cut=st.integers(0, 60),
    put=st.text(max_size=12) | st.sampled_from(["<", "/>", "X", "\t", '"', "NV99", "4096"]),
)
def test_fuzz_by_editing(base: str, at: int, cut: int, put: str) -> None:
    at %= len(base)
    readable(base[:at] + put + base[at + cut :])


@settings(max_examples=150)
@given(base=st.sampled_from(ALL), lines=st.lists(st.integers(0, 60), max_size=30))
def test_fuzz_by_shuffling_lines(base: str, lines: list[int]) -> None:
    rows = base.splitlines()
    readable("\n".join(rows[i % len(rows)] for i in lines))


@given(st.text(max_size=200))
def test_fuzz_by_any_text(text: str) -> None:
    readable(text)
    readable("<" + text)
    readable("\tGPU0\tGPU1\n" + text)


ATTRIBUTES = st.dictionaries(
    st.sampled_from(
        [
            "numaid",
            "affinity",
            "busid",
            "class",
            "link_speed",
            "link_width",
            "device",
            "vendor",
            "dev",
            "sm",
            "count",
            "target",
            "tclass",
            "speed",
            "arch",
        ]
    ),
    st.sampled_from(
        [
            "0",
            "1",
            "-1",
            "0x030200",
            "0x060400",
            "0x020700",
            "16 GT/s",
            "1e9",
            "",
            "ffffffff",
            "0x10de",
            "0x2330",
            "400000",
            "99999999999",
            "nan",
            "arm64",
            "0:1",
        ]
    ),
    max_size=6,
)


def element(tag: str, attributes: dict[str, str], children: list[str]) -> str:
    body = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f"<{tag}{body}>{''.join(children)}</{tag}>"


TREES = st.recursive(
    st.builds(element, st.sampled_from(["gpu", "net", "nvlink", "pci", "nic"]), ATTRIBUTES, st.just([])),
    lambda inner: st.builds(element, st.sampled_from(["pci", "cpu", "gpu", "nic"]), ATTRIBUTES, st.lists(inner, max_size=4)),
    max_leaves=14,
)


@settings(max_examples=150)
@given(st.lists(TREES, max_size=3), ATTRIBUTES)
def test_fuzz_by_well_formed_trees(children: list[str], attributes: dict[str, str]) -> None:
    readable(element("system", {}, [element("cpu", attributes, children), *children]))


CELLS = ("PIX", "PXB", "PHB", "NODE", "SYS")


@st.composite
def places(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """For each device: its socket, root complex, upper switch and switch."""
    one = st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 1), st.integers(0, 1))
    return draw(st.lists(one, min_size=2, max_size=7))


def distance(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    return next((cell for cell, depth in zip(CELLS, (4, 3, 2, 1), strict=False) if a[:depth] == b[:depth]), "SYS")


@pytest.mark.no_cover
@settings(max_examples=150)
@given(at=places(), gpus=st.integers(1, 7))
def test_a_matrix_comes_back_from_the_machine_made_of_it(at: list[tuple[int, int, int, int]], gpus: int) -> None:
    names = [f"GPU{i}" if i < gpus else f"NIC{i - gpus}" for i in range(len(at))]
    rows = [[name, *("X" if i == j else distance(at[i], at[j]) for j in range(len(at)))] for i, name in enumerate(names)]
    rows = [row + ([f"{at[i][0] * 8}-{at[i][0] * 8 + 7}", str(at[i][0])] if i < gpus else []) for i, row in enumerate(rows)]
    text = "\n".join("\t".join(row) for row in [["", *names, "CPU Affinity", "NUMA Affinity"], *rows])
    found = load_topology("dgx-h100")  # any, for its router's class
    router = type(found._sites[0].router)(build(read_text(text, "made", "a100-pcie-80gb").document))
    for i, a in enumerate(names):
        for j, b in enumerate(names):
            if i != j:
                leg = router.tree(a.lower(), b.lower())
                expected = distance(at[i], at[j]).replace("NODE", "PHB")
                assert leg is not None and leg.kind == expected, (text, a, b)


VALUES = st.text(max_size=20) | st.integers(-5, 5) | st.booleans() | st.lists(st.text(max_size=5), max_size=3)


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8),
        VALUES
        | st.dictionaries(
            st.text(min_size=1, max_size=8),
            VALUES | st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=2),
            max_size=3,
        ),
        max_size=5,
    )
)
def test_toml_comes_back(document: dict[str, object]) -> None:
    assert parse_toml(dump(document, ["a note\nin two lines"]), "x") == document


@pytest.mark.parametrize(("gpus", "table"), [(4, {"mesh": "all"}), (8, {"switch": [2] * 6}), (2, {})])
def test_boards_of_four_sxm_parts_have_no_switches(gpus: int, table: dict[str, object]) -> None:
    found = assumed_nvlink("a100-sxm-80gb", gpus, notes := [])
    assert found == ({"nvlink": table} if table else {}) and len(notes) == bool(table)


def test_a_broken_file_is_called_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "t.xml").write_text("<system><cpu></system>")
    with pytest.raises(BadInput, match=r"^t\.xml is not valid XML"):
        read_file(tmp_path / "t.xml")
