"""Pictures of real pages for README: `python -m tests.browser.gallery [RUN]` draws them into reports/gallery.

The pages are made by the command line's own verbs. The comparison is that of `RUN` (a folder of `steptwin twin`, by default
runs/tiny-ddp); where there is none, its picture stays as it is. Each picture is the upper part of a page, below 150 kB.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from sim.files.runs import write_atomic
from steptwin import main
from tests.browser.devtools import Browser, chromium

GALLERY = Path(__file__).parents[2] / "reports" / "gallery"
LARGEST = 150_000
"""Bytes of a picture."""
WIDTH = 1200
"""Pixels of the window; pictures are smaller by their scale."""
_SCALES = (0.6, 0.5, 0.4, 0.3)
_MACHINE = ("--on", "4x dgx-h100")
_PIPELINE = ("parallel.dp_shard=4", "parallel.tp=2", "parallel.pp=4", "parallel.zero=1", "batch.global=32", "batch.micro=1")
_SPACE = "zero=1,3 micro=1,2 tp=1,2,4 pp=1,2 recompute=none,selective,full gpus=8,16,32"

Words = tuple[str, ...]
COMMANDS: dict[str, tuple[Callable[[Path], Words], str, int]] = {
    "prediction": (lambda f: ("predict", "llama3-8b-fsdp8", *_MACHINE, *_sets(*_PIPELINE), "--out", str(f)), "report.html", 1900),
    "sweep": (lambda f: ("sweep", "llama3-8b-fsdp8", _SPACE, *_MACHINE, "--out", str(f / "s.sqlite"), "--report", str(f / "p.html")), "p.html", 1750),
    "capacity": (lambda f: ("capacity", "llama3-8b-fsdp8", *_sets("batch.global=512"), *_MACHINE, "--tokens", "1e12", "--report", str(f / "p.html")), "p.html", 1750),
    "topology": (lambda f: ("topology", "show", "dgx-h100", "--report", str(f / "p.html")), "p.html", 1000),
    "collective": (lambda f: ("collective", "all_reduce", *_MACHINE, "--bytes", "1 GiB", "--plot", str(f / "p.html")), "p.html", 1150),
    "validation": (lambda f: ("validate", "--limit", "150", "--report", str(f / "p.html")), "p.html", 1350),
}  # fmt: skip
"""Kind of page -> its command for a folder, the page's name there, and how many pixels of it are shown."""


def _sets(*words: str) -> Words:
    return tuple(part for word in words for part in ("--set", word))


def made(kind: str, folder: Path) -> Path:
    """The page of a kind, made by the command line in `folder`. Raises `RuntimeError` where the verb refuses."""
    command, name, _ = COMMANDS[kind]
    folder.mkdir(parents=True)
    with patch.object(sys, "argv", ["steptwin", *command(folder)]), (folder / "said.txt").open("w") as said, patch("sys.stdout", said):
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"steptwin {' '.join(command(folder))}: exit code {end.code}") from None
    return folder / name


def picture(browser: Browser, page: Path, height: int, path: Path) -> Path:
    """The upper `height` pixels of a page as PNG, at the largest scale that keeps it below `LARGEST` bytes."""
    browser.open(page, width=WIDTH)
    assert browser.errors() == []
    browser.run("document.querySelectorAll('.modebar').forEach(bar => bar.remove())")
    high = min(height, browser.run("document.documentElement.scrollHeight"))
    for scale in _SCALES:
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": high, "scale": scale}
        data = base64.b64decode(browser.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"])
        if len(data) < LARGEST:
            return write_atomic(path, data)
    raise RuntimeError(f"the picture of {page} does not fit into {LARGEST} bytes")


def draw(run: Path, folder: Path = GALLERY) -> list[Path]:
    """All pictures. Raises `RuntimeError` without Chromium."""
    program = chromium()
    if program is None:
        raise RuntimeError("no Chromium on this machine: apt-get install chromium")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, Browser(program, Path(place) / "browser") as browser:
        found = [picture(browser, made(kind, Path(place) / kind), COMMANDS[kind][2], folder / f"{kind}.png") for kind in COMMANDS]
        if (run / "report.html").is_file():
            found.append(picture(browser, (run / "report.html").resolve(), 1900, folder / "comparison.png"))
    return found


if __name__ == "__main__":
    for path in draw(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/tiny-ddp")):
        print(f"{path.relative_to(GALLERY.parents[1])}  {path.stat().st_size / 1e3:.0f} kB")
