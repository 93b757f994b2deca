"""For all tests: drawn examples may take as long as they take. How fast the machine is, and what else it does, fails nothing.

Tests with the mark `no_cover` run untraced where coverage is measured: tracing makes a simulation four times as long, and what these
reach is reached by shorter tests too.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from coverage import Coverage
from hypothesis import settings

settings.register_profile("house", deadline=None)
if settings.get_current_profile_name() == "default":  # not where a program or a CI has chosen its own
    settings.load_profile("house")


def pytest_configure(config: pytest.Config) -> None:
    """Ends what pytest-cov starts in a worker before its session: nobody reads it, and it would trace where `no_cover` pauses the other."""
    if hasattr(config, "workerinput") and (early := Coverage.current()):
        early.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Fixtures that such a test is the first to need are made untraced too: pytest-cov pauses for the test alone."""
    measured = Coverage.current() if item.get_closest_marker("no_cover") else None
    if measured:
        measured.stop()
    try:
        yield
    finally:
        if measured:
            measured.start()
