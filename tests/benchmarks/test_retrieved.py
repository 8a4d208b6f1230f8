"""Images of searches, read by their places in the splits."""

from typing import Any

import pytest

from raysl.benchmarks.suite.fitting import MeasuredImages
from raysl.benchmarks.suite.pictures import retrieved_images
from raysl.config.load import load_config
from tests.data.samples import png


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> MeasuredImages:
    """Two classes; training images are red by 10 a place, test images by 10 more than 100."""
    root = tmp_path_factory.mktemp("red")
    for part, base in (("train", 0), ("test", 100)):
        for place in range(4):
            folder = root / part / ("cat" if place < 2 else "dog")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{place}.png").write_bytes(png(base + 10 * place))
    config = load_config("quickstart", ["data=image_folder", f"data.path={root}", "data.image_size=4"])
    return MeasuredImages.of(config.data)


def test_queries_are_test_images_and_what_was_found_training_images(images: MeasuredImages) -> None:
    figure = {"queries": [3, 0], "found": [[2, 1, 0], [0, 1, 3]], "right": [[True, False, False], [True, True, False]]}
    found = retrieved_images({"retrieval": figure}, images)["retrieval"]
    assert found.queries[:, 1, 1, 0].tolist() == [130, 100]
    assert found.images[:, :, 1, 1, 0].tolist() == [[20, 10, 0], [0, 10, 30]]
    assert found.query_labels.tolist() == [1, 0]
    assert found.right.tolist() == figure["right"]


@pytest.mark.parametrize(
    "figure",
    [
        {},
        None,
        {"queries": [4], "found": [[0]], "right": [[True]]},
        {"queries": [0], "found": [[-1]], "right": [[True]]},
        {"queries": [0], "found": [[0, 1]], "right": [[True]]},
        {"queries": [0, 1], "found": [[0, 1], [0]], "right": [[True, True], [True]]},
        {"queries": [0.5], "found": [[0]], "right": [[True]]},
        {"queries": [], "found": [], "right": []},
        {"queries": [0], "found": [[]], "right": [[]]},
    ],
)
def test_places_that_there_are_not_show_nothing(images: MeasuredImages, figure: Any) -> None:
    assert retrieved_images({"retrieval": figure}, images) == {}
