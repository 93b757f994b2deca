"""The line of progress: on terminals only, with rate and time left."""

from __future__ import annotations

import io

from sim.accuracy.progress import line, on_terminal


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_files_and_pipes_see_nothing() -> None:
    assert on_terminal(io.StringIO()) is None


def test_a_terminal_sees_one_line_that_ends_with_the_run() -> None:
    stream, now = Terminal(), iter([0.0, 2.0, 2.1, 10.0])
    tell = on_terminal(stream, lambda: next(now))
    assert tell is not None
    tell(4, 20)
    tell(5, 20)  # too soon after the line before
    tell(20, 20)
    shown = stream.getvalue()
    assert "plans 4 of 20, 2.0 a second, 8 s left" in shown
    assert "5 of 20" not in shown and shown.count("\n") == 1 and "in 10 s" in shown


def test_the_first_moment_has_no_rate() -> None:
    assert line(0, 9, 0.0) == "plans 0 of 9, 0.0 a second"
    assert line(10, 1000, 10.0).endswith("16 min 30 s left")
