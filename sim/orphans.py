"""Worker processes that end when the process that started them is gone, however it went: a killed sweep leaves nobody behind."""

from __future__ import annotations

import os
import threading


def end_with_parent() -> None:
    """For a pool's `initializer`: ends this process as soon as its parent has ended. In a process without a parent of ours it does nothing."""
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_wait_for, args=(parent.sentinel,), name="parent", daemon=True).start()


def _wait_for(sentinel: int) -> None:
    from multiprocessing.connection import wait

    wait([sentinel])  # readable when the other end of the pipe, which the parent holds, is closed
    os._exit(1)
