"""Configs of models of pictures: EfficientNet, ConvNeXt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.model.readers.config import Config
from sim.model.readers.others import classes
from topologies.errors import Refused

Fields = dict[str, Any]
_TABLES = {"kernel_sizes": [3, 3, 5, 3, 5, 5, 3], "strides": [1, 2, 2, 2, 1, 2, 1], "num_block_repeats": [1, 2, 2, 3, 3, 4, 1]}
_TABLES |= {"expand_ratios": [1, 6, 6, 6, 6, 6, 6], "out_channels": [16, 24, 40, 80, 112, 192, 320]}


def _same(c: Config, key: str, wanted: object) -> None:
    """Raises `Refused` where the file says something else than what is described."""
    found = c.tree.get(key)
    if found is not None and found != wanted:
        raise Refused(f"{c.where}: {key} = {found!r} of {c.kind} is not supported; leave it at {wanted!r}")


def _efficientnet(c: Config) -> Fields:
    """B0 to B7 by their two factors; transformers' class defaults to B7."""
    for key, wanted in _TABLES.items():
        _same(c, key, wanted)
    return {
        "family": "efficientnet",
        "width": c.fraction("width_coefficient", default=2.0),
        "depth": c.fraction("depth_coefficient", default=3.1),
        "image": c.number("image_size", default=600),
        "channels": c.number("num_channels", default=3),
        "dropout": c.fraction("dropout_rate", default=0.5),
        "drop_path": c.fraction("drop_connect_rate", default=0.2),
        "classes": classes(c),
    }


def _convnext(c: Config) -> Fields:
    _same(c, "patch_size", 4)
    return {
        "family": "convnext",
        "depths": tuple(c.tree.get("depths") or (3, 3, 9, 3)),
        "widths": tuple(c.tree.get("hidden_sizes") or (96, 192, 384, 768)),
        "image": c.number("image_size", default=224),
        "channels": c.number("num_channels", default=3),
        "drop_path": c.fraction("drop_path_rate", default=0.0),
        "classes": classes(c),
    }


READERS: dict[str, Callable[[Config], Fields]] = {"efficientnet": _efficientnet, "convnext": _convnext}
