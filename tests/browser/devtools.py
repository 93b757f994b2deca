"""A headless Chromium spoken to by the DevTools protocol over a pipe: no websocket, no port, no dependency.

Protocol: https://chromedevtools.github.io/devtools-protocol/; `--remote-debugging-pipe` reads commands from file
descriptor 3 and writes answers and events to 4, JSON ended by a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync")
_PATIENCE = 20.0
"""Seconds that one answer may take before the test fails."""
_START = 60.0
"""Seconds that the first answer may take: a browser that is read from a cold disk beside other work starts slowly."""


def chromium() -> str | None:
    """Where Chromium is; None where it is not installed."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


class Browser:
    """One browser with one page. Use as a context manager."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program, self._folder = program, folder
        self._start(folder)

    def _start(self, folder: Path) -> None:
        down, self._out = os.pipe()
        self._in, up = os.pipe()

        def wire() -> None:
            # Through high numbers, so that neither end is overwritten before it is moved.
            a, b = os.dup(down), os.dup(up)
            while a < 5 or b < 5:
                a, b = os.dup(a), os.dup(b)
            os.dup2(a, 3)
            os.dup2(b, 4)

        command = (
            self._program,
            *_FLAGS,
            "--no-first-run",
            "--hide-scrollbars",
            f"--user-data-dir={folder}",
            "--remote-debugging-pipe",
            "about:blank",
        )
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, pass_fds=(3, 4), preexec_fn=wire, **quiet)  # type: ignore[call-overload]
        os.close(down)
        os.close(up)
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        """What happened since the page was opened."""

    def __enter__(self) -> Browser:
        found = self._first()["targetInfos"]
        target = next(one["targetId"] for one in found if one["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        return self

    def _first(self) -> dict[str, Any]:
        """The first answer. A browser that gives none is started once more, in a folder of its own: a start now and then hangs."""
        try:
            return self.send("Target.getTargets")
        except AssertionError:
            self._end()
            self._start(self._folder.with_name(f"{self._folder.name}-again"))
            return self.send("Target.getTargets")

    def _end(self) -> None:
        self._process.kill()
        self._process.wait(5)
        os.close(self._out)
        os.close(self._in)

    def __exit__(self, *_: object) -> None:
        try:
            self._session = ""
            self.send("Browser.close")
            self._process.wait(5)
        except (OSError, AssertionError, subprocess.TimeoutExpired):
            pass
        self._end()

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Calls a method of the protocol and waits for its answer. Raises `AssertionError` for an error, or none in time."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._receive(method)
            if found.get("id") == self._number:
                assert "error" not in found, f"{method}: {found['error']}"
                return dict(found["result"])
            self.events.append(found)

    def _receive(self, what: str) -> dict[str, Any]:
        until = time.monotonic() + (_START if self._number == 1 else _PATIENCE)
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"the browser does not answer to {what}"
            part = os.read(self._in, 1 << 16)
            assert part, f"the browser has ended before it answered to {what}"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(text))

    def open(self, page: Path, dark: bool = False, width: int = 1280, height: int = 900) -> None:
        """Opens a file and waits until it is loaded; `events` begins anew."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = "dark" if dark else "light"
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.send("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive(f"opening {page.name}"))

    def errors(self) -> list[str]:
        """Exceptions and messages of level error since the page was opened."""
        found = []
        for event in self.events:
            params = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(params["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
                found.append(str(params["args"]))
        return found

    def requests(self) -> list[str]:
        """Addresses that the page asked for, but its own file and data inside it."""
        asked = [event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [url for url in asked[1:] if not url.startswith(("data:", "blob:"))]

    def run(self, script: str) -> Any:
        """The value of an expression (promises are waited for). Raises `AssertionError` where it throws."""
        found = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found.get("exceptionDetails")
        return found["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, clicks: int = 0) -> None:
        """`kind`: mouseMoved, mousePressed or mouseReleased, in pixels of the window."""
        button = {"button": "left", "buttons": 1} if clicks or (kind == "mouseMoved" and self._held) else {}
        self._held = kind == "mousePressed" or (kind == "mouseMoved" and self._held)
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, clickCount=clicks, **button)

    _held = False

    def picture(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]))
