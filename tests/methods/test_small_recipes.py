"""The recipes of `configs/small`: for 2,000 to 50,000 images and batches of 32 to 256."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits

import raysl
from raysl.config.load import load_config
from raysl.optim.course import peak_lr
from raysl.plan.adapt import adapt
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.train import LocalReporter, TrainState, fit
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.callbacks.watch import CollapseWatch
from raysl.train.disk import Disk
from raysl.train.file_names import EVENTS_FILE, parse_events
from tests.small_copy import SmallCopy

METHODS = ("dino", "dino_v2", "dino_v3")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("num_samples", "batch_size"), [(2000, 32), (2000, 256), (50_000, 256)])
def test_nothing_has_to_be_adapted_to_few_images(method: str, num_samples: int, batch_size: int) -> None:
    config = load_config(f"small/{method}", ["data.path=/images", f"train.batch_size={batch_size}"])
    adapted = adapt(config, num_samples)
    assert (adapted.train, adapted.optim, adapted.method) == (config.train, config.optim, config.method)


@pytest.mark.parametrize(("method", "rate"), [("dino", 5e-4), ("dino_v2", 2e-3), ("dino_v3", 2e-3)])
def test_the_learning_rate_follows_the_root_of_the_batch(method: str, rate: float) -> None:
    optim = load_config(f"small/{method}", ["data.path=/images"]).optim
    assert [peak_lr(optim, size) for size in (64, 256)] == pytest.approx([rate, 2 * rate])


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["dino_v2", "franca", "dino_v3", "paka"])
def test_equal_images_have_the_largest_entropy_of_the_teacher(method: str) -> None:
    copy = SmallCopy.of(f"digits/{method}")
    with torch.no_grad():
        drawn = copy.method(copy.batch, copy.setup.plan.step(0)).metrics["teacher_entropy"].item()
        equal = copy.batch.map(torch.zeros_like)
        uniform = copy.method(equal, copy.setup.plan.step(0)).metrics["teacher_entropy"].item()
    assert copy.method.most_entropy == pytest.approx(uniform, rel=1e-5)
    assert drawn < uniform


def course(recipe: str, folder: Path, *words: str) -> tuple[list[str], list[float]]:
    """The events of 215 steps on digits, and the teacher's entropies as shares of the largest."""
    size = ("backbone.size=nano", "backbone.patch_size=8", "method.views.num_local=2", "method.views.local_size=16")
    data = ("data=digits", "views=digits", "data.image_size=32", "train.batch_size=32", "train.epochs=5")
    more = (*data, *size, "train.precision=fp32", "train.log_every=1st", "train.checkpoint_every=100ep", *words)
    pixels = torch.from_numpy(load_digits().images[:1376] / 16 * 255).to(torch.uint8)
    images = list(pixels[:, None].expand(-1, 3, -1, -1).contiguous())
    config: Any = adapt(load_config(recipe, more), len(images))
    setup = Setup.of(config, num_samples=len(images))
    state, entropies = TrainState.create(setup), Entropies()
    callbacks = [CollapseWatch(Disk(folder)), entropies]
    fit(state, state.method, setup.plan, raysl.views(config, images), callbacks=callbacks, reporter=LocalReporter())
    most = math.log(config.method.head.num_prototypes)
    events = folder / EVENTS_FILE
    told = [note["event"] for note in parse_events(events.read_bytes())] if events.exists() else []
    return told, [entropy / most for entropy in entropies.seen]


class Entropies(Callback):
    """Keeps the teacher's entropies."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        """See `Callback.on_log`."""
        self.seen.append(line["teacher_entropy"])


@pytest.mark.slow
def test_where_the_paper_s_settings_stay_uniform_the_small_recipe_learns_and_the_warning_names_it(
    tmp_path: Path,
) -> None:
    heads = ("method.head.hidden_dim=128", "method.patch_head.hidden_dim=128")
    few = ("method.head.num_prototypes=1024", "method.patch_head.num_prototypes=1024")
    (event,), published = course("dino_v2", tmp_path, *heads, *few)
    assert min(published) > 0.999
    assert event.startswith("the teacher gives all images nearly the same scores")
    assert "small/dino_v2 is the recipe" in event
    events, small = course("small/dino_v2", tmp_path / "small", *heads)
    assert events == []
    assert max(small[10:]) < 0.999


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dino", "dino_v3"])
def test_the_small_recipes_move_away_from_equal_scores(method: str, tmp_path: Path) -> None:
    heads = ("method.head.hidden_dim=128", *(["method.patch_head.hidden_dim=128"] if method == "dino_v3" else []))
    events, small = course(f"small/{method}", tmp_path, *heads)
    assert events == []
    assert small[-1] < 0.995
