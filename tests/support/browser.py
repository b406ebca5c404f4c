"""A headless Chromium for tests of pages, driven over the DevTools protocol with Tornado's websocket client."""

import asyncio
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from tornado.websocket import websocket_connect

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_START_SECONDS = 90
_ANSWER_SECONDS = 60
_numbers = itertools.count(1)  # of commands


def chromium():
    """Return the path of a Chromium, or None."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Tab:
    """One open page; `problems` are errors on its console, exceptions, and requests that failed."""

    def __init__(self, loop, socket):
        self._loop, self._socket = loop, socket
        self._session = ""
        self._urls = {}
        self.problems = []
        self._target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Return the answer to one command of the protocol; earlier events are noted."""
        number = next(_numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session

        async def ask():
            await self._socket.write_message(json.dumps(message))
            while True:
                text = await self._socket.read_message()
                if text is None:
                    raise RuntimeError("the browser has closed the connection")
                answer = json.loads(text)
                if answer.get("id") == number:
                    return dict(answer)
                if answer.get("sessionId") == self._session:
                    self._note(answer.get("method", ""), answer.get("params", {}))

        answer = self._loop.run_until_complete(asyncio.wait_for(ask(), _ANSWER_SECONDS))
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return dict(answer["result"])

    def _note(self, method, event):
        if method == "Network.requestWillBeSent":
            self._urls[event["requestId"]] = event["request"]["url"]
        elif method == "Network.responseReceived" and event["response"]["status"] >= 400:
            self._complain(f"{event['response']['status']} {event['response']['url']}")
        elif method == "Network.loadingFailed":
            self._complain(f"{event['errorText']} {self._urls.get(event['requestId'], '')}")
        elif method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self._complain(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self._complain(
                " ".join(str(argument.get("value", argument.get("description"))) for argument in event["args"])
            )
        elif method == "Log.entryAdded" and event["entry"]["level"] == "error":
            self._complain(f"{event['entry']['text']} {event['entry'].get('url', '')}")

    def _complain(self, text):
        if "favicon.ico" not in text:
            self.problems.append(text)

    def open(self, url, *, width=1280, height=900, dark=False):
        """Open an address in a window of this size, with dark or light colours preferred."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.prefer(dark=dark)
        self.call("Page.navigate", url=url)

    def prefer(self, *, dark):
        """Set the preferred colour scheme."""
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def evaluate(self, expression):
        """Return the value of a JavaScript expression, by JSON."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, expression, seconds=60):
        """Wait until an expression is true; one that throws is not true yet."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if self.evaluate(f"(() => {{ try {{ return Boolean({expression}) }} catch {{ return false }} }})()"):
                    return
            except RuntimeError as error:
                if "context" not in str(error):  # the page is being replaced
                    raise
            time.sleep(0.1)
        raise TimeoutError(f"not within {seconds} s: {expression}; the page complains of {self.problems}")

    def close(self):
        """Close the page."""
        self._session = ""
        self.call("Target.closeTarget", targetId=self._target)


@contextmanager
def browsing():
    """Yield a function that opens an empty tab, in a browser that is closed at the end of the block."""
    program = chromium()
    assert program is not None
    loop = asyncio.new_event_loop()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", f"--user-data-dir={home}"]
        quiet = ["--no-first-run", "--disable-background-networking", "--disable-dev-shm-usage", "--hide-scrollbars"]
        process = subprocess.Popen(
            [program, *flags, *quiet, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            socket = loop.run_until_complete(_connect(_address(Path(home), process)))
            try:
                yield lambda: Tab(loop, socket)
            finally:
                loop.run_until_complete(asyncio.wait_for(_disconnect(socket), _ANSWER_SECONDS))
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            loop.close()


async def _connect(address):
    return await websocket_connect(address, max_message_size=2**26)


async def _disconnect(socket):
    """Close a connection, and wait until it is."""
    socket.close()
    while await socket.read_message() is not None:
        pass


def _address(home, process):
    """Return the address of the browser, which writes its port and path into its home."""
    end, file = time.monotonic() + _START_SECONDS, home / "DevToolsActivePort"
    while time.monotonic() < end and process.poll() is None:
        if file.exists() and len(lines := file.read_text().split()) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        time.sleep(0.05)
    raise RuntimeError(f"the browser did not start within {_START_SECONDS} s (exit code {process.poll()})")
