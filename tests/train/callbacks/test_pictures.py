"""What lies in TensorBoard's files: histograms, views, features for the projector."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboardX.proto.event_pb2 import Event

import raysl
from raysl.plan.setup import Setup
from raysl.schedule import Duration, Step
from raysl.train import Callback, LocalReporter, Run, fit
from raysl.train.callbacks.embedding import Embedding
from raysl.train.callbacks.histograms import Histograms
from raysl.train.callbacks.view_images import ViewImages, picture
from raysl.train.state import TrainState
from tests.rank_processes import RunRanks
from tests.train.callbacks.own import train
from tests.train.problem import SMALL, batches, problem


def events(folder: Path) -> list[Any]:
    """The events of the files in a folder: each has a length, two checksums and itself."""
    found = []
    for file in sorted(folder.glob("events*")):
        content, place = file.read_bytes(), 0
        while place < len(content):
            length = int.from_bytes(content[place : place + 8], "little")
            found.append(Event.FromString(content[place + 12 : place + 12 + length]))
            place += 16 + length
    return found


def summaries(folder: Path) -> dict[tuple[int, str], Any]:
    return {(event.step, value.tag): value for event in events(folder) for value in event.summary.value}


class _Gradients(Callback):
    """The gradients and the weights of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[int, str], torch.Tensor] = {}

    def on_backward(self, run: Run, step: Step) -> None:
        for name, weight in run.state.method.named_parameters():
            assert weight.grad is not None
            self.found[step.index + 1, f"gradients/{name}"] = weight.grad.clone()

    def on_step_end(self, run: Run, step: Step, out: Any) -> None:
        for name, weight in run.state.method.named_parameters():
            assert weight.grad is None
            self.found[step.index, f"parameters/{name}"] = weight.detach().clone()


@pytest.mark.thorough
def test_histograms_are_those_of_every_weight_and_its_gradient_before_it_is_clipped(tmp_path: Path) -> None:
    seen = _Gradients()
    callback = Histograms(Histograms.Config(bins=16))
    train(tmp_path, callback, seen, overrides=("train.clip_grad=1e-6",))
    found = summaries(tmp_path / "histograms")
    assert found.keys() == {key for key in seen.found if key[0] in (4, 8)}
    assert max(value.abs().max() for (_, name), value in seen.found.items() if name.startswith("grad")) > 1e-4
    for key, value in found.items():
        values = seen.found[key].flatten().double().numpy()
        assert value.histo.num == len(values)
        assert value.histo.sum == pytest.approx(values.sum(), rel=1e-5, abs=1e-9)
        assert value.histo.min == pytest.approx(values.min(), rel=1e-5)
        assert sum(value.histo.bucket) == len(values)


def test_what_is_not_asked_for_or_not_finite_is_left_out(tmp_path: Path) -> None:
    run = Run(*problem(), LocalReporter(tmp_path))
    weight = next(run.state.method.parameters())
    weight.data.view(-1)[:3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    callback = Histograms(Histograms.Config(gradients=False, every=Duration.parse("1st")))
    callback.on_train_start(run)
    callback.on_backward(run, run.plan.step(0))
    callback.on_step_end(run, run.plan.step(1), None)  # type: ignore[arg-type]
    callback.on_train_end(run)
    found = summaries(tmp_path / "histograms")
    assert all(tag.startswith("parameters/") for _, tag in found)
    assert min(value.histo.num for value in found.values()) <= weight.numel() - 3
    name = next(name for name, _ in run.state.method.named_parameters())
    assert found[1, f"parameters/{name}"].histo.num == weight.numel() - 3


@pytest.mark.thorough
def test_views_are_shown_as_they_were_before_the_normalisation(tmp_path: Path) -> None:
    train(tmp_path, ViewImages(ViewImages.Config(images=3)))
    found = summaries(tmp_path / "view_images")
    assert found.keys() == {(1, "views/global"), (4, "views/global"), (8, "views/global")}
    _, plan = problem()
    state, _ = problem()
    shown = np.asarray(Image.open(_file(found[4, "views/global"].image.encoded_image_string)))
    assert shown.shape == (3 * 8, 2 * 8, 3)
    data = state.config.data
    view = batches(plan)[3].views["global"][1, 1]
    expected = (view.permute(1, 2, 0) * torch.tensor(data.std) + torch.tensor(data.mean)).clamp(0, 1) * 255
    assert np.abs(shown[8:16, 8:16].astype(float) - expected.numpy()).max() <= 1


def _file(content: bytes) -> Any:
    import io

    return io.BytesIO(content)


def test_views_of_other_channels_are_grey_columns() -> None:
    views = torch.tensor([0.0, 5.0, 10.0, 10.0]).view(1, 1, 1, 2, 2).expand(1, 2, 2, 2, 2)
    shown = picture(views, (0.5,) * 3, (0.5,) * 3)
    assert shown.shape == (3, 2, 8)
    assert shown[0].tolist() == [[0, 128] * 4, [255, 255] * 4]


@pytest.mark.thorough
def test_the_projector_finds_features_labels_and_thumbnails(tmp_path: Path) -> None:
    config = raysl.load_config("quickstart", [*SMALL, "train.epochs=1", "train.batch_size=12"])
    images = [torch.full((3, 16, 16), number, dtype=torch.uint8) for number in range(24)]
    setup = Setup.of(config, num_samples=24)
    state = TrainState.create(setup)
    embedding = Embedding(Embedding.Config(images=10, thumbnail=4))
    views = raysl.views(config, images, labels=[number % 3 for number in range(24)])
    fit(state, state.method, setup.plan, views, callbacks=[embedding], reporter=LocalReporter(tmp_path))
    folder = tmp_path / "embedding" / "000000002"
    header, *rows = (folder / "metadata.tsv").read_text().splitlines()
    assert header == "label\tindex"
    places = [number * 24 // 10 for number in range(10)]
    assert rows == [f"{place % 3}\t{place}" for place in places]
    sprite = np.asarray(Image.open(folder / "sprite.png"))
    assert sprite.shape == (16, 16, 3)
    assert [int(sprite[4 * (n // 4), 4 * (n % 4), 0]) for n in range(10)] == pytest.approx(places, abs=1)
    assert sprite[12:].max() == 0
    backbone = state.method.export().eval()
    given = torch.stack([images[place] for place in places]) / 255
    normal = (given - torch.tensor(config.data.mean).view(3, 1, 1)) / torch.tensor(config.data.std).view(3, 1, 1)
    with torch.no_grad():
        expected = backbone(normal).numpy()
    assert np.allclose(np.loadtxt(folder / "tensors.tsv", delimiter="\t"), expected, rtol=1e-4, atol=1e-4)
    listed = (tmp_path / "projector_config.pbtxt").read_text()
    assert listed.count("embeddings {") == 1
    assert 'tensor_path: "embedding/000000002/tensors.tsv"' in listed
    assert listed.count("single_image_dim: 4") == 2


@pytest.mark.thorough
def test_the_projector_keeps_the_steps_before_each_once(tmp_path: Path) -> None:
    for overrides in ((), ("train.epochs=3",), ()):
        every = Embedding.Config(images=4, every=Duration.parse("4st"))
        train(tmp_path, Embedding(every), overrides=overrides)
    listed = (tmp_path / "projector_config.pbtxt").read_text()
    parts = listed.split("embeddings {\n")
    assert parts[0] == ""
    assert sorted(part.split('"')[1] for part in parts[1:]) == ["step 12", "step 4", "step 8"]
    assert len({part.count("\n") for part in parts[1:]}) == 1


def _embedded(folder: str) -> None:
    train(Path(folder), Embedding(Embedding.Config(images=9)))


def test_workers_share_the_images_of_an_embedding(tmp_path: Path, run_ranks: RunRanks) -> None:
    run_ranks(2, _embedded, str(tmp_path))
    assert len((tmp_path / "embedding" / "000000008" / "metadata.tsv").read_text().splitlines()) == 10


@pytest.mark.thorough
def test_a_start_hides_the_events_behind_the_restored_step(tmp_path: Path) -> None:
    state, _, _ = train(tmp_path, Histograms())
    state.step = 4
    train(tmp_path, Histograms(), state=state)
    assert [event.step for event in events(tmp_path / "histograms") if event.HasField("session_log")] == [5]
