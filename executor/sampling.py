"""A thread that watches something at intervals while the work goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(watch: Callable[[threading.Event], None], period: float) -> Iterator[None]:
    """Runs `watch` in a thread while the body runs. It must end once the event that it is given is set, and check that every `period`
    seconds."""
    stop = threading.Event()
    watcher = threading.Thread(target=watch, args=(stop,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join(2 * period + 1)
