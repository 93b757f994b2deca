"""XML from unknown hands: no document type, no entities, bounded in size, depth and number of elements."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET
from xml.parsers import expat

from topologies.errors import BadInput

LARGEST = 1 << 20
"""Bytes: a dump of a 16-GPU machine has about 20 KB."""
DEEPEST = 32
MOST = 20_000


def parse(text: str, where: str) -> ET.Element:
    """The root element. Raises `BadInput` for what is no XML, or no XML that a topology needs."""
    if len(text) > LARGEST:
        raise BadInput(f"{where} is larger than {LARGEST >> 20} MiB: this is no topology dump")
    if "\x00" in text:
        raise BadInput(f"{where} is not UTF-8 text; NCCL writes UTF-8")
    # Entities can only be declared in a document type, and NCCL writes none: whatever has one comes from elsewhere.
    if re.search(r"<!\s*(DOCTYPE|ENTITY|ELEMENT|ATTLIST|NOTATION)", text, re.IGNORECASE):
        raise BadInput(f"{where} declares a document type or entities, which NCCL never writes. It is not read; remove the declaration")
    parser = _Bounded(where)
    try:
        for at in range(0, len(text), 1 << 16):
            parser.expat.Parse(text[at : at + (1 << 16)], False)
        parser.expat.Parse("", True)
    except (expat.ExpatError, ValueError) as error:
        raise BadInput(f"{where} is not valid XML: {str(error)[:120]}") from None
    return parser.builder.close()


class _Bounded:
    """Counts elements while they are built, and stops before a hostile file costs anything."""

    def __init__(self, where: str) -> None:
        self.where, self.depth, self.count = where, 0, 0
        self.builder = ET.TreeBuilder()
        self.expat = expat.ParserCreate()
        self.expat.StartElementHandler = self.start
        self.expat.EndElementHandler = self.end

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        self.count += 1
        if self.depth > DEEPEST or self.count > MOST:
            raise BadInput(f"{self.where} is nested deeper than {DEEPEST} or has more than {MOST} elements: this is no topology dump")
        self.builder.start(tag, attributes)

    def end(self, tag: str) -> None:
        self.depth -= 1
        self.builder.end(tag)
