import pickle
from pathlib import Path

import numpy as np
import pytest

from raysl.benchmarks.instance_retrieval.truth import read_plain
from raysl.errors import ConfigError


class Touch:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_and_plain_values_come_back(protocol: int) -> None:
    value = {"a": [1, 2.5, "text", None, True], "b": np.arange(3), "c": np.float64(2), "d": (b"bytes", {"e": []})}
    found = read_plain(pickle.dumps(value, protocol), "file")
    assert found["a"] == value["a"]
    assert found["b"].tolist() == [0, 1, 2]
    assert found["c"] == 2
    assert found["d"] == value["d"]


def test_files_of_older_numpy_and_of_python_2_are_read() -> None:
    new = pickle.dumps(np.arange(3), 2)
    old = new.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert read_plain(old, "file").tolist() == [0, 1, 2]
    assert read_plain(b"(dp0\nS'name'\np1\nI3\ns.", "file") == {"name": 3}


def test_code_is_not_run(tmp_path: Path) -> None:
    content = pickle.dumps({"gnd": Touch(tmp_path / "touched")})
    with pytest.raises(ConfigError, match=r"cannot read 'gnd.pkl': it names .*, which is not an array, dict, list"):
        read_plain(content, "gnd.pkl")
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("content", [b"", b"no pickle", b"cos\nsystem\n(S'true'\ntR.", b"\x80\x04K\x01"])
def test_what_is_no_plain_pickle_is_refused_with_its_name(content: bytes) -> None:
    with pytest.raises(ConfigError, match=r"cannot read 'gnd.pkl': .*; give the ground truth"):
        read_plain(content, "gnd.pkl")
