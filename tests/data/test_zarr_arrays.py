"""Stored arrays are read back bit by bit, damage is detected and named, and incomplete groups are never published."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_array_equal

from bigkernel.data import atomic_write, zarr_arrays
from bigkernel.errors import ChunkCorruptError, ChunkMissingError, DataError

rng = np.random.default_rng(1)
VALUES = {
    "floats": rng.normal(size=(40, 6)),
    "singles": rng.normal(size=(2, 5, 3)).astype(np.float32),
    "bytes": rng.integers(0, 256, (30, 8), dtype=np.uint8),
    "zeros": np.zeros((50, 4)),
    "labels": np.arange(20),
}


def chunk_files(path):
    return sorted(file for file in path.rglob("*") if file.is_file() and file.name != "zarr.json")


@pytest.fixture
def group(tmp_path):
    zarr_arrays.publish(tmp_path / "g", "test", VALUES, {"note": 7})
    return tmp_path / "g"


@given(
    value=hnp.arrays(
        st.sampled_from([np.dtype(kind) for kind in ("f8", "f4", "i8", "u1", "i2", "?", ">f4")]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6),
    )
)
@settings(max_examples=40)
def test_any_shape_and_dtype_is_read_back(value, tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / "g"
    zarr_arrays.publish(path, "test", {"a": value}, {})
    back = zarr_arrays.read_group(path, "test")[0]["a"]
    assert back.shape == value.shape
    assert back.dtype.newbyteorder("=") == value.dtype.newbyteorder("=")
    assert back.tobytes() == value.astype(back.dtype).tobytes()


DAMAGE = {
    "halved": lambda content: content[: len(content) // 2],
    "one byte short": lambda content: content[:-1],
    "one byte": lambda content: content[:1],
    "emptied": lambda content: b"",
    "zeroed": lambda content: bytes(len(content)),
    "lengthened": lambda content: content + b"\0",
    "noise": lambda content: np.random.default_rng(0).bytes(len(content)),
}


@pytest.mark.parametrize("name, damage", list(zip(2 * sorted(VALUES), [*DAMAGE, *range(3)], strict=True)))
def test_a_damaged_chunk_is_named(group, flip, name, damage):
    file = chunk_files(group / name)[0]
    if damage in DAMAGE:
        file.write_bytes(DAMAGE[damage](file.read_bytes()))
    else:
        flip(file, damage)
    with pytest.raises(ChunkCorruptError, match=f"{name}: rows 0:"):
        zarr_arrays.read_group(group, "test")


@pytest.mark.parametrize("name", sorted(VALUES))
def test_a_missing_chunk_is_named_and_never_read_as_zeros(group, name):
    chunk_files(group / name)[0].unlink()
    with pytest.raises(ChunkMissingError, match=rf"{name}: 1 of \d chunks are missing, the first is c/0"):
        zarr_arrays.read_group(group, "test")


def test_other_files_and_groups_are_refused_by_name(tmp_path, group):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("no group")
    zarr.create_group(tmp_path / "foreign", zarr_format=3)
    zarr.create_group(tmp_path / "old", zarr_format=2)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "zarr.json").write_text("{")
    cases = {
        "nowhere": "the path does not exist",
        "empty": "found no zarr v3 group",
        "foreign": "without our attributes",
        "old": "found no zarr v3 group",
        "broken": "without our attributes",
        "file": "expected a test",
    }
    for name, message in cases.items():
        with pytest.raises(DataError, match=f"{name}: expected a test.*{message}|{message}"):
            zarr_arrays.open_store(tmp_path / name, "test")
    with pytest.raises(DataError, match="expected a model, found test"):
        zarr_arrays.open_store(group, "model")
    with pytest.raises(DataError, match="'nothing' is missing"):
        zarr_arrays.open_store(group, "test").array("nothing")


def test_a_too_large_array_is_refused_before_it_is_allocated(tmp_path):
    made = zarr.create_group(tmp_path / "g", zarr_format=3, attributes={zarr_arrays.ATTRIBUTE: {"kind": "test"}})
    zarr_arrays.create(made, "huge", shape=(10**7, 10**7), chunks=(10**6, 10**7), dtype="f8")
    zarr_arrays.write_manifest(tmp_path / "g")
    with pytest.raises(DataError, match="found 800,000,000,000,000"):
        zarr_arrays.read_group(tmp_path / "g", "test")
    zarr_arrays.publish(tmp_path / "small", "test", {"a": np.zeros(100)}, {})
    assert zarr_arrays.read_group(tmp_path / "small", "test", limit_bytes=800)[0]["a"].shape == (100,)
    with pytest.raises(DataError, match="expected arrays of at most 799 bytes, found 800"):
        zarr_arrays.read_group(tmp_path / "small", "test", limit_bytes=799)


# ---------------------------------------------------------------- publishing


@pytest.mark.parametrize("failing", [1, 2])
def test_a_failed_rename_keeps_the_existing_group(tmp_path, group, monkeypatch, failing):
    rename, calls = os.replace, []

    def fails(source, target):
        if Path(target).parent == tmp_path:  # not those of zarr, inside the group
            calls.append(target)
            if len(calls) == failing:
                raise OSError(5, "disk gone")
        rename(source, target)

    monkeypatch.setattr(atomic_write.os, "replace", fails)
    with pytest.raises(OSError, match="disk gone"):
        zarr_arrays.publish(group, "test", {"a": np.ones(3)}, {}, overwrite=True)
    monkeypatch.undo()
    assert zarr_arrays.digest(zarr_arrays.read_group(group, "test")[0]) == zarr_arrays.digest(VALUES)
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


def test_a_group_is_synchronised_before_it_is_renamed(tmp_path, synchronised):
    zarr_arrays.publish(tmp_path / "made", "thing", {"a": np.arange(6.0), "b": np.arange(3)}, {})
    before = synchronised.before_renames[-1]  # zarr renames its chunks, too
    assert {path.stat().st_ino for path in (tmp_path / "made").rglob("*")} <= before
    assert synchronised.after == {tmp_path.stat().st_ino}  # the name itself


def test_a_kept_directory_survives_an_error_and_is_resumed(tmp_path):
    def write(chunks, *, resume):
        with zarr_arrays.publishing(tmp_path / "g", kind="test", keep="token", resume=resume) as scratch:
            names = sorted(path.name for path in chunk_files(scratch))
            made = zarr.create_group(scratch, zarr_format=3, attributes={zarr_arrays.ATTRIBUTE: {"kind": "test"}})
            array = zarr_arrays.create(made, "a", shape=(30,), chunks=(10,), dtype="f8")
            for index in chunks:
                array[10 * index : 10 * index + 10] = index + 1.0
            if len(chunk_files(scratch)) < 3:
                raise RuntimeError(f"{names}")
        return names

    with pytest.raises(RuntimeError, match=r"\[\]"):
        write([0, 1], resume=False)
    assert [path.name for path in tmp_path.iterdir()] == [".g.token.partial"]
    (tmp_path / ".g.token.partial/a/c/2.0123.partial").write_bytes(b"torn")
    with pytest.raises(RuntimeError, match=r"\['0', '1'\]"):
        write([], resume=True)
    assert write([2], resume=True) == ["0", "1"]
    assert_array_equal(zarr_arrays.read_group(tmp_path / "g", "test")[0]["a"], np.repeat([1.0, 2.0, 3.0], 10))
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


def test_errors_of_other_files_are_not_reported_as_write_errors(tmp_path):
    (tmp_path / "source").mkdir()
    for passing in (True, False):
        with pytest.raises(IsADirectoryError), atomic_write.writing(tmp_path / "g", passing=passing):
            (tmp_path / "source").read_bytes()
    (tmp_path / "g").mkdir()
    with (
        pytest.raises(DataError, match="cannot be written: Is a directory"),
        atomic_write.writing(tmp_path / "g", passing=False),
    ):
        (tmp_path / "g").write_bytes(b"")


# ---------------------------------------------------------------- manifests


def test_zarr_opens_a_published_group_without_a_warning(group):
    opened = zarr.open_group(group, mode="r")
    assert sorted(opened.array_keys()) == sorted(VALUES)
    assert list(opened.group_keys()) == ["manifest"]


@pytest.mark.parametrize("name", ["zarr.json", "floats/zarr.json", "zeros/zarr.json", "manifest/zarr.json"])
def test_flipped_bits_of_the_metadata_and_of_the_manifest_are_detected(group, name):
    file = group / name
    content = file.read_bytes()
    for bit in range(0, 8 * len(content), 7):  # every bit of a byte in turn
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        with pytest.raises(DataError, match=str(file)):
            zarr_arrays.open_store(group, "test")
    file.write_bytes(content)
    assert zarr_arrays.open_store(group, "test").attributes["note"] == 7


@pytest.mark.parametrize("name", ["zarr.json", "floats/zarr.json"])
def test_metadata_or_a_manifest_that_are_missing_or_no_file_are_refused(group, tmp_path, name):
    shutil.move(group / name, tmp_path / "elsewhere")
    with pytest.raises(DataError, match=f"{name}: cannot be read: No such file"):
        zarr_arrays.read_manifest(group)
    os.symlink(tmp_path / "elsewhere", group / name)
    with pytest.raises(DataError, match=f"{name}: expected a file, found a link"):
        zarr_arrays.read_manifest(group)
    (group / name).unlink()
    os.mkfifo(group / name)  # would block for ever
    with pytest.raises(DataError, match=f"{name}: expected a file"):
        zarr_arrays.read_manifest(group)
    shutil.rmtree(group / "manifest")
    (group / name).unlink()
    shutil.copy(tmp_path / "elsewhere", group / name)
    with pytest.raises(DataError, match=r"a test with a manifest, found none: .*start a new run"):
        zarr_arrays.open_store(group, "test")


def test_kind_of_accepts_any_path(group, tmp_path):
    assert zarr_arrays.kind_of(group) == "test"
    (group / "zarr.json").write_text("[" * 10**5)
    zarr.create_group(tmp_path / "foreign")
    assert [zarr_arrays.kind_of(path) for path in (group, tmp_path / "foreign", tmp_path / "nowhere")] == [None] * 3


# ---------------------------------------------------------------- digests and fingerprints


def test_a_digest_depends_on_names_dtypes_shapes_and_values():
    a = np.arange(6.0)
    variants = [
        {"a": a}, {"b": a}, {"a": a.astype("f4")}, {"a": a.reshape(2, 3)}, {"a": a.reshape(3, 2)}, {"a": -a},
        {"a": a, "b": a}, {}, {"a": a[:0]}, {"a": a.astype("i8")}, {"a": a.astype(">f8")},
    ]  # fmt: skip
    assert len({zarr_arrays.digest(variant) for variant in variants}) == len(variants)
    assert zarr_arrays.digest({"a": a, "b": -a}) == zarr_arrays.digest({"b": -a, "a": a.copy()})
    strided = np.arange(12.0).reshape(6, 2)
    assert zarr_arrays.digest({"a": strided[:, 0]}) == zarr_arrays.digest({"a": strided[:, 0].copy()})


def test_a_fingerprint_depends_on_metadata_and_chunk_sizes(tmp_path):
    def stored(name, values, chunk_rows=10):
        made = zarr.create_group(tmp_path / name, zarr_format=3)
        array = zarr_arrays.create(made, "x", shape=values.shape, chunks=(chunk_rows, 8), dtype=values.dtype)
        array[...] = values
        return zarr_arrays.stored_fingerprint(array)

    noise = rng.integers(0, 256, (30, 8), dtype=np.uint8)
    first = stored("a", noise)
    assert stored("b", noise) == first
    assert stored("c", noise, 5) != first
    assert stored("d", noise.astype(np.int16)) != first
    # other values of the same size on disk: noise does not compress
    assert stored("e", rng.integers(0, 256, (30, 8), dtype=np.uint8)) != first
    shutil.rmtree(tmp_path / "b" / "x" / "c" / "1")
    assert zarr_arrays.stored_fingerprint(zarr.open_group(tmp_path / "b")["x"]) != first


# ---------------------------------------------------------------- retries


@pytest.fixture
def pauses(monkeypatch):
    seconds = []
    monkeypatch.setattr(zarr_arrays.time, "sleep", seconds.append)
    return seconds


@pytest.mark.parametrize("failures", [0, 1, 3, 4])
def test_a_task_is_retried_as_often_as_allowed(pauses, failures):
    attempts, failed = [], []

    def task():
        attempts.append(1)
        if len(attempts) <= failures:
            raise OSError(len(attempts))
        return "done"

    options = {"times": 3, "passing": lambda error: isinstance(error, OSError), "pause_seconds": 1.0}
    if failures < 4:
        assert zarr_arrays.retry(task, failed=failed.append, **options) == "done"
    else:
        with pytest.raises(OSError, match="4"):
            zarr_arrays.retry(task, failed=failed.append, **options)
    assert [error.args for error in failed] == [(i + 1,) for i in range(min(3, failures))]
    assert pauses == [1.0, 2.0, 2.0][:failures]


def test_a_permanent_error_is_raised_at_once(pauses):
    with pytest.raises(ZeroDivisionError):
        zarr_arrays.retry(lambda: 1 / 0, times=2, passing=lambda error: False)
    assert pauses == []
