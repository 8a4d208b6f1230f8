"""Every packaged configuration loads, builds, and makes the views that its method takes."""

from pathlib import Path
from typing import Any

import pytest

import raysl
from raysl.config.config_files import config_names, packaged_folder
from raysl.config.load import load_config
from raysl.data.source import make_source
from raysl.optim.course import lr_at, peak_lr
from raysl.schedule import Step
from raysl.sweeps.load import load_starts, load_sweep
from tests.methods.properties import METHODS
from tests.small_copy import SmallCopy
from tests.tiers import each

SWEEPS = [name for name in config_names() if name.startswith("sweep/")]
FRAGMENTS = [name for name in config_names() if name.startswith("data/")]
RUNS = [name for name in config_names() if name not in SWEEPS + FRAGMENTS]

PUBLISHED = Path(__file__).with_name("published")
STEPPED = {f"imagenet/{path.stem}" for path in PUBLISHED.glob("*.yaml")}
STEPPED |= {path.relative_to(PUBLISHED).with_suffix("").as_posix() for path in PUBLISHED.glob("*/*.yaml")}
STEPPED |= {f"digits/{name}" for name in METHODS}
"""Recipes whose small copies are stepped where their facts are measured, and where all methods train on digits."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", each((name for name in RUNS if name not in STEPPED), now=("quickstart", "small/dino")))
def test_a_step_of_every_config_has_a_finite_loss_and_gradient(name: str) -> None:
    SmallCopy.of(name).forward_and_backward()


@pytest.mark.parametrize("name", RUNS + FRAGMENTS + SWEEPS)
def test_every_config_says_what_it_is_and_how_to_run_it(name: str) -> None:
    head = (Path(packaged_folder()) / f"{name}.yaml").read_text().split("\n\n")[0]
    assert head.startswith("# ")
    assert "# Command: raysl " in head


@pytest.mark.parametrize("name", FRAGMENTS)
def test_data_configs_lie_over_a_run(name: str) -> None:
    config = load_config("simclr", [f"base={name}", "data.path=/images"])
    size = (32, "parquet") if name == "data/cifar10" else (224, "image_folder")
    assert (config.data.image_size, config.data.name) == size


@pytest.mark.parametrize(
    ("name", "lr", "epochs", "decay"),
    [
        ("imagenet100/simclr", 0.3, 400, 1e-4),
        ("imagenet100/barlow_twins", 0.3, 400, 1e-4),
        ("imagenet100/byol", 0.5, 400, 1e-6),
        ("imagenet100/vicreg", 0.3, 400, 1e-4),
        ("imagenette/simclr", 0.3, 200, 1e-4),
        ("imagenette/barlow_twins", 5e-4, 200, 0.05),
    ],
)
def test_small_sets_of_imagenet_have_the_numbers_of_their_source(
    name: str, lr: float, epochs: int, decay: float
) -> None:
    config = load_config(name, ["data.path=/images"])
    assert (config.train.epochs, config.train.batch_size, config.data.image_size) == (epochs, 256, 224)
    assert (peak_lr(config.optim, 256), config.optim.weight_decay) == (lr, decay)
    epoch = (126_689 if name.startswith("imagenet100") else 9_469) // 256
    first, last = (lr_at(config.optim, Step(index, epochs * epoch, epoch), 256) for index in (0, epochs * epoch - 1))
    start = 3e-5 if name.startswith("imagenet100") else lr / 100
    assert first == pytest.approx(start, rel=0.01)
    assert last < lr * 1e-6


def test_imagenet100_has_100_classes_of_the_folder_of_imagenet(tmp_path: Path) -> None:
    data: Any = load_config("imagenet100/simclr", [f"data.path={tmp_path}"]).data
    assert len(set(data.classes)) == 100
    for part in ("train", "val"):
        for name in (*data.classes, "n00000000"):
            (tmp_path / part / name).mkdir(parents=True)
            (tmp_path / part / name / "1.png").write_bytes(b"")
    split = make_source(data).split("train")
    assert split is not None
    assert (split.num_samples, split.classes) == (100, tuple(sorted(data.classes)))


@pytest.mark.thorough
@pytest.mark.parametrize("name", SWEEPS)
def test_sweeps_load_and_depart_from_a_config(name: str) -> None:
    space, rest = load_sweep(name, ["trials=2", "train.epochs=3"])
    assert space.trials == 2
    assert rest == ["train.epochs=3"]
    assert load_config(space.config).name == space.config
    starts = load_starts(space, rest)
    assert list(starts) == space.configs
    assert {start.train.epochs for start in starts.values()} <= {3}


@pytest.mark.thorough
def test_the_zoo_of_cifar10_is_ranked_by_the_vote_of_lightlys_table() -> None:
    space, rest = load_sweep("sweep/cifar10_zoo", ["data.path=/images"])
    start = load_starts(space, rest)["cifar10/simclr"]
    vote: Any = start.benchmarks["knn"]
    assert (space.metric, vote.temperature, 200 in vote.k) == ("knn/k200/top1", 0.1, True)


def test_configurations_behind_a_link_are_raysls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(packaged_folder().parent)
    monkeypatch.setattr(raysl, "__path__", [str(tmp_path / "link/raysl")])
    config = load_config("cifar10/simclr", ["data.path=/images"])
    assert (config.name, config.benchmarks["knn"].required) == ("cifar10_simclr", False)
    named = load_config("cifar10/simclr", ["data.path=/images", "benchmarks.knn.k=[5]"])
    assert [one.required for one in named.benchmarks.values()] == [True, False]
