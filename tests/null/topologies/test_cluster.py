"""Clusters: expressions, mixed nodes, lazily known links, files."""

import pickle
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.cluster import parse
from topologies.devices import nic
from topologies.errors import BadInput, UnknownName
from topologies.load import load_topology
from topologies.summary import summary


def test_expressions() -> None:
    assert [(t.count, t.name, t.ranks) for t in parse("16x dgx-h100")] == [(16, "dgx-h100", 0)]
    assert [(t.count, t.name, t.ranks) for t in parse(" 2 x  a:4+ b ")] == [(2, "a", 4), (1, "b", 0)]


@pytest.mark.parametrize(
    "text", ["", " ", "+", "dgx-h100 +", "0x dgx-h100", "9999999x dgx-h100", "dgx-h100:0", "dgx-h100:9", "dgx h100", "-1x dgx-h100"]
)
def test_unreadable_expressions(text: str) -> None:
    with pytest.raises(BadInput):
        load_topology(text)


@pytest.mark.no_cover
@given(st.text(max_size=30))
def test_any_text_is_a_topology_or_a_clear_error(text: str) -> None:
    try:
        assert load_topology(text).gpus >= 1
    except BadInput as error:
        assert str(error)


def test_mixed_nodes() -> None:
    found = load_topology("2x dgx-h100:4 + dgx-a100")
    assert (found.gpus, found.nodes, found.ranks_per_node, found.symmetric) == (16, 3, 4, False)
    assert [found.node(rank) for rank in (0, 3, 4, 7, 8, 15)] == [0, 0, 1, 1, 2, 2]
    assert [found.local(rank) for rank in (0, 3, 4, 7, 8, 15)] == [0, 3, 0, 3, 0, 7]
    assert found.device(7).name == "h100-sxm" and found.device(8).name == "a100-sxm-80gb"
    assert found.path(0, 8).rate == 25e9 and found.ranks_on(2) == 8


def test_topologies_can_be_pickled() -> None:
    found = load_topology("2x dgx-h100 + dgx-a100", ("fail=nic:n1/nic0", "slow=r3:0.5"))
    again = pickle.loads(pickle.dumps(found))
    assert again.path(0, 8) == found.path(0, 8) and again.speed(3) == 0.5 and again.name == found.name


def test_cpu_hosts_and_gpu_machines_do_not_mix() -> None:
    with pytest.raises(BadInput, match="mixes"):
        load_topology("cpu-host + dgx-h100")


def test_links_listed_are_links_known() -> None:
    found = load_topology("3x dgx1-v100", ("pod=2", "spines=2", "fail=spine:1"))
    names = list(found.rates)
    assert len(names) == len(set(names)) == len(found.rates)
    assert all(found.rates[name] > 0 for name in names)
    crossed = {link for a in range(found.gpus) for b in range(found.gpus) for link in found.path(a, b).links}
    assert crossed <= set(names)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "n9/gpu0>n9/sw0",
        "n0/gpu0>n1/sw0",
        "n0/nic0>net/leaf5.0",
        "net/leaf0.9>net/spine0",
        "net/leaf0.0>net/spine99",
        "net/leaf9.0>net/spine0",
        "gpu0>sw0",
    ],
)
def test_unknown_links_are_key_errors(name: str) -> None:
    with pytest.raises(KeyError):
        load_topology("2x dgx-h100").rates[name]
    assert name not in load_topology("2x dgx-h100").rates


def test_uplinks_follow_from_oversubscription() -> None:
    """A leaf of 32 NICs of 50 GB/s has 1.6 TB/s up at full bisection, over all its spines."""
    for edits, spines, rate in (((), 32, 50e9), (("oversubscription=2",), 16, 50e9), (("oversubscription=2", "spines=4"), 4, 200e9)):
        found = load_topology("64x dgx-h100", edits)
        assert found.rates["net/leaf0.0>net/spine0"] == rate
        assert f"net/leaf0.0>net/spine{spines}" not in found.rates and f"net/leaf0.0>net/spine{spines - 1}" in found.rates


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


BOX = """
gpu = "a100-pcie-80gb"
nic = "ib-hdr-200g"
[tree]
socket0 = ["sw0", "gpu2"]
sw0 = ["gpu0", "gpu1", "nic0"]
[nvlink]
mesh = [[0, 1, 4]]
[links]
"sw0>socket0" = { rate = "6 GB/s" }
"""


def test_an_asymmetric_machine_from_a_file(tmp_path: Path) -> None:
    found = load_topology(write(tmp_path, "box.toml", BOX))
    assert found.name.endswith("box.toml") and found.machine(0).name == "box"
    assert found.path(0, 1).rate == 100e9 and found.path(0, 1).kind == "NVL"
    assert found.path(0, 2).rate == 6e9 and found.path(2, 0).rate == 25e9


def test_base_and_cluster_files(tmp_path: Path) -> None:
    write(
        tmp_path,
        "mine.toml",
        'base = "dgx-h100"\nnic = "ib-ndr-200g"\n[fabric]\npod = 4\n[links]\n"gpu0>nvswitch" = { rate = "200 GB/s" }\n',
    )
    cluster = write(
        tmp_path, "cluster.toml", 'nodes = "6x mine.toml + dgx-a100"\nedits = ["slow=r1:0.5"]\n[fabric]\noversubscription = 2\n'
    )
    found = load_topology(cluster)
    assert (found.name, found.nodes, found.gpus, found.speed(1)) == ("cluster", 7, 56, 0.5)
    assert found.path(0, 1).rate == 200e9 and found.path(0, 8).rate == 25e9
    assert found.cluster.fabric.pod == 4 and found.cluster.fabric.oversubscription == 2 and found.cluster.fabric.rails == 8


def test_parts_of_a_file_lie_over_those_of_its_base(tmp_path: Path) -> None:
    """Single links and GPUs of both stand; where both name one, the file counts."""
    write(tmp_path, "box.toml", BOX)
    text = 'base = "box.toml"\n[links]\n"socket0>sw0" = { rate = "3 GB/s" }\n'
    found = load_topology(write(tmp_path, "mine.toml", text))
    assert found.path(0, 2).rate == 6e9 and found.path(2, 0).rate == 3e9
    found = load_topology(write(tmp_path, "other.toml", text.replace("socket0>sw0", "sw0>socket0")))
    assert found.path(0, 2).rate == 3e9 and found.path(2, 0).rate == 25e9


def test_the_first_node_s_ranks_tell_what_a_node_is(tmp_path: Path) -> None:
    mixed = write(tmp_path, "mixed.toml", 'base = "dgx-a100"\n[gpus]\ngpu7 = { base = "a100-sxm-80gb", memory = "40 GiB" }\n')
    for edits in ((), ("order=scatter",)):
        found = load_topology(f"8x {mixed}", edits)
        assert {device.memory >> 30: share for device, share in found.devices(64)} == {79: 0.875, 40: 0.125}
        last = 1 if not edits else 0  # 12 ranks: a whole node and four GPUs of the next, or two GPUs of each
        assert sum(share for device, share in found.devices(12) if device.memory >> 30 == 40) == pytest.approx(last / 12)
        assert not load_topology("8x a100-pcie-x8", edits).even and load_topology("8x dgx-h100", edits).even


@pytest.mark.parametrize("name", ["my machine.toml", "a+b.toml", "2x.toml", "one:4.toml"])
def test_a_file_s_name_is_no_expression(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "two words"
    folder.mkdir()
    found = load_topology(write(folder, name, 'base = "dgx-h100"\n'))
    assert (found.nodes, found.gpus) == (1, 8)
    assert load_topology(write(folder, "cluster + more.toml", 'nodes = "2x dgx-h100"\n')).gpus == 16


def test_what_cannot_be_multiplied(tmp_path: Path) -> None:
    cluster = write(tmp_path, "cluster.toml", 'nodes = "2x dgx-h100"\n')
    with pytest.raises(BadInput, match="a cluster itself; multiply its machines inside the file"):
        load_topology(f"4x {cluster}")
    alone = write(tmp_path, "alone.toml", 'gpu = "l4"\n[tree]\nsocket0 = ["gpu0", "gpu1"]\n')
    assert load_topology(alone).gpus == 2 and load_topology(alone).nics(0) == ()
    with pytest.raises(BadInput, match=r"alone has no NIC.*Add a nic"):
        load_topology(f"2x {alone}")
    with pytest.raises(BadInput, match="at most 1048576 nodes"):
        load_topology("1000000x dgx-h100 + 1000000x dgx-h100")


def test_cyclic_includes(tmp_path: Path) -> None:
    write(tmp_path, "a.toml", 'base = "b.toml"\n')
    write(tmp_path, "b.toml", 'base = "a.toml"\n')
    with pytest.raises(BadInput, match=r"includes itself: a\.toml -> b\.toml -> a\.toml"):
        load_topology(str(tmp_path / "a.toml"))
    own = write(tmp_path, "c.toml", 'nodes = "2x c.toml"\n')
    with pytest.raises(BadInput, match=r"includes itself|cluster itself"):
        load_topology(own)


def test_long_chains_of_includes(tmp_path: Path) -> None:
    for i in range(40):
        write(tmp_path, f"f{i}.toml", f'base = "f{i + 1}.toml"\n')
    with pytest.raises(BadInput, match="files include each other"):
        load_topology(str(tmp_path / "f0.toml"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu = ", "not valid TOML"),
        ("gpx = 1", "Did you mean gpu"),
        ('gpu = "h100"\n[tree]\nsocket0 = ["gpu0"]', "Did you mean .*h100-sxm"),
        ('gpu = "l4"', r'needs a base, e\.g\. base = "dgx-h100" .* or a \[tree\]'),
        ('[tree]\nsocket0 = ["gpu0"]', "does not say which"),
        ('gpu = "l4"\n[tree]\nsocket0 = ["gpu0", "gpu0"]', "twice"),
        ('gpu = "l4"\n[tree]\nsocket0 = ["gpu0"]\nsw0 = ["gpu0"]', "on socket0 and on sw0"),
        ('gpu = "l4"\n[tree]\nsw0 = ["sw1"]\nsw1 = ["sw0", "gpu0"]', "hangs on itself"),
        ('gpu = "l4"\n[tree]\nsw0 = ["gpu0"]', "hangs on nothing"),
        ('gpu = "l4"\n[tree]\ngpu0 = ["sw0"]', "nothing below it"),
        ('gpu = "l4"\n[tree]\nsocket0 = ["disk0"]', "cannot hang"),
        ('gpu = "l4"\n[tree]\nsocket0 = "gpu0"', "list of names"),
        ('gpu = "l4"\nrepeat = 4000\n[tree]\nsocket0 = ["gpu0", "gpu1"]', "4096"),
        ('gpu = "l4"\np2p = "maybe"\n[tree]\nsocket0 = ["gpu0"]', "p2p level"),
        ('gpu = "l4"\npcie = "0 GB/s"\n[tree]\nsocket0 = ["gpu0"]', "above zero"),
        ('gpu = "l4"\npcie = "-3 GB/s"\n[tree]\nsocket0 = ["gpu0"]', "not negative"),
        ('gpu = "l4"\npcie = 12\n[tree]\nsocket0 = ["gpu0"]', "needs a unit"),
        ('gpu = "l4"\n[tree]\nsocket0 = ["gpu0"]\n[links]\n"gpu0>sw9" = { rate = "1 GB/s" }', "unknown link"),
        ('gpu = "l4"\n[tree]\nsocket0 = ["gpu0"]\n[links]\n"gpu0>socket0" = { rate = "0 GB/s" }', "above zero"),
        ('gpu = "l4"\n[tree]\nsocket0 = ["gpu0", "gpu1"]\n[nvlink]\nmesh = [[0, 1, 4]]', "no NVLink"),
        ('gpu = "h100-sxm"\n[tree]\nsocket0 = ["gpu0", "gpu1"]\n[nvlink]\nmesh = [[0, 7, 4]]', "unknown GPU"),
        ('gpu = "h100-sxm"\n[tree]\nsocket0 = ["gpu0", "gpu1"]\n[nvlink]\nmesh = [[0, 0, 4]]', "joins two GPUs"),
        ('gpu = "h100-sxm"\n[tree]\nsocket0 = ["gpu0", "gpu1"]\n[nvlink]\nswitch = [9, 9, 9]', "27 links per GPU.* that add up to 18"),
        ('gpu = "l4"\n[tree]\nsocket0 = ["gpu0", "gpu1"]\n[nvlink]\nswitch = [9]', r"has 0. Leave \[nvlink\] out"),
        ('gpu = "l4"\n[tree]\nsocket0 = ["gpu0"]\n[fabric]\noversubscription = 0', "at least 1"),
        ('gpu = "l4"\n[tree]\nsocket0 = ["gpu0"]\n[gpu2]\nx = 1', "unknown key"),
        ('[gpu]\nmemory = "8 GB"\n[tree]\nsocket0 = ["gpu0"]', "lacks arch"),
        ('[gpu]\nbase = "h100-sxm"\narch = "hopper"\n[tree]\nsocket0 = ["gpu0"]', 'arch is what compilers call the architecture, "sm90"'),
        ('[gpu]\nbase = "h100-sxm"\narch = "sm_90"\n[tree]\nsocket0 = ["gpu0"]', "got 'sm_90'"),
        ('gpu = "l4"\n[tree]\ntray0 = ["socket0"]\ntray1 = ["socket1"]\nsocket0 = ["gpu0"]\nsocket1 = ["gpu1"]', "disconnected"),
        ('kind = "tpu"', "unknown kind"),
        ('nodes = "2x dgx-h100"\nedits = "x"', "list of texts"),
        ('nodes = "2x dgx-h100"\ngpu = "l4"', "unknown key"),
        ("nodes = 4", "named there in a text"),
        ('gpu = 3\n[tree]\nsocket0 = ["gpu0"]', "must be a catalog key in quotes or a table, got '3'"),
        ('[gpu]\nbase = 3\n[tree]\nsocket0 = ["gpu0"]', "base must be a catalog key in quotes"),
        ('[gpu]\nbase = "l4"\nflops = 3\n[tree]\nsocket0 = ["gpu0"]', "flops must be a table such as"),
        ('kind = "cpu"\n[cpu]\nclock = 2500', "lacks cores"),
        ('gpu = "l4"\n[nic]\nname = "x"\n[tree]\nsocket0 = ["gpu0", "nic0"]', "lacks rate"),
        ('gpu = "l4"\ntree = 3', r"tree must be a table such as"),
        ('gpu = "l4"\nfabric = 3\n[tree]\nsocket0 = ["gpu0"]', r"\[fabric\] must be a table, got '3'"),
        ('gpu = "l4"\n[tree]\nsocket0 = ["gpu0", "nic0"]', 'does not say which: nic = "ib-ndr-400g"'),
        ('nic = "ib-hdr-200g"\n[tree]\nsocket0 = ["nic0"]', "has no GPU and is no CPU host"),
        (f'gpu = "l4"\n[tree]\nsocket0 = {[f"gpu{i}" for i in range(5000)]}', "more than 4096 vertices"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        load_topology(write(tmp_path, "bad.toml", text))


def test_a_single_mixed_machine_and_own_gpu(tmp_path: Path) -> None:
    text = '[gpu]\nbase = "h100-sxm"\nmemory = "96 GiB"\n[gpus]\ngpu1 = "a100-pcie-80gb"\n[tree]\nsocket0 = ["gpu0", "gpu1"]\n'
    found = load_topology(write(tmp_path, "own.toml", text))
    assert found.device(0).memory == 96 * 2**30 and found.device(1).name == "a100-pcie-80gb"
    assert found.rates["n0/gpu1>n0/socket0"] == 25e9 and found.rates["n0/gpu0>n0/socket0"] == 53e9


@pytest.mark.parametrize("name", ["rtx-4090-x8", "dgx-h100", "aws-p5", "vr200-nvl72"])
def test_a_nic_that_says_its_rate_is_otherwise_that_of_the_base(tmp_path: Path, name: str) -> None:
    """Also where the base lists NICs apart, or has a table itself; as the edit of the same rate."""
    own = load_topology(write(tmp_path, "own.toml", f'base = "{name}"\n[nic]\nrate = "1.25 GB/s"\n')).cluster.runs[0].machine
    edited = load_topology(name, ("nic.rate=1.25 GB/s",)).cluster.runs[0].machine
    assert own.nics == edited.nics and all(nic.latency > 0 for nic in own.nics.values())


def test_a_cpu_that_says_its_cores_is_otherwise_that_of_the_base(tmp_path: Path) -> None:
    own = load_topology(write(tmp_path, "own.toml", 'base = "dgx-h100"\n[cpu]\ncores = 8\n')).cluster.runs[0].machine.cpu
    assert own == msgspec.structs.replace(load_topology("dgx-h100").cluster.runs[0].machine.cpu, cores=8)


def test_a_nic_with_a_base_of_its_own_takes_nothing_from_the_machine(tmp_path: Path) -> None:
    write(tmp_path, "slow.toml", 'base = "dgx-h100"\n[nic]\nrate = "1 GB/s"\nlatency = "9 us"\n')
    own = load_topology(write(tmp_path, "own.toml", 'base = "slow.toml"\n[nic]\nbase = "ib-hdr-200g"\n')).cluster.runs[0].machine
    assert set(own.nics.values()) == {nic("ib-hdr-200g")}


def test_absent_and_large_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no topology file"):
        load_topology(str(tmp_path / "none.toml"))
    with pytest.raises(BadInput, match="larger than 1 MiB"):
        load_topology(write(tmp_path, "large.toml", "#" * (2 << 20)))
    with pytest.raises(UnknownName):
        load_topology("none")


def test_a_path_that_is_no_topology_file_is_told_apart_from_a_machine(tmp_path: Path) -> None:
    (tmp_path / "system.json").write_text("{}")
    for source in (tmp_path, tmp_path / "system.json", tmp_path / "absent"):
        with pytest.raises(BadInput, match=r"is no topology file: ours end in \.toml"):
            load_topology(source)


def test_a_cluster_shows_the_cables_that_edits_speak_of() -> None:
    """Each NIC's own, and those of one leaf to its spines; a node alone has none."""
    rows = {row["link"]: (row["count"], row["rate"]) for row in summary(load_topology("4x dgx-h100", ("link.net.rate=40 GB/s",)))["rows"]}
    assert rows["net"] == (8, "40 GB/s") and rows["spine"][1] == "40 GB/s"
    assert not {"net", "spine"} & {row["link"] for row in summary(load_topology("dgx-h100"))["rows"]}
    assert summary(load_topology("this-machine"))["memory bandwidth"] != "0 B/s"


@pytest.mark.parametrize("order", [(), ("order=scatter",)])
@pytest.mark.parametrize("on", ["3x dgx-h100", "3x gh200", "2x aws-g5"])
def test_the_nodes_that_so_many_ranks_are_on(on: str, order: tuple[str, ...]) -> None:
    found = load_topology(on, order)
    for ranks in range(1, found.gpus + 1):
        assert found.nodes_of(ranks) == len({found.node(rank) for rank in range(ranks)})
