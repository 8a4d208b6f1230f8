"""What is measured of which features."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn
from typing_extensions import override

from raysl.benchmarks.benchmark import Outlook
from raysl.benchmarks.knn import KNN
from raysl.benchmarks.suite import tasks
from raysl.benchmarks.suite.tasks import Task, Tasks, outlooks
from raysl.benchmarks.suite.workplace import Workplace
from raysl.benchmarks.svm import SVM
from raysl.config.load import load_config
from raysl.config.schema import DataConfig, RunConfig
from raysl.data.source import Split
from raysl.nn.backbones.resnet import ResNet
from raysl.storage.folder import Folder
from tests.benchmarks.test_fitting import folder_of, images_of


class _Loaded:
    """What tasks ask of a checkpoint."""

    digest = "0123"
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


def test_what_a_benchmark_takes_is_reckoned_with_the_features_of_all_its_stages() -> None:
    network = ResNet(ResNet.Config(depth=18, width=4))
    widths = []

    class Asked(SVM):
        @classmethod
        @override
        def outlook(cls, config: SVM.Config, num_rows: int, width: int, num_classes: int) -> Outlook:
            widths.append(width)
            return Outlook(f"{num_rows} rows", 50.0, None, "less")

    for stages in ((), ("res3", "res4")):
        config = SVM.Config(stages=stages)
        context: Any = SimpleNamespace(network=network, images={"train": SimpleNamespace(num_samples=7)}, num_classes=2)
        stored: Any = object()
        task = Task("svm", Asked, config, context, SVM.stages(config), stored, stored)
        assert list(outlooks([task], 1.0)) == ["svm: 7 rows, about 50 s on 1 core; less"]
    extra = network.stage_widths["res3"] + network.stage_widths["res4"]
    assert widths == [network.feature_dim, network.feature_dim + extra]


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
