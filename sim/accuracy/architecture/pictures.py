"""Models of images by the names that libraries give them: `vit_small_patch16_224`, "ResNeXt101-64x4d", "wide_resnet50_2", "vgg19_bn".

What a name states beside the model (patch, pixels, groups, widths) is in it; sizes are the makers'.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from sim.accuracy.row import Row
from sim.model import ModelSpec
from sim.model.specs.spec import Cnn, Vit
from topologies.errors import Refused

_VITS: dict[str, tuple[int, int, int, int]] = {
    # letter: layers, hidden, heads, ffn (Dosovitskiy et al. 2020, table 1; Touvron et al. 2021, table 1; Zhai et al. 2022, table 2)
    "ti": (12, 192, 3, 768),
    "s": (12, 384, 6, 1536),
    "b": (12, 768, 12, 3072),
    "l": (24, 1024, 16, 4096),
    "h": (32, 1280, 16, 5120),
    "g": (40, 1408, 16, 6144),
    "gg": (48, 1664, 16, 8192),
}
_WORDS = {"tiny": "ti", "small": "s", "base": "b", "large": "l", "huge": "h", "giant": "g", "gigantic": "gg", "bigg": "gg"}
_SMALL = 100
"""Pixels above which a number in a name is an image's side; below, a patch's."""


def picture_model(row: Row, assumed: list[str]) -> dict[str, Any] | None:
    """The model table of a row on images, from its name and its columns; None where it is none of those described by numbers."""
    name = _spaced(row.model_name)
    if re.search(_HEADED, name):
        return None
    spec = _vit(row, assumed) or _resnet(name) or _vgg(name)
    return _tree(spec, row) if spec is not None else None


def _tree(spec: ModelSpec, row: Row) -> dict[str, Any]:
    """The model table, under the row's name."""
    tree: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(spec, name=row.model_name))
    return tree


def _spaced(text: str) -> str:
    """In lower case, with single spaces for what parts its words."""
    return re.sub(r"[_ -]+", " ", text.lower())


_LETTER = r"(ti|s|b|l|h|gg?|tiny|small|base|large|huge|giant|gigantic|bigg)"
_VIT = r"\b(?:vit|deit|beit|mae|dino|eva|vision transformer)(?: ?v?0?[1-3])?\b"
"""Plain vision transformers, by their names and by those of how they are trained."""
_LETTERED = rf"{_VIT}(?: ?iii)? ?{_LETTER}\b"
_LEARNED = (
    # (pattern over type and name, what a step of its pretraining does beside the ViT's): He et al. 2021; Caron et al. 2021
    (r"\bmae\b|masked auto ?encod", "shows the ViT a quarter of the patches, and a decoder all of them"),
    (r"\bdino", "has a teacher beside the ViT, and several crops of each picture"),
)
_TUNED = r"tun|classif|prob|(?<!self )\bsupervised"
"""Tasks on pictures after, or instead of, such a pretraining."""


def _vit(row: Row, assumed: list[str]) -> Vit | None:
    """A plain vision transformer: DeiT, BEiT, MAE, DINO and EVA have ViT's layers. Sizes in the row win over the name's letter.

    Raises `Refused` where it is pretrained in a way that is other work for each picture.
    """
    name, kind = _spaced(row.model_name), _spaced(f"{row.model_type} {row.model_name}")
    found = re.search(_LETTERED, name) or re.search(_VIT, name)
    if not re.search(_VIT, kind) or re.search(r"swin|clip|llava|hybrid|r50|mask(?!ed)|det|moe", kind):
        return None
    letter = found[1] if found and found.re.groups else ""
    if re.search(r"(?i:vit)[ _-]?G\b", row.model_name):  # ViT-g and ViT-G differ
        letter = "gg"
    sizes = _columns(row) or _VITS.get(_WORDS.get(letter, letter))
    if sizes is None:
        return None
    why = next((why for word, why in _LEARNED if re.search(word, kind)), "")
    if why and not re.search(_TUNED, _spaced(row.task)):
        raise Refused(f"{row.model_name}: its pretraining {why}, which is not supported")
    if not re.search(r"\bvit|deit|vision", kind):
        assumed.append(f"{row.model_name}: the layers of a ViT")
    return _of_sizes(sizes, f"{name[found.end() if found else 0 :]} {row.arch_note.lower()}")


def _of_sizes(sizes: tuple[int, int, int, int], words: str) -> Vit:
    """A ViT of so many layers, hidden, heads and ffn; `words` may state its pictures' side and its patches'."""
    layers, hidden, heads, ffn = sizes
    pixels = _pixels(words)
    patch = re.search(r"patch ?(\d+)|[/ ](\d\d)(?!\d)", words)
    side = int(patch[1] or patch[2]) if patch else 14 if hidden in (1280, 1408, 1664) else 16
    return Vit(layers=layers, hidden=hidden, heads=heads, ffn=ffn, image=pixels or 224, patch=side if (pixels or 224) % side == 0 else 16)


def _columns(row: Row) -> tuple[int, int, int, int] | None:
    """Layers, hidden, heads and ffn as the row states them, in a ViT's proportions where it leaves heads or ffn out."""
    if not row.n_layers or not row.hidden:
        return None
    return row.n_layers, row.hidden, row.n_heads or max(1, row.hidden // 64), row.ffn_hidden or 4 * row.hidden


_UNITS = r"imag|img|picture|photo"
_SEEN = r"\bswin|\bvision\b|\bimage|\bpicture|\bcait|\bpvt|\bmlp mixer"
"""Words of models of pictures, beside those of convolutional networks."""
_STAGED = (
    # (pattern over type and name, why a number of layers and a width do not tell its work); the first that matches counts
    (r"swin", "Swin's layers attend inside windows, in stages of growing width"),
    (r"\bcnn\b|convol|convnext|\b(?!imagenet)\w*net(?:v?\d+)?\b", "its layers convolve maps of several sizes"),
    (r"mixer|\bpvt|pyramid|hierarch|\bcait|levit|max ?vit|mamba|hybrid", "its layers are not a ViT's"),
    (r"\bv?moe\b|expert", "a ViT's experts are not supported"),
)


def of_pictures(row: Row, family: str, assumed: list[str]) -> dict[str, Any] | None:
    """A transformer on pictures from the row's columns, whatever its name; None where nothing says that it reads pictures, or its name is that of
    a `family` of decoders (a mixture of experts may be of either).

    Raises `Refused` where layers of one width are not what it has.
    """
    kind = _spaced(f"{row.model_type} {row.model_name}")
    if family not in ("", "mixtral") or not (re.search(_UNITS, row.batch_unit.lower()) or re.search(_SEEN, kind)):
        return None
    sizes = _columns(row)
    why = next((why for word, why in _STAGED if re.search(word, kind)), "" if sizes else "its layers and its width are not stated")
    if why or sizes is None:
        raise Refused(f"{row.model_name or 'model'}: {why}, and no model of pictures of that name ships")
    assumed.append(f"{row.model_name or 'a model of pictures'} taken as a vision transformer: {sizes[0]} layers of {sizes[1]}")
    return _tree(_of_sizes(sizes, f"{kind} {row.arch_note.lower()}"), row)


_HEADED = r"r ?cnn|retinanet|\bssd|\bfpn|\bfcn|deeplab|yolo|detr\b|upernet|u ?net"
"""Detectors and segmenters, whose names tell the backbone, too: "Mask R-CNN (ResNeXt-101-32x8d)"."""
_SIDE = r"\b(\d{3,4}) ?[x×] ?\1\b|\b(\d{3,4}) ?(?:px|pixels?)\b"
_OPEN = ("resnet", "vgg", "alexnet")
"""Networks of the `cnn` family that take pictures of any size."""

_SCRIPTED = {"flux.1-schnell": 256, "flux.1-dev": 512}
"""Sides in torchtitan's configurations of FLUX.1 (experiments/flux/train_configs/flux_schnell_model.toml, flux_dev_model.toml: img_size)."""


def with_side(spec: ModelSpec, row: Row, assumed: list[str]) -> ModelSpec:
    """A shipped model on pictures of the side that the row's name ("DiT-XL/2 512", "FLUX.1 (256x256)") or note states.

    Raises `BadInput` where the model does not divide it.
    """
    own = getattr(spec, "image", None)
    if own is None or (isinstance(spec, Cnn) and spec.arch not in _OPEN):
        return spec
    found = re.search(_SIDE, f"{row.model_name} {row.arch_note}".lower()) or re.search(r"[-_ ](\d{3,4})()$", row.model_name)
    scripted = _SCRIPTED.get(spec.name, 0) if "titan" in row.framework.lower() else 0
    side = int(found[1] or found[2]) if found else scripted
    if side <= _SMALL or side % 32 or side == (own or 224):
        return spec
    assumed.append(f"pictures of {side} x {side} pixels")
    return msgspec.structs.replace(spec, image=side)


def _pixels(text: str) -> int:
    return next((int(number) for number in re.findall(r"\d{3}", text) if int(number) > _SMALL), 0)


def _resnet(name: str) -> Cnn | None:
    """ResNeXt of any groups and widths (Xie et al. 2016), and wide ResNets (Zagoruyko & Komodakis 2016; torchvision: twice as wide inside)."""
    if found := re.search(r"(se ?)?resnext ?(50|101|152) ?\(?(\d+)x(\d+)d?", name):
        return Cnn(depth=int(found[2]), groups=int(found[3]), width=int(found[4]), se=bool(found[1]))
    if found := re.search(r"wide ?resnet ?(50|101)(?: 2)?$|wrn ?(50|101) 2", name):
        return Cnn(depth=int(found[1] or found[2]), width=128)
    return None


def _vgg(name: str) -> Cnn | None:
    found = re.search(r"\bvgg ?(11|13|16|19)(?: ?(bn|batch ?norm))?\b", name)
    return Cnn(arch="vgg", depth=int(found[1]), batch_norm=bool(found[2])) if found else None
