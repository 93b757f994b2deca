"""A machine as a run's folder keeps it is the very same machine, what-ifs and files of one's own included, and its words name them."""

from __future__ import annotations

from pathlib import Path

import pytest

import steptwin
from sim.files.machinefile import machine_files, machine_words
from topologies.load import load_topology

EDITS = ("gpu=h200-sxm", "link.nvlink.rate=100 GB/s", "fail=nic:n0/nic1", "without=p2p")
POD = 'base = "dgx-h100"\nname = "our-pod"\ngpu = "h200-sxm"\n[fabric]\nrails = 8\noversubscription = 2\n'
CLUSTER = 'name = "both"\nnodes = "2x pod.toml + dgx-h100:4"\nedits = ["oversubscription=4"]\n[fabric]\nspines = 4\n'
NESTED = 'nodes = "cluster.toml"\nedits = ["slow=r3:0.8"]\n'
MATRIX = "        GPU0    GPU1    CPU Affinity    NUMA Affinity\nGPU0     X      NV4     0-31    0\nGPU1    NV4      X      0-31    0\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files of machines, where one is."""
    monkeypatch.chdir(tmp_path)
    for name, text in {"pod.toml": POD, "cluster.toml": CLUSTER, "nested.toml": NESTED, "topo.txt": MATRIX}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_words_name_what_was_changed() -> None:
    said = {edits: machine_words(load_topology("dgx-h100", edits)) for edits in ((), EDITS, EDITS[:1], EDITS[2:])}
    assert said == {
        (): "dgx-h100",
        EDITS: "dgx-h100 with gpu=h200-sxm, link.nvlink.rate=100 GB/s, without nic:n0/nic1 and p2p",
        EDITS[:1]: "dgx-h100 with gpu=h200-sxm",
        EDITS[2:]: "dgx-h100 without nic:n0/nic1 and p2p",
    }


@pytest.mark.parametrize("edits", [(), EDITS[:3], ("order=1,0", "ranks_per_node=1")], ids=len)
@pytest.mark.parametrize(
    "source", ["dgx-h100", "2x dgx-h100:2", "pod.toml", "3x pod.toml + 2x dgx-h100", "cluster.toml", "nested.toml", "this-machine"]
)
def test_a_kept_machine_is_the_same(source: str, edits: tuple[str, ...], place: Path) -> None:
    if source == "this-machine" or (edits and edits[0] == "order=1,0" and source != "2x dgx-h100:2"):
        edits = ()
    machine, kept = load_topology(source, edits), place / "elsewhere"
    kept.mkdir()
    for name, text in machine_files(source, edits).items():
        (kept / name).write_text(text)
    again = load_topology(kept / "topology.toml")
    assert again.cluster == machine.cluster and machine_words(again) == machine_words(machine)


def test_a_matrix_of_nvidia_smi_is_kept(place: Path) -> None:
    (place / "one.toml").write_text('base = "topo.txt"\ngpu = "a100-sxm-80gb"\n')
    files = machine_files("one.toml")
    assert set(files) == {"topology.toml", "machine-1.toml"} and "topo.txt" not in files["machine-1.toml"]


@pytest.mark.no_cover
def test_what_is_found_names_plan_and_machine() -> None:
    """A result says what it is of, whatever is asked."""
    changed = steptwin.topology("dgx-h100", *EDITS[:2])
    words = "dgx-h100 with gpu=h200-sxm, link.nvlink.rate=100 GB/s"
    found = [steptwin.predict("gpt2-ddp8", changed), steptwin.explain("gpt2-ddp8", changed, tries=0)]
    found += [steptwin.spread("gpt2-ddp8", changed, 3), steptwin.capacity("gpt2-ddp8", changed, 1e9)]
    found += [steptwin.faults("gpt2-ddp8", changed, "slow=r0:0.9")]
    for one in found:
        told = one.to_dict()
        assert told["topology"] == words
        assert (told["plan"]["name"] if isinstance(told["plan"], dict) else told["plan"]) == "gpt2-ddp8"
    assert all(words in str(one) for one in found[:-1])
