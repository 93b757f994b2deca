"""Feeds damaged texts to a reader: it may take them, or refuse them with one clear message, at once, and nothing else."""

from __future__ import annotations

import random
import resource
import tempfile
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from tests.reliability.mutate import mutate
from tests.reliability.readers import Reader
from topologies.errors import SteptwinError

HANG = 2.0
"""Seconds after which an input counts as a hang."""


class Found(NamedTuple):
    """What became of one reader's inputs."""

    name: str
    inputs: int
    taken: int
    refused: int
    crashes: tuple[str, ...]
    """Last line of each kind of traceback, with the input's seed."""
    slowest: float
    grown: float
    """MB of resident memory gained over the run."""


def fuzz(reader: Reader, inputs: int, seed: int = 0) -> Found:
    """`inputs` damaged texts, the same ones for the same seed."""
    samples = reader.samples()
    taken = refused = 0
    slowest = 0.0
    crashes: dict[str, str] = {}
    before = _resident()
    with tempfile.TemporaryDirectory() as place:
        for number in range(inputs):
            draw = random.Random(f"{reader.name}/{seed}/{number}")
            text = mutate(draw.choice(samples), draw)
            begun = time.perf_counter()
            try:
                reader.read(text, Path(place))
                taken += 1
            except SteptwinError:
                refused += 1
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                crashes.setdefault(
                    f"{type(error).__name__} in {Path(where.filename).name}:{where.lineno}", f"input {number}: {error}"[:160]
                )
            slowest = max(slowest, time.perf_counter() - begun)
    shown = tuple(f"{kind} ({what})" for kind, what in crashes.items())
    return Found(reader.name, inputs, taken, refused, shown, slowest, _resident() - before)


def _resident() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
