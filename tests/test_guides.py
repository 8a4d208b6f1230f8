"""The guides for those who extend raysl: their files and commands, as they are printed."""

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from raysl.benchmarks.benchmark import FeatureSet, by_name, metrics_of
from raysl.benchmarks.suite.fitting import benchmark_class
from raysl.benchmarks.suite.settings import load_benchmarks
from raysl.config.load import load_config
from raysl.data.stream.loader import LocalBatches
from raysl.preview.views_page import write_views
from raysl.train import LocalReporter, TrainState, fit
from raysl.train.prepare import prepare
from tests.benchmarks.contexts import Flat, context_of
from tests.methods.properties import SMALL

DOCS = Path(__file__).parent.parent / "docs"
FEW = tuple(word for word in SMALL if not word.startswith("optim."))


def unpacked(guide: str, folder: Path) -> list[list[str]]:
    """Write the files of a guide into a folder; the words of its commands."""
    text = (DOCS / f"{guide}.md").read_text()
    for language, content in re.findall(r"^```(python|yaml)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        name = re.match(r"# (\S+)\n", content)
        assert name is not None, f"a block of {language} in {guide}.md has no name"
        (folder / name[1]).write_text(content)
    commands = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for block in commands for line in block.splitlines()]


@pytest.mark.thorough
@pytest.mark.parametrize("guide", ["write-a-method", "write-a-backbone"])
def test_what_a_guide_writes_trains(guide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ((_, command, *words),) = unpacked(guide, tmp_path)
    assert command == "pretrain"
    few = [word for word in FEW if not word.startswith("data.lanes")]
    run = prepare(load_config(words[0], [*words[1:], *few, "train.workers=1"]))
    state = TrainState.create(run.setup, classes=run.classes)
    batches = LocalBatches(replace(run.loader, augment_in_task=True))
    metrics = fit(state, state.method, run.setup.plan, batches, reporter=LocalReporter())
    assert metrics["embedding_std"] > 0.1


def test_the_transform_of_the_guide_is_seen_on_the_page_of_its_views(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = unpacked("write-a-transform", tmp_path)
    assert len(commands) == 2
    for _, *command in commands:
        assert command[:3] == ["report", "views", "quickstart"]
        page = write_views("quickstart", command[3:], tmp_path / "views.html", num=2, num_epochs=1).read_text()
        assert "SaltAndPepper" in page


def test_the_benchmark_on_features_of_the_guide_tells_classes_apart_and_knows_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    unpacked("write-a-benchmark", tmp_path)
    settings = load_config("with_centroid.yaml").benchmarks
    cosine, euclidean = (benchmark_class(settings[key])(settings[key]) for key in ("centroid", "centroid_euclidean"))
    labels = torch.arange(400) % 4
    random = torch.Generator().manual_seed(0)
    noise = torch.randn(400, 8, generator=random)
    apart = FeatureSet(noise / 10 + torch.eye(8)[labels], labels)
    near = FeatureSet(apart.features * (1 + 99 * (torch.arange(400) // 4 % 2))[:, None], labels)  # lengths say nothing
    assert by_name(metrics_of(cosine.run(near, near, 4, 0)))["top1"].value == 100
    assert by_name(metrics_of(euclidean.run(near, near, 4, 0)))["top1"].value < 100
    chance = by_name(metrics_of(euclidean.run(apart, FeatureSet(noise.flip(0), labels), 4, 0)))["top1"]
    assert chance.interval is not None
    assert chance.interval[0] < 25 < chance.interval[1]
    few = FeatureSet(apart.features, labels % 3)
    assert by_name(metrics_of(cosine.run(few, few, 5, 0)))["top1"].value > 60  # two classes have no image


def test_the_benchmark_on_a_network_of_the_guide_measures_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    unpacked("write-a-benchmark", tmp_path)
    config = load_config("with_centroid.yaml")
    mirror = benchmark_class(config.benchmarks["mirror"])(config.benchmarks["mirror"])
    pooled = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    (blind,) = mirror.measure(context_of(pooled, config.data, tmp_path))
    assert blind.value == pytest.approx(1, abs=1e-5)
    (seeing,) = mirror.measure(context_of(Flat(), config.data, tmp_path))
    assert seeing.value < 0.99


def test_the_command_of_the_guide_asks_for_benchmarks_of_files_by_their_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, (_, command, _, _, *words) = unpacked("write-a-benchmark", tmp_path)
    assert command == "benchmark"
    asked = load_benchmarks(load_config("quickstart"), words[:3], words[3:])
    assert set(asked) == {"knn", "Centroid", "Mirror"}
    assert not asked["Centroid"].cosine  # type: ignore[attr-defined]
    assert asked["Mirror"].name == "mirror.py:Mirror"
    assert all(config.required for config in asked.values())


@pytest.mark.slow
def test_the_commands_of_the_guide_to_benchmarks_run_as_printed(tmp_path: Path) -> None:
    for _, *words in unpacked("write-a-benchmark", tmp_path):
        done = subprocess.run(
            [sys.executable, "-m", "raysl", *words], cwd=tmp_path, capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, done.stderr
    assert "Nearest class mean" in done.stdout
    assert "mirror image" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("guide", ["write-a-method", "write-a-backbone"])
def test_the_command_of_a_guide_runs_as_printed(guide: str, tmp_path: Path) -> None:
    ((_, *words),) = unpacked(guide, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "raysl", *words], cwd=tmp_path, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    assert "low_shot" in done.stdout
