"""What a terminal shows carries its units, and nothing of Python."""

from __future__ import annotations

import re
from typing import Any

import pytest

from reports.page import Page
from reports.tables import show
from sim.predict import predict


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("step_time_s", 0.2111, "step time: 211.100 ms"),
        ("step_time_s", 0.00010263, "step time: 102.630 us"),
        ("elapsed_s", 19_630_000.0, "elapsed: 227.2 days"),
        ("checkpoint_interval_s", 23270.0, "checkpoint interval: 6.5 h"),
        ("tokens_per_s", 56337.2, "tokens per s: 56,337"),
        ("p95", 0.2238, "p95: 223.800 ms"),
        ("steps", 15259, "steps: 15,259"),
        ("steps", [0.584186, 1.25], "steps: 584.186 ms  1.250 s"),
        ("step_time", {"median": 0.6039, "count": 5}, "step time: median 603.900 ms, count 5"),
        ("energy_j", 1.402e11, "energy: 38.94 MWh"),
        ("energy_j", 28_306_731.0, "energy: 7.86 kWh"),
        ("energy_j", 503.4, "energy: 503 J"),
        ("goodput", 0.9992, "goodput: 99.9%"),
        ("bias", -0.00001, "bias: 0.0%"),
        ("slowdown", 1.2461, "slowdown: 1.246 x"),
        ("peak_memory", 2**31, "peak memory: 2.0 GiB"),
        ("steps", 15258790, "steps: 15,258,790"),
        ("fits", True, "fits: yes"),
        ("nics", {"ib-ndr-400g": 8}, "nics: ib-ndr-400g 8"),
        ("jitter", {"rank": 0.02, "step": 0.01}, "jitter: rank 0.02, step 0.01"),
        ("devices", ["cpu", "cuda"], "devices: cpu  cuda"),
    ],
)
def test_a_line_is_a_name_and_a_value_with_its_unit(key: str, value: Any, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    show({key: value}, "anything")
    assert capsys.readouterr().out.strip() == line


def test_what_is_not_known_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    show({"money": None, "source": "", "gpus": 8}, "capacity")
    assert capsys.readouterr().out.strip() == "gpus: 8"


def test_rows_are_a_table_with_units(capsys: pytest.CaptureFixture[str]) -> None:
    show({"rows": [{"fault": "slow=r0", "step_time_s": 0.263, "slowdown": 1.246}], "plan": "gpt2"}, "faults")
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0] == ["faults"] and lines[1] == ["fault", "step", "time", "slowdown"]
    assert lines[2] == ["slow=r0", "263.000", "ms", "1.246", "x"]
    assert lines[3] == ["plan:", "gpt2"]


def test_a_terminal_gets_the_same_cells_fitted_to_its_width(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"rows": [{"fault": "slow=r0", "step_time_s": 0.263, "slowdown": 1.246}], "plan": "gpt2"}
    show(value, "faults")
    plain = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "dumb")
    show(value, "faults")
    drawn = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert [line for line in drawn if set("".join(line)) != {"\u2500"}] == plain and drawn != plain, "and a rule"


def test_counts_are_no_quantities_and_a_closed_output_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show({"counts": {"done": 15, "memory": 4096, "bound": 0}}, "sweep")
    assert capsys.readouterr().out == "counts: done 15, memory 4,096, bound 0\n"
    monkeypatch.setattr("sys.stdout", None)
    show({"counts": {"done": 1}}, "sweep")


def test_sentences_are_read_from_the_left_and_figures_from_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"plan": "a", "what": "A sentence that is longer than a figure", "gpus": 8}, {"plan": "b", "what": "Short", "gpus": 16}]
    show({"rows": rows}, "plans")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].index("what") == lines[2].index("A sentence") == lines[3].index("Short")
    assert len(lines[2]) == len(lines[3]), "8 and 16 end at the same place"


def test_names_of_a_breakdown_are_words(capsys: pytest.CaptureFixture[str]) -> None:
    show({"breakdown": {"exposed_comm_s": 0.002}, "rows": [{"resource": "host", "ten_percent": -0.01}]}, "any")
    told = capsys.readouterr().out
    assert "exposed communication 2.000 ms" in told and "step if 10 % faster" in told and "_s" not in told


def test_a_table_without_rows_says_why() -> None:
    page = Page("t", "")
    page.table(("row", "why"), [], "None: every row has a prediction.")
    text = page.text("")
    assert "<table" not in text and "None: every row has a prediction." in text


def test_a_page_s_words_are_read_from_the_left_and_its_figures_from_the_right() -> None:
    page = Page("t", "")
    page.table(
        ("plan", "outcome", "why", "like it", "gain"),
        [("a", "refused", "2 x 8 does not fit", "1,204", "+3.1 %"), ("b", "done", "", "7", "-")],
    )
    head, first, second = page.text("").partition("<thead>")[2].partition("</tbody>")[0].split("<tr>")[1:4]
    assert head.startswith('<th class="left">plan</th><th class="left">outcome</th><th>why</th><th>like it</th><th>gain</th>')
    assert first.startswith('<td class="left">a</td><td class="left">refused</td><td>2 x 8 does not fit</td><td>1,204</td><td>+3.1 %</td>')
    assert second.startswith('<td class="left">b</td><td class="left">done</td><td></td><td>7</td><td>-</td>')


def test_a_prediction_says_how_large_its_model_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Who wrote a config.json wants to see that it is the model that was meant."""
    show(predict({"model": {"family": "mlp", "widths": [1024, 1024]}}, "dgx-h100", detail=False).to_dict(), "prediction")
    assert re.search(r"model parameters +1\.05 M\n", capsys.readouterr().out)
    show(predict({"model": {"base": "mixtral-8x7b", "layers": 2}, "seq_len": 512}, "dgx-h100", detail=False).to_dict(), "prediction")
    assert re.search(r"model parameters +3\.165 B, 1\.051 B active\n", capsys.readouterr().out)
