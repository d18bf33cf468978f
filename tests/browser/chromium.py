"""A real browser without a window, spoken to over a pair of pipes."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_chromium() -> str | None:
    return next((result for name in NAMES if (result := shutil.which(name))), None)


class Chromium:
    """One page. What it asks the network for and what it complains about is kept."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._to = os.pipe()
        self._from, from_browser = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        options += [f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        # The browser reads from descriptor 3 and writes to 4, whatever they are called here.
        wire = f'exec 3<&{to_browser} 4>&{from_browser}; exec "$0" "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", wire, program, *options],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._numbers = itertools.count(1)
        self._pending = b""
        self._session: str | None = None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{part}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        self.call("Browser.close")
        os.close(self._to)
        self._process.wait(30)
        os.close(self._from)

    def open(self, page: Path, width: int, scheme: str) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=media)
        self.call("Page.navigate", url=page.as_uri())
        while self.ask("document.readyState") != "complete":
            continue

    def visit(self, url: str, width: int, until: str, seconds: float = 60.0) -> None:
        """Open a page that builds itself by scripts, and wait until this text is on it."""
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + seconds
        while until not in (self.ask("document.body ? document.body.innerText : ''") or ""):
            assert time.monotonic() < deadline, f"no {until!r} on {url}: {self.ask('document.body.innerText')}"
            time.sleep(0.2)

    def picture(self, file: Path) -> None:
        """What is to be seen, as a PNG."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def ask(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def ask_frame(self, expression: str) -> Any:
        """The same of the only frame of the page; one that is sandboxed has a process of its own."""
        page, self._session = self._session, None
        (frame,) = [info for info in self.call("Target.getTargets")["targetInfos"] if info["type"] == "iframe"]
        try:
            self._session = self.call("Target.attachToTarget", targetId=frame["targetId"], flatten=True)["sessionId"]
            return self.ask(expression)
        finally:
            self._session = page

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            text = self._next()
            if text.get("id") == number:
                assert "error" not in text, text
                result: dict[str, Any] = text["result"]
                return result
            self._hear(text.get("method", ""), text.get("params", {}))

    def _hear(self, method: str, by_name: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(by_name["request"]["url"])
        elif method == "Log.entryAdded":
            self.complaints.append(by_name["entry"]["text"])
        elif method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.complaints.append(json.dumps(by_name))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            arrived = os.read(self._from, 1 << 16)
            assert arrived, "the browser went away"
            self._pending += arrived
        line, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message
