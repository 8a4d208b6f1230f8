"""A batch of one image, and images of which none can be read, are refused by the driver."""

from pathlib import Path

import pytest
from PIL import Image

from raysl.components import ALIASES
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.data.decode.images import check_readable
from raysl.data.source import make_source
from raysl.errors import ConfigError
from raysl.plan.setup import Setup
from raysl.pretraining import pretrain
from raysl.train import LocalReporter, fit
from raysl.train.prepare import prepare
from raysl.train.state import TrainState
from raysl.train.views import views
from tests.small_copy import small_words
from tests.tiers import each

BROKEN = ["name=one", "train.batch_size=4", "benchmarks=[knn]"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in ("train", "val"):
        for number in range(8):
            (kind := tmp_path / "images" / part / str(number % 2)).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), (9 * number, 0, 0)).save(kind / f"{number}.png")
    return tmp_path / "images"


def words(folder: Path, method: str) -> list[str]:
    small = small_words(f"digits/{method}")
    return [f"data={folder}", "data.image_size=16", "benchmarks={}", "train.online_knn_every=null", *small]


def refusal(config: RunConfig) -> str | None:
    try:
        prepare(config)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("method", each(sorted(ALIASES["method"]), now=("mae", "simclr")))
def test_a_batch_of_one_image_is_trained_on_or_refused_by_the_driver(method: str, folder: Path) -> None:
    config = load_config(f"digits/{method}", [*words(folder, method), "train.batch_size=1", "train.end=1st"])
    if (refused := refusal(config)) is not None:
        assert "train.batch_size" in refused
        return
    images = sorted((folder / "train").rglob("*.png"))
    batches = views(config, images, labels=[0, 1] * 4)  # type: ignore[arg-type]
    state = TrainState.create(Setup.of(config, 8, 2))
    fit(state, state.method, state.setup.plan, batches, reporter=LocalReporter(show_progress=False))
    assert state.step == 1


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["distill", "msn", "pmsn", "npid", "npid_plus", "pirl", "ressl"])
def test_methods_that_normalise_over_images_need_two(method: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=rf"train.batch_size=1 is 1 image, and {method} normalises over several: set"):
        prepare(load_config(f"digits/{method}", [*words(folder, method), "train.batch_size=1"]))


@pytest.mark.thorough
def test_one_image_for_one_of_several_workers_is_refused_where_each_has_its_own_statistics(folder: Path) -> None:
    uneven = [*words(folder, "npid"), "train.batch_size=3", "train.workers=2", "train.uneven=true"]
    prepare(load_config("digits/npid", uneven))
    with pytest.raises(ConfigError, match=r"is 1 image for one of 2 workers, .*=4 or more, or train.sync_bn=true"):
        prepare(load_config("digits/npid", [*uneven, "train.sync_bn=false"]))


@pytest.mark.parametrize(("part", "what"), [("train", "training"), ("val", "held-out")])
def test_images_of_which_none_can_be_read_are_refused_with_the_first_of_them(
    part: str, what: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("raysl.runs.run.connect")
    for path in (folder / part).rglob("*.png"):
        path.write_bytes(b"<html>")
    config = load_config("quickstart", [f"data={folder}", f"storage={tmp_path}/runs", *BROKEN])
    with pytest.raises(ConfigError, match=rf"none of the 8 {what} images can be read: .*0\.png: .*; replace these"):
        pretrain(config, show_progress=False)
    assert not (tmp_path / "runs" / "one").exists()


def test_one_image_that_can_be_read_is_enough(folder: Path) -> None:
    *others, _ = sorted((folder / "train").rglob("*.png"))
    for path in others:
        path.write_bytes(b"<html>")
    split = make_source(load_config("quickstart", [f"data={folder}"]).data).required("train")
    check_readable(split, "training")
