"""The classes of all errors that StepTwin raises on purpose.

* `SteptwinError`            base: one clear message, never a traceback on the command line
    * `BadInput`             what a person wrote cannot be used (exit 2)
        * `UnitError`        a size, rate or time without a unit, or with an unknown one
        * `UnknownName`      a key, preset or machine that does not exist; offers the nearest
        * `Disconnected`     a machine where some ranks cannot reach each other
        * `Refused`          understood, but not supported in this combination; says why
            * `NoRoom`       a run that needs more memory than this machine has (exit 3)
    * `RunFailed`            a run on real devices ended early (exit 4); what was measured is kept

To predict a plan that does not fit into memory is no error: it is the value `sim.memory.report.DoesNotFit` (exit 3).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST = 1800
"""Longest message, in characters. Of a longer one, the beginning and the end are kept."""


class SteptwinError(Exception):
    """Base of all errors raised on purpose. `exit_code` is what the command line returns."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        # Messages quote the input, which may be very long.
        super().__init__(message if len(message) <= _LONGEST else f"{message[: _LONGEST // 2]} ... {message[-_LONGEST // 2 :]}")


class BadInput(SteptwinError):
    """The input cannot be used. The message says what is wrong, where, what is allowed and what to do next."""


class UnitError(BadInput):
    """A quantity that cannot be read."""


class UnknownName(BadInput):
    """A name that does not exist. The message offers the most similar names and lists the allowed ones. `meant`: the names to offer, where
    the caller knows them; the allowed names are then not listed, unless `every` is true. `otherwise`: a last sentence, on what to do if
    none fits. `where`: the place of the name ("" adds none)."""

    def __init__(
        self,
        what: str,
        name: str,
        allowed: Iterable[str],
        where: str = "",
        meant: Iterable[str] = (),
        every: bool = False,
        otherwise: str = "",
    ) -> None:
        names = sorted(set(allowed))
        small = name[:80].lower()  # all allowed names are in lower case
        holding = sorted((one for one in names if len(name) > 2 and small in one), key=len)  # h100: dgx-h100 before gh200
        known = list(meant)
        near = known or list(dict.fromkeys([*holding, *difflib.get_close_matches(small, names, n=3, cutoff=0.5)]))[:3]
        place = f" in {where}" if where else ""
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        shown = ", ".join(names[:24]) + (f", ... ({len(names)} in all)" if len(names) > 24 else "")
        listed = "" if known and not every else f" Allowed: {shown}"
        super().__init__(f"unknown {what} '{name[:80]}'{place}.{hint}{listed}" + (f". {otherwise}" if otherwise else ""))
        self.name, self.near = name, near


class Disconnected(BadInput):
    """Some ranks of a machine cannot reach each other, as it was described or after a failure."""


class Refused(BadInput):
    """The input is understood but not supported. The message gives the reason and what to use instead."""


class NoRoom(Refused):
    """A plan cannot run on this machine because it needs more memory than there is."""

    exit_code = 3


class RunFailed(SteptwinError):
    """A run on real devices ended early. `partial` is the folder with the measurements up to then ("": there are none)."""

    exit_code = 4

    def __init__(self, message: str, partial: str = "") -> None:
        kept = f" What was measured is kept in {partial}." if partial else ""
        super().__init__(message + kept)
        self.cause, self.partial = message, partial
