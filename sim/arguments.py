"""What functions of the Python face are given that no file has read: whole numbers, and true or false."""

from __future__ import annotations

from numbers import Integral

from topologies.errors import BadInput


def check_whole(name: str, value: object, what: str, least: int = 1) -> None:
    """Raises `BadInput` unless the argument `name` is a whole number (NumPy's too) of `what`, at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise BadInput(f"{name} = {value!r:.40}: a whole number of {what}, at least {least}")


def check_truth(name: str, value: object) -> None:
    """Raises `BadInput` unless the argument `name` is True or False: a text such as "no" would count as true."""
    if not isinstance(value, bool):
        raise BadInput(f"{name} = {value!r:.40}: True or False")
