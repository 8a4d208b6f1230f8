"""A user's own images in a notebook: views of them, and what `fit` says of batches that it cannot train on."""

import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import raysl
from raysl.data.batch import Batch
from raysl.errors import ConfigError, RunFailed
from raysl.plan.setup import Setup
from raysl.train import LocalReporter, TrainPlan, fit
from raysl.train.state import TrainState
from raysl.transforms import normalize
from tests.data.samples import png
from tests.train.problem import IMAGES, SMALL, batches, problem

NUM = 30
CONFIG = ("train.batch_size=8", "data.image_size=12", "method.views.flip=0.5", "method.views.blur_p=0.5")


CLOSED = Image.open(io.BytesIO(b"P5 1 1 255 x"))
CLOSED.close()


@pytest.fixture(autouse=True)
def fresh_log() -> Iterator[None]:
    """Have no other test's logging set up."""
    log = logging.getLogger("raysl")
    level = log.level
    log.setLevel(logging.NOTSET)
    yield
    log.setLevel(level)


def settings(*overrides: str) -> Any:
    return raysl.load_config("quickstart", [*SMALL, *CONFIG, *overrides])


def images(num: int = NUM) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 256, (3, 14 + n % 3, 20), dtype=torch.uint8, generator=generator) for n in range(num)]


def by_index(made: list[Batch]) -> dict[int, torch.Tensor]:
    return {int(index): view for batch in made for index, view in zip(batch.index, batch.views["global"], strict=True)}


def test_views_are_those_of_the_methods_recipe_by_seed_epoch_and_index() -> None:
    config, pictures = settings("seed=3"), images()
    made = raysl.views(config, pictures, epoch=2)
    assert [len(batch) for batch in made] == [8, 8, 8]
    for batch in made:
        own = [pictures[place] for place in batch.index.tolist()]
        expected = config.method.views.recipe()(own, batch.index.numpy(), seed=3, epoch=2)["global"]
        assert torch.equal(batch.views["global"], normalize(expected, config.data.mean, config.data.std))
        assert batch.label.tolist() == [-1] * 8


@pytest.mark.thorough
def test_views_are_drawn_anew_in_each_epoch_and_the_same_again() -> None:
    config, pictures = settings("data.drop_last=false"), images()
    first, second = (by_index(raysl.views(config, pictures, epoch)) for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(NUM))
    assert not any(torch.equal(first[place], second[place]) for place in first)
    again = by_index(raysl.views(config, pictures, 1))
    assert all(torch.equal(second[place], again[place]) for place in second)


@pytest.mark.thorough
def test_the_stream_of_all_epochs_has_the_batches_of_each() -> None:
    config, pictures = settings(), images()
    stream = raysl.views(config, pictures).from_step(0)
    for epoch in range(3):
        for batch in raysl.views(config, pictures, epoch):
            streamed = next(stream)
            assert torch.equal(streamed.index, batch.index)
            assert torch.equal(streamed.views["global"], batch.views["global"])


@pytest.mark.thorough
def test_tensors_arrays_and_images_of_pillows_with_the_same_pixels_have_the_same_views() -> None:
    config, pictures = settings(), images()
    arrays = [picture.permute(1, 2, 0).numpy() for picture in pictures]
    pillows = [Image.fromarray(array) for array in arrays]
    first, *others = (by_index(raysl.views(config, kind, 0)) for kind in (pictures, arrays, pillows))
    assert all(torch.equal(first[place], other[place]) for other in others for place in first)


def test_grey_and_odd_images_are_read_as_files_are() -> None:
    grey = images()[0][:1]
    modes = [Image.fromarray(np.zeros((9, 8, 3), np.uint8)).convert(mode) for mode in ("1", "P", "CMYK", "RGBA", "F")]
    kinds = [grey, grey[0], grey[0].numpy(), *modes]
    made = raysl.views(settings(), kinds, 0, labels=list(range(8)))
    assert len(by_index(made)) == 8
    assert torch.equal(made[0].label, made[0].index)


@pytest.mark.parametrize("mode", ["I", "F", "I;16"])
def test_deep_images_of_pillows_keep_their_contrast(mode: str) -> None:
    ramp = np.arange(0, 60000, 60, dtype=np.int32).reshape(25, 40)
    kinds = {"I": ramp, "F": ramp.astype(np.float32) / 60000, "I;16": ramp.astype(np.uint16)}
    deep = Image.fromarray(kinds[mode])
    assert deep.mode == mode
    (batch,) = raysl.views(settings(), [deep] * 8, 0)
    assert batch.views["global"].std() > 0.1


@pytest.mark.thorough
def test_fit_trains_on_views_of_images_as_on_the_lists_of_their_epochs() -> None:
    config, pictures = settings("train.epochs=1"), images()
    plan = TrainPlan.from_config(config, NUM)
    ways = []
    for given in (raysl.views(config, pictures), raysl.views(config, pictures, 0)):
        state = TrainState.create(Setup.of(config, *IMAGES))
        fit(state, state.method, plan, given, reporter=LocalReporter())
        ways.append(state.method.state_dict())
    assert all(torch.equal(ways[0][name], ways[1][name]) for name in ways[0])


def test_paths_are_those_of_the_folder_that_they_were_given_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(8):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    monkeypatch.chdir(tmp_path)
    config = settings()
    made = raysl.views(config, [f"{number}.png" for number in range(8)])
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert config.storage == str(tmp_path / "runs")
    assert [len(batch) for batch in made] == [8]
    for number in range(8):
        (tmp_path / f"{number}.png").unlink()
    with pytest.raises(RunFailed, match=f"{tmp_path}/[0-7].png: file not found"):
        list(made)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([torch.zeros(3, 8, 8)] * 8, r"images\[0\] is torch.float32 \[3, 8, 8\]; give pixels from 0 to 255 as .*"),
        ([np.zeros((3, 8, 8), np.uint8)] * 8, r"images\[0\] is uint8 \[3, 8, 8\]; .* uint8 \[H, W, 3\], .*"),
        ([*images(8), "a.png"], r"images\[8\]: nothing is at .*; give paths of files, .*"),
        ([*images(8), CLOSED], r"images\[8\] cannot be read by Pillow: .*; leave it out"),
        ([], "images: the list is empty; .*"),
        (3, "images: a int is not a list of images; give one"),
        (images(3), "3 training images do not fill a batch of 8; .*"),
    ],
)  # fmt: skip
def test_what_is_no_image_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        raysl.views(settings(), given)
    assert re.fullmatch(message, str(caught.value))


@pytest.mark.thorough
def test_other_arguments_are_refused_too() -> None:
    with pytest.raises(ConfigError, match="config: 'quickstart' is not a RunConfig"):
        raysl.views("quickstart", images())  # type: ignore[call-overload]
    for epoch in (-1, 0.5):
        with pytest.raises(ConfigError, match="is not a pass over the images"):
            raysl.views(settings(), images(), epoch)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=r"labels: .* for 30 images; give a whole number for each"):
        raysl.views(settings(), images(), labels=[1, 2])
    with pytest.raises(ConfigError, match=r"labels: .*; give a whole number for each image"):
        raysl.views(settings(), images(), labels=["cat"] * NUM)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="device: torch does not know 'gpu'"):
        raysl.views(settings(), images(), device="gpu")


def generator(made: list[Batch]) -> Iterator[Batch]:
    yield from made


def uint8(batch: Batch) -> Batch:
    return Batch({"global": batch.views["global"].to(torch.uint8)}, batch.index, batch.label)


def group(batch: Batch) -> Batch:
    return Batch({"image": batch.views["global"]}, batch.index, batch.label)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (generator, "batches: a generator cannot be read from any step on; give a list of Batch; raysl.views.*"),
        (lambda made: [], "batches: the list is empty; raysl.views.*"),
        (lambda made: [*made, made[0].views], r"batches\[4\] is a dict, not a Batch; raysl.views.*"),
        (lambda made: [*made[:2], made[0].map(lambda rows: rows[:5])], r"batches\[2\] has 5 images, .* of 12; .*"),
        (lambda made: list(map(group, made)), r"batches\[0\] has the views 'image'; the method .* needs 2 .*"),
        (lambda made: list(map(uint8, made)), r"batches\[0\].views\['global'\] is torch.uint8; give normalised .*"),
        (
            lambda made: [Batch({"global": made[0].views["global"][:, :1]}, made[0].index, made[0].label)],
            r"batches\[0\].views\['global'\] has the shape \[12, 1, 3, 8, 8\]; the method needs \[12, 2, .*",
        ),
    ],
)  # fmt: skip
def test_fit_refuses_batches_that_it_cannot_train_on(change: Any, message: str) -> None:
    state, plan = problem()
    before = {name: value.clone() for name, value in state.method.state_dict().items()}
    with pytest.raises(ConfigError) as caught:
        fit(state, state.method, plan, change(batches(plan)), reporter=LocalReporter())
    assert re.fullmatch(message, str(caught.value))
    assert all(torch.equal(before[name], value) for name, value in state.method.state_dict().items())


def test_fit_refuses_a_stream_of_other_images_than_the_plans() -> None:
    config = settings()
    state = TrainState.create(Setup.of(config, *IMAGES))
    plan = TrainPlan.from_config(config, 80)
    with pytest.raises(ConfigError, match=r"3 batches of 8 .* the plan has 10 of 8; .*num_samples=30"):
        fit(state, state.method, plan, raysl.views(config, images()), reporter=LocalReporter())


@pytest.mark.thorough
def test_a_list_of_another_length_than_an_epoch_is_told(caplog: pytest.LogCaptureFixture) -> None:
    state, plan = problem()
    with caplog.at_level(logging.WARNING, "raysl"):
        fit(state, state.method, plan, batches(plan), reporter=LocalReporter())
        assert caplog.messages == []
        state, plan = problem()
        fit(state, state.method, plan, batches(plan, num=3), reporter=LocalReporter())
    (told,) = caplog.messages
    assert told.startswith("the list has 3 batches and an epoch of the plan 4: ")
    assert told.endswith("make the plan with num_samples=36")


@pytest.mark.thorough
def test_a_second_fit_of_a_finished_state_says_that_nothing_is_left(caplog: pytest.LogCaptureFixture) -> None:
    state, plan = problem()
    fit(state, state.method, plan, batches(plan), reporter=LocalReporter())
    with caplog.at_level(logging.WARNING, "raysl"):
        assert fit(state, state.method, plan, batches(plan), reporter=LocalReporter()) == {}
    (told,) = caplog.messages
    assert told.startswith(
        "nothing is left to train: the state is at step 8 of 8; make a new one with TrainState.create"
    )


@pytest.mark.thorough
def test_a_folder_with_checkpoints_of_a_longer_training_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for epochs in (2, 1):
        state, plan = problem(f"train.epochs={epochs}", "train.checkpoint_every=1st")
        with caplog.at_level(logging.WARNING, "raysl"):
            fit(state, state.method, plan, batches(plan), reporter=LocalReporter(tmp_path))
        assert len(caplog.messages) == 2 - epochs
    assert "has checkpoint_000000008 of an earlier training" in caplog.messages[0]


@pytest.mark.thorough
def test_views_are_made_of_paths_bytes_tensors_and_images_of_pillow_alike(tmp_path: Path) -> None:
    config, pictures = settings(), images()
    pillows = [Image.fromarray(picture.permute(1, 2, 0).numpy()) for picture in pictures]
    paths = [tmp_path / f"{number:02}.png" for number in range(NUM)]
    for path, pillow in zip(paths, pillows, strict=True):
        pillow.save(path)
    expected = by_index(raysl.views(config, pictures, 0))
    for given in (paths, [*map(str, paths)], [path.read_bytes() for path in paths], [paths[0], *pillows[1:]]):
        made = by_index(raysl.views(config, given, 0))
        assert all(torch.equal(view, expected[place]) for place, view in made.items())
    with pytest.raises(ConfigError, match=r"nothing is at '.*gone\.png'"):
        raysl.views(config, [tmp_path / "gone.png", *paths])


def test_views_of_a_folder_have_its_labels(tmp_path: Path) -> None:
    for number, picture in enumerate(images(16)):
        folder = tmp_path / ("moon" if number % 2 else "sun")
        folder.mkdir(exist_ok=True)
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(folder / f"{number}.png")
    made = raysl.views(settings("data.drop_last=false"), tmp_path, 0)
    assert sorted(label for batch in made for label in batch.label.tolist()) == [0] * 8 + [1] * 8
    with pytest.raises(ConfigError, match="labels: images in a folder have those of their sub-folders"):
        raysl.views(settings(), str(tmp_path), labels=[0])


@pytest.mark.thorough
def test_each_loop_over_views_is_the_next_pass() -> None:
    config, pictures = settings(), images()
    made = raysl.views(config, pictures)
    assert len(made) == 3
    for epoch in (0, 1):
        looped, expected = by_index(list(made)), by_index(raysl.views(config, pictures, epoch))
        assert looped.keys() == expected.keys()
        assert all(torch.equal(looped[place], expected[place]) for place in looped)


@pytest.mark.thorough
@pytest.mark.parametrize("show", [True, False])
def test_fit_shows_a_line_an_epoch_unless_it_is_told_not_to(show: bool, capsys: pytest.CaptureFixture[str]) -> None:
    config = settings("train.epochs=3")
    state = TrainState.create(Setup.of(config, num_samples=NUM))
    views = raysl.views(config, images())
    fit(state, state.method, state.setup.plan, views, reporter=LocalReporter(show_progress=show))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (3 if show else 0)
    for epoch, line in enumerate(lines, 1):
        assert re.match(rf"epoch {epoch}/3  loss \d+\.\d{{4}}  .*(left|done in \d+ s)$", line), line


@pytest.mark.thorough
def test_lines_of_epochs_are_in_the_log_of_a_program_that_set_one_up(caplog: pytest.LogCaptureFixture) -> None:
    config = settings("train.epochs=2")
    state = TrainState.create(Setup.of(config, num_samples=NUM))
    with caplog.at_level(logging.INFO, logger="raysl"):
        fit(state, state.method, state.setup.plan, raysl.views(config, images()), reporter=LocalReporter())
    assert [line[:9] for line in caplog.messages if line.startswith("epoch ")] == ["epoch 1/2", "epoch 2/2"]


@pytest.mark.parametrize("one", [images()[0], images()[0].permute(1, 2, 0).numpy(), images()[0][0], b"file"])
def test_one_image_in_the_place_of_a_list_is_told_of(one: Any) -> None:
    with pytest.raises(ConfigError, match=r"images: this is one image; give a list of images, \[image, \.\.\.\], or a"):
        raysl.views(settings(), one)


def test_a_batch_of_grey_images_is_a_list() -> None:
    assert len(raysl.views(settings(), torch.stack([image[0, :14] for image in images()]))) == 3


def test_the_message_about_four_channels_says_how_to_take_three() -> None:
    message = r"images\[0\] is torch.uint8 \[4, 14, 20\]; .*; without its transparency it is image\[:3\], and a Pillow"
    with pytest.raises(ConfigError, match=message):
        raysl.views(settings(), [torch.zeros(4, 14, 20, dtype=torch.uint8)] * NUM)
