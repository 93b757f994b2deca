"""COCO's photographs as detectors are trained on them: how large a padded batch is, and how many objects a photograph shows.

Each is scaled to 800 pixels on its short side, 1333 at most on its long one; a batch is as wide as its widest, rounded up to 32 (GeneralizedRCNN
of maskrcnn-benchmark and torchvision alike). Sizes: the first 438 of the 5,000 held back for validation (data/5k.shapes of ultralytics/yolov3).
"""

from __future__ import annotations

PIXELS = 278_000
"""Of a photograph as it is stored, in the mean: 573 x 494."""
OBJECTS = 7.3
"""Annotated objects of a photograph, in the mean: 883,331 on 121,408."""
POSITIVE = 5
"""Regions of an object that train its mask: about four proposals overlap it by half (matterport/Mask_RCNN issue 76), and its own box is one."""
_SHORT = 800
_LONG = ((800, 0.046), (960, 0.080), (1056, 0.128), (1088, 0.523), (1152, 0.569), (1216, 0.900), (1280, 0.932), (1344, 1.0))
"""(long side, rounded up to 32, share of the photographs that are no longer)."""
_ROUND = 32


def padded(image: int, micro: int) -> tuple[int, int]:
    """(height, width) of each image in a batch of `micro`: squares of `image` pixels; 0: the mean over batches of photographs.

    The widest of b draws is no wider than l with the probability F(l)^b. Portraits are batched apart (aspect ratio grouping), and are as large.
    """
    if image:
        side = -(-image // _ROUND) * _ROUND
        return side, side
    mean, below = 0.0, 0.0
    for long, share in _LONG:
        mean, below = mean + long * (share**micro - below), share**micro
    return _SHORT, round(mean / _ROUND) * _ROUND
