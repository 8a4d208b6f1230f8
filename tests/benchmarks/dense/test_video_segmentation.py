"""The benchmark on videos that are made, end to end."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import raysl
from raysl.benchmarks.benchmark import Findings, Labelled, by_name
from raysl.benchmarks.dense.videos import Video
from raysl.benchmarks.suite.digests import content_of
from raysl.benchmarks.video_segmentation import Follower, VideoSegmentation, sides
from raysl.components import resolve
from raysl.data.sources.digits import Digits
from raysl.errors import ConfigError
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.backbones.vit import ViT
from tests.benchmarks.contexts import context_of
from tests.benchmarks.dense.scenes import RESNET, VIT, context
from tests.benchmarks.dense.test_contours import slow_f
from tests.benchmarks.dense.test_videos import davis, square_video

NONE = Labelled(0, 0, (), None)


def vit() -> ViT:
    """With patches of 4 pixels and random weights."""
    torch.manual_seed(0)
    return ViT(ViT.Config(width=24, depth=1, heads=2, patch_size=4, image_size=32)).eval()


def resnet() -> ResNet:
    """A map of half the image's side, with random weights."""
    torch.manual_seed(0)
    return ResNet(ResNet.Config(depth=10, width=16, num_stages=2, stem="cifar")).eval()


def config(root: Path, **fields: Any) -> VideoSegmentation.Config:
    return VideoSegmentation.Config(path=str(root), **({"short_side": 48} | fields))


def measured(network: nn.Module, settings: VideoSegmentation.Config, folder: Path) -> Findings:
    assert VideoSegmentation.fit_to(settings, NONE) == (settings, [])
    data = replace(Digits.Config(), eval_interpolation=settings.interpolation)
    found = VideoSegmentation(settings).measure(context_of(network, data, folder))
    assert list(by_name(found.metrics)) == VideoSegmentation.metrics(settings, 0)
    return found


def values(found: Findings) -> dict[str, float]:
    return {metric.name: metric.value for metric in found.metrics}


@pytest.mark.thorough
@pytest.mark.parametrize("network", [vit(), resnet()], ids=["vit", "resnet"])
def test_a_moving_square_is_followed(tmp_path: Path, network: nn.Module) -> None:
    masks = square_video(7)
    davis(tmp_path / "davis", {"square": masks})
    found = values(measured(network, config(tmp_path / "davis"), tmp_path))
    where_it_was = [float((masks[0] & mask).sum() / (masks[0] | mask).sum()) for mask in masks[1:-1]]
    assert 100 * np.mean(where_it_was) < 30
    assert found["j_mean"] > 75
    assert found["j_recall"] == 100


def test_it_cannot_be_followed_further_than_the_radius(tmp_path: Path) -> None:
    davis(tmp_path / "davis", {"square": square_video(3, side=8, step=32, size=(48, 96))})
    near, far = (values(measured(vit(), config(tmp_path / "davis", radius=radius), tmp_path)) for radius in (3, 12))
    assert near["j_mean"] < 20 < 60 < far["j_mean"]


def test_numbers_are_means_over_objects_of_their_frames_without_the_first_and_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    still = square_video(4, step=0)
    two = [mask.copy() for mask in still]
    two[0][40:44, :4] = two[1][40:44, :4] = 2  # gone in the third frame
    folder = {"one": still, "two": two}
    davis(tmp_path / "davis", folder)
    shifted = np.roll(still[0], 12, axis=1)
    predictions = {"one": [still[1], shifted], "two": [shifted, two[2]]}  # the second object is missed, then gone

    def predict(_: Follower, video: Video, first: Tensor) -> Iterator[Tensor]:
        assert torch.equal(first, torch.from_numpy(folder[video.name][0]))
        yield from (torch.from_numpy(mask).long() for mask in predictions[video.name])

    monkeypatch.setattr(Follower, "predict", predict)
    found = measured(vit(), config(tmp_path / "davis"), tmp_path)
    there, predicted = still[0] > 0, shifted > 0
    overlap, match = float((there & predicted).sum() / (there | predicted).sum()), slow_f(predicted, there)
    j, f = ([[1, one], [one, 1], [0, 1]] for one in (overlap, match))  # of the three objects in both frames
    j_mean, f_mean = (100 * float(np.mean(scores)) for scores in (j, f))
    assert overlap < 0.5
    assert values(found) == {
        "jf_mean": pytest.approx((j_mean + f_mean) / 2),
        "j_mean": pytest.approx(j_mean),
        "j_recall": pytest.approx(100 * np.mean(np.array(j) > 0.5)),
        "f_mean": pytest.approx(f_mean),
        "f_recall": pytest.approx(100 * np.mean(np.array(f) > 0.5)),
    }
    (per_video,) = found.figures["per_class"].values()
    assert per_video["one"] == pytest.approx(100 * (2 + overlap + match) / 4)
    assert sum(metric.is_headline for metric in found.metrics) == 1
    assert all(len(metric.per_image) == 3 for metric in found.metrics if metric.per_image is not None)


def test_it_draws_no_random_numbers(tmp_path: Path) -> None:
    davis(tmp_path / "davis", {"square": square_video(4)})
    network = vit()
    first = measured(network, config(tmp_path / "davis"), tmp_path)
    torch.manual_seed(99)
    second = measured(network, config(tmp_path / "davis"), tmp_path)
    assert values(first) == values(second)


def test_frames_have_the_sides_of_dinos_code() -> None:
    assert sides(480, 854, 480, 16) == (480, 832)
    assert sides(480, 854, 480, 8) == (480, 832)
    assert sides(910, 480, 480, 16) == (896, 480)
    assert sides(480, 854, 480, 14) == (476, 826)
    assert sides(480, 480, 480, 16) == (480, 480)
    assert sides(24, 30, 24, 4) == (24, 28)


@pytest.mark.thorough
def test_what_cannot_be_measured_is_refused_before(tmp_path: Path) -> None:
    kind = resolve("benchmark", "video_segmentation")
    assert kind is VideoSegmentation
    with pytest.raises(ConfigError, match="video_segmentation needs path=, the folder of DAVIS 2017"):
        kind.fit_to(VideoSegmentation.Config(), NONE)
    with pytest.raises(ConfigError, match=r"no .*ImageSets/2017/val.txt"):
        kind.fit_to(config(tmp_path), NONE)
    given = context(tmp_path / "run", *RESNET).checkpoint
    kind.check(config(tmp_path), given)
    with pytest.raises(ConfigError, match="'avgpool' is not a map of this backbone; choose from conv1, stem, res2"):
        kind.check(config(tmp_path, stage="avgpool"), given)
    kind.check(config(tmp_path, short_side=50), context(tmp_path / "vit", *VIT).checkpoint)


def test_files_that_spoil_the_scores_are_named(tmp_path: Path) -> None:
    masks = square_video(4)
    empty = [np.zeros_like(mask) for mask in masks]
    davis(tmp_path / "none", {"empty": empty})
    with pytest.raises(ConfigError, match=r"empty/00000.png shows no object"):
        measured(vit(), config(tmp_path / "none"), tmp_path)
    davis(tmp_path / "other", {"square": [*masks[:2], masks[2][:40], masks[3]]})
    with pytest.raises(ConfigError, match=r"00002.png has \[40, 64\] pixels, and its first frame \[48, 64\]"):
        measured(vit(), config(tmp_path / "other"), tmp_path)


def test_other_files_make_another_result(tmp_path: Path) -> None:
    davis(tmp_path / "davis", {"square": square_video(4)})
    before = content_of(config(tmp_path / "davis"))
    assert before
    (tmp_path / "davis/Annotations/480p/square/00003.png").write_bytes(b"other")
    assert content_of(config(tmp_path / "davis")) != before


@pytest.mark.cluster
def test_it_is_measured_by_itself_where_ray_has_not_begun(tmp_path: Path, own_ray: None) -> None:
    davis(tmp_path / "videos", {"one": square_video(3)})
    settings = [f"video_segmentation.path={tmp_path / 'videos'}", "video_segmentation.short_side=48"]
    report = raysl.benchmark("cifar10/simclr", ["video_segmentation"], overrides=settings)
    assert report.failures == {}
    (found,) = (value for name, value in report.metrics.items() if name.endswith("/j_mean"))
    assert found > 50
