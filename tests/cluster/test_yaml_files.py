"""YAML files as data: each key known, each value of its type, each error with the whole path of its key."""

import pytest

from bigkernel.cluster.cluster_file import ListOf, check_mapping, read_mapping
from bigkernel.errors import ConfigError

KEYS = {
    "corpus": (str,),
    "alpha": (int, float),
    "copy": (bool,),
    "landmarks": {"count": (int,), "draws": {"seed": (int,)}},
    "parts": ListOf({"path": (str,), "rows": (int,)}, most=2),
    "ports": ListOf((int,), or_one=True),
}
REFUSED = {
    "no mapping": ([1], "job.yaml: expected a mapping, found [1]"),
    "unknown": ({"alfa": 1}, "job.yaml.alfa: unknown; the keys are alpha, copy, corpus, landmarks, parts, ports"),
    "a key that is no text": ({1: 1}, "job.yaml.1: unknown"),
    "text for a number": ({"alpha": "many"}, "job.yaml.alpha: expected int or float, found many"),
    "truth for a number": ({"alpha": True}, "job.yaml.alpha: expected int or float, found True"),
    "a number for truth": ({"copy": 1}, "job.yaml.copy: expected bool, found 1"),
    "nothing": ({"corpus": None}, "job.yaml.corpus: expected str, found None"),
    "not a number": ({"alpha": float("nan")}, "job.yaml.alpha: expected a finite number, found nan"),
    "infinite": ({"alpha": float("inf")}, "job.yaml.alpha: expected a finite number, found inf"),
    "nested": ({"landmarks": {"draws": {"seed": "x"}}}, "job.yaml.landmarks.draws.seed: expected int, found x"),
    "unknown and nested": ({"landmarks": {"seed": 1}}, "job.yaml.landmarks.seed: unknown; the keys are count, draws"),
    "a number for a mapping": ({"landmarks": 3}, "job.yaml.landmarks: expected a mapping, found 3"),
    "in a list": ({"parts": [{"path": "a"}, {"rows": "b"}]}, "job.yaml.parts[1].rows: expected int, found b"),
    "an empty list": ({"parts": []}, "job.yaml.parts: expected from 1 to 2 values, found 0"),
    "a long list": ({"parts": [{}, {}, {}]}, "job.yaml.parts: expected from 1 to 2 values, found 3"),
    "no list": ({"parts": {"path": "a"}}, "job.yaml.parts: expected a list, found {'path': 'a'}"),
    "one of another type": ({"ports": "x"}, "job.yaml.ports: expected int, found x"),
}


@pytest.mark.parametrize("found, message", REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_by_the_path_of_its_key(found, message):
    with pytest.raises(ConfigError) as caught:
        check_mapping(found, KEYS, "job.yaml")
    assert str(caught.value).startswith(message)


def test_what_fits_comes_back_and_one_value_becomes_a_list_where_that_is_allowed():
    found = {"alpha": 1, "landmarks": {"draws": {"seed": 3}}, "parts": [{"path": "a"}], "ports": 22}
    assert check_mapping(found, KEYS, "job.yaml") == {**found, "ports": [22]}


@pytest.mark.parametrize(
    "text, message",
    [
        ("a: 1\nb: {c: 2, c: 3}\n", "cannot be read as YAML of a job: line 2: c is given twice"),
        ("a: &x 1\nb: *x\n", r"an alias \(\*name\)"),
        ("a: !!python/name:os.system\n", "cannot be read as YAML of a job"),
        ("#" * 70_000, "more than 65536 characters"),
    ],
)
def test_a_file_that_is_more_than_data_is_refused(tmp_path, text, message):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_mapping(path, "a job")
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_named_with_what_was_expected(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml: expected a YAML file of a job, and there is none"):
        read_mapping(tmp_path / "none.yaml", "a job")
