"""SimPy's environment as the `Clock` of the engine that makes a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simpy

from sim.engine.agenda import Action


class Environment(simpy.Environment):
    """Virtual time, on SimPy's heap."""

    def after(self, seconds: float, action: Action, *words: Any) -> None:
        """Calls `action(*words)` after `seconds` of virtual time."""
        self.schedule(_Due(action, words), delay=seconds)


class _Due(simpy.Event):
    """An event that calls `action`. It cannot fail and nobody asks for its value, so making and processing it takes half as long as a
    `Timeout`."""

    __slots__ = ("action", "callbacks", "words")
    _ok = True

    def __init__(self, action: Action, words: tuple[Any, ...]) -> None:
        self.action, self.words, self.callbacks = action, words, _CALLBACKS


def _call(due: Any) -> None:
    due.action(*due.words)


_CALLBACKS: list[Callable[[simpy.Event], None]] = [_call]
"""The callbacks of every `_Due`. All share one list, which SimPy only reads."""
