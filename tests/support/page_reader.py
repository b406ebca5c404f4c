"""A reader of pages that objects to what is not well-formed or not self-contained."""

from __future__ import annotations

from base64 import b64decode
from html.parser import HTMLParser

_VOID = {"meta", "img", "source", "br"}


class Reader(HTMLParser):
    """The texts of a page by tag; every tag closed in its order, no resource from elsewhere, no script."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.texts: list[str] = []
        self.headings: list[str] = []
        self.tags: list[str] = []
        self.titles: list[str] = []
        self.anchors: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"a handler: {name}"
            if name == "id":
                assert str(value) not in self.anchors, f"two parts are called {value}"
                self.anchors.add(str(value))
            if name == "href" and str(value).startswith("#"):
                self.links.append(str(value)[1:])
            elif name in ("src", "href", "srcset"):
                assert str(value).startswith("data:image/png;base64,"), f"a resource from elsewhere: {value}"
                picture = b64decode(str(value).partition(",")[2], validate=True)
                assert picture.endswith(b"IEND\xaeB`\x82"), f"a picture without its end: …{str(value)[-60:]}"
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)
            if self.open[-1] in ("h2", "h3"):
                self.headings.append(data)
            if self.open[-1] == "title":
                self.titles.append(data)

    @property
    def text(self) -> str:
        """All texts, one space between words."""
        return " ".join(" ".join(self.texts).split()).replace("\u00a0", " ")


def read(html: str) -> Reader:
    """Read a page and check its form."""
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    assert set(reader.links) <= reader.anchors
    assert "http://" not in html
    assert "https://" not in html
    assert "Content-Security-Policy\" content=\"default-src 'none'" in html
    return reader
