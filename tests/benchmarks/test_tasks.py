"""What is measured of which features."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from raysl.benchmarks.knn import KNN
from raysl.benchmarks.suite import tasks
from raysl.benchmarks.suite.tasks import Tasks
from raysl.benchmarks.suite.workplace import Workplace
from raysl.config.load import load_config
from raysl.config.schema import DataConfig, RunConfig
from raysl.data.source import Split
from raysl.storage.folder import Folder
from tests.benchmarks.test_fitting import folder_of, images_of


class _Loaded:
    """What tasks ask of a checkpoint."""

    meta: dict[str, Any] = {}
    backbone = nn.Identity()

    def __init__(self, config: RunConfig) -> None:
        self.config = config


Folders = Callable[[dict[str, Any]], list[str]]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    """The folders of training features of kNN on images with each of some settings, by their names."""
    config = load_config("quickstart", ["data=image_folder", f"data.path={folder_of(tmp_path / 'own', cat=9, dog=9)}"])
    asked: list[tuple[Split, str]] = []

    def sets(wanted: object, split: Split, data: DataConfig, folder: Folder, token: str) -> dict[str, Any]:
        asked.append((split, folder.uri.rpartition("/")[2]))
        return {}

    monkeypatch.setattr(tasks, "feature_sets", sets)
    monkeypatch.setattr(tasks, "untrained_backbone", lambda _: nn.Identity())

    def of(wanted: dict[str, Any]) -> list[str]:
        asked.clear()
        images = images_of(config)
        fitting = images.fit({key: KNN.Config(k=(1,), **settings) for key, settings in wanted.items()})
        loaded: Any = _Loaded(config)
        list(Tasks(loaded, fitting, images, {}, Workplace(Folder(str(tmp_path / "work")))).of(list(wanted)))
        return [name for split, name in asked if split.num_samples == 18]

    return of


def test_features_of_the_same_images_in_other_sizes_have_a_folder_each(folders: Folders, tmp_path: Path) -> None:
    other = {"name": "image_folder", "path": str(folder_of(tmp_path / "other", cat=9, dog=9))}
    names = folders({str(size): {"data": {**other, "image_size": size}} for size in (16, 32)})
    assert len(set(names)) == len(names) == 2


def test_features_of_a_changed_copy_have_a_folder_of_their_own(folders: Folders, tmp_path: Path) -> None:
    paths = [folder_of(tmp_path / name, cat=9, dog=9) for name in ("first", "copy")]
    names = folders({path.name: {"data": {"name": "image_folder", "path": str(path)}} for path in paths})
    assert len(set(names)) == len(names) == 2, "which have one fingerprint"


def test_benchmarks_that_agree_in_images_and_their_resize_share_features(folders: Folders) -> None:
    assert len(folders({"a": {}, "b": {}})) == 1
    assert folders({"a": {"interpolation": "bilinear"}}) == ["train"], "as the run's own settings have it"
    assert len(set(folders({"a": {"interpolation": "bilinear"}, "b": {}}))) == 2
