from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as vision
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms.v2 import InterpolationMode

from raysl.benchmarks.benchmark import Labelled, by_name
from raysl.benchmarks.copy_detection import CopyDetection
from raysl.benchmarks.instance_retrieval.pooling import Moments, gem
from raysl.data.decode.decode import decode
from raysl.data.sources.digits import Digits
from raysl.errors import ConfigError
from raysl.storage.folder import Folder
from raysl.transforms.functional import normalize
from tests.benchmarks.contexts import context_of, tiny_resnet, tiny_vit
from tests.benchmarks.instance_retrieval import samples
from tests.benchmarks.instance_retrieval.test_protocols import compute_ap

NONE = Labelled(num_train=0, num_test=0, classes=(), counts=None)
DATA = Digits.Config()


def measured(tmp_path: Path, network: nn.Module, **settings: Any) -> dict[str, float]:
    config = CopyDetection.Config(path=str(tmp_path / "copydays"), size=48, **settings)
    assert CopyDetection.fit_to(config, NONE) == (config, [])
    data = replace(DATA, eval_interpolation=config.interpolation)
    found = CopyDetection(config).measure(context_of(network, data, tmp_path / "results"))
    values = {name: metric.value for name, metric in by_name(found.metrics).items()}
    assert list(values) == CopyDetection.metrics(config, 0)
    return values


@torch.no_grad()
def slow_vector(network: Any, folder: Path, path: Path) -> Tensor:
    """Class token and GeM of the patches of a ViT of 8 pixels, of an image squeezed to 48 pixels a side."""
    image = vision.resize(
        decode(Folder(str(folder)).read(str(path.relative_to(folder)))), [48, 48], InterpolationMode.BICUBIC
    )
    tokens = network.tokens(normalize(image[None], DATA.mean, DATA.std))[0]
    return torch.cat([tokens[0], gem(tokens[1:].T.reshape(-1, 6, 6), 4)])


def principal_directions(rows: Tensor, num: int) -> Tensor:
    """DINO's whitening [K, D]: of the second moments about 0, with a floor, the largest first."""
    values, vectors = np.linalg.eigh((rows.double().T @ rows.double() / len(rows)).numpy())
    values = np.maximum(values, 1e-5 * values.max())
    order = np.argsort(values)[::-1][:num]
    return torch.from_numpy((vectors[:, order] / np.sqrt(values[order])).T.copy()).float()


@pytest.mark.thorough
@pytest.mark.parametrize("is_white", [False, True])
def test_it_is_the_protocol_of_dinos_code(tmp_path: Path, is_white: bool) -> None:
    torch.manual_seed(0)
    network = tiny_vit()
    folder = samples.copydays(tmp_path / "copydays")
    for thing in range(40):
        samples.save(tmp_path / "others" / f"{thing}.jpg", 50 + thing, 1)
    settings = {"whiten_on": str(tmp_path / "others"), "whiten_dim": 6} if is_white else {}
    found = measured(tmp_path, network, **settings)

    def vectors(*paths: Path) -> Tensor:
        return torch.stack([slow_vector(network, tmp_path, path) for path in paths])

    database = sorted((folder / "original").iterdir()) + sorted((folder / "distractors").iterdir())
    queries = sorted((folder / "strong").iterdir())
    rows, wanted = vectors(*database), vectors(*queries)
    if is_white:
        others = vectors(*sorted((tmp_path / "others").iterdir()))
        directions = principal_directions(others, 6)
        rows, wanted = ((own - others.mean(dim=0)) @ directions.T for own in (rows, wanted))
    rows, wanted = F.normalize(rows, dim=1), F.normalize(wanted, dim=1)
    ranked = (wanted @ rows.T).argsort(dim=1, descending=True)
    precisions = [compute_ap(order.tolist(), {number}, set()) for number, order in enumerate(ranked)]
    assert found["map_strong"] == pytest.approx(100 * sum(precisions) / 3)


@pytest.mark.thorough
@torch.no_grad()
def test_vectors_of_length_one_and_their_covariance_are_options(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = tiny_vit()
    folder = samples.copydays(tmp_path / "copydays")
    for thing in range(40):
        samples.save(tmp_path / "others" / f"{thing}.jpg", 50 + thing, 1)
    white = {"whiten_on": str(tmp_path / "others"), "whiten_dim": 6}
    found = measured(tmp_path, network, **white, length_one=True, whiten_center=True)

    def vectors(*paths: Path) -> Tensor:
        return F.normalize(torch.stack([slow_vector(network, tmp_path, path) for path in paths]), dim=1)

    rows = vectors(*sorted((folder / "original").iterdir()), *sorted((folder / "distractors").iterdir()))
    moments = Moments(32)
    moments.add(vectors(*sorted((tmp_path / "others").iterdir())))
    whitening = moments.whitening(6)
    wanted = F.normalize(whitening(vectors(*sorted((folder / "strong").iterdir()))), dim=1)
    ranked = (wanted @ F.normalize(whitening(rows), dim=1).T).argsort(dim=1, descending=True)
    precisions = [compute_ap(order.tolist(), {number}, set()) for number, order in enumerate(ranked)]
    assert found["map_strong"] == pytest.approx(100 * sum(precisions) / 3)


@pytest.mark.thorough
def test_an_original_behind_the_first_places_counts_as_not_found(tmp_path: Path) -> None:
    samples.copydays(tmp_path / "copydays")
    torch.manual_seed(0)
    network = tiny_resnet()
    all_places = measured(tmp_path, network, first=None)["map_strong"]
    assert measured(tmp_path, network)["map_strong"] == pytest.approx(all_places)  # there are but eight images
    nearest = measured(tmp_path, network, first=1)["map_strong"]
    assert nearest in (0, pytest.approx(100 / 3), pytest.approx(200 / 3))
    assert nearest < all_places


def test_unchanged_copies_are_all_found_by_any_network(tmp_path: Path) -> None:
    folder = samples.copydays(tmp_path / "copydays")
    for path in (folder / "original").iterdir():
        (folder / "strong" / f"{int(path.stem) + 1}.jpg").write_bytes(path.read_bytes())
    for network in (tiny_vit(), tiny_resnet()):
        found = measured(tmp_path, network, query_splits=("strong", "crops/50"))
        assert found["map_strong"] == 100
        assert 0 < found["map_crops_50"] <= 100


def test_distractors_of_another_folder_make_it_harder(tmp_path: Path) -> None:
    samples.copydays(tmp_path / "copydays")
    for thing in range(3):
        samples.save(tmp_path / "alike" / f"{2000 + thing}00.jpg", thing, 1)  # the very copies, and of no block
    torch.manual_seed(0)
    network = tiny_resnet()
    alone = measured(tmp_path, network)
    among = measured(tmp_path, network, distractors=str(tmp_path / "alike"))
    assert among["map_strong"] < alone["map_strong"]


def test_what_is_missing_is_told_before_a_network_is_asked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="copydays needs path="):
        CopyDetection.fit_to(CopyDetection.Config(), NONE)
    folder = samples.copydays(tmp_path)
    with pytest.raises(ConfigError, match="set query_splits= to folders that there are"):
        CopyDetection.fit_to(CopyDetection.Config(path=str(folder), query_splits=("jpegqual",)), NONE)
    with pytest.raises(ConfigError, match="is the folder that is searched"):
        CopyDetection.fit_to(CopyDetection.Config(path=str(folder), whiten_on=str(folder)), NONE)


def test_it_needs_none_of_the_runs_images() -> None:
    config = CopyDetection.Config()
    assert CopyDetection.needs(config).own_images
    assert CopyDetection.stages(config) == ()
