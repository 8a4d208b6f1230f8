import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.data.assignments import Assignments
from raysl.errors import ConfigError
from raysl.losses import UNKNOWN
from raysl.methods.clusterfit import ClusterFit
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.train.state import TrainState
from tests.methods.test_deepcluster import NUM_SAMPLES, START, plain, plain_images, some_batch

SMALL = ("backbone.num_stages=2", "backbone.width=4", "method.clusters=4", "train.batch_size=6")


def setup_of(
    num_samples: int = NUM_SAMPLES, fingerprint: str = "", words: tuple[str, ...] = (), **fields: Any
) -> Setup:
    settings = [f"method.{name}={value}" for name, value in fields.items()]
    return Setup.of(load_config("digits/clusterfit", [*SMALL, *settings, *words]), num_samples, fingerprint=fingerprint)


def small_method(**fields: Any) -> ClusterFit:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return ClusterFit(setup, ResNet(setup.config.backbone)).double()


@pytest.fixture
def teacher(tmp_path: Path) -> str:
    """A checkpoint of a run of another method."""
    words = ["backbone.num_stages=1", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=4", "benchmarks=[]"]
    state = TrainState.create(Setup.of(load_config("quickstart", [*words, "seed=5"]), 100))
    folder = tmp_path / "teacher" / "checkpoint_000000000"
    state.save(folder, {})
    return str(folder.parent)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = str(tmp_path / "clusters.parquet")
    Assignments(torch.arange(NUM_SAMPLES) % 4, 4, "mine", "runs/teacher").write(path)
    return path


def settled(rows: torch.Tensor, assignments: torch.Tensor) -> bool:
    """Whether each row is nearest to the mean of its own cluster."""
    z = F.normalize(rows.double(), dim=1)
    means = torch.stack([z[assignments == k].mean(dim=0) for k in range(4)])
    return torch.equal(torch.cdist(z, means).argmin(dim=1), assignments)


def test_every_view_is_classified_into_its_images_cluster() -> None:
    method, batch = small_method(), some_batch()
    method.before_epoch(START, plain)
    out = method(batch, START)
    h = method.backbone(batch.views["global"].flatten(0, 1)).unflatten(0, (6, 2))
    terms = []
    for row, index in enumerate(batch.index.tolist()):
        for view in range(2):
            p = torch.softmax(method.classifier.weight @ h[row, view] + method.classifier.bias, dim=0)
            terms.append(-p[method.assignments[index]].log())
    torch.testing.assert_close(out.loss, torch.stack(terms).mean(), rtol=1e-9, atol=0)
    assert tuple(out.metrics) == ClusterFit.logged


def test_without_a_teacher_pixels_are_clustered_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    method = small_method()
    assert (method.assignments == UNKNOWN).all()
    method.before_epoch(START, plain)
    assert settled(plain_images().flatten(1), method.assignments)
    with caplog.at_level(logging.WARNING, logger="raysl"):
        ClusterFit.check(setup_of())
    assert "the clusters are those of pixels" in caplog.text


@pytest.mark.thorough
def test_a_teachers_features_are_clustered_once_in_front_of_the_first_step(teacher: str) -> None:
    from raysl.checkpoint.backbone import load_backbone

    ClusterFit.check(setup_of(teacher=teacher))
    method = small_method(teacher=teacher)
    method.before_epoch(START, plain)
    with torch.no_grad():
        rows = load_backbone(teacher)(plain_images().float())
    assert settled(rows, method.assignments)
    kept = method.assignments.clone()

    def none() -> Any:
        raise AssertionError("images are not looked at again")

    method.before_epoch(Step(10, 100, 10), none)
    assert torch.equal(method.assignments, kept)
    assert not any("teacher" in name for name in method.state_dict())


def test_a_file_of_clusters_is_taken_as_it_is(file: str) -> None:
    method = small_method(assignments=file)
    ClusterFit.check(method.setup)
    method.before_epoch(START, plain)
    assert method.assignments.tolist() == [index % 4 for index in range(NUM_SAMPLES)]


def test_settings_and_views_are_vissls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = ClusterFit.Config()
    assert (config.clusters, config.kmeans_iters, config.pca_dim) == (16_000, 50, None)
    (view,) = config.views.recipe().groups["global"]
    assert [type(transform).__name__ for transform in view.transforms] == ["HorizontalFlip", "ColorJitter"]
    monkeypatch.chdir(tmp_path)
    assert ClusterFit.Config(teacher="runs/a").teacher == str(tmp_path / "runs" / "a")


def test_check_refuses_clusters_of_other_images_or_another_number(file: str) -> None:
    ClusterFit.check(setup_of(assignments=file, fingerprint="mine"))
    with pytest.raises(ConfigError, match=r"14 images with the fingerprint 'mine', but the run has 14 with 'other'"):
        ClusterFit.check(setup_of(assignments=file, fingerprint="other"))
    with pytest.raises(ConfigError, match=r"of 14 images .* the run has 20"):
        ClusterFit.check(setup_of(20, assignments=file))
    with pytest.raises(ConfigError, match=r"method\.clusters is 5, and .* has 4; set method\.clusters=4"):
        ClusterFit.check(setup_of(assignments=file, clusters=5))


@pytest.mark.thorough
def test_check_refuses_what_cannot_work(teacher: str, file: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"method\.clusters has 15 for 14 training images"):
        ClusterFit.check(setup_of(clusters=15))
    with pytest.raises(ConfigError, match=r"both set, .* leave one out"):
        ClusterFit.check(setup_of(teacher=teacher, assignments=file))
    with pytest.raises(ConfigError, match=r"method\.teacher: .*nothing"):
        ClusterFit.check(setup_of(teacher=tmp_path / "nothing"))
    with pytest.raises(ConfigError, match=r"data\.mean and data\.std are \[0\.5, 0\.5, 0\.5\]"):
        ClusterFit.check(setup_of(teacher=teacher, words=("data.mean=[0.5,0.5,0.5]",)))
    pq.write_table(pa.table({"index": [0]}), tmp_path / "other.parquet")
    with pytest.raises(ConfigError, match="raysl cluster --checkpoint RUN writes such a file"):
        ClusterFit.check(setup_of(assignments=tmp_path / "other.parquet"))
