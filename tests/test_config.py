"""Settings: known keys, numbers within their range, and only the `bigkernel:` subtree."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields

import dask
import pytest
import yaml

from bigkernel import config, errors
from bigkernel.config import Settings, settings
from bigkernel.errors import BigKernelError, ConfigError


def test_the_file_of_defaults_and_the_settings_name_the_same_keys():
    with open(os.path.join(os.path.dirname(config.__file__), "bigkernel.yaml")) as file:
        defaults = yaml.safe_load(file)["bigkernel"]
    assert {key.replace("-", "_") for key in defaults} == {field.name for field in fields(Settings)}
    values = {key.replace("-", "_"): value for key, value in defaults.items()}
    assert settings() == Settings(**{key: tuple(v) if isinstance(v, list) else v for key, v in values.items()})


def test_overrides_precede_the_settings_of_dask():
    with dask.config.set({"bigkernel.segment-rows": 123}):
        assert settings().segment_rows == 123
        assert settings(segment_rows=7, retries=None).segment_rows == 7
    with dask.config.set({"bigkernel.segment_rows": 456}):
        assert settings().segment_rows == 456


@pytest.mark.parametrize("least_most", sorted(config._RANGES.items()), ids=lambda item: item[0])
def test_both_ends_of_a_range_are_accepted_and_one_beyond_refused(least_most):
    key, (least, most) = least_most
    for value in (least, most):
        assert getattr(settings(**{key: value}), key) == value
    for value in (least - 1, most + 1):
        with pytest.raises(ConfigError, match=key):
            settings(**{key: value})


def test_an_unknown_key_is_refused_and_the_known_ones_are_listed():
    with (
        dask.config.set({"bigkernel.segment-row": 1}),
        pytest.raises(ConfigError, match=r"bigkernel\.segment_row: unk"),
    ):
        settings()
    with pytest.raises(ConfigError, match=r"bigkernel.colour.*segment_rows, min_segments"):
        settings(colour=3)


@pytest.mark.parametrize("subtree", [None, 3, "text", [1]], ids=repr)
def test_a_subtree_that_is_no_mapping_is_refused(subtree):
    with dask.config.set({"bigkernel": subtree}), pytest.raises(ConfigError, match=r"bigkernel: expected a mapping"):
        settings()


def test_only_our_subtree_is_read():
    before = settings()
    with dask.config.set({"segment-rows": 3, "distributed.segment-rows": 3, "bigkernels.segment-rows": 3}):
        assert settings() == before


def read_settings(**environment: str) -> subprocess.CompletedProcess[str]:
    """Print the settings in a process with this environment."""
    return subprocess.run(
        [sys.executable, "-c", "from bigkernel.config import settings; print(settings())"],
        env={**os.environ, **environment},
        cwd=os.path.dirname(os.path.dirname(config.__file__)),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_environment_sets_a_setting():
    assert "segment_rows=321," in read_settings(DASK_BIGKERNEL__SEGMENT_ROWS="321").stdout


def test_a_configuration_file_executes_nothing(tmp_path):
    touched = tmp_path / "touched"
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "bigkernel.yaml").write_text(
        f'bigkernel:\n  segment-rows: !!python/object/apply:os.system ["touch {touched}"]\n'
    )
    result = read_settings(DASK_CONFIG=str(folder))
    assert result.returncode != 0
    assert not touched.exists()


def test_every_error_has_one_base_class_and_an_exit_code():
    def below(kind: type) -> set[type]:
        return {kind}.union(*(below(child) for child in kind.__subclasses__()))

    named = {value for value in vars(errors).values() if isinstance(value, type) and not issubclass(value, Warning)}
    assert named == {kind for kind in below(BigKernelError) if kind.__module__ == errors.__name__}
    codes = {kind.exit_code for kind in named}
    assert codes == {1, 3, 4, 5, 6, 7, 8, 9}
