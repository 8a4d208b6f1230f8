import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.benchmarks.benchmark import Findings, Labelled, by_name
from raysl.benchmarks.instance_retrieval.descriptors import (
    Described,
    Describer,
    Recipe,
    describe,
    gather_moments,
    sized,
)
from raysl.benchmarks.instance_retrieval.pooling import Moments, gem, rmac_regions
from raysl.benchmarks.instance_retrieval.search import ranking
from raysl.benchmarks.instance_retrieval.truth import Images
from raysl.benchmarks.retrieval import Retrieval
from raysl.data.decode.decode import decode
from raysl.data.sources.digits import Digits
from raysl.errors import ConfigError
from raysl.nn.pooling import RawPixels
from raysl.storage.folder import Folder
from raysl.transforms.functional import normalize
from tests.benchmarks.contexts import context_of, tiny_resnet, tiny_vit
from tests.benchmarks.instance_retrieval import samples
from tests.benchmarks.instance_retrieval.test_protocols import compute_ap

DATA = Digits.Config()
RMAC = Recipe(stage="res3", pooling="rmac", size=64)
NONE = Labelled(num_train=0, num_test=0, classes=(), counts=None)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def picture(height: int = 48, width: int = 64) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (3, height, width), generator=generator, dtype=torch.uint8)


def as_input(image: Tensor) -> Tensor:
    return normalize(image[None], DATA.mean, DATA.std)


@torch.no_grad()
def test_rmac_is_the_sum_of_whitened_regions_of_length_one() -> None:
    network = tiny_resnet()
    describer = Describer(network, DATA, RMAC)
    maps = network.stages(as_input(picture()), ["res3"])["res3"][0]
    regions = [
        F.normalize(maps[:, top : top + side, left : left + side].amax(dim=(1, 2)), dim=0)
        for top, left, side in rmac_regions(*maps.shape[1:])
    ]
    parts = describer.parts(picture())
    assert torch.allclose(parts, torch.stack(regions), atol=1e-5)
    assert torch.allclose(describer.descriptor(parts), F.normalize(sum(regions, torch.zeros(16)), dim=0), atol=1e-5)
    moments = Moments(16)
    moments.add(torch.randn(50, 16))
    whitening = moments.whitening(8)
    white = sum((F.normalize(whitening(region[None]), dim=1)[0] for region in regions), torch.zeros(8))
    assert torch.allclose(describer.descriptor(parts, whitening), F.normalize(white, dim=0), atol=1e-4)


@torch.no_grad()
def test_gem_over_scales_is_their_mean_with_a_bias_where_asked() -> None:
    network = tiny_resnet()
    recipe = Recipe(stage="res3", pooling="gem", size=64, scales=(1.0, 0.5), gem_p=3)
    vectors = [
        gem(network.stages(as_input(sized(picture(), 64, scale)), ["res3"])["res3"][0], 3) for scale in (1.0, 0.5)
    ]
    mean = torch.stack(vectors).mean(dim=0)
    assert torch.allclose(Describer(network, DATA, recipe).parts(picture())[0], F.normalize(mean, dim=0), atol=1e-5)
    biased = Describer(network, DATA, replace(recipe, gem_bias=True)).parts(picture())[0]
    assert torch.allclose(biased, F.normalize(torch.cat([mean, torch.ones(1)]), dim=0), atol=1e-5)


def test_rmac_over_scales_has_the_regions_of_all() -> None:
    network = tiny_resnet()
    one, half = (Describer(network, DATA, replace(RMAC, scales=(scale,))).parts(picture()) for scale in (1.0, 0.5))
    both = Describer(network, DATA, replace(RMAC, scales=(1.0, 0.5))).parts(picture())
    assert torch.equal(both, torch.cat([one, half]))


def test_a_descriptor_has_length_one_but_where_it_is_left_as_whitened() -> None:
    recipe = Recipe(stage="res3", pooling="gem", size=64)
    moments = Moments(16)
    moments.add(F.normalize(torch.randn(50, 16), dim=1))
    whitening = moments.whitening()
    describer = Describer(tiny_resnet(), DATA, recipe)
    parts = describer.parts(picture())
    assert describer.descriptor(parts, whitening).norm() == pytest.approx(1, abs=1e-5)
    left = Describer(describer.network, DATA, replace(recipe, whiten_norm=False))
    assert torch.equal(left.descriptor(parts, whitening), whitening(parts)[0])


@torch.no_grad()
@pytest.mark.parametrize("stage", [None, "block1"])
def test_patches_of_a_vit_are_a_map_in_the_shape_of_the_image(stage: str | None) -> None:
    network = tiny_vit()
    image = sized(picture(), 64, patch=8)
    assert image.shape == (3, 48, 64)
    name = stage or "norm"
    tokens = network.stages(as_input(image), [name])[name][0, 1:]
    maps = torch.stack([tokens[row * 8 : (row + 1) * 8] for row in range(6)]).permute(2, 0, 1)  # [D, 6, 8]
    for pooling, expected in (("mean", maps.mean(dim=(1, 2))), ("max", maps.amax(dim=(1, 2))), ("gem", gem(maps, 4))):
        recipe = Recipe(stage=stage, pooling=pooling, size=64)  # type: ignore[arg-type]
        assert torch.allclose(Describer(network, DATA, recipe).parts(picture())[0], F.normalize(expected, dim=0))
    first = Describer(network, DATA, Recipe(stage=stage, pooling="class", size=64)).parts(picture())[0]
    token = network.stages(as_input(image), [name])[name][0, 0]
    assert torch.allclose(first, F.normalize(token, dim=0), atol=1e-6)


@pytest.mark.parametrize(("height", "width"), [(50, 61), (9, 64), (64, 3)])
def test_sides_are_multiples_of_the_patch(height: int, width: int) -> None:
    image = sized(picture(height, width), 60, patch=8)
    assert image.shape[1] % 8 == image.shape[2] % 8 == 0
    assert min(image.shape[1:]) >= 8
    recipe = Recipe(stage=None, pooling="rmac", size=60)
    assert Describer(tiny_vit(), DATA, recipe).parts(picture(height, width)).isfinite().all()


def test_the_last_stage_with_places_is_taken() -> None:
    network = tiny_resnet()
    first, last = (Recipe(stage=stage, pooling="gem", size=64) for stage in (None, "res5"))
    assert torch.equal(
        Describer(network, DATA, first).parts(picture()), Describer(network, DATA, last).parts(picture())
    )


def test_a_box_keeps_the_scale_of_its_image() -> None:
    image = picture(48, 96)
    box = (10.0, 4.0, 34.0, 28.0)
    assert sized(image, 192, box=box).shape == (3, 48, 48)
    assert torch.equal(sized(image, 96, box=box), image[:, 4:28, 10:34])
    assert sized(image, 48).shape == (3, 24, 48)
    assert sized(image, 48, 0.5, is_square=True).shape == (3, 24, 24)
    assert torch.equal(sized(image, 96, box=(-5, -5, 1000, 1000)), image)
    assert torch.equal(sized(image, 96, box=(200, 0, 300, 10)), image)  # nothing of it lies inside


def test_what_has_no_places_or_no_class_token_is_told() -> None:
    with pytest.raises(ValueError, match=r"the stage 'avgpool' is not a map.*set stage= to one of: conv1, stem, res2"):
        Describer(tiny_resnet(), DATA, replace(RMAC, stage="avgpool")).parts(picture())
    with pytest.raises(ValueError, match="pooling=class needs a stage with a class token, and 'res5' of ResNet"):
        Describer(tiny_resnet(), DATA, Recipe(stage=None, pooling="class", size=64)).parts(picture())
    with pytest.raises(ValueError, match="no stage 'res9'"):
        Describer(tiny_resnet(), DATA, replace(RMAC, stage="res9")).parts(picture())


def test_raw_pixels_are_described_too() -> None:
    parts = Describer(RawPixels(), DATA, RMAC).parts(picture())
    assert parts.shape == (1, 3 * 32 * 32)


def folder_of(tmp_path: Path) -> Images:
    for thing in range(4):
        samples.save(tmp_path / f"{thing}.jpg", thing, 1, (40 + 8 * thing, 64))
    return Images(str(tmp_path), tuple(f"{thing}.jpg" for thing in range(4)))


@pytest.mark.thorough
def test_descriptors_of_some_images_are_those_of_all(tmp_path: Path) -> None:
    images = folder_of(tmp_path)
    describer = Describer(tiny_resnet(), DATA, RMAC)
    some = Images(images.uri, (images.paths[3], images.paths[1]))
    assert torch.equal(describe(describer, some).rows, describe(describer, images).rows[[3, 1]])


def test_a_broken_image_is_found_last_and_many_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    images = folder_of(tmp_path)
    (tmp_path / "2.jpg").write_bytes(b"\xff\xd8 no image")
    describer = Describer(tiny_resnet(), DATA, RMAC)
    found = describe(describer, images, most_broken=0.5)
    assert found.is_read.tolist() == [True, True, False, True]
    assert "1 images in" in caplog.text
    for similarity in ("dot", "l2"):
        assert ranking(-found.rows[:1], found, similarity)[0, -1] == 2  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"1 of 4 images in .* are broken, first 2.jpg: "):
        describe(describer, images)
    with pytest.raises(ConfigError, match="1 of 4 images"):
        gather_moments(describer, images)


def test_rankings_are_those_of_both_similarities() -> None:
    rows, queries = torch.randn(20, 4), torch.randn(6, 4)
    found = describe_rows(rows)
    assert ranking(queries, found, "dot").tolist() == (queries @ rows.T).argsort(dim=1, descending=True).tolist()
    distances = (queries[:, None] - rows).square().sum(dim=2)
    assert ranking(queries, found, "l2").tolist() == distances.argsort(dim=1).tolist()


def describe_rows(rows: Tensor) -> Described:
    return Described(rows, torch.ones(len(rows)).bool())


def measured(tmp_path: Path, network: Any = None, **settings: Any) -> tuple[Retrieval.Config, Findings]:
    config = Retrieval.Config(**{"size": 64, "stage": "res2", **settings})
    assert Retrieval.fit_to(config, NONE) == (config, [])
    context = context_of(network or tiny_resnet(), DATA, tmp_path / "results")
    return config, Retrieval(config).measure(context)


def values(found: Findings) -> dict[str, float]:
    return {name: metric.value for name, metric in by_name(found.metrics).items()}


@pytest.mark.thorough
@pytest.mark.parametrize("pooling", ["rmac", "gem"])
@pytest.mark.parametrize("is_white", [False, True])
def test_revisited_oxford_from_end_to_end(tmp_path: Path, pooling: str, is_white: bool) -> None:
    samples.revisited(tmp_path / "data")
    samples.revisited(tmp_path / "other", "rparis6k", things=range(20, 30))
    white = {"whiten_on": str(tmp_path / "other"), "whiten_dim": 8} if is_white else {}
    config, found = measured(
        tmp_path, dataset="roxford5k", path=str(tmp_path / "data"), pooling=pooling, scales=(1.0, 0.7), **white
    )
    got = values(found)
    assert list(got) == Retrieval.metrics(config, 0)
    assert len(got) == 3 * (1 + 3)
    assert got["map_easy"] > 60  # random filters tell patterns apart; chance is far below
    assert got["precision_at_1_medium"] > 60
    metrics = by_name(found.metrics)
    assert [name for name, metric in metrics.items() if metric.is_headline] == ["map_medium", "map_hard"]
    assert metrics["map_hard"].interval is not None


@pytest.mark.thorough
def test_numbers_of_the_revisited_benchmark_are_those_of_a_slow_loop(tmp_path: Path) -> None:
    folder = samples.revisited(tmp_path / "data", things=range(6)) / "roxford5k"
    network = tiny_resnet()
    _, found = measured(tmp_path, network, dataset="roxford5k", path=str(tmp_path / "data"))
    truth = pickle.loads((folder / "gnd_roxford5k.pkl").read_bytes())
    describer = Describer(network, DATA, replace(RMAC, stage="res2"))

    def vector(name: str, box: Any = None) -> Tensor:
        image = decode(Folder(str(folder / "jpg")).read(f"{name}.jpg"))
        return describer.descriptor(describer.parts(image, box))

    database = torch.stack([vector(name) for name in truth["imlist"]])
    levels = {
        "easy": (["easy"], ["junk", "hard"]),
        "medium": (["easy", "hard"], ["junk"]),
        "hard": (["hard"], ["junk", "easy"]),
    }
    for level, (right, ignored) in levels.items():
        areas, firsts = [], []
        for name, answer in zip(truth["qimlist"], truth["gnd"], strict=True):
            order = (database @ vector(name, tuple(answer["bbx"]))).argsort(descending=True).tolist()
            wanted, left_out = ({int(n) for kind in kinds for n in answer[kind]} for kinds in (right, ignored))
            areas.append(compute_ap(order, wanted, left_out))
            firsts.append(next(image for image in order if image not in left_out) in wanted)
        assert values(found)[f"map_{level}"] == pytest.approx(100 * sum(areas) / 6)
        assert values(found)[f"precision_at_1_{level}"] == pytest.approx(100 * sum(firsts) / 6)
    assert values(found)["map_hard"] < 100, "too easy to tell orders apart"


def test_the_same_images_are_found_first(tmp_path: Path) -> None:
    """Queries that stand in the database without a box are nearest to themselves."""
    samples.copydays(tmp_path / "data")
    for path in (tmp_path / "data" / "original").iterdir():
        copy = tmp_path / "data" / "strong" / f"{int(path.stem) + 1}.jpg"
        copy.write_bytes(path.read_bytes())
    config, found = measured(
        tmp_path, dataset="copydays", path=str(tmp_path / "data"), query_splits=("strong", "crops")
    )
    assert list(values(found)) == Retrieval.metrics(config, 0) == ["map_strong", "map_crops"]
    assert values(found)["map_strong"] == 100


@pytest.mark.thorough
@pytest.mark.parametrize("crop_queries", [True, False])
def test_oxford_buildings_and_instre_from_end_to_end(tmp_path: Path, crop_queries: bool) -> None:
    for dataset, make, names in (
        ("oxford5k", samples.buildings, ["map"]),
        ("instre", samples.instre, ["map", "map_validation"]),
    ):
        (tmp_path / dataset).mkdir()
        make(tmp_path / dataset)
        _, found = measured(tmp_path, dataset=dataset, path=str(tmp_path / dataset), crop_queries=crop_queries)
        assert list(values(found)) == names
        assert values(found)["map"] > 40


@pytest.mark.thorough
def test_a_vit_and_raw_pixels_are_measured_alike(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    samples.buildings(tmp_path / "data")
    for network in (tiny_vit(), RawPixels()):
        _, found = measured(tmp_path, network, dataset="oxford5k", path=str(tmp_path / "data"), stage=None)
        assert 0 < values(found)["map"] <= 100


def test_cropping_queries_changes_what_is_searched_for(tmp_path: Path) -> None:
    samples.save(tmp_path / "a.jpg", 0)
    image = decode(Folder(str(tmp_path)).read("a.jpg"))
    describer = Describer(tiny_resnet(), DATA, RMAC)
    images = Images(str(tmp_path), ("a.jpg",), (tuple(samples.BOX),))  # type: ignore[arg-type]
    left, top, right, bottom = map(int, samples.BOX)
    expected = describer.descriptor(describer.parts(image[:, top:bottom, left:right].contiguous()))
    box = describe(describer, images).rows[0]
    cut_size = Describer(describer.network, DATA, replace(RMAC, size=32))
    assert torch.allclose(box, cut_size.descriptor(cut_size.parts(image[:, top:bottom, left:right])), atol=1e-6)
    assert not torch.allclose(box, expected, atol=1e-3)


@pytest.mark.thorough
def test_distractors_are_searched_too(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    samples.buildings(tmp_path / "data")
    config = {"dataset": "oxford5k", "path": str(tmp_path / "data"), "crop_queries": False}
    for thing in range(3):
        samples.save(tmp_path / "alike" / f"{thing}.jpg", thing)
    _, alone = measured(tmp_path, **config)
    _, among = measured(tmp_path, **config, distractors=str(tmp_path / "alike"))
    assert values(among)["map"] < values(alone)["map"]


def test_settings_that_do_not_go_together_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    samples.revisited(tmp_path)
    config = Retrieval.Config(dataset="roxford5k", path=str(tmp_path))
    with pytest.raises(ConfigError, match="whiten_dim=4 without whiten_on="):
        Retrieval.fit_to(replace(config, whiten_dim=4), NONE)
    with pytest.raises(ConfigError, match="is the folder that is searched; give other images"):
        Retrieval.fit_to(replace(config, whiten_on=f"{tmp_path}/"), NONE)
    with pytest.raises(ConfigError, match="none"):
        Retrieval.fit_to(replace(config, whiten_on=str(tmp_path / "none")), NONE)
    with pytest.raises(ConfigError, match=r"distractors=.* is the folder that is searched"):
        Retrieval.fit_to(replace(config, distractors=str(tmp_path)), NONE)
    with pytest.raises(ConfigError, match="oxford5k needs path="):
        Retrieval.fit_to(Retrieval.Config(dataset="oxford5k"), NONE)


def test_a_dataset_needs_none_of_the_runs_images() -> None:
    config = Retrieval.Config(dataset="oxford5k", path="somewhere")
    assert Retrieval.needs(config).own_images
    assert not Retrieval.needs(config).test
    assert Retrieval.needs(config).labels == "none"
    assert Retrieval.stages(config) == ()
    assert Retrieval.stages(Retrieval.Config()) == ("",)
    assert Path(config.path or "").is_absolute()
