"""A headless Chromium that a test drives over the DevTools protocol: open, evaluate, wait, click, and look.

Source: chromedevtools.github.io/devtools-protocol, domains Page, Runtime, Network, Log and Emulation.
"""

import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WAIT_SECONDS = 120.0
LOOK_SECONDS = 0.05


class Browser:
    """A browser with one page; `console` has what its scripts reported, `requests` the addresses that it asked for."""

    def __init__(self, profile, size=(1280, 800)):
        from websockets.sync.client import connect

        words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run"]
        words += ["--disable-background-networking", f"--window-size={size[0]},{size[1]}"]
        words += [f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self.console, self.requests, self._numbers = [], [], itertools.count(1)
        self._open = contextlib.ExitStack()
        try:
            port, path = self._address(Path(profile) / "DevToolsActivePort")
            self._socket = self._open.enter_context(connect(f"ws://127.0.0.1:{port}{path}", max_size=None))
            target = self._browser("Target.getTargets")["targetInfos"]
            page = next(each["targetId"] for each in target if each["type"] == "page")
            self._session = self._browser("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.command(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def _address(self, path):
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, ValueError):
                port, where = path.read_text().split()
                return port, where
            time.sleep(LOOK_SECONDS)
        raise TimeoutError("the browser did not start")

    def _browser(self, method, **parameters):
        return self._send({"method": method, "params": parameters})

    def command(self, method, **parameters):
        """The result of a command of the protocol."""
        return self._send({"method": method, "params": parameters, "sessionId": self._session})

    def _send(self, message):
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, **message}))
        while True:
            answer = json.loads(self._socket.recv(timeout=WAIT_SECONDS))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _note(self, event):
        """Keep what the page reports and asks for."""
        method, of = event.get("method"), event.get("params", {})
        if method == "Runtime.consoleAPICalled" and of["type"] in ("error", "warning", "assert"):
            self.console.append(" ".join(str(part.get("value", part.get("description"))) for part in of["args"]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(json.dumps(of["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and of["entry"]["level"] in ("error", "warning"):
            self.console.append(f"{of['entry']['text']} {of['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(of["request"]["url"])
        elif method == "Network.webSocketCreated":
            self.requests.append(of["url"])

    def open(self, address):
        """Open a page; the one before is gone then."""
        self.evaluate("window.isLeft = true")
        self.command("Page.navigate", url=address)
        self.wait("!window.isLeft && document.body !== null")

    def evaluate(self, script):
        """The value of a script."""
        answer = self.command("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script, seconds=WAIT_SECONDS):
        """The value of a script as soon as it is true."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if value := self.evaluate(script):
                return value
            time.sleep(LOOK_SECONDS)
        raise AssertionError(f"{script} stayed false; the page says {self.evaluate('document.body.innerText')[:2000]}")

    def click(self, selector):
        """Click on the middle of the first element of a selector."""
        place = self.wait(
            f"(() => {{ const e = document.querySelector({selector!r}); if (!e) return null; "
            "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect(); "
            "return r.width ? [r.x + r.width / 2, r.y + r.height / 2] : null; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.command("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def key(self, name, code=0, text=""):
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.command("Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=code, **more)

    def fill(self, selector, text):
        """Replace the text of an input."""
        self.evaluate(f"(() => {{ const e = document.querySelector({selector!r}); e.focus(); e.select(); }})()")
        self.command("Input.insertText", text=text)

    def resize(self, width, height, *, dark=False, mobile=False):
        """Set the size of the window, and whether the reader prefers dark pages."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path):
        """Write what is on the screen."""
        Path(path).write_bytes(base64.b64decode(self.command("Page.captureScreenshot")["data"]))

    def close(self):
        """End the browser and all its processes."""
        with contextlib.suppress(Exception):
            self._open.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
