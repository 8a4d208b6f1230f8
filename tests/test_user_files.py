"""Python files of users: their modules in other processes, and their names in settings."""

import pickle
import sys
from pathlib import Path

import pytest
import ray.cloudpickle

from raysl import user_files
from raysl.cluster import board
from raysl.components import resolve
from raysl.config.load import load_config
from raysl.sweeps.load import load_sweep
from raysl.user_files import PREFIX, UserFile, find_file, import_file
from tests.runs.boards import Notes

CACHED = """
from functools import lru_cache

@lru_cache
def square(x):
    return x * x

class Mine:
    def __init__(self, square=square):
        self.square = square

    def broken(self):
        return {}["key"]
"""


@pytest.fixture
def another_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Notes:
    """The notes of a cluster's head; `leave` then makes this process like one that has none of the user's files."""
    notes = Notes()
    monkeypatch.setattr(board, "_SOURCES", notes)
    monkeypatch.setattr(board, "_names", lambda: notes_of_names)
    notes_of_names = Notes()
    for name in ("_read", "NAMED", "SENT"):
        monkeypatch.setattr(user_files, name, {})
    monkeypatch.setattr(board, "NAMED", user_files.NAMED)
    monkeypatch.setattr(board, "SENT", user_files.SENT)
    monkeypatch.chdir(tmp_path)
    return notes


def leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(PREFIX)]:
        monkeypatch.delitem(sys.modules, name)
    for file in tmp_path.glob("*.py"):
        file.unlink()
    user_files._read.clear()
    user_files.NAMED.clear()


@pytest.mark.thorough
def test_a_cached_function_of_a_user_travels_to_a_process_without_the_file(
    another_process: Notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(CACHED)
    pickled = ray.cloudpickle.dumps(resolve("source", "mine.py:Mine")())
    board.send_files()
    leave(tmp_path, monkeypatch)
    mine = pickle.loads(pickled)
    assert mine.square(3) == 9
    assert mine.square.cache_info().misses == 1
    with pytest.raises(KeyError) as caught:
        mine.broken()
    line = caught.traceback[-1]
    assert (Path(str(line.path)).name, str(line.statement).strip()) == ("mine.py", 'return {}["key"]')


def test_a_name_in_settings_means_the_file_that_the_driver_has_sent(
    another_process: Notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(CACHED)
    module = resolve("source", "mine.py:Mine").__module__
    board.send_files()
    leave(tmp_path, monkeypatch)
    (tmp_path / "mine.py").write_text("class Other: pass\n")
    board.receive_files()
    assert resolve("source", "mine.py:Mine").__module__ == module


def test_files_that_another_thread_imports_meanwhile_are_no_error(
    another_process: Notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(CACHED)
    (tmp_path / "other.py").write_text("class Other: pass\n")
    resolve("source", "mine.py:Mine")
    write = another_process.write

    def imports_meanwhile(name: str, value: object) -> None:
        resolve("source", "other.py:Other")
        write(name, value)

    monkeypatch.setattr(another_process, "write", imports_meanwhile)
    board.send_files()
    board.send_files()
    leave(tmp_path, monkeypatch)
    board.receive_files()
    assert set(user_files.SENT) == {"mine.py", "other.py"}


def test_a_file_that_has_changed_since_it_was_imported_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("edited.py").write_text("x = 1\n")
    file = find_file("edited.py")
    assert file is not None
    assert import_file("edited.py", file).x == 1
    assert find_file("edited.py") == file
    assert not caplog.messages
    Path("edited.py").write_text("x = 2\n")
    assert [find_file("edited.py"), find_file("edited.py")] == [file, file]
    assert caplog.messages == [
        "edited.py has changed since this process imported it; start the process or kernel anew to use it"
    ]


def test_other_content_is_another_module() -> None:
    assert UserFile("/a.py", "x = 1").module != UserFile("/a.py", "x = 2").module


def test_a_module_that_nobody_has_sent_does_not_exist(another_process: Notes) -> None:
    with pytest.raises(ModuleNotFoundError):
        __import__(f"{PREFIX}0123456789ab")


OWN = """
from dataclasses import dataclass
from raysl.benchmarks.knn import KNN
from raysl.data.sources.digits import Digits
from raysl.methods.simclr import SimCLR
from raysl.nn.backbones.resnet import ResNet
from raysl.optim.sgd import SGD
from raysl.train.callbacks.numbers import MemoryStats
from raysl.transforms import HorizontalFlip

class Method(SimCLR): pass
class Net(ResNet): pass
class Images(Digits): pass
class Optimizer(SGD): pass
class Bench(KNN): pass
class Numbers(MemoryStats): pass
class Flip(HorizontalFlip): pass
def score(run, backbone): return {}
"""


def test_every_setting_that_names_a_file_is_stored_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    own = f"{tmp_path}/own.py"
    words = [f"method={own}:Method", f"backbone={own}:Net", f"data={own}:Images", f"optim={own}:Optimizer"]
    words += [f"benchmarks=[{own}:Bench]", f"callbacks.numbers.name={own}:Numbers", f"method.transforms=[{own}:Flip]"]
    words += ["callbacks.score.name=function", f"callbacks.score.function={own}:score"]
    words += [f"benchmarks.robust={{name: robustness, data: {{name: '{own}:Images'}}}}"]
    config = load_config("quickstart", words)
    nodes = [config.method, config.backbone, config.data, config.optim, *config.benchmarks.values()]
    names = [node.name for node in [*nodes, config.callbacks["numbers"]]]
    data = config.benchmarks["robust"].data  # type: ignore[attr-defined]
    function = config.callbacks["score"].function  # type: ignore[attr-defined]
    named = [*names, data["name"], *config.method.transforms, function]
    wanted = ["Method", "Net", "Images", "Optimizer", "Bench", "robustness", "Numbers", "Images", "Flip", "score"]
    assert named == [name if name == "robustness" else f"own.py:{name}" for name in wanted]


def test_a_file_beside_a_sweep_is_stored_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "own.py").write_text(OWN)
    (tmp_path / "sweeps" / "both.yaml").write_text("space: {method: {choice: [simclr, 'own.py:Method']}}\n")
    monkeypatch.chdir(tmp_path)
    sweep, _ = load_sweep("sweeps/both.yaml")
    assert sweep.space["method"]["choice"] == ["simclr", "sweeps/own.py:Method"]
