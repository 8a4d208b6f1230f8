import pickle
import re

import numpy as np
import pytest

from raysl.data.source import Rows
from raysl.data.sources.photos import Photos
from raysl.errors import ConfigError
from tests.data.samples import all_rows, sent


def source_of(**settings: int) -> Photos:
    return Photos(Photos.Config(**settings))


def places(rows: Rows) -> list[tuple[int, int, int]]:
    """Side, top and left of each crop, from its name."""
    numbers = [re.fullmatch(r"\w+ (\d+) px at row (\d+), column (\d+)", name) for name in rows.names]
    return [(int(found[1]), int(found[2]), int(found[3])) for found in numbers if found is not None]


def test_a_crop_is_what_the_photograph_has_there() -> None:
    from sklearn.datasets import load_sample_images

    photographs = load_sample_images().images
    rows = all_rows(source_of(num_train=64, size=32).required("train"))
    assert len(places(rows)) == 64
    for image, label, (side, top, left) in zip(rows.images, rows.labels, places(rows), strict=True):
        assert np.array_equal(np.asarray(image), photographs[label][top : top + side, left : left + side])
        assert np.asarray(image).shape == (side, side, 3)
    assert {side for side, _, _ in places(rows)} == {32, 48, 64}
    assert np.bincount(rows.labels).tolist() == [32, 32]


@pytest.mark.parametrize("size", [8, 96])
def test_no_pixel_of_a_held_out_crop_is_in_a_training_crop(size: int) -> None:
    source = source_of(num_train=500, num_test=500, size=size)
    train, test = (places(all_rows(source.required(name))) for name in ("train", "test"))
    last = max(left + side for side, _, left in train)
    first = min(left for _, _, left in test)
    assert last <= first
    assert last > 400, "the training part is used to its edge"
    assert len(set(train)) > 400, "crops differ"


def test_a_crop_depends_on_its_number_alone_and_pixels_do_not_travel() -> None:
    train = source_of(num_train=5000).required("train")
    assert sent(train).read(np.array([7, 4000])).names == [train.read(np.array([row])).names[0] for row in (7, 4000)]
    assert train.fingerprint != source_of(num_train=5000, size=32).required("train").fingerprint
    train.read(np.array([0]))
    assert len(pickle.dumps(train)) < 2000
    assert (train.classes, train.is_random_access, train.num_samples) == (("china", "flower"), True, 5000)


def test_sizes_that_do_not_fit_are_refused() -> None:
    for size in (7, 97):
        with pytest.raises(ConfigError, match=rf"size={size} "):
            source_of(size=size).required("train")
    with pytest.raises(ConfigError, match="num_test=0 "):
        source_of(num_test=0).required("test")
