"""Checks of arguments that scripts give to the functions of `steptwin`: whole numbers, and True or False. What comes from files is checked as it is read."""

from __future__ import annotations

from numbers import Integral

from topologies.errors import BadInput


def check_whole(name: str, value: object, what: str, least: int = 1) -> None:
    """Raises `BadInput` unless the argument `name` is a whole number (NumPy's too) of `what`, at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise BadInput(f"{name} = {value!r:.40}: must be a whole number of {what}, at least {least}")


def check_truth(name: str, value: object) -> None:
    """Raises `BadInput` unless the argument `name` is True or False. (Python takes any text as true, "no" too.)"""
    if not isinstance(value, bool):
        raise BadInput(f"{name} = {value!r:.40}: must be True or False")
