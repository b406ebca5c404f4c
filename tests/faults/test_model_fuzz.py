"""Hostile and damaged model files: refused in a moment, with little memory, and nothing outside touched (F30).

Named attacks first; then two thousand seeded mutations, every second one with its seal made good again, so that what
stands behind the seal is tried too.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.random import Generator
from sklearn.pipeline import make_pipeline
from tampering import claims, deep, edit, poisoned, put

from bigkernel import (
    SSSL,
    Gaussian,
    KernelRidge,
    KernelRidgeClassifier,
    Matern,
    Polynomial,
    Ridge,
    Standardizer,
    UnitNormalizer,
    load_model,
    save_model,
)
from bigkernel.data import seals
from bigkernel.errors import BigKernelError, ModelRejected

rng = np.random.default_rng(5)
N, D = 60, 4
X = rng.normal(size=(N, D))
Y = np.column_stack([X[:, 0], np.sin(X[:, 1])])
LABELS = rng.integers(0, 3, N)
DRAWN: dict[str, Any] = {"n_landmarks": 8, "random_state": 0}
SECONDS, GROWTH_BYTES = 1.0, 50e6
MUTATIONS = 2000


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of several kinds, never to be changed."""
    root = tmp_path_factory.mktemp("saved")
    names = np.array(["één", "two", "tre"])
    models = {
        "classifier": KernelRidgeClassifier(Gaussian(1.4), **DRAWN).fit(X, names[LABELS]),
        "regressor": KernelRidge(Matern(2.0, nu=2.5), fit_intercept=True, **DRAWN).fit(X, Y[:, 0]),
        "sssl": SSSL(Gaussian(1.4), 4, **DRAWN).fit(X, Y),
        "pipeline": make_pipeline(Standardizer(), UnitNormalizer(), KernelRidge(Polynomial(2), **DRAWN)).fit(X, Y),
        "ridge": Ridge().fit(X, Y),
    }
    for name, model in models.items():
        save_model(model, root / name)
    return root


def reseal(path: Path) -> None:
    """The seal as an attacker makes it; none, where what is there cannot be sealed."""
    try:
        seals.write(path)
    except (BigKernelError, OSError):
        shutil.rmtree(path / "seal", ignore_errors=True)


# ---------------------------------------------------------------- what loading touches

WATCHED: list[str] | None = None
RUNNING = (
    "pickle.find_class",
    "exec",
    "compile",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "socket.connect",
    "import",
)


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Note files that are opened and code that is begun, for as long as somebody watches."""
    if WATCHED is None or (event == "open" and isinstance(arguments[0], int)):  # a descriptor that is open already
        return
    if event == "open" or event in RUNNING:
        WATCHED.append(f"{event} {arguments[0]!s}" if arguments else event)


@pytest.fixture(scope="module")
def audited() -> None:
    """Install the hook; Python has no way to take one back."""
    sys.addaudithook(watch)


@pytest.fixture
def touched(audited: None) -> Iterator[list[str]]:
    """What is opened or run while the test watches."""
    global WATCHED
    WATCHED = []
    yield WATCHED
    WATCHED = None


def peak_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)


class Evil:
    """Would run a command when unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch pwned",)


def pickled(path: Path) -> None:
    edit(lambda a: a.update(codecs=[{"name": "numcodecs.pickle", "configuration": {}}]), LANDMARKS)(path)
    (path / "0.landmarks_" / "c" / "0" / "0").write_bytes(pickle.dumps(Evil()))


def many(count: int) -> Callable[[Path], None]:
    return edit(lambda a: a["steps"][0]["fitted"].update({f"a{i}": i for i in range(count)}))


def sealed_outside(path: Path) -> None:
    """A seal that names a file outside."""
    seal = seals.Seal.parse(path / "seal" / "zarr.json")
    seal.arrays["../secret"] = seal.arrays["0.landmarks_"]
    (path / "seal" / "zarr.json").write_bytes(seal.render())


def linked(path: Path) -> None:
    chunk = path / "0.landmarks_" / "c" / "0" / "0"
    shutil.move(chunk, path.parent / "secret")
    os.symlink(path.parent / "secret", chunk)


def linked_metadata(path: Path) -> None:
    shutil.move(path / LANDMARKS, path.parent / "secret.json")
    os.symlink(path.parent / "secret.json", path / LANDMARKS)


def format_2(path: Path) -> None:
    shutil.rmtree(path)
    group = zarr.create_group(path, zarr_format=2, attributes={"bigkernel": {"kind": "model", "format": 2}})
    group.create_array("0.landmarks_", data=X)


def many_arrays(path: Path) -> None:
    text = (path / LANDMARKS).read_text()
    for i in range(3000):
        (path / f"a{i}").mkdir()
        (path / f"a{i}" / "zarr.json").write_text(text)


LANDMARKS = "0.landmarks_/zarr.json"
ATTACKS: dict[str, tuple[Callable[[Path], None], str]] = {
    "pickle inside": (pickled, "metadata of '0.landmarks_' cannot be read: .*numcodecs.pickle"),
    "unknown kernel": (put("fitted", "kernel_", {"kernel": "os", "params": {}}), "unknown kernel 'os'"),
    "a million by a million in one chunk": (claims([10**6] * 2, [10**6] * 2), "bytes"),
    "a million by a million in chunks": (claims([10**6] * 2, [1000] * 2), "bytes"),
    "32 GB that the limit lets pass": (claims([10**9, 4], [10**9, 4]), "claims 32,000,000,000 bytes"),
    "chunks of nothing": (claims([8, 4], [8, 0]), "chunk"),
    "NaN": (poisoned(np.nan), "finite"),
    "path traversal": (put("arrays", "../../secret", {"shape": [1], "dtype": "<f8"}), "secret"),
    "path traversal in the seal": (sealed_outside, "is no name of an array"),
    "link to a chunk": (linked, "a link"),
    "link to metadata": (linked_metadata, "a link|cannot be read|seal"),
    "wrong digest": (put("arrays", "dual_coef_", "sha256", "0" * 64), "SHA-256"),
    "future schema": (edit(lambda a: a.update(format=3)), "format 3"),
    "store of zarr 2": (format_2, "no zarr v3 group"),
    "a million attributes": (many(10**6), "are read"),
    "a quarter of a million attributes": (many(250_000), "are read|unknown fitted value"),
    "nested without end": (deep, "are read|recursion"),
    "thousands of arrays": (many_arrays, "seal"),
}


@pytest.mark.parametrize("attack, message", ATTACKS.values(), ids=ATTACKS)
def test_a_hostile_model_is_refused_fast_in_little_memory_and_touches_nothing_outside(
    saved, tmp_path, monkeypatch, touched, attack, message
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model"
    shutil.copytree(saved / "classifier", path)
    (tmp_path / "secret").write_text("keep out")
    load_model(path)  # what is imported once is imported now
    attack(path)
    if attack not in (sealed_outside, format_2):
        reseal(path)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    resident = peak_bytes("VmRSS")
    touched.clear()
    start = time.process_time()
    with pytest.raises(ModelRejected, match=message):
        load_model(path)
    seconds, seen = time.process_time() - start, list(touched)
    assert seconds < SECONDS
    assert peak_bytes("VmHWM") - resident < GROWTH_BYTES
    inside = (f"open {path}", f"open {Path(sys.prefix)}", f"open {Path(sys.base_prefix)}", "open /proc/", "import ")
    assert [event for event in seen if not event.startswith(inside)] == []
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == before
    assert not (tmp_path / "pwned").exists()


# ---------------------------------------------------------------- two thousand mutations

STRANGE: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 7, 1e-300, 1e300, -1e300, 10**30, -(10**30), float("nan"), float("inf")),
    *("", "scale", "given", "gaussian", "SSSL", "Ridge", "float16", "<f4", "../../x", "\x00", "1", "é" * 300),
    *([], {}, [[]], [0], [None], {"kernel": "gaussian"}, {"kernel": "linear", "params": {}}, ["a", 1, None]),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items if len(path) < 30 else ():
        yield (*path, key)
        yield from places(item, (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def mutate_json(text: str, rng: Generator) -> str:
    """Exchange, remove, repeat, retype or inflate values of a JSON text."""
    value = json.loads(text)
    for _ in range(int(rng.integers(1, 4))):
        every = list(places(value))
        if not every:
            break
        path, other = (every[int(rng.integers(len(every)))] for _ in range(2))
        try:
            holder = at(value, path[:-1])
            kind = int(rng.integers(7))
            if kind == 0:
                del holder[path[-1]]
            elif kind == 1:
                holder[path[-1]] = copy.deepcopy(at(value, other))
            elif kind == 2:
                holder[path[-1]] = STRANGE[int(rng.integers(len(STRANGE)))]
            elif kind == 3 and isinstance(holder, dict):
                holder[f"extra{int(rng.integers(9))}"] = holder[path[-1]]
            elif kind == 4 and isinstance(holder[path[-1]], int | float):
                holder[path[-1]] = holder[path[-1]] * [10**9, -1, 0.5, 1e200, 1e-200][int(rng.integers(5))]
            elif kind == 5 and isinstance(holder[path[-1]], list):
                holder[path[-1]] = holder[path[-1]] * int(rng.integers(2, 5))
            else:
                for _ in range(int(rng.choice([3, 50, 3000]))):
                    holder[path[-1]] = [holder[path[-1]]]
        except (
            KeyError,
            IndexError,
            TypeError,
            OverflowError,
            RecursionError,
        ):  # a value that an earlier change has moved
            continue
    try:
        return json.dumps(value)
    except (RecursionError, ValueError):
        return text.replace(":", ": " + "[" * 5000, 1)


def mutate_bytes(content: bytes, rng: Generator) -> bytes:
    """Flip bits, overwrite, cut, repeat or empty."""
    changed = bytearray(content)
    kind = int(rng.integers(5))
    if kind == 0 or not changed:
        return bytes(changed[: int(rng.integers(len(changed) + 1))])
    if kind == 1:
        start = int(rng.integers(len(changed)))
        return bytes(changed[:start] + changed[start : start + 20] * 3 + changed[start:])
    for _ in range(int(rng.integers(1, 5))):
        changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def mutate(root: Path, rng: Generator) -> str:
    """Change one file of a model, or remove or add one; says what was done."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.parent.name != "seal")
    metadata = [file for file in files if file.name == "zarr.json"]
    chunks = [file for file in files if file.name != "zarr.json"]
    draw = rng.random()
    if draw < 0.45:
        file = root / "zarr.json"
    elif draw < 0.7:
        file = metadata[int(rng.integers(len(metadata)))]
    elif draw < 0.9:
        file = chunks[int(rng.integers(len(chunks)))]
    else:
        file = root / "seal" / "zarr.json"
    name, draw = str(file.relative_to(root)), rng.random()
    if draw < 0.04:
        file.unlink()
        return f"{name} removed"
    if draw < 0.08 and file.name == "zarr.json" and file.parent != root:
        shutil.copytree(file.parent, root / f"extra{int(rng.integers(9))}")
        return f"{name} copied"
    if file.name == "zarr.json" and draw < 0.75:
        file.write_text(mutate_json(file.read_text(), rng))
        return f"{name} restated"
    file.write_bytes(mutate_bytes(file.read_bytes(), rng))
    return f"{name} damaged"


def usable(model: Any) -> bool:
    """Whether a model gives finite numbers, or labels, for every row."""
    found = [getattr(model, name)(X) for name in ("predict", "decision_function", "transform") if hasattr(model, name)]
    return bool(found) and all(
        len(values) == N and (values.dtype.kind in "iUb" or bool(np.isfinite(values).all())) for values in found
    )


def content(root: Path) -> dict[str, bytes]:
    """Every file of a model."""
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def restore(root: Path, original: dict[str, bytes]) -> None:
    """Undo what was done to a model: only what differs is written."""
    found = content(root)
    for extra in {root / Path(name).parts[0] for name in set(found) - set(original)}:
        shutil.rmtree(extra) if extra.is_dir() else extra.unlink()
    for name, value in original.items():
        if found.get(name) != value:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(value)


@pytest.mark.parametrize("trials", [MUTATIONS // 20, pytest.param(MUTATIONS // 2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("sealed", [False, True], ids=["sealed before", "sealed again"])
def test_mutated_models_are_refused_or_sound(saved, tmp_path, sealed, trials):
    names = sorted(path.name for path in saved.iterdir())
    originals = {name: content(saved / name) for name in names}
    for name in names:
        shutil.copytree(saved / name, tmp_path / name)
    wrong, refused, slowest = [], 0, 0.0  # in seconds of processor time, which a busy machine does not stretch
    for trial in range(trials):
        rng = np.random.default_rng([trial, sealed])
        name = names[trial % len(names)]
        path = tmp_path / name
        what = f"{trial} {name}: {mutate(path, rng)}"
        if sealed:
            reseal(path)
        same = content(path) == originals[name]
        start = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                model = load_model(path)
                if not sealed and not same:
                    wrong.append(f"{what}: loaded")
                if not usable(model):
                    wrong.append(f"{what}: not finite")
        except ModelRejected:
            refused += 1
        except Exception as error:
            wrong.append(f"{what}: {error!r}")
        slowest = max(slowest, time.process_time() - start)
        restore(path, originals[name])
    assert wrong == [], "\n".join(wrong[:60])
    assert slowest < SECONDS
    # most mutations matter; those of parameters that predictions do not use are harmless when sealed again
    assert refused > trials * (0.6 if sealed else 0.95)
