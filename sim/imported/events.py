"""Reads the events of a file of Chrome's JSON, compressed by gzip or not.

Profilers write invalid JSON: C++'s `nan` and `inf`, arbitrary bytes in names of ranges, backslashes of Windows paths. Such bytes are
repaired. An invalid event is left out and counted. An invalid kernel is an error, because without it the step would be shorter.
"""

from __future__ import annotations

import codecs
import gzip
import math
import re
import zlib
from pathlib import Path
from typing import Annotated, Any

import msgspec

from topologies.errors import BadInput

_LARGEST = 2 << 30
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of events that run on a device."""
_NUMBER = re.compile(rb"(?<=[:,\[])\s*-?(?:nan(?:\(\w*\))?|inf(?:inity)?)(?=\s*[,}\]])", re.I)
_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|\\[\"\\/bfnrt]|(?P<bad>\\)"
)
_CONTROL = bytes(range(32))


class Event(msgspec.Struct):
    """The fields of a trace event that are read; all others are skipped."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] | None = {}

    @property
    def said(self) -> dict[str, Any]:
        """Its arguments; {} where there are none (some profilers then write `null`)."""
        return self.args or {}


class Info(msgspec.Struct):
    """torch.profiler's entry on the process group (`distributedInfo`)."""

    rank: int = 0
    world_size: int = 1
    backend: str = ""


class Own(msgspec.Struct):
    """The entry that `sim.files.chrome` writes into StepTwin's own traces."""

    origin: str = ""
    reported: Annotated[int, msgspec.Meta(le=-1)] = -1
    weight: dict[int, Annotated[int, msgspec.Meta(ge=1)]] = {}
    timed: list[Annotated[float, msgspec.Meta(gt=0)]] = []


class _Head(msgspec.Struct, kw_only=True):
    distributedInfo: Info | None = None
    steptwin: Own | None = None
    program: str = msgspec.field(default="", name="steptwin.program")
    plan: str = msgspec.field(default="", name="steptwin.plan")
    unread: int = msgspec.field(default=0, name="steptwin.unread")


class File(_Head, kw_only=True):
    """All fields that are read from a file."""

    traceEvents: list[Event]


class _Kind(msgspec.Struct):
    cat: Any = None


class _Raws(msgspec.Struct):
    traceEvents: list[msgspec.Raw]


def read_events(path: Path) -> File:
    """The events of a .json or .json.gz file. Raises `BadInput` with the file and what is wrong."""
    try:
        return _sensible(_decoded(_bytes(path)))
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"trace {path} cannot be read: {error}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"trace {path} is no Kineto trace ({error}): give a file that torch.profiler's export_chrome_trace wrote") from None
    except ValueError as error:
        raise BadInput(f"trace {path} has an event whose arguments make no sense ({error}): was it edited by hand?") from None


def _bytes(path: Path) -> bytes:
    """The content of a file, decompressed if it is gzip (whatever its name). A plain file loses its byte order mark. Raises `BadInput`
    above 2 GiB."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    if not packed:
        if path.stat().st_size > _LARGEST:
            raise BadInput(f"trace {path} is larger than {_LARGEST >> 30} GiB: record fewer steps")
        return path.read_bytes().removeprefix(codecs.BOM_UTF8)
    with gzip.open(path) as file:
        text = file.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise BadInput(f"trace {path} unpacks to more than {_LARGEST >> 30} GiB: record fewer steps")
    return text


def _decoded(text: bytes) -> File:
    """Decodes the events in a file's bytes, which are repaired if they are not valid JSON. Raises msgspec's errors, `UnicodeDecodeError`,
    `RecursionError`."""
    try:
        return _typed(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if isinstance(error, msgspec.ValidationError):
            raise
        try:
            return _typed(_mended(text))
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise error from None


def _mended(text: bytes) -> bytes:
    """Repairs JSON: `nan` and `inf` become null, a backslash that escapes nothing is doubled, invalid UTF-8 becomes the replacement
    character, and control characters become spaces."""
    text = text.decode("utf-8", "replace").encode().translate(bytes.maketrans(_CONTROL, b" " * len(_CONTROL)))
    text = _ESCAPE.sub(lambda found: b"\\\\" if found["bad"] else found[0], text)
    return _NUMBER.sub(b"null", text)


def _typed(text: bytes) -> File:
    """Decodes all events, or the valid ones (the others are counted in `unread`). A list instead of an object is Chrome's shorter form.
    Raises msgspec's error for an invalid kernel or copy."""
    listed = text[:64].lstrip()[:1] == b"["
    try:
        if listed:
            return File(traceEvents=msgspec.json.decode(text, type=list[Event], strict=False))
        return msgspec.json.decode(text, type=File, strict=False)
    except msgspec.ValidationError:
        raws = msgspec.json.decode(text, type=list[msgspec.Raw] if listed else _Raws)
        head = _Head() if listed else msgspec.json.decode(text, type=_Head, strict=False)
    events, unread = list[Event](), 0
    for raw in raws if isinstance(raws, list) else raws.traceEvents:
        try:
            events.append(msgspec.json.decode(raw, type=Event, strict=False))
        except msgspec.ValidationError:
            if _of_device(raw):
                raise
            unread += 1
    return File(**{name: getattr(head, name) for name in _Head.__struct_fields__} | {"unread": head.unread + unread}, traceEvents=events)


def _of_device(raw: msgspec.Raw) -> bool:
    """True if an event that cannot be read is a kernel, a copy or a memset."""
    try:
        return msgspec.json.decode(raw, type=_Kind).cat in DEVICE
    except msgspec.ValidationError:
        return False


def _sensible(file: File) -> File:
    """Removes events that end before they start or have infinite times. Raises `ValueError` if a kernel, a copy or a memset is among
    them."""
    wrong = [e for e in file.traceEvents if e.ph == "X" and not (e.dur >= 0 and math.isfinite(e.ts + e.dur))]
    if not wrong:
        return file
    kernel = next((e for e in wrong if e.cat in DEVICE), None)
    if kernel is not None:
        raise ValueError(f"{kernel.name[:60]!r} ends before it starts")
    out = {id(e) for e in wrong}
    kept = [e for e in file.traceEvents if id(e) not in out]
    return msgspec.structs.replace(file, traceEvents=kept, unread=file.unread + len(wrong))
