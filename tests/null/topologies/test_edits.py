"""What-ifs: each changes what it says, nothing else, and bad ones are clear errors."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.errors import BadInput, Refused
from topologies.hardware import Gpu
from topologies.load import Topology, load_topology
from topologies.unfelt import unfelt
from topologies.verbs import split


def changed(name: str, *edits: str) -> dict[str, tuple[float | None, float | None]]:
    """Links whose rate an edit changes: (before, after)."""
    before, after = load_topology(name).rates, load_topology(name, edits).rates
    return {k: (before.get(k), after.get(k)) for k in {*before, *after} if before.get(k) != after.get(k)}


def test_link_rates() -> None:
    found = changed("dgx-h100", "link.nvlink.rate=400 GB/s")
    assert len(found) == 16 and set(found.values()) == {(450e9, 400e9)} and all("nvswitch" in link for link in found)
    assert set(changed("2x dgx-h100", "link.net.rate=200 Gbit/s").values()) == {(50e9, 25e9)} | {(50e9, 25e9)}
    assert set(changed("2x dgx-h100", "link.spine.rate=10 GB/s").values()) == {(50e9, 10e9)}
    assert load_topology("dgx-h100", ("link.nvlink.latency=5 us",)).path(0, 1).latency == pytest.approx(10e-6)


def test_failed_cable_on_one_node_and_on_all() -> None:
    assert changed("2x dgx1-v100", "fail=link:n1/gpu0-n1/gpu4") == {"n1/gpu0>n1/gpu4": (50e9, None), "n1/gpu4>n1/gpu0": (50e9, None)}
    assert set(changed("2x dgx1-v100", "fail=link:gpu0-gpu4")) == {
        f"n{n}/{a}>n{n}/{b}" for n in (0, 1) for a, b in (("gpu0", "gpu4"), ("gpu4", "gpu0"))
    }
    found = load_topology("2x dgx1-v100", ("fail=link:n1/gpu0-n1/gpu4",))
    assert not found.symmetric and found.path(0, 4).kind == "NVL" and found.path(8, 12).kind == "SYS"


def test_a_mesh_goes_round_by_a_common_neighbour() -> None:
    found = load_topology("dgx1-v100", ("fail=link:gpu0-gpu1",))
    assert found.path(0, 1).kind == "NVB" and found.path(0, 1).links == ("n0/gpu0>n0/gpu2", "n0/gpu2>n0/gpu1")


def test_failed_switch_chips_take_their_links() -> None:
    """The chips of an H100 board have 5, 4, 4, 5 links of each GPU; the first to fail is one with 5."""
    for count, links in ((1, 13), (2, 8), (3, 4)):
        assert load_topology("dgx-h100", (f"fail=nvswitch:{count}",)).path(0, 1).rate == pytest.approx(25e9 * links)
    assert load_topology("dgx-h100", ("fail=nvswitch:4",)).path(0, 1).kind == "PHB"
    assert load_topology("dgx-h100", ("without=nvswitch",)).path(0, 4).staged


def test_failed_nic_keeps_the_rails_of_the_others() -> None:
    found = load_topology("2x dgx-h100", ("fail=nic:n0/nic0",))
    assert found.path(1, 9).links[2] == "n0/nic1>net/leaf0.1"
    assert found.nic_of(0).rate == found.nic_of(1).rate == 25e9  # type: ignore[union-attr]
    assert not any("n0/nic0" in link for rank in range(8) for link in found.path(rank, rank + 8).links)


def test_failed_spine_and_leaf_are_avoided() -> None:
    edits = ("without=nvswitch", "spines=2")
    assert "net/leaf0.0>net/spine1" in load_topology("2x dgx-h100", edits).path(0, 9).links
    assert "net/leaf0.0>net/spine0" in load_topology("2x dgx-h100", (*edits, "fail=spine:1")).path(0, 9).links
    assert "net/leaf0.0>net/spine0" in load_topology("2x dgx-h100", (*edits, "fail=link:net/leaf0.0-net/spine1")).path(0, 9).links
    found = load_topology("2x dgx-h100", ("fail=leaf:0.3",))
    assert not any("leaf0.3" in link for a in range(8) for b in range(8, 16) for link in found.path(a, b).links)
    with pytest.raises(BadInput, match="no spine is left"):
        load_topology("2x dgx-h100", (*edits, "fail=spine:0", "fail=spine:1")).path(0, 9)


def test_slow_ranks() -> None:
    found = load_topology("2x dgx-h100", ("slow=r3:0.8", "slow=n1:0.5"))
    assert [found.speed(rank) for rank in (0, 3, 8, 15)] == [1.0, 0.8, 0.5, 0.5] and not found.symmetric
    scattered = load_topology("2x dgx-h100", ("slow=n1:0.5", "order=scatter"))  # node 1 has every other rank now
    assert [scattered.speed(rank) for rank in range(4)] == [1.0, 0.5, 1.0, 0.5]
    few = load_topology("2x dgx-h100", ("slow=n1:0.5", "ranks_per_node=4"))
    assert [few.speed(rank) for rank in (3, 4)] == [1.0, 0.5] and not few.symmetric


def test_placement() -> None:
    found = load_topology("2x dgx-h100", ("order=7,6,5,4,3,2,1,0",))
    assert [found.device_name(rank) for rank in (0, 7, 8)] == ["n0/gpu7", "n0/gpu0", "n1/gpu7"]
    found = load_topology("2x dgx-h100", ("order=scatter",))
    assert [found.device_name(rank) for rank in (0, 1, 2)] == ["n0/gpu0", "n1/gpu0", "n0/gpu1"]
    assert load_topology("2x dgx-h100", ("ranks_per_node=2",)).gpus == 4
    found = load_topology("2x dgx-h100", ("order=7,6,5,4,3,2,1,0", "ranks_per_node=2"))
    assert [found.device_name(rank) for rank in range(4)] == ["n0/gpu7", "n0/gpu6", "n1/gpu7", "n1/gpu6"]


def test_other_parts() -> None:
    edits = (
        "gpu.memory=96 GiB",
        "gpu.flops.bf16=800 TFLOP/s",
        "cpu.cores=12",
        "cpu.bandwidth=100 GB/s",
        "disk.read=1 GB/s",
        "nic.rate=200 Gbit/s",
    )
    found = load_topology("2x dgx-h100", edits)
    gpu = found.device(0)
    assert gpu.memory == 96 * 2**30 and gpu.flops["bf16"] == 800e12 and gpu.flops["fp8"] == 1979e12
    assert found.cores(0) == 24 and found.rates["n0/dram@socket0"] == 100e9 and found.disk(1).read == 1e9 and found.disk(1).write == 20e9
    assert found.rates["n1/nic0>net/leaf0.0"] == 25e9 and found.symmetric


def test_other_gpus_in_the_same_places() -> None:
    assert load_topology("dgx-h100", ("gpu=b200-sxm",)).path(0, 1).rate == 900e9
    assert load_topology("dgx-h100", ("gpu=l40s",)).path(0, 1).kind == "PHB"


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("link.nvlink.rate=100 GB/s", "gpu=h200-sxm"),
        ("fail=nic:n1/nic3", "gpu=h200-sxm"),
        ("p2p=none", "gpu=h200-sxm"),
        ("slow=r3:0.5", "ranks_per_node=4"),
        ("ranks_per_node=2; order=7,6", "ranks_per_node=4"),
    ],
)
def test_an_edit_that_would_undo_those_before_it_says_so(first: str, then: str) -> None:
    before = tuple(edit.strip() for edit in first.split(";"))
    with pytest.raises(BadInput, match="Write it first"):
        load_topology("2x dgx-h100", (*before, then))
    load_topology("2x dgx-h100", (then, before[-1]) if "order" not in first else (then,))


def test_a_topology_can_be_edited_again() -> None:
    first = load_topology("2x dgx-h100", ("slow=r0:0.5",))
    second = load_topology(first, ("rails=4",))
    assert second.speed(0) == 0.5 and second.cluster.fabric.rails == 4 and first.cluster.fabric.rails == 8
    assert second.cluster.edits == ("slow=r0:0.5", "rails=4")


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ("", "KEY=VALUE"),
        ("rails", "KEY=VALUE"),
        ("rail=4", "Did you mean rails"),
        ("rails=x", "must be a whole number"),
        ("rails=0", "from 1"),
        ("oversubscription=0.5", "at least 1"),
        ("oversubscription=nan", "at least 1"),
        ("link.nvlnk.rate=1 GB/s", "Did you mean nvlink"),
        ("link.nvlink.speed=1 GB/s", "unknown property"),
        ("link.nvlink.rate=0 GB/s", "above zero"),
        ("link.nvlink.rate=-1 GB/s", "not negative"),
        ("link.nvlink.rate=5", "needs a unit"),
        ("link.xgmi.rate=1 GB/s", "has no xgmi link"),
        ("fail=link:gpu0", "name both ends"),
        ("fail=link:gpu0-gpu99", "unknown link"),
        ("fail=link:gpu0-gpu0.d2h", "unknown link"),
        ("fail=link:gpu0-gpu0.h2d", "unknown link"),
        ("fail=link:n7/gpu0-n7/sw0", "no node n7"),
        ("fail=link:n0/gpu0-n0/sw0", "disconnected from its CPU"),
        ("fail=link:socket0-socket1", "between processors"),
        ("fail=link:n0/gpu0-n1/sw0", "one node"),
        ("fail=link:net/leaf0.0-net/spine999", "no such link"),
        ("fail=gpu:n0/gpu1", "ranks_per_node"),
        ("fail=fan:1", "unknown failure"),
        ("fail=nvswitch:9", "4 chips"),
        ("fail=spine:999", "no switch"),
        ("fail=leaf:0", "leaves leaf:0.0 to leaf:0.7"),
        ("fail=nic:nic77", "unknown NIC"),
        ("without=gpu", "unknown part"),
        ("without=nic", "reaches no NIC"),
        ("slow=3:0.5", "slow=r3:0.8"),
        ("slow=r3:0", "slow=r3:0.8"),
        ("slow=r3:1e-300", "0.001 to 1"),
        ("slow=r3:1.3", "0.001 to 1"),
        ("slow=r99:0.5", "16 ranks"),
        ("slow=n9:0.5", "2 nodes"),
        ("order=0,1", "each local rank once"),
        ("order=0,0,1,2,3,4,5,6", "each local rank once"),
        ("ranks_per_node=9", "1 to 8"),
        ("p2p=all", "unknown p2p level"),
        ("gpu=h100", "Did you mean"),
        ("gpu.memory=5", "needs a unit"),
        ("gpu.nvlink=5 GB/s", "link.nvlink.rate"),
        ("gpu.speed=5", "unknown key"),
        ("gpu.flops.bf61=1 TFLOP/s", "Did you mean bf16"),
        ("cpu.cores=many", "whole number"),
    ],
)
def test_bad_edits(edit: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        load_topology("2x dgx-h100", (edit,))


@pytest.mark.parametrize(
    ("machine", "edit", "said"),
    [
        ("2x dgx-h100:4 + dgx-h100", "order=scatter", "different numbers of ranks"),
        ("cpu-host", "gpu=l4", "has no GPU"),
        ("cpu-host", "gpu.memory=8 GB", "has no GPU"),
        ("a100-pcie-x8", "without=nvswitch", "has no nvswitch"),
        ("dgx1-v100", "fail=nvswitch:1", "has no NVSwitch"),
    ],
)
def test_edits_of_what_the_machine_has_not(machine: str, edit: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        load_topology(machine, (edit,))


def test_without_peer_access_is_no_level_of_it() -> None:
    """Two words for one what-if."""
    word, level = (load_topology("a100-pcie-x8", (edit,)) for edit in ("without=p2p", "p2p=none"))
    assert word.path(0, 1).staged and not load_topology("a100-pcie-x8").path(0, 1).staged
    assert all(word.path(a, b) == level.path(a, b) for a in range(8) for b in range(8))


def test_a_failed_cable_of_the_network_is_gone_in_both_directions() -> None:
    """Flows that took it take the next spine, as fast; all others stay where they were."""
    whole = load_topology("4x dgx-h100", ("pod=2", "without=nvswitch"))
    used = next(link for link in whole.path(0, 16).links if "spine" in link)
    leaf, _, spine = used.partition(">")
    less = load_topology(whole, (f"fail=link:{leaf}-{spine}",))
    assert {used, f"{spine}>{leaf}"} & set(less.rates) == set() and len(less.rates) == len(whole.rates) - 2
    assert used not in less.path(0, 16).links and less.path(0, 16).rate == whole.path(0, 16).rate
    assert less.path(1, 17) == whole.path(1, 17)
    assert not less.graph().has_edge(leaf, spine) and whole.graph().has_edge(leaf, spine)


@pytest.mark.no_cover
@given(
    st.text(max_size=40)
    | st.builds("{}={}".format, st.sampled_from(["fail", "slow", "order", "link.nvlink.rate", "gpu.memory"]), st.text(max_size=20))
)
def test_any_edit_is_done_or_refused(edit: str) -> None:
    try:
        load_topology("2x dgx1-v100", (edit,))
    except BadInput as error:
        assert str(error)


SWITCHED: dict[str, Topology] = {}


@given(
    name=st.sampled_from(["2x dgx-h100", "2x a100-pcie-x8", "2x rtx-4090-x8"]),
    link=st.integers(0, 10**6),
    a=st.integers(0, 15),
    b=st.integers(0, 15),
)
def test_a_failed_link_never_makes_a_path_faster(name: str, link: int, a: int, b: int) -> None:
    found = SWITCHED.setdefault(name, load_topology(name))
    names = [n for n in found.rates if ">" in n and found.link(n).kind != "engine" and "spine" not in n]
    x, _, y = names[link % len(names)].partition(">")
    try:
        less = load_topology(found, (f"fail=link:{x}-{y}",))
    except BadInput as error:
        assert "disconnected" in str(error) or "between processors" in str(error)
        return
    assert less.path(a, b).rate <= found.path(a, b).rate or a == b


@pytest.mark.parametrize("clock", ["2", "1.98", "99"])
def test_a_clock_is_in_mhz(clock: str) -> None:
    with pytest.raises(BadInput, match="clock is in MHz"):
        load_topology("dgx-h100", (f"gpu.clock={clock}",))
    slower = load_topology("dgx-h100", ("gpu.clock=1500",)).device(0)
    assert isinstance(slower, Gpu) and slower.clock == 1.5e9


def test_half_of_the_sms_have_half_of_the_peaks(tmp_path: Path) -> None:
    """In a what-if and in a file; they were the whole GPU's, of which a file may say its own."""
    whole = load_topology("dgx-h100").device(0)
    file = tmp_path / "cut.toml"
    file.write_text('base = "dgx-h100"\n[gpu]\nbase = "h100-sxm"\nsms = 66\nflops = { fp8 = "1 PFLOP/s" }\n')
    edited, said = load_topology("dgx-h100", ("gpu.sms=66",)).device(0), load_topology(str(file)).device(0)
    assert isinstance(whole, Gpu) and isinstance(edited, Gpu) and isinstance(said, Gpu)
    assert edited.sms == 66 and edited.flops == {dtype: rate / 2 for dtype, rate in whole.flops.items()}
    assert said.flops == edited.flops | {"fp8": 1e15}


@pytest.mark.parametrize(
    ("edit", "bare"),
    [("gpu.power=600 W", "gpu.power=600"), ("gpu.power=0.6 kW", "gpu.power=600"), ("gpu.clock=1.5 GHz", "gpu.clock=1500"),
     ("gpu.clock=1500 MHz", "gpu.clock=1500"), ("cpu.clock=3.1 GHz", "cpu.clock=3100")],
)  # fmt: skip
def test_power_and_clock_take_units_as_all_quantities_do(edit: str, bare: str) -> None:
    said, plain = (load_topology("dgx-h100", (one,)) for one in (edit, bare))
    assert said.device(0) == plain.device(0) and said.host(0) == plain.host(0)
    assert (said.device(0), said.host(0)) != (load_topology("dgx-h100").device(0), load_topology("dgx-h100").host(0))


@pytest.mark.parametrize(
    ("edit", "told"),
    [("gpu.power=700 Wh", "unknown unit 'Wh' for a power.*Allowed: mW, W, kW"), ("gpu.power=700 w", "Did you mean W"),
     ("gpu.clock=3 ghz", "Did you mean GHz"), ("gpu.clock=fast", "as a clock.*1.5 MHz"), ("gpu.power=much", 'as a power.*"1.5 W"'),
     ("gpu.vboost=1 W", "must be a whole number")],
)  # fmt: skip
def test_units_that_are_none_of_theirs_are_named(edit: str, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        load_topology("dgx-h100", (edit,))


def test_one_node_has_no_switch_between_nodes_to_fail() -> None:
    with pytest.raises(BadInput, match="is one node, without leaf and spine switches"):
        load_topology("dgx-h100", ("fail=spine:2",))


@pytest.mark.parametrize("edit", ["oversubscription=3", "rails=4", "pod=2", "spines=2", "block=2", "core_oversubscription=2"])
def test_the_fabric_is_edited_by_the_names_that_a_file_gives_it(edit: str) -> None:
    """`[fabric] oversubscription = 3` in a file is `fabric.oversubscription=3` too, on the command line as in `edits`."""
    short, long = (load_topology("4x dgx-h100", (word,)) for word in (edit, f"fabric.{edit}"))
    assert long.cluster.fabric == short.cluster.fabric != load_topology("4x dgx-h100").cluster.fabric
    assert [text.removeprefix("fabric.") for text in unfelt(long, 32)] == unfelt(short, 32)
    assert split([f"fabric.{edit}"]) == ((), (f"fabric.{edit}",))
    with pytest.raises(BadInput, match=r"unknown edit 'fabric\.slow'"):
        load_topology("dgx-h100", ("fabric.slow=r0:0.5",))


@pytest.mark.parametrize("name", ["mi300x", "h100-pcie", "h100-nvl", "a40", "gh200-96gb", "v100-sxm2-16gb"])
def test_no_gpu_is_put_behind_switches_that_it_has_no_form_for(name: str) -> None:
    with pytest.raises(Refused, match=f"gpu={name}: dgx-h100 joins its GPUs by NVSwitches, to which no {name} is connected"):
        load_topology("dgx-h100", (f"gpu={name}",))
    for fits in ("h20", "b200-sxm", "a100-sxm-80gb"):
        assert load_topology("dgx-h100", (f"gpu={fits}",)).device(0).name == fits


def test_trays_that_nvswitches_alone_join_are_no_machine_without_them() -> None:
    for machine, said in (("gb200-nvl72", "18x"), ("2x gb200-nvl72", "36x"), ("gb200-nvl72:8", "2x")):
        with pytest.raises(Refused, match=f'nothing else joins .* trays of gb200-nvl72, .*"{said} gb200-nvl72:4"'):
            load_topology(machine, ("without=nvswitch",))
    trays = load_topology("18x gb200-nvl72:4", ("without=nvswitch",))
    assert trays.gpus == 72 and trays.path(0, 1).rate < load_topology("18x gb200-nvl72:4").path(0, 1).rate


def test_a_gpu_whose_nic_has_failed_sends_by_its_neighbours() -> None:
    """PXN where that spares the way through host memory; what it receives comes through there."""
    healthy, failed = load_topology("2x dgx-h100"), load_topology("2x dgx-h100", ("fail=nic:n0/nic0",))
    assert (healthy.path(0, 8).kind, failed.path(0, 8).kind) == ("NET", "PXN")
    assert not failed.path(0, 8).staged and failed.path(8, 0).staged
    assert failed.path(0, 8).latency < failed.path(8, 0).latency


@pytest.mark.parametrize(
    ("machine", "rate"), [("aws-p5", 25e9), ("gcp-a2", 12.5e9), ("rtx-5090-x4", 25e9), ("dgx-h100", 53e9), ("gb300-nvl72", 360e9)]
)
def test_a_cpus_ports_bound_what_hangs_on_them(machine: str, rate: float) -> None:
    assert load_topology(machine).host_path(0, True).rate == rate


def test_a_machine_that_says_how_fast_its_ports_are_is_believed(tmp_path: Path) -> None:
    """So is a matrix, which names no CPU: that of the usual kind, which is entered, has ports of the GPUs' generation."""
    text = 'gpu = "a100-pcie-80gb"\ncpu = "xeon-6248"\n{}[tree]\nsocket0 = ["gpu0", "gpu1"]\n'
    rates = []
    for place, said in enumerate(("", 'pcie = "25 GB/s"\n')):
        (tmp_path / f"m{place}.toml").write_text(text.format(said))
        rates.append(load_topology(str(tmp_path / f"m{place}.toml")).host_path(0, True).rate)
    assert rates == [12.5e9, 25e9]
    matrix = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-55\nGPU1\tNV18\t X \t0-55\n"
    (tmp_path / "topo.txt").write_text(matrix)
    assert load_topology(str(tmp_path / "topo.txt")).host_path(0, True).rate == load_topology("dgx-h100").host_path(0, True).rate
