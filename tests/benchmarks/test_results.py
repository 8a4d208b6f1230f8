"""Results that are kept."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from raysl.benchmarks.linear_augmented import LinearAugmented
from raysl.benchmarks.suite.results import Basis, Result, Results, label_of
from raysl.benchmarks.training_runs.run import ProbeViews
from raysl.nn.classifiers import StageHead
from raysl.report.contents import Score
from raysl.storage.folder import Folder

BASIS = Basis(step=2, weights="", settings={"k": [20]}, train="a", test="b", image={"image_size": 32}, seed=0, code="c")
SCORE = Score(
    benchmark="mine", metric="search", trained=0.5, unit="s", title="Search", is_headline=False, is_lower_better=True
)


def test_titles_and_units_are_kept(tmp_path: Path) -> None:
    result = Result("mine", BASIS, [SCORE])
    Results(Folder(str(tmp_path))).keep(result, "digits")
    assert Results(Folder(str(tmp_path))).load() == {"mine": result}


def test_results_of_older_raysl_still_count(tmp_path: Path) -> None:
    Results(Folder(str(tmp_path))).keep(Result("knn", BASIS, [SCORE]), "digits")
    content = json.loads((tmp_path / "knn.json").read_text())
    for name in ("unit", "title", "is_headline", "is_lower_better"):
        del content["scores"][0][name]
    (tmp_path / "knn.json").write_text(json.dumps(content))
    old = Results(Folder(str(tmp_path))).load()["knn"]
    assert old == Result("knn", BASIS, [Score(benchmark="mine", metric="search", trained=0.5)])


@pytest.mark.parametrize(
    "content", [b"", b'{"format": 2, "bench', b"\xff\xfe\x00", b"[]", b'{"format": 2, "scores": ["a"]}']
)
def test_a_damaged_result_counts_as_not_measured_and_is_named(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    results = Results(Folder(str(tmp_path)))
    results.keep(Result("mine", BASIS, [SCORE]), "digits")
    (tmp_path / "knn.json").write_bytes(content)
    assert list(results.load()) == ["mine"]
    assert caplog.messages == [f"{tmp_path}/knn.json is damaged, or of another raysl: it counts as not measured"]


def test_special_settings_are_named_as_they_are_written() -> None:
    own = LinearAugmented.Config()
    assert label_of("linear_augmented", own, own) == ("linear_augmented", "")
    name, special = label_of("linear_augmented", replace(own, epochs=5, views=ProbeViews(flip=0.0)), own)
    assert re.fullmatch(r"linear_augmented@[0-9a-f]{6}", name)
    assert set(special.split(", ")) == {"epochs=5", "views.flip=0.0"}
    _, special = label_of("linear_augmented", replace(own, stages=(StageHead(stage="res3"),)), own)
    assert special == "stages=[{'stage': 'res3', 'pool': {'kind': 'av…"


def test_a_result_says_which_of_its_images_have_changed() -> None:
    now = replace(BASIS, content={"train": {"labels": "1"}}, written={"train": "2", "test": "3"})
    relabelled = replace(now, content={"train": {"labels": "2"}})
    assert relabelled.changes_from(now) == ["other training images: labels changed"]
    assert replace(now, written={"train": "2"}).changes_from(now) == ["other test images: files were modified"]
    assert BASIS.changes_from(BASIS) == []
