"""A reader of pages that requires well-formed, self-contained and safe HTML."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

_VOID = {"meta", "img", "br"}


class Reader(HTMLParser):
    """The scripts of a page by type; every tag closed in its order, no handler, no resource from elsewhere."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open = []
        self.scripts = {}
        self._type = ""

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        assert not [name for name in named if name.startswith("on") or name in ("src", "srcset")]
        assert named.get("href", "status") == "status"  # Dask's page on the same server
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "script":
            self._type = named.get("type") or "script"
            assert self._type not in self.scripts

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[self._type] = self.scripts.get(self._type, "") + data


def read(html):
    """Check a page; return its embedded state."""
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    assert set(reader.scripts) == {"script", "application/json"}
    digest = base64.b64encode(hashlib.sha256(reader.scripts["script"].encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    assert policy is not None
    assert policy[1].startswith(f"default-src 'none'; script-src 'sha256-{digest}';")
    assert "http" not in html.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "").split("<script")[0]
    return json.loads(reader.scripts["application/json"])
