"""What the images allow to be measured is found on the driver, before anything is trained."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from raysl.benchmarks.benchmark import Benchmark, FeatureSet, Needs, metrics_of
from raysl.benchmarks.copy_detection import CopyDetection
from raysl.benchmarks.depth import Depth
from raysl.benchmarks.detection import Detection
from raysl.benchmarks.finetune import Finetune
from raysl.benchmarks.geometry import Geometry
from raysl.benchmarks.knn import KNN
from raysl.benchmarks.logistic import Logistic
from raysl.benchmarks.low_shot import LowShot
from raysl.benchmarks.low_shot_svm import LowShotSVM
from raysl.benchmarks.retrieval import Retrieval
from raysl.benchmarks.robustness import Robustness
from raysl.benchmarks.segmentation import Segmentation
from raysl.benchmarks.suite.fitting import MeasuredImages, check_benchmarks
from raysl.benchmarks.svm import SVM
from raysl.benchmarks.video_segmentation import VideoSegmentation
from raysl.components import resolve
from raysl.config.load import load_config
from raysl.config.schema import BenchmarkConfig, RunConfig
from raysl.errors import ConfigError
from raysl.plan.plan import TrainPlan
from raysl.train.expected import course_warning
from raysl.train.prepare import prepare
from tests.benchmarks.test_knn import random_set
from tests.data.samples import png
from tests.data.sources.test_coco import dataset


def folder_of(root: Path, **counts: int) -> Path:
    """A folder with so many images of each class in train/, and two of each in val/."""
    for name, count in counts.items():
        for part, num in (("train", count), ("val", 2)):
            (root / part / name).mkdir(parents=True, exist_ok=True)
            for number in range(num):
                (root / part / name / f"{number}.png").write_bytes(png(number))
    return root


def images_of(config: RunConfig) -> MeasuredImages:
    source = resolve("source", config.data.name)(config.data)
    return MeasuredImages(config.data, source.required("train"), source.optional("test"))


@pytest.fixture
def uneven(tmp_path: Path) -> MeasuredImages:
    return images_of(load_config("quickstart", ["data=image_folder", f"data.path={folder_of(tmp_path, cat=9, dog=4)}"]))


def test_shots_that_a_class_has_no_images_for_are_left_out_and_the_class_is_named(uneven: MeasuredImages) -> None:
    fitting = uneven.fit({"low_shot": LowShot.Config(shots=(1, 5))})
    assert fitting.settings == {"low_shot": LowShot.Config(shots=(1,))}
    assert fitting.left_out == [
        "low_shot: shots=5 needs as many training images of each class, and 'dog' has 4; shots=[1] is measured"
    ]


def test_images_are_resized_as_each_benchmark_has_it_and_shared_where_benchmarks_agree(uneven: MeasuredImages) -> None:
    wanted = {
        "knn": KNN.Config(k=(1,)),
        "low_shot": LowShot.Config(shots=(1,)),
        "plain": KNN.Config(k=(1,), interpolation="bilinear"),
    }
    images = uneven.fit(wanted).images
    assert {key: own.data.eval_interpolation for key, own in images.items()} == {
        "knn": "bicubic",
        "low_shot": "bicubic",
        "plain": "bilinear",
    }
    assert images["knn"] is images["low_shot"]  # so that features are extracted once
    assert images["plain"].train is images["knn"].train
    assert replace(images["knn"].data, eval_interpolation="bilinear") == images["plain"].data == uneven.data


def test_labels_of_test_images_are_read_for_benchmarks_that_need_them_alone(
    uneven: MeasuredImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    assert uneven.test is not None
    labels_of = uneven.test.labels_of
    monkeypatch.setattr(uneven.test, "labels_of", lambda index: (read.append(len(index)), labels_of(index))[1])
    assert uneven.labelled.num_test == 4
    assert uneven.lacks(Needs(test=False)) == ""
    assert read == []
    assert uneven.lacks(Needs()) == ""
    assert read == [4]


def listed(folder: Path, labels: str, array: np.ndarray | None = None) -> MeasuredImages:
    """Four images with labels in a list, or in an array [4, K]."""
    for number in range(4):
        (folder / f"{number}.png").write_bytes(png(number))
    (folder / "list.txt").write_text("".join(f"{number}.png {label}\n" for number, label in enumerate(labels)))
    words = ["data=file_list", *(f"data.{part}={folder}/list.txt" for part in ("train", "test"))]
    if array is not None:
        np.save(folder / "labels.npy", array)
        words += ["data.label_column=null", *(f"data.{part}_labels={folder}/labels.npy" for part in ("train", "test"))]
    return images_of(load_config("quickstart", words))


def test_classes_may_be_numbered_from_1(tmp_path: Path) -> None:
    kinds = (LowShot.Config(shots=(1,)), SVM.Config(folds=2), LowShotSVM.Config(shots=(1,)))
    wanted = {config.name: config for config in kinds}
    assert listed(tmp_path, "1212").fit(wanted).settings == wanted


@pytest.mark.parametrize(
    "config",
    [
        SVM.Config(folds=2),
        LowShotSVM.Config(shots=(1,)),
        Retrieval.Config(k=(1,)),
        Logistic.Config(loss="sigmoid", holdout_images=1),
    ],
)
def test_a_class_that_is_nowhere_0_is_refused_by_each_benchmark_of_several_labels(
    tmp_path: Path, config: BenchmarkConfig
) -> None:
    labels = np.array([[1, 1], [0, 1], [1, -1], [0, -1]])
    with pytest.raises(ConfigError) as caught:
        listed(tmp_path, "0000", labels).fit({"it": replace(config, required=True)})
    assert str(caught.value).startswith(
        "benchmarks.it: class '1' is 1 or -1 on the training images, and never 0; -1 is unknown and does not count: "
        "write 0 where a class is absent (labels[labels == -1] = 0)"
    )
    rows = FeatureSet(torch.eye(4), torch.from_numpy(labels))
    with pytest.raises(ConfigError, match="class number 1 is 1 or -1 on the train images"):
        resolve("benchmark", config.name)(config).run(rows, rows, 2, seed=0)
    assert listed(tmp_path, "0000", labels.clip(0)).fit({"it": config}).settings


def test_neighbours_beyond_the_training_images_are_left_out(uneven: MeasuredImages) -> None:
    fitting = uneven.fit({"knn": KNN.Config(k=(20, 13, 1))})
    assert fitting.settings == {"knn": KNN.Config(k=(13, 1))}
    assert fitting.left_out == ["knn: k=20 is more than the 13 training images; k=[13, 1] is measured"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LowShot.Config(shots=(5, 1000)), "shots=5, 1000 needs as many training images of each class, and 'dog' has 4"),
        (KNN.Config(k=(200, 20)), "k=200, 20 is more than the 13 training images; set a smaller k"),
    ],
)
def test_a_benchmark_of_which_nothing_is_possible_is_refused_or_left_out_if_it_is_not_required(
    uneven: MeasuredImages, config: BenchmarkConfig, message: str
) -> None:
    with pytest.raises(
        ConfigError, match=f"^benchmarks.mine: {re.escape(message)}.*; benchmarks=.other. leaves it out"
    ):
        uneven.fit({"mine": replace(config, required=True), "other": KNN.Config(k=(1,))})
    fitting = uneven.fit({"mine": config, "other": KNN.Config(k=(1,))})
    assert list(fitting.settings) == ["other"]
    (line,) = fitting.left_out
    assert line.startswith(f"mine is left out: {message}")


@pytest.mark.parametrize("words", ["knn.k=0", "knn.k=[0]", "knn.k=[]", "low_shot.shots=[0]", "low_shot.draws=0"])
def test_settings_that_no_images_allow_are_refused_before_training(words: str) -> None:
    with pytest.raises(ConfigError, match=words.partition(".")[0]):
        prepare(load_config("quickstart", [f"benchmarks.{words}"]), check_benchmarks)


def test_what_data_limit_took_away_is_named() -> None:
    config = load_config("quickstart", ["data.limit=60", "benchmarks.low_shot.shots=[1,30]"])
    (line,) = images_of(config).fit(config.benchmarks).left_out
    assert re.fullmatch(
        r"low_shot: shots=30 needs .*'\d' has \d; shots=\[1\] is measured \(under data\.limit=60\)", line
    )
    with pytest.raises(ConfigError, match=r"shots=1000 needs .* has \d; set fewer shots \(under data\.limit=60\); "):
        prepare(
            load_config("quickstart", ["train.batch_size=60", "data.limit=60", "benchmarks.low_shot.shots=[1000]"]),
            check_benchmarks,
        )


@pytest.mark.parametrize("config", [KNN.Config(k=(3, 1, 3)), LowShot.Config(shots=(2, 1, 2), draws=3)])
@pytest.mark.parametrize("num_classes", [4, 7])
def test_benchmarks_name_the_numbers_that_they_give_each_once(config: BenchmarkConfig, num_classes: int) -> None:
    train, test = random_set(80, 0, num_classes), random_set(20, 1, num_classes)
    kind = resolve("benchmark", config.name)
    found = [metric.name for metric in metrics_of(kind(config).run(train, test, num_classes, seed=0))]
    assert kind.metrics(config, num_classes) == found
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("kind", [CopyDetection, Depth, Detection, Segmentation, VideoSegmentation, Finetune])
def test_one_that_trains_or_has_images_of_its_own_asks_for_no_features(kind: type[Benchmark]) -> None:
    assert kind.stages(kind.Config()) == ()


@pytest.mark.parametrize("kind", [KNN, Robustness])
def test_one_on_features_asks_for_those_of_the_forward_pass(kind: type[Benchmark]) -> None:
    assert kind.stages(kind.Config()) == ("",)


HINT = ": add data.test=PATH to this command, or a folder val/ to the images"


def test_a_command_is_told_once_what_its_images_lack_and_what_to_type(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(png(0))
    images = images_of(load_config("quickstart", [f"data={tmp_path}"]))
    every: dict[str, BenchmarkConfig] = {
        "knn": KNN.Config(),
        "low_shot": LowShot.Config(),
        "geometry": Geometry.Config(),
    }
    wanted = {name: replace(one, required=True) for name, one in every.items()}
    with pytest.raises(ConfigError) as caught:
        images.fit(wanted, in_run=False)
    reason = f"the dataset 'image_folder' has no test images{HINT}"
    assert str(caught.value) == f"benchmarks.knn, low_shot: {reason}; without them, geometry can be measured"
    # low_shot, which is not required, is left out; a list that names it would be refused for it, as for kNN
    with pytest.raises(ConfigError) as caught:
        images.fit(wanted | {"low_shot": LowShot.Config(required=False)})
    assert str(caught.value) == f"benchmarks.knn: {reason}; benchmarks=[geometry] leaves it out"


def test_labels_are_missed_in_words(tmp_path: Path) -> None:
    for folder in ("flat/train", "flat/val", "one/train/usr", "one/val/usr", "alone/a", "alone/b"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "0.png").write_bytes(png(0))
    dataset(tmp_path / "coco")
    (tmp_path / "list.csv").write_text("path,label\nalone/a/0.png,0\nalone/b/0.png,\nflat/val/0.png,1\n")
    for words, message in (
        ("image_folder data.path=flat", "the images of 'image_folder' have no labels"),
        ("image_folder data.path=one", "all images of 'image_folder' are of one class, 'usr'"),
        ("image_folder data.path=alone", "the dataset 'image_folder' has no test images" + HINT),
        ("coco data.path=coco", "the images of 'coco' have several labels each, and it needs one of each"),
        ("digits", ""),
    ):
        settings = [word.replace("path=", f"path={tmp_path}/") for word in f"data={words}".split()]
        assert images_of(load_config("quickstart", settings)).lacks(Needs()) == message


def test_a_part_of_the_labels_is_not_enough(uneven: MeasuredImages) -> None:
    split = uneven.train
    labels = split.labels_of(np.arange(split.num_samples))
    labels[[1, 5]] = -1
    split.labels_of = lambda index: labels[index]  # type: ignore[method-assign]
    assert uneven.lacks(Needs()) == "2 of the 13 training images of 'image_folder' have no label"
    with pytest.raises(ValueError, match="train labels range from -1"):
        KNN(KNN.Config()).run(FeatureSet(torch.eye(13), torch.from_numpy(labels)), random_set(5, 0), 2, 0)


# a run


def prepared(caplog: pytest.LogCaptureFixture, *words: str) -> tuple[bool, list[str]]:
    """Whether the online kNN has images, and what a run warns of."""
    caplog.clear()
    job = prepare(load_config("quickstart", ["train.batch_size=4", "train.epochs=5", *words]), check_benchmarks)
    return job.test is not None, [line for line in caplog.messages if " left out: " in line]


@pytest.mark.thorough
def test_unlabelled_images_are_trained_on_and_what_is_left_out_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for part in ("train", "val"):
        (tmp_path / part).mkdir()
        for number in range(6):
            (tmp_path / part / f"{number}.png").write_bytes(png(number))
    flat = ("data=image_folder", f"data.path={tmp_path}")
    reason = "the images of 'image_folder' have no labels"
    assert prepared(caplog, *flat) == (False, [f"low_shot, knn and the online kNN are left out: {reason}"])
    with pytest.raises(ConfigError, match=rf"^benchmarks\.knn: {reason}; benchmarks=\[\] leaves it out$"):
        prepared(caplog, *flat, "benchmarks=[knn]")
    for none in ("benchmarks=[]", "benchmarks={}"):
        assert prepared(caplog, *flat, none, "train.online_knn_every=null") == (False, [])


@pytest.mark.parametrize("words", ["benchmarks=[knn]", "benchmarks.knn.k=[5]"])
def test_a_benchmark_that_the_command_line_names_is_required(words: str) -> None:
    asked = load_config("quickstart", [words])
    assert asked.benchmarks["knn"].required
    assert not load_config("quickstart").benchmarks["knn"].required
    assert load_config("quickstart", ["benchmarks={}"]).benchmarks == {}


def test_no_benchmarks_in_a_file_means_none(tmp_path: Path) -> None:
    for text, names in (("{}", []), ("[]", []), ("{knn: {k: [3]}}", ["low_shot", "knn"]), ("[knn]", ["knn"])):
        (tmp_path / "mine.yaml").write_text(f"base: quickstart\nbenchmarks: {text}\n")
        config = load_config(str(tmp_path / "mine.yaml"))
        assert list(config.benchmarks) == names
        assert [name for name, node in config.benchmarks.items() if node.required] == [n for n in names if n == "knn"]


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("train.expect={knn/top1: [0, 1]}", "did you mean 'knn/k20/top1'"),
        ("train.expect={knn_top1: [0, 1]}", "did you mean 'knn_k20_top1'"),
        ("train.expect={contrastive_top_1: [0, 1]}", "did you mean 'contrastive_top1'"),
        ("train.expect={los: [0, 1]}", "did you mean 'loss'"),
        (
            "train.expect={low_shot/5_shot: [0, 1]} benchmarks=[knn]",
            "There will be: .*knn/k20/top5, knn_k20_top1, ",
        ),
        ("train.expect={knn_k20_top1: [0, 1]} train.online_knn_every=null", "There will be: "),
        ("train.expect={low_shot/5_shot: [0, 1]} benchmarks.low_shot.shots=[1]", "did you mean 'low_shot/1_shot'"),
    ],
)
def test_an_expectation_of_what_nothing_will_report_is_refused(words: str, near: str) -> None:
    *first, last = re.split(r" (?=benchmarks|train\.online)", words)
    with pytest.raises(ConfigError, match=rf"^train\.expect: nothing will report '[^']+'; .*{near}"):
        prepare(load_config("quickstart", [*first, last]), check_benchmarks)


def test_expectations_of_what_is_measured_are_let_through() -> None:
    names = (
        "loss",
        "contrastive_top1",
        "knn_k20_top1",
        "knn/k20/top1",
        "knn/k20/top5/untrained",
        "low_shot/5_shot/deviation",
    )
    prepare(
        load_config("quickstart", [f"train.expect={{{', '.join(f'{name}: [0, 100]' for name in names)}}}"]),
        check_benchmarks,
    )


def test_a_warm_up_longer_than_the_run_is_said(caplog: pytest.LogCaptureFixture) -> None:
    config = load_config("quickstart", ["train.epochs=2", "optim.warmup=10ep"])
    prepare(config, check_benchmarks)
    (line,) = [line for line in caplog.messages if "warmup" in line]
    assert "longer than the run of 44: the learning rate ends at 20% of its peak" in line
    plan = TrainPlan.from_config(load_config("quickstart", ["train.epochs=10", "optim.warmup=10ep"]), 1442)
    assert course_warning(plan) is None


def test_points_to_step_down_at_that_the_run_never_reaches_are_said() -> None:
    words = ["train.epochs=100", "optim.schedule=steps", "optim.decay_at=[60ep,120ep,100%]"]
    plan = TrainPlan.from_config(load_config("quickstart", words), 1442)
    assert course_warning(plan) == (
        "optim.decay_at=120ep,100% is not reached in the run of 2,200 steps; optim.decay_at=60% would be"
    )
    reached = TrainPlan.from_config(load_config("quickstart", [*words, "optim.decay_at=60ep"]), 1442)
    assert course_warning(reached) is None
