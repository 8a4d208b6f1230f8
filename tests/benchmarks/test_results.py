"""Results that are kept."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from raysl.benchmarks.knn import KNN
from raysl.benchmarks.linear_augmented import LinearAugmented
from raysl.benchmarks.low_shot import LowShot
from raysl.benchmarks.suite.protocols import names_of, protocol_of
from raysl.benchmarks.suite.results import Basis, Result, Results
from raysl.benchmarks.training_runs.run import ProbeViews
from raysl.nn.classifiers import Pool, StageHead
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
    "content", [b"", b'{"format": 3, "bench', b"\xff\xfe\x00", b"[]", b'{"format": 3, "scores": ["a"]}']
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
    assert names_of("linear_augmented", own, own) == ("linear_augmented", "linear_augmented")
    assert protocol_of(own) == ""
    special = replace(own, epochs=5, views=ProbeViews(flip=0.0))
    for name in names_of("linear_augmented", special, own):
        assert re.fullmatch(r"linear_augmented@[0-9a-f]{6}", name)
    assert set(protocol_of(special).split(", ")) == {"epochs=5", "views.flip=0.0"}
    long = protocol_of(replace(own, stages=(StageHead(stage="res3"),)))
    assert re.fullmatch(r"stages=\[\{'stage': 'res3', 'pool': \{'kind': 'avg… \([0-9a-f]{6}\)", long)
    other = protocol_of(replace(own, stages=(StageHead(stage="res3", pool=Pool(size=3)),)))
    assert other.partition("…")[0] == long.partition("…")[0]
    assert other != long


def test_a_protocol_has_one_name_whatever_the_runs_settings_are() -> None:
    wanted = KNN.Config(k=(20,))
    of_runs = [KNN.Config(k=(20, 200), temperature=0.1), KNN.Config(k=(200, 20), weights="uniform")]
    names = {names_of("knn", wanted, own) for own in of_runs}
    assert len(names) == 1
    (name, title), *_ = names
    assert name != title, "a result of one k is not that of two"
    assert names_of("knn", wanted, KNN.Config(k=(20, 200)))[1] == "knn", "the k is in the names of the metrics"
    assert names_of("knn", wanted, KNN.Config(k=(20,), backend="faiss", chunk_rows=8)) == ("knn", "knn")


def test_the_protocol_is_all_that_departs_from_the_defaults_and_is_in_no_name() -> None:
    assert protocol_of(KNN.Config(k=(200, 20), labels=(1,), rivals=(), required=False, chunk_rows=8)) == ""
    assert protocol_of(KNN.Config(k=(20, 200), temperature=0.1)) == protocol_of(KNN.Config(temperature=0.1))
    assert protocol_of(KNN.Config(temperature=0.1, interpolation="bilinear")) == (
        "interpolation=bilinear, temperature=0.1"
    )
    assert protocol_of(LowShot.Config(shots=(3,), draws=9)) == "draws=9"


def test_a_result_says_which_of_its_images_have_changed() -> None:
    now = replace(BASIS, content={"train": {"labels": "1"}}, written={"train": "2", "test": "3"})
    relabelled = replace(now, content={"train": {"labels": "2"}})
    assert relabelled.changes_from(now) == ["other training images: labels changed"]
    assert replace(now, written={"train": "2"}).changes_from(now) == ["other test images: files were modified"]
    assert BASIS.changes_from(BASIS) == []
