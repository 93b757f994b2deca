"""A run's files are whole or absent, as open as any other file, and say where they were made."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from executor.commands import folder_of
from sim.files import runs
from sim.files.programfile import load_program, save_program
from sim.files.runs import environment, refuse_unwritable, write_atomic, write_json
from sim.predict import predict
from topologies.errors import BadInput


def test_a_file_is_written_with_its_folders(tmp_path: Path) -> None:
    path = write_atomic(tmp_path / "a" / "b.txt", "text")
    assert path.read_text() == "text"
    assert [one.name for one in path.parent.iterdir()] == ["b.txt"]


def test_a_run_lies_under_its_plans_name() -> None:
    """A dot in a shipped plan's name is no ending: two sizes of one model do not share a folder."""
    assert [folder_of(plan).as_posix() for plan in ("llama3.1-8b-128k", "llama3.1-405b-16k", "plans/mine.toml", "tiny-ddp")] == [
        "runs/llama3.1-8b-128k",
        "runs/llama3.1-405b-16k",
        "runs/mine",
        "runs/tiny-ddp",
    ]


def test_programs_are_as_open_as_any_other_file(tmp_path: Path) -> None:
    """Saved on one machine, played by others and by other people."""
    found = predict("tiny-ddp", "this-machine").program
    assert found is not None
    path = tmp_path / "new" / "program.jsonl.gz"
    save_program(found, path)
    assert load_program(path) == found
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(write_atomic(tmp_path / "a", "").stat().st_mode)
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_atomic(tmp_path / "a.txt", "old")

    def full(*_: object) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space") as error:
        write_atomic(path, "new")
    assert error.value.filename == str(path), "a full disk says which file it was"
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["a.txt"]


def test_links_and_devices_stay_what_they_are(tmp_path: Path) -> None:
    """`--report /dev/null` by root made a file of the machine's null device."""
    real = write_atomic(tmp_path / "real.txt", "old")
    for name, target in (("link", real), ("null", Path(os.devnull))):
        (tmp_path / name).symlink_to(target)
        write_atomic(tmp_path / name, "new")
        assert (tmp_path / name).is_symlink()
    assert real.read_text() == "new" and stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_others_may_read_what_the_mask_allows(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        mode = stat.S_IMODE(write_atomic(tmp_path / "a.txt", b"x").stat().st_mode)
        assert os.umask(0o027) == 0o027, "the mask is as it was"
    finally:
        os.umask(before)
    assert mode == 0o640


def test_json_is_sorted_and_ends_with_a_newline(tmp_path: Path) -> None:
    text = write_json(tmp_path / "a.json", {"b": 1, "a": Path("x")}).read_text()
    assert text.endswith("}\n") and text.index('"a"') < text.index('"b"')
    assert json.loads(text) == {"a": "x", "b": 1}


def test_the_environment_names_versions_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("SECRET_TOKEN", "x")
    found = environment()
    assert found["packages"]["simpy"] and found["cores"] >= 1
    assert found["variables"]["NCCL_ALGO"] == "Ring" and "SECRET_TOKEN" not in found["variables"]


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert environment()["commit"] == ""


def test_a_package_that_is_absent_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_PACKAGES", ("simpy", "no-such-package-of-ours"))
    assert list(environment()["packages"]) == ["simpy"]


def test_a_place_for_a_result_is_asked_for_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    for path, why in ((tmp_path, "it is a folder"), (tmp_path / "file" / "x.toml", "cannot write")):
        with pytest.raises(BadInput, match=why):
            refuse_unwritable(path)
    refuse_unwritable(tmp_path / "file")
    refuse_unwritable(tmp_path / "new" / "x.toml")
    assert (tmp_path / "file").read_text() == "kept" and not list((tmp_path / "new").iterdir())


def test_no_probe_is_begun_that_could_not_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from executor import probe

    monkeypatch.setattr(probe, "_probe", lambda *_: pytest.fail("it has measured"))
    with pytest.raises(BadInput, match="it is a folder"):
        probe.probe(1, tmp_path)
