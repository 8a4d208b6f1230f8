import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from raysl.benchmarks.suite.fitting import benchmark_class
from raysl.benchmarks.suite.scores import Member, scores_of
from raysl.benchmarks.suite.settings import load_benchmarks
from raysl.benchmarks.suite.suites import download, load_suites, suite_names, with_hint
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.report.contents import Score


@dataclass(frozen=True)
class Stored:
    name: str
    scores: list[Score]
    member: Member | None = None


def member(part: str = "DTD", metric: str = "top1", size: int = 3) -> Member:
    return Member("mine", "Mine", part, metric, size)


def part(name: str, value: float, metric: str = "top1", of: Member | None = None, **more: object) -> Stored:
    scores = [
        Score(benchmark=name, metric=other, trained=1.0, title="Other", is_headline=False)
        for other in ("top1", "top5")
        if other != metric
    ]
    own = Score(benchmark=name, metric=metric, trained=value, title="Regression", **more)  # type: ignore[arg-type]
    return Stored(name, [*scores, own], of or member(name, metric))


def config() -> RunConfig:
    return load_config("digits/simclr")


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_suite_is_its_average_and_the_number_that_counts_of_each_part() -> None:
    knn = Stored("knn", [Score(benchmark="knn", metric="top1", trained=90.0)])
    scores = scores_of([knn, part("mine_a", 40.0), part("mine_b", 60.0, "mean_per_class")])
    rows = [(score.benchmark, score.metric, score.trained) for score in scores]
    assert rows == [
        ("knn", "top1", 90.0),
        ("mine", "mean", 50.0),
        ("mine_a", "top1", 40.0),
        ("mine_b", "mean_per_class", 60.0),
    ]
    assert scores[1].title == "Mine: mean of 2 of 3"
    assert scores[1].note == "over 2 of 3 datasets: a, b"
    assert [score.title for score in scores[2:]] == ["mine_a, top-1", "mine_b, mean per class"]


def test_the_number_that_counts_of_knn_is_that_of_its_smallest_k() -> None:
    votes = [
        Score(benchmark="mine_a", metric=f"k{k}/{name}", trained=value)
        for k, value in ((5, 60.0), (20, 50.0))
        for name in ("top1", "top5", "top1_5_labels")
    ]
    scores = scores_of([Stored("mine_a", votes, member("A")), part("mine_b", 40.0)])
    rows = [(score.benchmark, score.metric, score.trained) for score in scores]
    assert rows == [
        ("mine", "mean", 50.0),
        ("mine_a", "k5/top1", 60.0),
        ("mine_a", "k20/top1", 50.0),
        ("mine_b", "top1", 40.0),
    ]
    assert [score.title for score in scores[1:3]] == ["A, top-1, k5", "A, top-1, k20"]


def test_a_whole_suite_says_over_how_many_datasets_its_average_is() -> None:
    parts = [part(f"mine_{name}", value) for name, value in (("a", 10.0), ("b", 20.0), ("c", 60.0))]
    average = scores_of(parts)[0]
    assert (average.trained, average.title, average.note) == (30.0, "Mine: mean of 3", "")


def test_the_rivals_are_averaged_where_each_part_has_them() -> None:
    parts = [part("mine_a", 40.0, untrained=10.0, pixels=5.0), part("mine_b", 60.0, untrained=20.0)]
    average = scores_of(parts)[0]
    assert (average.untrained, average.pixels) == (15.0, None)


def test_the_interval_of_the_average_holds_the_true_mean_in_95_of_100_cases() -> None:
    random, shares, num = np.random.default_rng(0), np.array([0.3, 0.6, 0.85]), 400
    hits = 0
    for _ in range(400):
        found = random.binomial(num, shares) / num
        reach = 1.96 * np.sqrt(found * (1 - found) / num)
        parts = [
            part(f"mine_{place}", 100 * value, interval=(100 * (value - far), 100 * (value + far)))
            for place, (value, far) in enumerate(zip(found, reach, strict=True))
        ]
        low, high = scores_of(parts)[0].interval or (np.nan, np.nan)
        hits += low <= 100 * shares.mean() <= high
    assert hits / 400 == pytest.approx(0.95, abs=0.03)


def test_numbers_that_are_not_percent_or_are_better_if_smaller_are_not_averaged() -> None:
    parts = [part("mine_a", 40.0), part("mine_b", 0.5, unit="m"), part("mine_c", 30.0, is_lower_better=True)]
    average = scores_of(parts)[0]
    assert (average.trained, average.note) == (40.0, "over 1 of 3 datasets: a")


def test_of_a_dataset_with_two_results_the_first_is_averaged_and_both_are_shown() -> None:
    special = part("mine_a@1f3a2c", 70.0, of=member("A"))
    scores = scores_of([special, part("mine_a", 40.0, of=member("A")), part("mine_b", 50.0)])
    assert [score.trained for score in scores] == [60.0, 70.0, 40.0, 50.0]
    assert "with settings of one's own on 1 of them" in scores[0].note


def test_parts_get_the_settings_of_the_suite_and_their_own(tmp_path: Path) -> None:
    path = write(
        tmp_path / "mine.yaml",
        """
        title: Mine
        settings: {name: knn, k: [5]}
        parts:
          a: {metric: top1, data: {name: image_folder, path: "{root}/a"}, files: "a/ in {root}"}
          b: {metric: top1, title: Bees, k: [7], data: voc2007}
        left_out: {c: "no loader has it"}
        """,
    )
    (suite,) = load_suites(str(path), str(tmp_path), config().data)
    assert suite.settings["mine_a"] == {
        "name": "knn",
        "k": [5],
        "data": {"name": "image_folder", "path": f"{tmp_path}/a"},
    }
    assert suite.settings["mine_b"]["k"] == [7]
    assert suite.members["mine_b"] == Member("mine", "Mine", "Bees", "top1", 3)
    assert suite.files == {"mine_a": f"a/ in {tmp_path}"}
    assert suite.notes == ["mine_c is left out: no loader has it"]


def test_words_of_a_command_set_all_parts_or_one(tmp_path: Path) -> None:
    text = "settings: {name: knn}\nparts: {a: {metric: top1, data: voc2007}, b: {metric: top1, data: voc2007}}"
    path = write(tmp_path / "mine.yaml", text)
    suites = load_suites([str(path)], None, config().data)
    settings = load_benchmarks(config(), None, ["mine.k=[5]", "mine_b.temperature=0.5"], suites)
    assert {key: (one.k, one.temperature) for key, one in settings.items()} == {  # type: ignore[attr-defined]
        "mine_a": ((5,), 0.07),
        "mine_b": ((5,), 0.5),
    }
    assert not any(one.required for one in settings.values())
    assert set(load_benchmarks(config(), ["knn"], (), suites)) == {"knn", "mine_a", "mine_b"}


def test_a_suite_takes_the_datasets_of_another_without_their_settings(tmp_path: Path) -> None:
    text = "base: transfer\nsettings: {name: knn, k: [5]}\nparts: {dtd: {k: [9]}}\nleft_out: {voc2007: several labels}"
    (suite,) = load_suites(str(write(tmp_path / "mine.yaml", text)), "/d", config().data)
    (transfer,) = load_suites("transfer", "/d", config().data)
    assert len(suite.settings) == 11
    assert suite.settings["mine_food101"] == {
        "name": "knn",
        "k": [5],
        "data": transfer.settings["transfer_food101"]["data"],
    }
    assert suite.settings["mine_dtd"]["k"] == [9]
    assert {one.size for one in suite.members.values()} == {12}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1]", "is not a suite"),
        ("part: {}", "a suite has no 'part'"),
        ("parts: {a: 3}", "parts.a: 3 is not a part"),
        ("parts: {a: {metric: top1}}", "the name of a benchmark is missing"),
        ("parts: {a: {name: knn}}", "write `metric:`"),
        ("settings: 3", "settings: 3 is not a mapping"),
        ("base: mine.yaml", "based on itself"),
        ("base: transfr", "did you mean 'transfer'"),
    ],
)
def test_a_file_that_is_no_suite_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path / "mine.yaml", text)
    with pytest.raises(ConfigError) as caught:
        load_suites(str(path), None, config().data)
    assert words in str(caught.value)


def test_unknown_suites_and_remote_roots_are_refused() -> None:
    for given, root, words in (
        ("vtabb", None, "did you mean 'vtab'"),
        ("no.yaml", None, "no file 'no.yaml'"),
        ("vtab", "s3://bucket", "give --root FOLDER"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_suites(given, root, config().data)
        assert words in str(caught.value)


def test_the_folder_of_datasets_is_given_or_that_of_the_images_or_of_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSL_DATA", "/c")
    data = load_config("digits/simclr", ["data=torchvision", "data.dataset=DTD", f"data.root={tmp_path}"]).data
    roots = [
        load_suites("transfer", root, images)[0].settings["transfer_dtd"]["data"]["root"]
        for root, images in (("/a", data), (None, data), (None, config().data))
    ]
    assert roots == ["/a", str(tmp_path), "/c"]


@pytest.mark.parametrize("name", suite_names())
def test_packaged_suites_have_settings_that_benchmarks_take(name: str) -> None:
    (suite,) = load_suites(name, "/d", config().data)
    settings = load_benchmarks(config(), None, (), [suite])
    for key, one in settings.items():
        kind = benchmark_class(one)
        kind(one)
        names = kind.metrics(one, 10)
        assert suite.members[key].metric in names, (key, names)
        assert suite.files[key]


def test_transfer_has_the_strengths_metrics_and_splits_of_simclr() -> None:
    (suite,) = load_suites("transfer", "/d", config().data)
    assert len(suite.settings) == 12
    assert suite.members["transfer_dtd"].size == 12
    costs = suite.settings["transfer_dtd"]["costs"]
    np.testing.assert_allclose(1 / np.array(costs)[::-1], np.logspace(-6, 5, 45), rtol=1e-3)
    by_class = [key for key, one in suite.members.items() if one.metric == "mean_per_class"]
    assert by_class == [f"transfer_{name}" for name in ("aircraft", "pets", "caltech101", "flowers")]
    assert suite.members["transfer_voc2007"].metric == "map"
    assert suite.settings["transfer_voc2007"]["ap"] == "11point"
    assert suite.settings["transfer_caltech101"]["data"]["per_class"] == 30


def test_vtab_names_all_nineteen() -> None:
    (suite,) = load_suites("vtab", "/d", config().data)
    assert len(suite.settings) + len(suite.left_out) == 19
    assert {one.size for one in suite.members.values()} == {19}
    draws: Sequence[dict[str, object]] = [one["data"] for one in suite.settings.values()]  # type: ignore[misc]
    assert {draw["num"] for draw in draws} == {1000}
    assert {one["holdout_images"] for one in suite.settings.values()} == {200}


def test_what_is_missing_is_told_with_the_files_that_are_needed() -> None:
    told = with_hint("no folder '/d/dtd'; give data.path=", "dtd/ in /d")
    assert told == "no folder '/d/dtd'; it needs dtd/ in /d"
    assert with_hint("no labels; give some", "") == "no labels; give some"


def test_members_survive_json() -> None:
    kept = json.loads(json.dumps(member().__dict__))
    assert Member(**kept) == member()
    assert replace(member(), size=4) != member()


def test_only_torchvision_is_asked_to_download_and_its_failure_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[tuple[str, bool]] = []

    def opened(dataset: str, root: str, part: object, download: bool) -> None:
        asked.append((dataset, download))
        raise ConfigError(f"cannot download {dataset}")

    monkeypatch.setattr("raysl.data.sources.torchvision_dataset._open", opened)
    suites = load_suites("transfer", str(tmp_path), config().data)
    download(suites, config().data)
    assert [name for name, is_asked in asked if is_asked] == [
        "Food101", "CIFAR10", "CIFAR100", "SUN397", "StanfordCars", "FGVCAircraft", "DTD", "OxfordIIITPet",
        "Caltech101", "Flowers102",
    ]  # fmt: skip
    assert "transfer_dtd: cannot download DTD" in caplog.text
