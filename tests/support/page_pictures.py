"""Draw cluster/page-light.png and page-dark.png: `python tests/support/page_pictures.py`, after the page has changed.

The live page of a simulated job, in Chromium: half of 400 segments are done by 20 workers; three were lost.
"""

import base64
import io
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from browser import browsing
from PIL import Image
from simulated import messages

from bigkernel.events.board import Board
from bigkernel.monitor.page import render, to_json

PLACE = Path(__file__).parents[2] / "cluster"
WIDTH = 1280


def state():
    """Return the state of a scheduler, as `bigkernel.events.plugin.state_of` does."""
    board, last = Board(), 0.0
    for message, last in messages(400, 20):
        board.apply(message, last)
    shown = board.snapshot(last)
    worker = {"status": "running", "limit_bytes": 10**9, "memory_bytes": 5 * 10**8, "threads": 1}
    workers = dict.fromkeys(shown["jobs"][0]["sweeps"][0]["workers"], worker)
    return {**shown, "workers": workers, "address": "tls://10.0.0.1:8786", "pages": True}


class Answer(BaseHTTPRequestHandler):
    """The page, and the state that it asks for."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write((to_json(state()) if self.path.endswith(".json") else render()).encode())


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with browsing() as new_tab:
        tab = new_tab()
        for name in ("light", "dark"):
            tab.open(f"http://127.0.0.1:{server.server_port}/bigkernel", width=WIDTH, dark=name == "dark")
            tab.until("!document.getElementById('map').hidden")
            height = tab.evaluate("document.querySelector('main').getBoundingClientRect().bottom") + 12
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
            drawn = tab.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
            picture = Image.open(io.BytesIO(base64.b64decode(drawn["data"]))).convert("RGB")
            picture = picture.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
            picture.save(PLACE / f"page-{name}.png", optimize=True)
