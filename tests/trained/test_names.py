"""The name of a backbone that comes with raysl stands where the path of a checkpoint does."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import raysl
from raysl import trained
from raysl.checkpoint.checkpoint_folder import checkpoint_name, newest
from raysl.config.config_files import config_names
from raysl.config.load import load_config
from raysl.config.places import kind_of
from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone
from raysl.plan.setup import Setup
from raysl.sweeps.load import load_sweep
from raysl.train.state import TrainState
from raysl.trained import trained_names, unpacked
from tests.console import Console

NAME = "cifar10/simclr"
SMALL = ("backbone.depth=10", "backbone.width=16", "train.batch_size=8", "data.path=/gone")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory, and an empty cache folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("RAYSL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "here"


def equal(left: Backbone, right: Backbone) -> bool:
    return all(torch.equal(one, right.state_dict()[name]) for name, one in left.state_dict().items())


def packaged() -> Path:
    (path,) = (trained.FOLDER / NAME).glob("checkpoint_*")
    return path


@pytest.mark.thorough
def test_a_name_is_read_in_a_new_home_without_network_and_from_a_package_that_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    shutil.copytree(trained.FOLDER, package, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [*package.rglob("*"), package]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    monkeypatch.setattr(trained, "FOLDER", package)
    for name in ("RAYSL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("asks the network"))
    backbone = raysl.load_backbone(NAME)
    assert backbone(torch.zeros(2, 3, 32, 32)).shape == (2, backbone.feature_dim)
    copy = Path(newest(NAME))
    assert copy.is_relative_to(tmp_path / "home" / ".cache" / "raysl")
    assert all(path.stat().st_mode & 0o200 for path in [copy.parent, copy, *copy.iterdir()]), "results lie beside it"
    assert sorted(path.name for path in copy.parent.iterdir()) == [copy.name], "no drafts are left"
    for path in [package, *package.rglob("*")]:
        path.chmod(0o755)


def test_the_cache_folder_is_that_of_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Path(unpacked(NAME)).is_relative_to(tmp_path / "cache" / "trained")
    monkeypatch.delenv("RAYSL_CACHE")
    assert Path(unpacked(NAME)).is_relative_to(tmp_path / "xdg" / "raysl" / "trained")


@pytest.mark.thorough
def test_a_folder_of_ones_own_at_the_path_of_a_name_comes_first(here: Path) -> None:
    assert kind_of(NAME) == "trained"
    config = load_config("quickstart", ["backbone.depth=10", "backbone.width=4"])
    TrainState.create(Setup.of(config, 64, 10)).save(here / NAME / checkpoint_name(0), {})
    assert raysl.load_backbone(NAME).feature_dim == 16
    assert kind_of(NAME) == "run"
    assert load_config("quickstart", [f"method.weights={NAME}"]).method.weights == f"{here}/{NAME}"


def test_a_wrong_name_is_answered_by_the_names(console: Console) -> None:
    told = f"these come with raysl: {', '.join(trained_names())}"
    for call in (
        lambda: raysl.load_backbone("cifar10/simcrl"),
        lambda: raysl.Predictor("cifar10/simcrl"),
        lambda: raysl.convert("cifar10/simcrl", "out", to="timm"),
        lambda: TrainState.create(
            Setup.of(load_config("cifar10/simclr", [*SMALL, "method.weights=cifar10/simcrl"]), 64, 10)
        ),
    ):
        with pytest.raises(ConfigError, match=told) as caught:
            call()
        assert len(str(caught.value).splitlines()) == 1
    _, _, err = console("benchmark", "cifar10/simcrl", "knn")
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert errors[0].endswith(told)


@pytest.mark.thorough
def test_a_damaged_copy_is_replaced_and_results_beside_it_stay() -> None:
    copy = Path(unpacked(NAME))
    (copy.parent / "benchmarks").mkdir()
    (copy / "features.parquet").mkdir()
    assert unpacked(NAME) == str(copy)
    assert (copy / "features.parquet").is_dir(), "a whole copy is left alone"
    (copy / "backbone.safetensors").write_bytes(b"cut off")
    assert equal(raysl.load_backbone(NAME), raysl.load_backbone(str(packaged())))
    assert (copy.parent / "benchmarks").is_dir()


def test_another_process_that_is_faster_is_let_win(monkeypatch: pytest.MonkeyPatch) -> None:
    copyfile = shutil.copyfile

    def slow(source: Path, target: Path) -> None:
        monkeypatch.setattr(shutil, "copyfile", copyfile)
        unpacked(NAME)
        copyfile(source, target)

    monkeypatch.setattr(shutil, "copyfile", slow)
    monkeypatch.setattr(Path, "exists", lambda _: False)  # the other one is not seen yet
    copy = Path(unpacked(NAME))
    assert [path.name for path in copy.parent.iterdir()] == [copy.name]


def test_a_cache_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ConfigError, match=rf"{NAME}: cannot write .*; set the variable RAYSL_CACHE to a folder"):
        raysl.load_backbone(NAME)


@pytest.mark.thorough
def test_a_name_stays_a_name_in_settings() -> None:
    assert load_config("cifar10/simclr", [*SMALL, f"method.weights={NAME}"]).method.weights == NAME
    several = f"method.teachers=[{{teacher: {NAME}, target: features}}]"
    for words in ([f"method.teacher={NAME}"], [several]):
        distill: Any = load_config("cifar10/distill", [*SMALL, *words]).method
        assert [one.teacher for one in distill.all_teachers.values()] == [NAME]
    dino_v3: Any = load_config("dino_v3", ["data.path=/gone", f"method.gram_teacher={NAME}"]).method
    assert dino_v3.gram_teacher == NAME
    words = [f"checkpoints=[{NAME}]", "space={}", "scheduler=none", "metric=knn/k20/top1"]
    assert load_sweep("sweep/quickstart", words)[0].checkpoints == [NAME]


@pytest.mark.thorough
def test_a_run_begins_with_its_backbone_and_a_projector_at_random() -> None:
    state = TrainState.create(Setup.of(load_config("cifar10/simclr", [*SMALL, f"method.weights={NAME}"]), 64, 10))
    assert equal(state.method.export(), raysl.load_backbone(NAME))
    assert state.weights is not None
    assert state.weights["left_out"] == ["projector (it has the backbone alone)"]


@pytest.mark.thorough
def test_another_backbone_is_told_the_settings_of_this_one() -> None:
    words = [*SMALL, "backbone.width=32", f"method.weights={NAME}"]
    with pytest.raises(ConfigError, match=r"backbone .* is another one: .*; set .*backbone.width=16"):
        TrainState.create(Setup.of(load_config("cifar10/simclr", words), 64, 10))


@pytest.mark.thorough
def test_a_student_learns_from_it() -> None:
    words = [*SMALL, f"method.teacher={NAME}", "method.target=features"]
    setup = Setup.of(load_config("cifar10/distill", words), 64, 10)
    state = TrainState.create(setup)
    theirs = raysl.load_backbone(NAME).state_dict()["conv1.weight"]
    assert any(
        value.shape == theirs.shape and torch.equal(value, theirs) for value in state.method.state_dict().values()
    )


def test_a_predictor_takes_pictures_and_knows_no_classes() -> None:
    predictor = raysl.Predictor(NAME)
    images = torch.randint(0, 256, (3, 3, 48, 48), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert predictor(images).shape == (3, predictor.backbone.feature_dim)
    with pytest.raises(ConfigError, match="method=simclr has learned no classes; give labelled images"):
        predictor.probabilities(images)


@pytest.mark.thorough
def test_weights_are_written_for_other_libraries(here: Path) -> None:
    done = raysl.convert(NAME, str(here / "hub"), to="safetensors")
    assert done.summary.startswith("It was trained by raysl with the method simclr")
    raysl.convert(str(here / "hub" / "model.safetensors"), str(here / "again"))
    assert equal(raysl.load_backbone(str(here / "again")), raysl.load_backbone(NAME))


def test_the_command_line_lists_them(console: Console) -> None:
    _, out, _ = console("list", "weights")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == list(trained_names())
    assert "SimCLR on CIFAR-10" in "".join(lines)


def test_it_has_the_name_of_its_recipe() -> None:
    assert set(trained_names()) <= set(config_names())


@pytest.mark.cluster
def test_several_processes_read_it_at_once(tmp_path: Path) -> None:
    code = f"from raysl.trained import unpacked; print(unpacked({NAME!r}))"
    children = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(6)]
    paths = {child.communicate()[0].strip() for child in children}
    assert [child.returncode for child in children] == [0] * 6
    (copy,) = map(Path, paths)
    assert [path.name for path in copy.parent.iterdir()] == [copy.name]
    assert {path.name for path in copy.iterdir()} == set(os.listdir(packaged()))


@pytest.mark.usefixtures("shared_ray")
def test_it_is_measured_and_its_features_are_extracted_by_its_name(tmp_path: Path) -> None:
    report = raysl.benchmark(NAME, ["knn"], ["data=digits"])
    assert 0 < report.metrics["knn/k20/top1"] <= 100
    assert Path(report.path).is_relative_to(tmp_path / "cache")
    features = raysl.extract(NAME, overrides=["data=digits"])
    assert features.width == raysl.load_backbone(NAME).feature_dim
    assert Path(features.path).is_relative_to(tmp_path / "cache")
