"""What careless hands type: places that cannot be written, keys that a verb has no use for, numbers that cannot be."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.null.verbs.test_verbs import Call, call

__all__ = ["call"]


@pytest.mark.parametrize(
    "words",
    [
        "predict gpt2-ddp8 --out {}/below",
        "collective all_reduce --plot {}/below.html",
        "topology show dgx-h100 --report {}/below.html",
        "capacity gpt2-ddp8 --tokens 1e9 --report {}/below.html",
        "chakra export gpt2-ddp8 --out {}/below",
    ],
)
def test_a_place_that_cannot_be_written_is_one_message(words: str, tmp_path: Path, call: Call) -> None:
    file = tmp_path / "file"  # no folder: nothing can be made below it, whoever asks
    file.write_text("")
    said = call(*words.format(file).split())
    assert said.code == 2 and str(file) in said.err and "Traceback" not in said.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("predict gpt2-ddp8 --on dgx-h100 --on dgx-a100", "--on is given 2 times"),
        ("collective all_reduce --bytes 1MiB --bytes 2MiB", "--bytes is given 2 times"),
        ("topology show dgx-h100 --report a.html --report b.html", "--report is given 2 times"),
        ("predict GPT2-DDP8", "Did you mean gpt2-ddp8"),
        ("sweep gpt2-ddp8 micro=8 --address tcp://head:8786 --out {}/a.sqlite", "say which with --backend"),
        ("sweep gpt2-ddp8 micro=8 --workers -1", "--workers"),
        ("predict gpt2-ddp8 --on dgx-h100,dgx-a100", "put on=A,B into the space of a sweep"),
        ("predict gpt2-ddp8 --set nvlink.rate=2GB/s", "Did you mean the machine's link.nvlink.rate?"),
        ("predict gpt2-ddp8 --set cores=2", "Did you mean the machine's cpu.cores?"),
        ("predict gpt2-ddp8 --set oversubscripton=2", "Did you mean the machine's oversubscription or"),
        ("predict gpt2-ddp8 --set overlap=false", "Did you mean comm.overlap?"),
        ("predict gpt2-ddp8 --set gpus=16", "unknown key 'gpus' in gpt2-ddp8: a plan runs on dp_replicate x"),
        ("plan show gpt2-ddp8 --set oversubscription=2", "oversubscription is a key of the machine"),
        ("collective all_reduce --set bogus=1", "no key of a machine"),
        ("topology show dgx-h100 --set seq_len=8", "no key of a machine"),
        ("jobs gpt2-ddp8 gpt2-ddp8 --set bogus=1", "unknown key 'bogus'"),
        ("sweep gpt2-ddp8 micro=8 --set rails=0", "rails"),
        ("sweep gpt2-ddp8 pp=1,0 --out {}/a.sqlite", "the space has pp=0: "),
        ("sweep gpt2-ddp8 pp=5 --out {}/a.sqlite", "nothing in the space can run"),
        ("capacity gpt2-ddp8 --tokens 1e9 --days 0", "days = 0.0 must be positive"),
        ("capacity gpt2-ddp8 --tokens 1e9 --set rails=0", "rails"),
        ("capacity gpt2-ddp8 --tokens 1e9 --mtbf-gpu 0s", "mtbf_gpu"),
        ("capacity gpt2-ddp8 --tokens 1e9 --mtbf-gpu 50000", 'Write "50000 h" or "50000 d"'),
        ("capacity gpt2-ddp8 --tokens 1e9 --mtbf-gpu inf", "or never"),
        ("capacity gpt2-ddp8 --tokens 1e9 --restart 600", 'Write "600 s" or "600 min"'),
    ],
)
def test_what_cannot_be_meant_is_refused(words: str, told: str, tmp_path: Path, call: Call) -> None:
    said = call(*words.format(tmp_path).split())
    assert said.code == 2 and told in said.err


@pytest.mark.no_cover
def test_a_reader_that_stops_early_costs_no_page(tmp_path: Path) -> None:
    """`steptwin ... --plot PAGE | head` wrote no page and said nothing of it."""
    page = tmp_path / "page.html"
    words = [sys.executable, "-m", "steptwin", "collective", "all_reduce", "--plot", str(page)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None and run.stderr is not None
        run.stdout.close()
        assert run.stderr.read().decode().strip() == f"page: {page}"
    assert run.returncode == 0 and page.stat().st_size > 100_000


def test_a_folder_of_measurements_that_is_not_there_is_said(call: Call) -> None:
    said = call("accuracy", "--shared", "/misspelt")
    assert said.code == 2 and "--shared /misspelt is no folder" in said.err


def test_a_sweep_with_prices_shows_what_its_plans_cost(tmp_path: Path, call: Call) -> None:
    (tmp_path / "prices.toml").write_text("dgx-h100 = 2.0\n")
    """Of language models a million tokens, which is what one buys; of images a million of these."""
    words = ("--out", str(tmp_path / "a.sqlite"), "--workers", "1")
    priced = ("--prices", str(tmp_path / "prices.toml"))
    head = [call("sweep", "gpt2-ddp8", "micro=8", *words, *more).out.splitlines()[1] for more in ((), priced)]
    assert ["cost/M tokens" in line for line in head] == [False, True]
    image = ("sweep", "gpt2-ddp8", "micro=8", "--set", "model=resnet50", "--out", str(tmp_path / "b.sqlite"), "--workers", "1")
    assert "cost/M samples" in call(*image, *priced).out.splitlines()[1]


def test_a_sweep_says_how_its_best_plan_is_predicted(tmp_path: Path, call: Call) -> None:
    """What `gpus` leaves to data parallelism is in no row's name, and is no key of a plan."""
    base = ("gpt2-ddp8", "tp=1,2 comm.bucket=25 MiB,100 MiB gpus=4")
    more = (
        "--set",
        "seq_len=256",
        "--set",
        "link.nvlink.rate=100 GB/s",
        "--workers",
        "1",
        "--every",
        "whole",
        "--out",
        str(tmp_path / "a.sqlite"),
    )
    said = call("sweep", *base, *more)
    again = next(line.partition(": ")[2] for line in said.err.splitlines() if line.startswith("the best plan: "))
    verb, *words = shlex.split(again)
    assert verb == "steptwin" and "parallel.dp_shard=4" in words and "link.nvlink.rate=100 GB/s" in words
    told = call("sweep", *base, *more, "--json").json
    assert told["again"] == again
    best = min(row["step_time_s"] for row in told["rows"])
    assert call(*words, "--json").json["step_time_s"] == pytest.approx(best, rel=1e-6)
