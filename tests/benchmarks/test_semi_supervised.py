"""Training on few labels: which images they are of, and what is counted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raysl.benchmarks import semi_supervised
from raysl.benchmarks.benchmark import Context, Labelled
from raysl.benchmarks.metric import bootstrap
from raysl.benchmarks.semi_supervised import SemiSupervised, num_drawn
from raysl.benchmarks.training_runs.run import ProbeViews
from raysl.benchmarks.training_runs.trained import Trained
from raysl.components import resolve
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from tests.benchmarks.trainings import DIGITS, checkpoint, context_of, shades, train_here

WHOLE = ProbeViews(min_scale=1.0, flip=0.0)


class Fake:
    """Stands for training: keeps the runs, and gives hits at random."""

    def __init__(self, num_test: int = 40, num_classes: int = 10) -> None:
        self.runs: list[RunConfig] = []
        self.given: list[Trained] = []
        self.shape = (num_test, num_classes)
        self.random = torch.Generator().manual_seed(0)

    def __call__(self, run: RunConfig, keep_checkpoints: bool) -> Trained:
        num_test, _ = self.shape
        hits = torch.rand(2, 1, num_test, generator=self.random) < 0.6
        scores = torch.randn(*self.shape, generator=self.random)
        self.runs.append(run)
        found = Trained(torch.zeros(num_test).long(), scores, hits[0], hits[1], torch.zeros(1, 2))
        self.given.append(found)
        return found

    def rows(self) -> list[list[str]]:
        """Names of the training images of each run."""
        found = []
        for run in self.runs:
            split = resolve("source", run.data.name)(run.data).required("train")
            found.append(split.names_of(np.arange(split.num_samples)))
        return found

    def labels(self) -> list[list[int]]:
        """How many training images of each class each run has."""
        found = []
        for run in self.runs:
            split = resolve("source", run.data.name)(run.data).required("train")
            found.append(np.bincount(split.labels_of(np.arange(split.num_samples)), minlength=10).tolist())
        return found


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake()
    monkeypatch.setattr(semi_supervised, "trained", fake)
    return fake


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    return checkpoint(tmp_path_factory.mktemp("digits"), *DIGITS[:2])


def measured(context: Context, **fields: Any) -> dict[str, Any]:
    found = SemiSupervised(SemiSupervised.Config(**fields)).measure(context)
    return {metric.name: metric for metric in found.metrics}


@pytest.mark.thorough
def test_images_are_of_all_classes_alike_nested_and_of_other_draws_other_ones(
    digits: str, tmp_path: Path, fake: Fake
) -> None:
    context = context_of(digits, tmp_path)
    num_train = context.images["train"].num_samples
    measured(context, fractions=(1.0, 10.0), draws=2)
    few, more = num_drawn(num_train, 1), num_drawn(num_train, 10)
    assert [sum(labels) for labels in fake.labels()] == [few, few, more, more]
    assert all(max(labels) - min(labels) <= 1 for labels in fake.labels())
    one, another, large, other_large = (set(rows) for rows in fake.rows())
    assert not one & another
    assert not large & other_large
    assert one < large
    assert [run.seed for run in fake.runs] == [0, 1, 0, 1]
    assert len({run.name for run in fake.runs}) == 4
    first = fake.rows()
    fake.runs.clear()
    measured(context, fractions=(1.0, 10.0), draws=2)
    assert fake.rows() == first


@pytest.mark.thorough
def test_classes_may_be_drawn_as_they_come(digits: str, tmp_path: Path, fake: Fake) -> None:
    measured(context_of(digits, tmp_path), fractions=(10.0,), balanced=False)
    (labels,) = fake.labels()
    assert sum(labels) == num_drawn(context_of(digits, tmp_path).images["train"].num_samples, 10)
    assert max(labels) - min(labels) > 1


def test_one_percent_of_imagenet_is_what_the_papers_have() -> None:
    assert num_drawn(1_281_167, 1) == 12_811
    assert num_drawn(1_281_167, 10) == 128_116


@pytest.mark.thorough
def test_numbers_are_means_over_the_draws(digits: str, tmp_path: Path, fake: Fake) -> None:
    config = SemiSupervised.Config(fractions=(1.0, 2.5), draws=3)
    found = measured(context_of(digits, tmp_path), fractions=(1.0, 2.5), draws=3)
    assert list(found) == SemiSupervised.metrics(config, 10) == ["top1_1pct", "top5_1pct", "top1_2_5pct", "top5_2_5pct"]
    hits = np.stack([given.top5[0].double().numpy() for given in fake.given[3:]])
    metric = found["top5_2_5pct"]
    assert metric.value == pytest.approx(100 * hits.mean())
    assert metric.deviation == pytest.approx(100 * hits.mean(axis=1).std())
    assert metric.interval == bootstrap(torch.from_numpy(100 * hits.mean(axis=0)))
    assert (metric.title, metric.is_headline) == ("Semi-supervised, 2.5 % of the labels, top-5", False)
    assert found["top1_1pct"].is_headline
    assert all(one.deviation is None for one in measured(context_of(digits, tmp_path), fractions=(1.0,)).values())
    assert SemiSupervised.metrics(config, 4) == ["top1_1pct", "top1_2_5pct"]


@pytest.mark.thorough
def test_lists_name_the_images(digits: str, tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "few.txt").write_text("".join(f"{row}\n" for row in range(0, 300, 10)))
    monkeypatch.chdir(tmp_path)
    found = measured(context_of(digits, tmp_path), lists={"mine": "few.txt"})
    assert list(found) == ["top1_mine", "top5_mine"]
    assert found["top1_mine"].title == "Semi-supervised, mine, top-1"
    (run,) = fake.runs
    assert run.data.subset == str(tmp_path / "few.txt")
    assert [len(rows) for rows in fake.rows()] == [30]
    assert run.train.batch_size == 30
    with pytest.raises(ConfigError, match=r"gone\.txt"):
        measured(context_of(digits, tmp_path), lists={"mine": str(tmp_path / "gone.txt")})


def test_the_settings_are_those_of_vissl(digits: str, tmp_path: Path, fake: Fake) -> None:
    measured(context_of(digits, tmp_path))
    run: Any = fake.runs[1]
    optim = run.optim
    assert (run.train.epochs, optim.lr, optim.lr_scaling, optim.lr_batch_size) == (70, 0.05, "linear", 256)
    assert (optim.schedule, [str(point) for point in optim.decay_at], optim.decay_factor) == ("steps", ["30ep"], 0.1)
    assert (optim.weight_decay, optim.momentum, optim.nesterov) == (0, 0.9, True)
    assert run.backbone.freeze == ()
    assert run.method.weights is not None
    config = load_config("quickstart", ["benchmarks=[]", "benchmarks.semi_supervised.fractions=[5]"])
    assert config.benchmarks["semi_supervised"].rivals == ("untrained",)


@pytest.mark.thorough
def test_few_shades_suffice_and_all_test_images_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    monkeypatch.setattr("raysl.runs.run.train", train_here(started))
    context = context_of(checkpoint(tmp_path, *shades(tmp_path)), tmp_path)
    config = SemiSupervised.Config(fractions=(50.0, 100.0), epochs=60, decay_at=(), lr=4.0, views=WHOLE)
    found = SemiSupervised(config).measure(context)
    assert {metric.name: metric.value for metric in found.metrics} == {"top1_50pct": 100, "top1_100pct": 100}
    assert found.scores is not None
    assert found.scores.shape == (24, 4)
    assert found.labels is not None
    assert torch.equal(found.scores.argmax(dim=1), found.labels)
    assert started == [0, 0]


def labelled(*counts: int) -> Labelled:
    return Labelled(sum(counts), 50, tuple("abcdefgh"[: len(counts)]), np.array(counts))


def test_shares_that_are_too_small_are_left_out() -> None:
    config, lines = SemiSupervised.fit_to(SemiSupervised.Config(), labelled(60, 40, 80))
    assert config.fractions == (10,)
    assert lines == [
        "1 % of the 180 training images is 1, one of each of 3 classes needs 3; set larger fractions; "
        "fractions=[10] is measured"
    ]
    assert SemiSupervised.fit_to(config, labelled(60, 40, 80)) == (config, [])
    with pytest.raises(ConfigError, match="10 % of the 20 training images is 2, one of each of 3 classes needs 3"):
        SemiSupervised.fit_to(config, labelled(10, 5, 5))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"fractions": (60.0,), "draws": 2},
            "60 % of the 110 training images is 66, and draws=2 of them are more",
        ),
        ({"fractions": (50.0,)}, "of which draws=1 take 28 of each class, and 'b' has 10; set balanced=false"),
        ({"fractions": (10.0,), "draws": 2}, "is 11, of which draws=2 take 11 of each class, and 'b' has 10"),
    ],
)
def test_draws_that_the_images_do_not_allow_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SemiSupervised.fit_to(SemiSupervised.Config(**fields), labelled(100, 10))


def test_what_fits_is_what_can_be_drawn(digits: str, tmp_path: Path, fake: Fake) -> None:
    context = context_of(digits, tmp_path)
    split = context.images["train"]
    counts = np.bincount(split.labels_of(np.arange(split.num_samples)))
    images = Labelled(split.num_samples, 10, split.classes, counts)
    most = int(counts.min()) * 10
    largest = SemiSupervised.Config(fractions=(100 * (most + 0.5) / split.num_samples,))
    assert SemiSupervised.fit_to(largest, images) == (largest, [])
    SemiSupervised(largest).measure(context)
    assert sum(fake.labels()[0]) == most
    with pytest.raises(ConfigError, match="set balanced=false"):
        SemiSupervised.fit_to(SemiSupervised.Config(fractions=(100 * (most + 1.5) / split.num_samples,)), images)
