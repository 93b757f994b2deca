"""The length of a training run in tokens or samples: reading it from text and showing it."""

from __future__ import annotations

import math
import re

import msgspec

from sim.framework.chosen import framework_of
from sim.model import Network
from sim.plan import Plan
from sim.setting.bind import network_of
from topologies.errors import BadInput, UnitError
from topologies.units import count, show_count

_SAID = re.compile(r"(.*?)\s*\b([a-z]{3,})\s*\Z", re.IGNORECASE | re.DOTALL)
"""A number and a word for what it counts. The word has at least three letters; suffixes of numbers (k, M, T) have fewer."""


def amount(tokens: float | None = None, epochs: float | None = None, dataset: float | None = None) -> float:
    """Tokens (or samples) of a training run: `tokens` itself, or `epochs` x `dataset`, where `dataset` is the tokens (or samples) of one pass.

    Raises `BadInput` unless exactly one of the two forms is given, with positive finite numbers.
    """
    if (tokens is None) == (epochs is None and dataset is None):
        raise BadInput("say tokens, or epochs and dataset: how many passes over a data set of so many tokens (samples for images)")
    if tokens is None and (epochs is None or dataset is None):
        raise BadInput("epochs and dataset go together: how many passes, and how many tokens (samples for images) one pass has")
    found = tokens if tokens is not None else (epochs or 0.0) * (dataset or 0.0)
    if not isinstance(found, (int, float)) or not found > 0 or not math.isfinite(found):
        raise BadInput(f"tokens = {found!r} must be a positive number")
    return found


_ALSO = {"images": ("pictures",)}
"""Other words for a unit of samples, by that unit."""


def tokens_of(text: str, plan: Plan, where: str) -> float:
    """The number of tokens in `text`: `"15T"`, or `"50k samples"` of the plan's sequence length. Samples for models without a sequence.

    Raises `UnitError` whose message shows both forms, and `BadInput` for a plan without a model.
    """
    network = network_of(plan, framework_of(plan))
    said = _SAID.match(text[:80])
    number, word = said.groups() if said else (text, "")
    each = {name: float(network.seq) for name in ("samples", network.sample_unit, *_ALSO.get(network.sample_unit, ()))}
    each |= {"tokens": 1.0} if network.seq > 1 else {}
    unit = word.lower().rstrip("s") + "s" if word else ""
    if unit and unit not in each:
        raise UnitError(f"unknown unit {word[:20]!r} at {where}. Allowed: {', '.join(each)}. {_forms(network)}")
    try:
        return count(number, where) * each.get(unit, 1.0)
    except UnitError as error:
        raise UnitError(f"{error}. {_forms(network)}") from None


def _forms(network: Network) -> str:
    """A sentence for errors that shows the allowed forms."""
    if network.seq > 1:
        return f'A bare number counts tokens (15T); "50k samples" are sequences of {network.seq:,} tokens'
    return f'A bare number counts {network.sample_unit} (50k), as "50k samples" does'


class Trained(msgspec.Struct, frozen=True):
    """How much a run trains. A sample that is used in several epochs counts each time."""

    samples: float = 0.0
    seq: int = 1
    """Tokens of a sample; 1 for models without a sequence."""
    sample_unit: str = "samples"

    @property
    def tokens(self) -> float | None:
        """Tokens of the run; None for models without a sequence."""
        return self.samples * self.seq if self.seq > 1 else None

    def __str__(self) -> str:
        """`150,000 samples of 2,048 tokens, 307.2 M tokens`; of models without a sequence `150,000 images`."""
        few = self.samples < 100 and self.samples != int(self.samples)
        many = f"{self.samples:.3g}" if few else f"{self.samples:,.0f}"
        if self.tokens is None:
            return f"{many} {self.sample_unit}"
        return f"{many} samples of {self.seq:,} tokens, {show_count(self.tokens)} tokens"
