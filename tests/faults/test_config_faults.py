"""F27: invalid settings and cluster files raise a ConfigError that names the key; nothing in them is executed."""

import time
from dataclasses import fields

import dask
import numpy as np
import pytest

from bigkernel import Gaussian, KernelRidge, connect
from bigkernel.cluster.cluster_file import ClusterFile, read_file
from bigkernel.config import Settings, settings
from bigkernel.errors import ConfigError

TOUCH = "!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path [{touched}]]"
LOCAL = "bigkernel:\n  cluster:\n    kind: local\n    workers: 1\n"
EXPECTED = {"bool": "true or false", "int": "an integer", "tuple[str, ...]": "a list of names"}
EXPECTED["str"] = "one of cpu, cuda, auto"
EXPECTED["int | str"] = "'auto' or a number of bytes"
KINDS = {field.name: EXPECTED[str(field.type)] for field in fields(Settings)}
GARBAGE = {
    "not a number": "nan",
    "infinite": "inf",
    "negative": "-5",
    "a fraction": "3.7",
    "1e30": "1e30",
    "10^30": "1" + 30 * "0",
    "text": "many",
    "nothing": "None",
    "a truth value": "True",
    "a list": "[1, 2]",
    "a mapping": "{'a': 1}",
    "a call": "__import__('pathlib').Path('{touched}').touch()",
    "a tag": TOUCH,
    "a path": "../../etc/passwd",
    "empty": "",
}


@pytest.fixture
def touched(tmp_path):
    """A file that executed code would create."""
    path = tmp_path / "touched"
    yield path
    assert not path.exists()


def environment(name, value):
    """Set Dask's configuration as with this environment variable."""
    merged = dask.config.merge(dask.config.config, dask.config.collect_env({name: value}))
    return dask.config.set({"bigkernel": merged["bigkernel"]})


@pytest.mark.parametrize("key", KINDS)
def test_invalid_values_of_environment_variables_are_refused_by_key(key, touched):
    for poison in GARBAGE.values():
        if KINDS[key] == "true or false" and poison == "True":
            poison = "1"  # True is valid there
        poison = poison.replace("{touched}", str(touched))
        with (
            environment(f"DASK_BIGKERNEL__{key.upper()}", poison),
            pytest.raises(ConfigError, match=rf"bigkernel\.{key}: expected {KINDS[key]}"),
        ):
            settings()


@pytest.mark.parametrize("name", ["SEGMENT_ROW", "CLUSTER__KIND", "PRELOAD", "SEGMENT_ROWS__DEEPER", "", "É"])
def test_variables_of_unknown_settings_are_refused(name):
    with environment(f"DASK_BIGKERNEL__{name}", "1"), pytest.raises(ConfigError, match=r"bigkernel\."):
        settings()


def poisoned(text, *keys):
    return {f"{key} {name}": (key, value) for key in keys for name, value in text.items()}


NO_NUMBER = {**GARBAGE, "not a number": ".nan", "infinite": ".inf", "a truth value": "true", "nothing": "null"}
NO_NUMBER["1e30"] = "1.0e+30"
IN_FILES = {
    **poisoned(NO_NUMBER, "workers", "dashboard"),
    **poisoned(
        {name: NO_NUMBER[name] for name in ("not a number", "negative", "1e30", "10^30", "a tag")}, "memory-limit"
    ),
    **poisoned({name: NO_NUMBER[name] for name in ("not a number", "a list", "nothing", "a tag")}, "directory"),
    **poisoned({name: NO_NUMBER[name] for name in ("1e30", "a truth value", "a mapping", "a tag")}, "tls", "address"),
    **poisoned({"module": "os", "source": "import os", "address": "http://127.0.0.1:1/code.py"}, "preload"),
}


def refusal(path):
    """Return the message that refuses a cluster file, soon and in a few words."""
    start = time.monotonic()
    with pytest.raises(ConfigError) as caught, connect(path):
        pass
    assert time.monotonic() - start < 30
    assert len(str(caught.value)) < 1000
    return str(caught.value)


@pytest.mark.parametrize("key, poison", IN_FILES.values(), ids=IN_FILES)
def test_invalid_values_of_a_cluster_file_are_refused_before_a_process_starts(key, poison, touched, tmp_path):
    path = tmp_path / "cluster.yaml"
    text = LOCAL.replace("    workers: 1\n", "") if key == "workers" else LOCAL
    path.write_text(text + f"    {key}: " + poison.replace("{touched}", str(touched)) + "\n", encoding="utf-8")
    message = refusal(path)
    assert key.replace("-", " ") in message.replace("-", " ") or "cannot be read as a YAML" in message


@pytest.mark.cluster
def test_code_under_other_keys_of_a_cluster_file_is_not_loaded(touched, tmp_path, make_corpus):
    code = tmp_path / "code.py"
    code.write_text(f"import pathlib\npathlib.Path({str(touched)!r}).touch()\n")
    path = tmp_path / "cluster.yaml"
    roles = "".join(f"  {role}:\n    preload: [{code}]\n" for role in ("scheduler", "worker", "nanny", "client"))
    path.write_text(LOCAL + f"    dashboard: 0\ndistributed:\n{roles}dataframe: {{backend: cudf}}\n")
    before = dask.config.get("distributed")
    X = np.random.default_rng(0).normal(size=(60, 3))
    corpus = make_corpus(X, y=X[:, 0])
    with connect(path):
        model = KernelRidge(Gaussian(1.0), n_landmarks=5, random_state=0).fit(corpus)
    assert model.sweep_["executor"] == "dask"
    assert dask.config.get("distributed") == before


NAMES = list(zip("abcdefgh", "bcdefghi", strict=True))
BOMBS = {
    "aliases": "a: &a [x]\n"
    + "".join(f"{name}: &{name} [{', '.join(9 * [f'*{before}'])}]\n" for before, name in NAMES)
    + "bigkernel: {cluster: {kind: local, workers: *i}}\n",
    "merges": "a: &a {x: 1}\n"
    + "".join(f"{name}: &{name} {{<<: [{', '.join(9 * [f'*{before}'])}]}}\n" for before, name in NAMES)
    + "bigkernel: {cluster: *i}\n",
    "itself": "bigkernel: &a {cluster: *a}\n",
    "deep": "bigkernel: " + "[" * 30_000 + "]" * 30_000,
    "deep mappings": "bigkernel: " + "{a: " * 12_000,
    "long": "# " + "x" * 10**6 + "\n" + LOCAL,
    "a long number": LOCAL + "    dashboard: 1" + "0" * 30_000,
    "no date": LOCAL + "    dashboard: 2001-99-99",
    "a key that is a list": "bigkernel: {cluster: {[1, 2]: 3}}",
    "keys of other types": "bigkernel: {cluster: {1: 2, null: 3, 2001-01-01: 4}}",
    "two documents": LOCAL + "---\n" + LOCAL,
    "bytes": LOCAL + "    workers: !!binary aGVsbG8=",
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_recursive_and_long_files_are_refused_quickly(text, tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(text, encoding="utf-8")
    assert str(path) in refusal(path)


def test_mutated_files_are_read_or_refused(tmp_path):
    rng = np.random.default_rng(27)
    options = "    memory-limit: 1GiB\n    dashboard: 8787\n    directory: /scratch\n    tls: certificates\n"
    sound = (LOCAL + options).encode()
    path, refused = tmp_path / "cluster.yaml", 0
    for _ in range(400):
        content = bytearray(sound)
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(len(content)))
            match rng.integers(3):
                case 0:
                    content[at] = rng.integers(256)
                case 1:
                    del content[at : at + int(rng.integers(1, 20))]
                case 2:
                    content[at:at] = bytes(rng.choice(list(b"[]{}:,&*!|>'\"%@`#- \n\t0e."), 3))
        path.write_bytes(content)
        try:
            file = read_file(path)
        except ConfigError:
            refused += 1
        else:
            assert isinstance(file, ClusterFile)
            assert type(file.workers) in (int, type(None))
    assert 100 < refused < 400
