"""ImageNet-C and its mean corruption error."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from raysl.benchmarks import corruptions, robustness
from raysl.benchmarks.benchmark import Context, Labelled, by_name
from raysl.benchmarks.corruptions import ALEXNET_ERRORS, corrupted_folders, mean_corruption_error
from raysl.benchmarks.robustness import Robustness
from raysl.benchmarks.shifted_sets import ShiftedSet
from raysl.errors import ConfigError
from raysl.storage.addresses import split_query
from tests.benchmarks.test_robustness import context_with, embedded
from tests.benchmarks.test_shifted_sets import WORDS, save

KINDS = {"noise": "noise", "blur": "blur"}


def imagenet_c(root: Path, wrong: dict[str, int]) -> Path:
    """Two images of each corruption and severity, in folders of kinds; so many severities of some are misleading."""
    for name in ALEXNET_ERRORS:
        kind = name.rpartition("_")[2] if name.rpartition("_")[2] in KINDS else "other"
        for severity in range(1, 6):
            for place, word in enumerate(WORDS[:2]):
                is_wrong = place == 0 and severity <= wrong.get(name, 0)
                shade = 22 + 40 * (5 if is_wrong else WORDS.index(word))
                save(root / kind / name / str(severity) / word / "0.png", shade)
    return root


def test_alexnet_has_100_and_what_is_never_wrong_0() -> None:
    assert mean_corruption_error({name: [error] * 5 for name, error in ALEXNET_ERRORS.items()}) == pytest.approx(100)
    assert mean_corruption_error({name: [0.0] * 5 for name in ALEXNET_ERRORS}) == 0
    # table 1 of Hendrycks and Dietterich 2019 has these for AlexNet, rounded
    rounded = [89, 89, 92, 82, 83, 79, 80, 87, 83, 82, 56, 85, 65, 72, 61]
    assert [round(error) for error in ALEXNET_ERRORS.values()] == rounded


@pytest.mark.thorough
def test_the_mean_is_over_severities_then_over_corruptions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def here(context: Context, name: str, images: ShiftedSet) -> Tensor:
        seen.append((name, context.data.eval_resize))
        return embedded(images.images, context)

    monkeypatch.setattr(robustness, "features_of", here)
    folder = imagenet_c(tmp_path / "c", wrong={"snow": 2, "gaussian_noise": 5})
    config = Robustness.Config(imagenet_c=str(folder), normalize="none", learning_rates=(0.5,))
    context = context_with(tmp_path)
    assert Robustness.fit_to(config, Labelled(24, 12, WORDS, None)) == (config, [])
    found = by_name(Robustness(config).measure(context).metrics)
    assert list(found) == Robustness.metrics(config, 6)
    errors = {"snow": 50 * 2 / 5, "gaussian_noise": 50.0}
    slow = sum(errors.get(name, 0) / alexnet for name, alexnet in ALEXNET_ERRORS.items()) / 15
    assert found["imagenet_c_mce"].value == pytest.approx(100 * slow)
    assert found["imagenet_c_mce"].is_lower_better
    assert found["imagenet_c_top1"].value == pytest.approx(100 - (50 * 2 + 50 * 5) / 75)
    assert len(seen) == 75
    assert {resize for _, resize in seen} == {context.data.image_size}  # cropped, not resized before


def test_an_incomplete_imagenet_c_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    folder = imagenet_c(tmp_path / "c", {})
    (folder / "blur" / "zoom_blur").rename(folder / "blur" / "other_blur")
    with pytest.raises(ConfigError, match=r"1 of the 15 corruptions .* first 'zoom_blur'"):
        Robustness.fit_to(Robustness.Config(imagenet_c=str(folder)), Labelled(24, 12, WORDS, None))
    (folder / "blur" / "other_blur").rename(folder / "zoom_blur")  # beside the folders of kinds
    assert corrupted_folders(str(folder))["zoom_blur"][4] == f"{folder}/zoom_blur/5"
    (folder / "zoom_blur" / "3").rename(folder / "zoom_blur" / "6")
    with pytest.raises(ConfigError, match="no folder 3 of that severity"):
        corrupted_folders(str(folder))


def test_sets_without_it_have_no_such_number(tmp_path: Path) -> None:
    config = replace(Robustness.Config(), imagenet_v2=str(tmp_path))
    assert Robustness.metrics(config, 4) == ["test_top1", "imagenet_v2_top1"]
    assert torch.tensor(list(ALEXNET_ERRORS.values())).mean().item() == pytest.approx(78.8, abs=0.1)


def test_the_query_of_a_uri_stays_at_the_end_of_each_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def inside(uri: str) -> list[str]:
        base, query = split_query(uri)
        assert query == "?region=eu-west-1"
        return list("12345") if base.rpartition("/")[2] in ALEXNET_ERRORS else list(ALEXNET_ERRORS)

    monkeypatch.setattr(corruptions, "list_folders", inside)
    assert corrupted_folders("s3://bucket/c?region=eu-west-1")["snow"][4] == "s3://bucket/c/snow/5?region=eu-west-1"
