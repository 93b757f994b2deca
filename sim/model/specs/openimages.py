"""Photographs of Open Images as MLPerf's detector is trained on them: how large they are as they come, and how many objects one shows."""

from __future__ import annotations

PIXELS = 1024 * 768
"""Of a photograph as it is stored: 1024 on its long side (Open Images' download page), 4:3 as most cameras have it (assumed)."""
OBJECTS = 8.4
"""Annotated objects of a photograph, in the mean (Kuznetsova et al. 2020, The Open Images Dataset V4: 14.6 million on 1.74 million)."""
