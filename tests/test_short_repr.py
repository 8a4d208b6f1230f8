"""What a notebook shows of a run and of a backbone: a few lines."""

import pandas as pd
import torch
from torch import nn

import raysl
from raysl.benchmarks.suite.evaluate import Report
from raysl.checkpoint.backbone import Checkpoint
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.backbones.vit import ViT
from raysl.predictor import Predictor
from raysl.pretraining import Result
from raysl.report.contents import Score


def test_a_backbone_is_one_line() -> None:
    backbone = ResNet(ResNet.Config(depth=18, width=8))
    num = sum(weight.numel() for weight in backbone.parameters())
    stages = "conv1 8, stem 8, res2 8, res3 16, res4 32, res5 64, avgpool 64"
    assert repr(backbone) == f"ResNet(64 features; {num / 1e6:.3g} M parameters; stages {stages})"
    assert "\n" not in repr(ViT(ViT.Config(depth=2, width=12, heads=2, patch_size=8, image_size=16)))
    assert "(0): ResNet(64 features" in repr(nn.Sequential(backbone)), "and inside of others"


def test_a_run_is_its_step_its_loss_the_first_number_of_each_benchmark_and_its_folder() -> None:
    scores = [
        Score(benchmark="knn", metric="k20/top1", trained=93.24, untrained=89.86),
        Score(benchmark="knn", metric="k20/top5", trained=100.0),
        Score(benchmark="linear", metric="top1", trained=91.5),
    ]
    metrics = {"step": 132.0, "loss": 3.41, "knn_k20_top1": 90.7, "lr": 0.1, "knn/k20/top1": 93.24}
    report = Report({}, "runs/a/report.html", scores)
    result = Result("runs/a/checkpoint_1", metrics, pd.DataFrame({"step": range(999)}), "runs/a", report)
    assert repr(result).splitlines() == [
        "step 132  loss 3.41  knn_k20_top1 90.7",
        "knn/k20/top1  93.24 %",
        "linear/top1  91.5 %",
        "run  runs/a",
    ]
    bare = Result("runs/a/checkpoint_1", {"step": 3.0}, pd.DataFrame(), "s3://KEY:SECRET@b/a", None)
    assert repr(bare) == "step 3\nrun  s3://***@b/a"


def test_a_batch_is_its_shapes_and_views_are_their_numbers() -> None:
    config = raysl.load_config("quickstart", ["train.batch_size=2"])
    views = raysl.views(config, [torch.zeros(3, 20, 20, dtype=torch.uint8)] * 4)
    assert repr(views) == "Views(4 images; 2 batches of 2 in a pass; on cpu)"
    batch = next(iter(views))
    assert repr(batch) == "Batch(global [2, 2, 3, 16, 16], index [2], label [2]; epoch 0, step 0)"


def test_a_predictor_is_its_checkpoint_and_its_backbone() -> None:
    predictor = object.__new__(Predictor)
    predictor.backbone = ResNet(ResNet.Config(depth=18, width=8))
    uri = "s3://KEY:SECRET@b/a/checkpoint_1"
    predictor.checkpoint = Checkpoint(uri, raysl.load_config("quickstart"), {}, predictor.backbone)
    predictor.device = torch.device("cpu")
    assert repr(predictor) == f"Predictor(s3://***@b/a/checkpoint_1; {predictor.backbone!r}; on cpu)"
