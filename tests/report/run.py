"""A small run with every part of a report."""

import numpy as np

from raysl.report.contents import EmbeddingSample, Neighbours, RunReport, Score, ViewSample

SCORES = [
    Score(
        benchmark="low_shot",
        metric="5_shot",
        title="Low-shot, 5 per class",
        trained=90.1,
        untrained=70.4,
        pixels=77.5,
        deviation=0.8,
    ),
    Score(
        benchmark="knn",
        metric="k20/top1",
        title="kNN, top-1, k = 20",
        trained=97.4,
        untrained=93.0,
        pixels=98.1,
        note="temperature=0.1",
    ),
    Score(benchmark="linear", metric="top1", trained=96.0),
]


def example(**changes: object) -> RunReport:
    """Two clusters of images, 60 logged steps; `changes` replace its fields."""
    draws = np.random.default_rng(0)
    labels = np.arange(40) % 2
    features = draws.normal(size=(40, 6)) + 6 * labels[:, None]
    images = draws.integers(0, 256, size=(40, 8, 8, 3), dtype=np.uint8)
    history = [
        {"step": step, "epoch": step // 10, "loss": 5 - step / 20, "lr": 0.1, "images_per_s": 500.0 + step % 7}
        for step in range(1, 61)
    ]
    history[-1] |= {"knn_k20_top1": 88.0, "heldout_rotation_top1": 71.5, "data_wait": 0.25}
    fields: dict[str, object] = {
        "name": "morning",
        "method": "SimCLR",
        "backbone": "resnet18",
        "dataset": "digits",
        "config": {"seed": 3, "optim": {"lr": 0.3, "betas": [0.9, 0.999]}},
        "config_docs": {"optim.lr": "Peak of the learning rate."},
        "environment": {"python": "3.11.9", "torch": "2.15.0"},
        "times": {"imports": 2.0, "training": 95.0, "total": 100.0},
        "history": history,
        "scores": SCORES,
        "embeddings": EmbeddingSample(
            features=features.astype(np.float32), labels=labels, class_names=["cat", "dog"], thumbnails=images
        ),
        "neighbours": Neighbours(
            queries=images[:2],
            query_labels=labels[:2],
            images=images[2:8].reshape(2, 3, 8, 8, 3),
            labels=labels[2:8].reshape(2, 3),
            similarities=np.array([[0.9, 0.8, 0.7], [0.6, 0.5, 0.4]], dtype=np.float32),
        ),
        "views": ViewSample(
            originals=[images[0], images[1, :5]],
            views={"global": images[:4].reshape(2, 2, 8, 8, 3), "local": images[:6, :4, :4].reshape(2, 3, 4, 4, 3)},
        ),
        "events": ["resumed at step 20"],
        "checkpoint": "s3://bucket/morning/checkpoint_000060",
        "command": "raysl pretrain simclr",
        "finished": "2026-03-14T06:41:09",
    }
    return RunReport(**fields | changes)  # type: ignore[arg-type]
