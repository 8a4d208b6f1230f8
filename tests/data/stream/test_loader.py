"""From encoded samples to batches: scaled decoding, paired sources, extras, smaller things."""

import io
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from raysl.config.background import Color
from raysl.data.decode import images as reading
from raysl.data.decode.bands import Bands
from raysl.data.order import Order
from raysl.data.split import Rows, Split, runs
from raysl.data.stream import loader as stream_loader
from raysl.data.stream import prefetch
from raysl.data.stream.loader import LARGE_BYTES, Loader, LocalBatches
from raysl.data.stream.rows import BlockRows, to_loaded, to_rows
from raysl.hashing import Int64s
from raysl.nn.places import place_centres
from raysl.transforms import HorizontalFlip, RandomResizedCrop, View, ViewRecipe
from raysl.transforms.view_recipe import evaluation_recipe
from tests.transforms.papers import ibot, jigsaw, rotnet

CPU = torch.device("cpu")


class Photographs(Split):
    """Large JPEG files, the same few again and again; paired ones have a small partner."""

    classes = ()
    is_random_access = True

    def __init__(self, files: list[bytes], num_sources: int = 1) -> None:
        self.files = files
        self.num_sources = num_sources
        self.unit_sizes = runs(8)
        self.fingerprint = "photographs"

    def read(self, index: Int64s) -> Rows:
        labels, names = np.full(len(index), -1), ["x"] * len(index)
        partner = Rows([np.full((40, 50), row, np.uint8) for row in index.tolist()], labels, names)
        files = [self.files[row % len(self.files)] for row in index.tolist()]
        return Rows(files, labels, names, (partner,) * (self.num_sources - 1))


@pytest.fixture(scope="module")
def files() -> list[bytes]:
    """Two JPEG files of 1600x1067 and 1067x1600 pixels."""
    found = []
    for number, pixels in enumerate(load_sample_images().images):
        image = Image.fromarray(pixels).resize((1600, 1067), Image.Resampling.BICUBIC)
        file = io.BytesIO()
        (image.transpose(Image.Transpose.ROTATE_90) if number else image).save(file, "JPEG", quality=92)
        found.append(file.getvalue())
    assert min(map(len, found)) > LARGE_BYTES
    return found


def loader_of(split: Split, recipe: ViewRecipe, batch_size: int = 4) -> Loader:
    return Loader(
        split=split,
        recipe=recipe,
        order=Order(0, split.fingerprint, split.unit_sizes, batch_size, 2, window=8, is_exact=True),
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
        augment_in_task=True,
        plain_recipe=evaluation_recipe(recipe.size),
    )


@pytest.mark.thorough
def test_large_files_are_decoded_smaller_where_all_views_are_smaller_still(
    files: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    decode = reading.decode

    def spy(data: bytes, reduce: int, background: Color | None, bands: Bands | None) -> torch.Tensor:
        used.append(reduce)
        return decode(data, reduce, background, bands)

    monkeypatch.setattr(reading, "decode", spy)
    large, small = RandomResizedCrop(size=96, scale=(0.2, 1.0)), RandomResizedCrop(size=32, scale=(0.2, 1.0))
    loader = loader_of(Photographs(files), ViewRecipe({"a": (View(large),), "b": (View(small),)}))
    scaled = loader.load(0, 0, 1)
    assert max(used) > 1
    reductions, used[:] = list(used), []
    whole = replace(loader, scaled_decode=False).load(0, 0, 1)
    assert set(used) == {1}
    for name in ("a", "b"):
        for place, reduction in enumerate(reductions):
            gap = (scaled.views[name][place].int() - whole.views[name][place].int()).abs().float()
            assert gap.mean() < (0.1 if reduction == 1 else 4.0), (name, place, reduction)


@pytest.mark.parametrize("kind", ["plain_batches", "seen_batches"])
def test_images_outside_of_steps_go_to_a_gpu_from_pinned_memory_too(
    files: list[bytes], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    moved: list[tuple[int, ...]] = []
    monkeypatch.setattr(stream_loader, "to_device", lambda rows, device: moved.append(tuple(rows.shape)) or rows)
    loader = loader_of(Photographs(files), evaluation_recipe(32))
    next(getattr(loader, kind)(loader.split, 0, 2, CPU))
    assert moved == [(2, 1, 3, 32, 32), (2,), (2,)]


def test_no_view_is_enlarged_from_a_reduced_image(files: list[bytes]) -> None:
    recipe = ViewRecipe({"a": (View(RandomResizedCrop(size=224, scale=(0.01, 0.02))),)})  # boxes below 224 px
    loader = loader_of(Photographs(files), recipe)
    scaled, whole = loader.load(1, 0, 1), replace(loader, scaled_decode=False).load(1, 0, 1)
    assert torch.equal(scaled.views["a"], whole.views["a"])


def test_evaluation_decodes_large_files_in_full(files: list[bytes]) -> None:
    loader = loader_of(Photographs(files), evaluation_recipe(64))
    scaled, whole = (
        next(replace(loader, scaled_decode=on).plain_batches(loader.split, 0, 2, CPU)).views["image"]
        for on in (True, False)
    )
    assert torch.equal(scaled, whole)


def test_paired_sources_have_views_of_their_own(files: list[bytes]) -> None:
    view = View(RandomResizedCrop(size=32), (HorizontalFlip(),))
    for in_task in (True, False):
        loader = replace(
            loader_of(Photographs(files, 2), ViewRecipe({"global": (view, view)})), augment_in_task=in_task
        )
        batch = next(LocalBatches(loader).from_step(0))
        assert list(batch.views) == ["global", "global_1"]
        grey = (batch.views["global_1"] * 0.25 + 0.5) * 255
        assert torch.allclose(grey.mean(dim=(1, 2, 3, 4)), batch.index.float(), atol=1e-3)
        assert batch.views["global"].std() > 0.1


@pytest.mark.thorough
def test_extras_are_the_same_wherever_views_are_augmented(files: list[bytes]) -> None:
    for recipe, name in (
        (rotnet(32), "global.rotation"),
        (jigsaw(100, 63, 16), "patches.permutation"),
        (ibot(32, 16, 1), "global.mask"),
    ):
        loader = loader_of(Photographs(files), recipe)
        in_task, on_device = (
            next(LocalBatches(replace(loader, augment_in_task=on)).from_step(3)) for on in (True, False)
        )
        assert torch.equal(in_task.extras[name], on_device.extras[name])
        for group in recipe.groups:
            assert torch.equal(in_task.views[group], on_device.views[group])


@pytest.mark.parametrize("in_task", [True, False])
def test_views_that_processes_share_are_neither_copied_nor_written_to(files: list[bytes], in_task: bool) -> None:
    recipe = ViewRecipe({"global": (View(RandomResizedCrop(size=32), (HorizontalFlip(p=1.0),)),) * 2})
    loader = replace(loader_of(Photographs(files), recipe), augment_in_task=in_task)
    rows = to_rows(loader.load(0, 0, 1))
    shared = {name: column.copy() for name, column in rows.columns.items()}
    for column in shared.values():
        column.flags.writeable = False
    loaded = to_loaded(BlockRows(shared))
    assert np.shares_memory(loaded.views["global"].numpy(), shared["view:global"])
    assert not np.shares_memory(loaded.key.numpy(), shared["key"])
    batch, expected = loader.finish(loaded, 0, CPU), loader.finish(to_loaded(rows), 0, CPU)
    assert torch.equal(batch.views["global"], expected.views["global"])
    batch.label.zero_()


@pytest.mark.thorough
def test_row_bytes_are_those_of_what_travels(files: list[bytes]) -> None:
    for recipe in (rotnet(32), jigsaw(100, 63, 16), ibot(32, 16, 3)):
        for in_task in (True, False):
            loader = replace(loader_of(Photographs(files), recipe), augment_in_task=in_task)
            loaded = loader.load(0, 0, 1)
            assert sum(view[0].numel() for view in loaded.views.values()) == loader.row_bytes


@pytest.mark.thorough
def test_a_thread_that_makes_batches_ahead_changes_no_bit(files: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    loader = replace(loader_of(Photographs(files), rotnet(32)), augment_in_task=False)
    alone = list(islice(LocalBatches(loader).from_step(0), 3))
    monkeypatch.setattr(prefetch, "runs_ahead", lambda device: True)
    for threads in (0, 2):
        ahead = list(islice(LocalBatches(loader, threads=threads).from_step(0), 3))
        for one, other in zip(alone, ahead, strict=True):
            assert all(torch.equal(one.views[name], other.views[name]) for name in loader.recipe.groups)
            assert torch.equal(one.extras["global.rotation"], other.extras["global.rotation"])


@pytest.mark.thorough
@pytest.mark.parametrize("is_ahead", [False, True])
def test_broken_files_are_told_of_once(
    is_ahead: bool, caplog: pytest.LogCaptureFixture, files: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "runs_ahead", lambda device: is_ahead)
    split = Photographs([files[0][:5000], b"", *[files[1]] * 6])
    batches = LocalBatches(loader_of(split, evaluation_recipe(16)))
    list(islice(batches.from_step(0), 8))
    assert len(batches.corrupt.seen) == 2
    assert caplog.text.count("replaced a corrupt image") == 2


def boxed(num: int, side: int = 40) -> ViewRecipe:
    """Square views, mirrored by half, with boxes."""
    return ViewRecipe({"global": (View(RandomResizedCrop(size=side), (HorizontalFlip(p=0.5),)),) * num}).with_boxes()


@pytest.mark.thorough
@pytest.mark.parametrize(("side", "scale"), [(40, 8), (200, 4), (400, 2)])
def test_boxes_are_exact_where_files_are_decoded_at_a_reduced_scale(side: int, scale: int) -> None:
    """On a JPEG file that shows its own coordinates, with sides that no scale divides."""
    height, width, index = 1603, 2101, np.arange(12)
    rows, columns = np.mgrid[:height, :width]
    noise = np.random.default_rng(0).integers(0, 30, (height, width))
    pixels = np.stack([rows * 255 / height, columns * 255 / width, noise], axis=-1).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95, subsampling=0)
    assert len(file.getvalue()) > LARGE_BYTES
    loader = loader_of(Photographs([file.getvalue()]), boxed(1, side))
    assert scale in stream_loader._reductions(loader.split.read(index), loader.recipe, index, 0, 0)
    done = loader.load_samples(index, 0)
    edge = slice(side // 10, -side // 10)
    centres = place_centres(done.extras["global.box"], side, side)[:, 0, edge, edge]  # [12, h, h, 2]
    came_from = done.views["global"][:, 0, :2, edge, edge].movedim(1, -1).float() / 255
    away = (centres / torch.tensor([height, width]) - came_from).mean(dim=(1, 2))  # [12, 2], colours rounded down
    assert (away - 0.5 / 255).abs().max() < 0.3 / 255


@pytest.mark.parametrize("in_task", [True, False])
def test_boxes_are_the_same_on_any_number_of_workers(files: list[bytes], in_task: bool) -> None:
    loader = replace(loader_of(Photographs(files, num_sources=2), boxed(2)), augment_in_task=in_task)
    whole = next(LocalBatches(loader).from_step(0))
    parts = [next(LocalBatches(loader, rank, 2).from_step(0)) for rank in range(2)]
    for name, shape in (("global.box", (2, 6)), ("global_1.box", (2, 6))):
        boxes = torch.cat([part.extras[name] for part in parts])
        order = torch.cat([part.index for part in parts]).argsort()
        assert torch.equal(boxes[order], whole.extras[name][whole.index.argsort()])
        assert boxes.shape[1:] == shape
    assert whole.extras["global.box"][:, :, 4:].max() == 1600
    assert whole.extras["global_1.box"][:, :, 4:].max() == 50
