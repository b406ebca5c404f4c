"""A directory with a hook before every write, to inspect it, to end its writer, or to cut the power.

The files are real, below `root`. The state that survives a loss of power is recorded as well: the content of a file
and the names in a directory at their last fsync; later changes may be complete, lost, or torn.
"""

import builtins
import io
import json
import os
import re
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pytest

Image = dict[str, bytes | None]  # a path below the root and its content; None: a directory
_HIDDEN, _INSIDE = re.compile(r"\.(partial|old)$"), re.compile(r"\.(partial|old)/")
_OPEN, _REAL = builtins.open, {name: getattr(os, name) for name in ("mkdir", "open", "replace", "rmdir", "unlink")}
_LINK = os.link


@dataclass(eq=False)
class File:
    """Content as programs see it, and as it was when it was last synchronised."""

    content: bytes = b""
    kept: bytes = b""


@dataclass(eq=False)
class Directory:
    """Names as programs see them, and as they were when it was last synchronised."""

    names: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)


class Disk:
    """The directory `root` and its synchronised state; `hook` is called before each step with its name and path."""

    def __init__(self, root):
        self.root = root
        self.hook = lambda step, path: None
        self.steps = 0
        self._tree = Directory()

    # ------------------------------------------------ images

    def restore(self, image):
        """Restore the directory from an image, all of it synchronised."""
        shutil.rmtree(self.root, ignore_errors=True)
        _REAL["mkdir"](self.root)
        self._tree = Directory()
        for path in sorted(image):
            content, (above, name) = image[path], self._place(path)
            if content is None:
                _REAL["mkdir"](self.root / path)
                node = Directory()
            else:
                with _OPEN(self.root / path, "wb") as file:
                    file.write(content)
                node = File(content, content)
            above.names[name] = above.kept[name] = node

    def image(self):
        """Return the directory as programs see it, after the end of a process."""
        return dict(self._walk(self._tree, "", lambda directory: directory.names, lambda file: file.content))

    def after_power_loss(self):
        """Yield images that a loss of power may leave: each directory with or without its latest names, files torn."""
        loose = [node for node in self._directories(self._tree) if node.names != node.kept]
        contents = [lambda file: file.kept, lambda file: file.content, _torn]
        choices = [(lambda node: True, get) for get in contents]
        choices.append((lambda node: False, contents[0]))
        for one in loose if len(loose) > 1 else []:
            choices.append((lambda node, one=one: node is one, contents[0]))
            choices.append((lambda node, one=one: node is not one, contents[1]))
        for latest, content in choices:
            yield dict(self._walk(self._tree, "", lambda node, f=latest: node.names if f(node) else node.kept, content))

    def _walk(self, node, prefix, names, content):
        for name, below in names(node).items():
            path = f"{prefix}{name}"
            if isinstance(below, File):
                yield path, content(below)
            else:
                yield path, None
                yield from self._walk(below, f"{path}/", names, content)

    def _directories(self, node):
        yield node
        for below in node.names.values():
            if isinstance(below, Directory):
                yield from self._directories(below)

    # ------------------------------------------------ steps

    def _relative(self, path):
        """Return the path below the root; None: it is elsewhere."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        path, root = os.path.abspath(os.fspath(path)), str(self.root)
        return path[len(root) + 1 :] if isinstance(path, str) and path.startswith(f"{root}/") else None

    def _place(self, path):
        *above, name = path.split("/")
        node = self._tree
        for name_above in above:
            node = node.names[name_above]
        return node, name

    def _find(self, path):
        above, name = self._place(path)
        return above.names[name]

    def step(self, what, path):
        """Count a step that is about to happen, and call the hook."""
        self.steps += 1
        self.hook(what, path)

    def _renaming(self, what):
        """Return a replacement of `os.replace` or `os.link`."""

        def move(source, target, **options):
            old, new = self._relative(source), self._relative(target)
            if old is None or new is None:
                return (_REAL["replace"] if what == "rename" else _LINK)(source, target, **options)
            self.step(what, new)
            (_REAL["replace"] if what == "rename" else _LINK)(source, target)
            (above, name), (below, to) = self._place(old), self._place(new)
            below.names = {**below.names, to: above.names[name]}
            if what == "rename":
                above.names = {other: node for other, node in above.names.items() if other != name}
            return None

        return move

    def _made(self, path, mode=0o777, **options):
        below = self._relative(path)
        if below is not None and not os.path.lexists(path):
            self.step("mkdir", below)
        _REAL["mkdir"](path, mode, **options)
        if below is not None:
            above, name = self._place(below)
            above.names = {**above.names, name: Directory()}

    def _removed(self, real):
        def remove(path, **options):
            below = self._relative(path) if "dir_fd" not in options else None
            if below is not None and os.path.lexists(path):
                self.step(real, below)
            _REAL[real](path, **options)
            if below is not None:
                above, name = self._place(below)
                above.names = {other: node for other, node in above.names.items() if other != name}

        return remove

    def _cleared(self, path, ignore_errors=False, **options):
        """Remove a tree file by file, as `shutil.rmtree`."""
        with suppress(*[OSError] * ignore_errors):
            for directory, below, files in os.walk(path, topdown=False):
                for name in sorted(files):
                    os.unlink(os.path.join(directory, name))
                for name in sorted(below):
                    os.rmdir(os.path.join(directory, name))
            os.rmdir(path)

    def _opened_low(self, path, flags, mode=0o777, **options):
        below = self._relative(path) if flags & os.O_CREAT else None
        fresh = below is not None and not os.path.lexists(path)
        if fresh:
            self.step("create", str(below))
        descriptor = _REAL["open"](path, flags, mode, **options)
        if fresh:
            self._note(str(below))
        return int(descriptor)

    def _opened(self, path, mode="r", *arguments, **options):
        below = self._relative(path) if set(mode) & set("wax+") else None
        if below is None:
            return _OPEN(path, mode, *arguments, **options)
        if not isinstance(path, int) and (not os.path.lexists(path) or "w" in mode):
            self.step("create", below)
        file = _OPEN(path, mode, *arguments, **options)
        self._note(below)
        return _Watched(self, file, below)

    def _note(self, path):
        """Read the content of a file that was opened or written."""
        above, name = self._place(path)
        if name not in above.names:
            above.names = {**above.names, name: File()}
        with _OPEN(self.root / path, "rb") as file:
            above.names[name].content = file.read()

    def _synchronised(self, descriptor):
        below = self._relative(descriptor)
        if below is None:
            if os.readlink(f"/proc/self/fd/{descriptor}") == str(self.root):
                self._tree.kept = self._tree.names
            return
        self.step("fsync", below)
        node = self._find(below)
        if isinstance(node, Directory):
            node.kept = node.names
        else:
            self._note(below)
            node.kept = node.content

    def written(self, file, path):
        """Close a file; its content is written completely, or not at all if the writer ends before."""
        try:
            self.step("write", path)
        except BaseException:
            before = self._find(path).content
            file.close()
            with _OPEN(self.root / path, "wb") as again:
                again.write(before)
            raise
        file.close()
        with suppress(KeyError):  # it may have been renamed or removed meanwhile
            self._note(path)

    @contextmanager
    def watched(self):
        """Make the writes of this process below the root steps, for a block."""
        with pytest.MonkeyPatch.context() as patch:
            for name, function in {
                **{
                    "replace": self._renaming("rename"),
                    "rename": self._renaming("rename"),
                    "link": self._renaming("link"),
                },
                **{"mkdir": self._made, "unlink": self._removed("unlink"), "remove": self._removed("unlink")},
                **{"rmdir": self._removed("rmdir"), "open": self._opened_low, "fsync": self._synchronised},
            }.items():
                patch.setattr(os, name, function)
            patch.setattr(builtins, "open", self._opened)
            patch.setattr(io, "open", self._opened)
            patch.setattr(shutil, "rmtree", self._cleared)
            yield self


class _Watched:
    """A file that is written when it is closed."""

    def __init__(self, disk, file, path):
        self._disk, self._file, self._path = disk, file, path

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Write and close."""
        if not self._file.closed:
            self._disk.written(self._file, self._path)


def _torn(file):
    """Return the synchronised content, or half of the content that is not."""
    return file.kept if file.content == file.kept else file.content[: len(file.content) // 2]


def known(image):
    """Return the identity of an image, without random names, clocks, process numbers and data that is never read."""
    return frozenset(entry for path, content in image.items() if (entry := _entry(path, content)) is not None)


@lru_cache(maxsize=2**14)
def _entry(path, content):
    if "starts/" in path or _INSIDE.search(path):
        return None
    if _HIDDEN.search(path):
        return f"{path.rpartition('/')[0]}/{_HIDDEN.findall(path)[0]}", None
    return path, _plain(path, content)


def _plain(path, content):
    name = path.rpartition("/")[2]
    if not content or not ("receipts/" in path or "lock.json" in name):
        return content
    try:
        receipt = json.loads(content)
    except ValueError:
        return b"torn"
    return json.dumps([receipt.get(key) for key in ("node", "start", "stop", "digest")]).encode()
