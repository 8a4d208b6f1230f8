"""Several checkpoints: measured alike, compared on one page, each as it is saved."""

import json
from pathlib import Path

import pytest

from raysl.benchmarks.suite.settings import other_data
from raysl.benchmarks.suite.several import compare, is_last, watch
from raysl.cli.benchmark import _sort_arguments
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.storage.folder import Folder
from tests.benchmarks.test_evaluate import SMALL, save
from tests.test_trust import MINE, rewrite


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    words = ["data.limit=60", "train.batch_size=60", "train.epochs=2", "benchmarks=[knn]"]
    return load_config("quickstart", [*SMALL, *words, f"storage={tmp_path}", "name=run"])


@pytest.mark.usefixtures("shared_ray")
def test_checkpoints_of_a_run_are_compared_on_one_page_beside_their_own(config: RunConfig, tmp_path: Path) -> None:
    old, new = save(config, 1), save(config, 2)
    found = compare([str(old), str(new)], ["knn"])
    assert found.path == str(tmp_path / "run" / "benchmarks" / "comparison" / "comparison.html")
    assert [report.checkpoint for report in found.reports] == [str(old), str(new)]
    table = (Path(found.path).parent / "comparison.csv").read_text()
    for report in found.reports:
        assert f"{report.metrics['knn/k20/top1']:.2f}" in table or str(report.metrics["knn/k20/top1"]) in table
        assert Path(report.path).exists()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("knn.json")}
    again = compare([old, new], ["knn"], out=str(tmp_path / "page"))
    assert again.path == str(tmp_path / "page" / "comparison.html")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("knn.json")} == before, "nothing is measured twice"


@pytest.mark.usefixtures("shared_ray")
def test_a_watch_measures_each_checkpoint_until_the_last(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(config, 1)
    pauses: list[float] = []

    def training_goes_on(seconds: float) -> None:
        pauses.append(seconds)
        save(config, 2)

    monkeypatch.setattr("raysl.benchmarks.suite.several.sleep", training_goes_on)
    found = watch(str(tmp_path / "run"), ["knn"])
    assert [Path(report.checkpoint).name for report in found.reports] == [
        "checkpoint_000000001",
        "checkpoint_000000002",
    ]
    assert len(pauses) == 1
    assert [Path(report.path).parent.name for report in found.reports] == [
        "checkpoint_000000001",
        "checkpoint_000000002",
    ]
    page = Path(found.path).read_text()
    assert "run @ 1" in page
    assert "run @ 2" in page
    assert "run @ 2 (2)" not in page, "each is itself, though the newest one was another when it was measured"


@pytest.mark.usefixtures("shared_ray")
def test_a_watch_passes_over_what_is_half_written_and_measures_what_was_saved_beside_its_last_look(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = save(config, 1)
    (first.parent / "checkpoint_000000002").mkdir()  # as on a remote storage, where files come one by one
    looks: list[str] = []

    def told_late(checkpoint: Folder, trust_code: bool) -> bool:
        looks.append(Path(checkpoint.path).name)
        if len(looks) == 1:
            save(config, 2)
        return is_last(checkpoint, trust_code)

    monkeypatch.setattr("raysl.benchmarks.suite.several.is_last", told_late)
    monkeypatch.setattr("raysl.benchmarks.suite.several.sleep", lambda seconds: None)
    found = watch(str(first.parent), ["knn"])
    assert [Path(report.checkpoint).name for report in found.reports] == looks
    assert looks == ["checkpoint_000000001", "checkpoint_000000002"]


@pytest.mark.thorough
def test_the_last_checkpoint_is_that_of_the_last_step(config: RunConfig) -> None:
    assert not is_last(Folder(str(save(config, 1))))
    assert is_last(Folder(str(save(config, 2))))


@pytest.mark.thorough
def test_code_that_a_checkpoint_names_is_imported_by_a_watch_only_if_it_is_trusted(
    config: RunConfig, tmp_path: Path
) -> None:
    path, mark = save(config, 2), tmp_path / "mark"
    (tmp_path / "mine.py").write_text(MINE.format(mark=str(mark)))
    rewrite(path / "run.yaml", method={"name": f"{tmp_path}/mine.py:Method"})
    told = rf"is code that is not raysl's, of the file .*mine\.py, and the checkpoint {path} asks .*trust_code=True"
    for refused in (lambda: is_last(Folder(str(path))), lambda: watch(str(path.parent), ["knn"])):
        with pytest.raises(ConfigError, match=told):
            refused()
    assert not mark.exists()
    assert is_last(Folder(str(path)), trust_code=True)
    assert mark.read_text() == "imported "


def test_all_checkpoints_are_looked_at_before_the_first_is_measured(config: RunConfig, tmp_path: Path) -> None:
    one = save(config, 2)
    with pytest.raises(ConfigError, match="nowhere"):
        compare([str(one), str(tmp_path / "nowhere")], ["knn"])
    with pytest.raises(ConfigError, match="is given twice"):
        compare([str(one), str(one.parent)], ["knn"])
    assert not list(tmp_path.rglob("knn.json"))
    with pytest.raises(ConfigError, match=r"no run at .*; start it first"):
        watch(str(tmp_path / "nowhere"))


def test_words_of_the_command_are_checkpoints_benchmarks_and_settings(tmp_path: Path) -> None:
    words = ["s3://bucket/run", str(tmp_path), "knn", "mine.py:Mine", "knn.k=[1]", "data.path=/b"]
    assert _sort_arguments(words, ["first"]) == (
        ["first", "s3://bucket/run", str(tmp_path)],
        ["knn", "mine.py:Mine"],
        ["knn.k=[1]", "data.path=/b"],
    )
    assert _sort_arguments([], ["first"]) == (["first"], None, [])


def test_a_benchmark_has_images_of_its_own_as_the_backbone_expects_them() -> None:
    own = load_config("quickstart", ["data.image_size=24"]).data
    other = other_data(own, {"name": "image_folder", "path": "/b"})
    assert (other.name, other.image_size, other.mean) == ("image_folder", 24, own.mean)
    named = other_data(own, "imagenet_a")
    assert json.loads(json.dumps({"name": named.name, "dataset": named.dataset})) == {  # type: ignore[attr-defined]
        "name": "catalog",
        "dataset": "imagenet_a",
    }
    with pytest.raises(ConfigError, match=r"data\.paths: no such setting"):
        other_data(own, {"name": "image_folder", "paths": "/b"})
