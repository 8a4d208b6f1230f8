import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from raysl.benchmarks.instance_retrieval.datasets import load, task_names
from raysl.benchmarks.instance_retrieval.truth import ImageFiles, InstanceSet
from raysl.errors import ConfigError
from tests.benchmarks.instance_retrieval import samples


def named(found: InstanceSet, task: str, query: int) -> tuple[set[str], set[str]]:
    """Names of what is right and of what is ignored."""
    own = next(each for each in found.tasks if each.name == task)
    place = own.queries.tolist().index(query)
    paths = found.database.paths
    right, ignored = ({Path(paths[n]).stem for n in places[place]} for places in (own.right, own.ignored))
    return right, ignored


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_levels_of_the_revisited_benchmark(tmp_path: Path, protocol: int) -> None:
    found = load("roxford5k", str(samples.revisited(tmp_path, protocol=protocol)))
    assert found.database.paths[:2] == ("thing0_0.jpg", "thing0_1.jpg")
    assert found.queries.paths == ("query0.jpg", "query1.jpg", "query2.jpg")
    assert found.queries.boxes[0] == tuple(samples.BOX)
    assert named(found, "easy", 1) == ({"thing1_0", "thing1_1"}, {"thing1_2", "thing1_3"})
    assert named(found, "medium", 1) == ({"thing1_0", "thing1_1", "thing1_2"}, {"thing1_3"})
    assert named(found, "hard", 1) == ({"thing1_2"}, {"thing1_0", "thing1_1", "thing1_3"})


def test_the_folder_may_be_that_of_the_dataset_itself(tmp_path: Path) -> None:
    samples.revisited(tmp_path, "rparis6k")
    inner, outer = load("rparis6k", str(tmp_path / "rparis6k")), load("rparis6k", str(tmp_path))
    assert inner.database == outer.database


@pytest.mark.parametrize("prefix", ["oxc1_", ""])
def test_oxford_buildings_and_paris(tmp_path: Path, prefix: str) -> None:
    found = load("oxford5k" if prefix else "paris6k", str(samples.buildings(tmp_path, prefix)))
    assert len(found.database.paths) == 12
    assert found.queries.paths[1] == "jpg/all_1_000.jpg"
    assert found.queries.boxes[1] == tuple(samples.BOX)
    assert named(found, "", 1) == ({"all_1_000", "all_1_001", "all_1_002"}, {"all_1_003"})
    assert named(found, "", 0)[1] == set()


def test_instre_counts_from_one_and_draws_a_tenth_of_the_queries(tmp_path: Path) -> None:
    found = load("instre", str(samples.instre(tmp_path)))
    whole, validation = found.tasks
    assert [found.database.paths[n] for n in whole.right[3]] == ["INSTRE-S1/03a/001.jpg", "INSTRE-S1/03a/002.jpg"]
    assert found.queries.paths[3] == "INSTRE-S1/03a/100.jpg"
    assert validation.queries.tolist() == np.random.RandomState(123).permutation(12)[:1].tolist()
    (drawn,) = validation.queries
    assert validation.right[0].tolist() == whole.right[drawn].tolist()


def test_copies_are_of_the_original_with_their_number(tmp_path: Path) -> None:
    found = load("copydays", str(samples.copydays(tmp_path)), ("strong", "crops/50"))
    assert [task.name for task in found.tasks] == ["strong", "crops_50"]
    assert len(found.database.paths) == 3 + 5
    strong, crops = found.tasks
    assert [found.queries.paths[n] for n in crops.queries] == [f"crops/50/{2000 + n}02.jpg" for n in range(3)]
    assert [[found.database.paths[n] for n in places] for places in strong.right] == [
        [f"original/{2000 + n}00.jpg"] for n in range(3)
    ]  # and no distractor of the same number


@pytest.mark.parametrize(
    ("dataset", "names"),
    [
        ("roxford5k", ("easy", "medium", "hard")),
        ("oxford5k", ("",)),
        ("instre", ("", "validation")),
        ("copydays", ("strong", "crops_50")),
    ],
)
def test_names_of_tasks_are_known_without_the_dataset(dataset: Any, names: tuple[str, ...]) -> None:
    assert task_names(dataset, ("strong", "crops/50")) == names


def error_of(dataset: Any, path: Path | None, splits: tuple[str, ...] = ("strong",)) -> str:
    with pytest.raises(ConfigError) as caught:
        load(dataset, None if path is None else str(path), splits)
    return str(caught.value)


def test_folders_that_are_not_the_dataset_are_told(tmp_path: Path) -> None:
    assert "instre needs path=" in error_of("instre", None)
    assert f"no folder '{tmp_path}/none'" in error_of("oxford5k", tmp_path / "none")
    assert "no gnd_roxford5k.pkl in" in error_of("roxford5k", tmp_path)
    assert "no gnd_instre.mat in" in error_of("instre", tmp_path)
    assert "no *_query.txt in" in error_of("paris6k", tmp_path)
    assert "no images below" in error_of("copydays", tmp_path)
    samples.save(tmp_path / "strong" / "200001.jpg", 0)
    assert "no images in" in error_of("copydays", tmp_path)


def test_copydays_without_a_split_or_with_odd_names(tmp_path: Path) -> None:
    samples.copydays(tmp_path)
    assert "set query_splits= to folders that there are" in error_of("copydays", tmp_path, ("jpegqual",))
    samples.save(tmp_path / "strong" / "mine.jpg", 0)
    assert "'strong/mine.jpg' in" in error_of("copydays", tmp_path)


def changed(tmp_path: Path, **changes: Any) -> str:
    """What is said of ground truth with other content."""
    file = samples.revisited(tmp_path) / "roxford5k" / "gnd_roxford5k.pkl"
    file.write_bytes(pickle.dumps(pickle.loads(file.read_bytes()) | changes))
    return error_of("roxford5k", tmp_path)


@pytest.mark.thorough
def test_ground_truth_that_makes_no_sense_is_told(tmp_path: Path) -> None:
    answer = {"bbx": samples.BOX, "easy": [0], "hard": [], "junk": []}
    assert "3 queries and 1 answers" in changed(tmp_path, gnd=[answer])
    assert "query 0, easy: image 12 is none of 0 to 11" in changed(tmp_path, gnd=[answer | {"easy": [12]}] * 3)
    assert "query 0, hard: ['a'] is not a list of integers" in changed(tmp_path, gnd=[answer | {"hard": ["a"]}] * 3)
    assert "is not a box of four numbers" in changed(tmp_path, gnd=[answer | {"bbx": [1, 2, 3]}] * 3)
    assert "holds nothing" in changed(tmp_path, gnd=[answer | {"bbx": [5, 5, 5, 9]}] * 3)
    assert "query 0 lacks one of easy, hard, junk, bbx" in changed(tmp_path, gnd=[{"easy": [0]}] * 3)
    absent = changed(tmp_path, gnd=[answer] * 3, imlist=["thing0_0", "gone"])
    assert "1 of the 2 images" in absent
    assert "'gone' is not there" in absent


def test_matlab_files_that_are_none_or_count_from_nought_are_told(tmp_path: Path) -> None:
    samples.save(tmp_path / "a.jpg", 0)
    (tmp_path / "gnd_instre.mat").write_bytes(b"no such file")
    assert "cannot read" in error_of("instre", tmp_path)
    cells = np.empty(1, object)
    cells[0] = "a.jpg"
    gnd = np.array([(np.array([0]), np.array(samples.BOX))], dtype=[("ok", object), ("bbx", object)])
    savemat(tmp_path / "gnd_instre.mat", {"imlist": cells, "qimlist": cells, "gnd": gnd})
    assert "image 0 is none of 1 to 1" in error_of("instre", tmp_path)


def test_names_are_found_without_folders_and_endings(tmp_path: Path) -> None:
    for path in ("a/one.jpg", "b/two.png", "b/one.2.jpg", "c/xone.jpg"):
        samples.save(tmp_path / path, 0)
    files = ImageFiles(str(tmp_path))
    names = ["one", "a/one", "one.jpg", "b/two.png", "one.2", "/c/xone"]
    found = files.find(names, "a list")
    assert found == ("a/one.jpg", "a/one.jpg", "a/one.jpg", "b/two.png", "b/one.2.jpg", "c/xone.jpg")
    samples.save(tmp_path / "d" / "one.png", 0)
    with pytest.raises(ConfigError, match=r"1 of the 1 images .* 'one' may be a/one.jpg or d/one.png"):
        ImageFiles(str(tmp_path)).find(["one"], "a list")


def test_a_query_without_its_box_is_named(tmp_path: Path) -> None:
    (samples.buildings(tmp_path) / "gt" / "all_1_1_query.txt").write_text("all_1_000 8.0 4.0\n")
    told = error_of("oxford5k", tmp_path)
    assert "all_1_1_query.txt: 'all_1_000 8.0 4.0' is not an image and a box of 4 numbers; fetch it anew" in told
