"""Every packaged configuration loads, builds, and makes the views that its method takes."""

from pathlib import Path

import pytest
import torch

from raysl.components import Classes
from raysl.config.files import config_names, packaged_folder
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.plan.setup import Setup
from raysl.runs.prepare import check_views
from raysl.sweeps.load import load_starts, load_sweep
from raysl.train.state import TrainState
from raysl.transforms import normalize
from tests.methods.properties import TINY

SWEEPS = [name for name in config_names() if name.startswith("sweep/")]
FRAGMENTS = [name for name in config_names() if name.startswith("data/")]
RUNS = [name for name in config_names() if name not in SWEEPS + FRAGMENTS]

LESS = {
    "data2vec": ("method.num_layers=2",),
    "barlow_twins": ("method.dim=64",),
    "dino_v2": ("method.patch_head.num_prototypes=512",),
    "distill": ("method.teacher=untrained", "method.target=features", "method.label_weight=0"),
    "vicreg": ("method.dim=64",),
    "wmse": ("method.output_dim=2", "method.sub_batch=4"),
}
"""Settings of methods whose published ones take gigabytes, larger batches, or a teacher of the user's."""


@pytest.mark.parametrize("name", RUNS)
def test_a_step_of_every_config_has_a_finite_loss_and_gradient(name: str) -> None:
    published = load_config(name)
    small = [*TINY[published.backbone.name], *LESS.get(published.method.name, ())]
    config = load_config(name, [*small, "train.batch_size=4"])
    setup = Setup.of(config, num_samples=20_000, num_classes=10)
    recipe = check_views(setup, Classes.of(config))
    is_cut = next(iter(recipe.groups.values()))[0].tiles is not None
    assert recipe.size == config.data.image_size or is_cut
    index = torch.arange(4)
    images = [torch.randint(0, 256, (3, 40 + i, 50), dtype=torch.uint8) for i in range(4)]
    made = recipe.augment(recipe.crop(images, index.numpy(), setup.seed, 0), index.numpy(), setup.seed, 0)
    floats = {group: normalize(view, config.data.mean, config.data.std) for group, view in made.views.items()}
    state = TrainState.create(setup)
    out = state.method(Batch(floats, index, index, extras=made.extras, seed=setup.seed), setup.plan.step(0))
    out.loss.backward()
    assert torch.isfinite(out.loss)
    assert all(torch.isfinite(p.grad).all() for p in state.method.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", RUNS + FRAGMENTS + SWEEPS)
def test_every_config_says_what_it_is_and_how_to_run_it(name: str) -> None:
    head = (Path(packaged_folder()) / f"{name}.yaml").read_text().split("\n\n")[0]
    assert head.startswith("# ")
    assert "# Command: raysl " in head


@pytest.mark.parametrize("name", FRAGMENTS)
def test_data_configs_lie_over_a_run(name: str) -> None:
    config = load_config("simclr", [f"base={name}", "data.path=/images"])
    assert config.data.image_size == 32


@pytest.mark.parametrize("name", SWEEPS)
def test_sweeps_load_and_depart_from_a_config(name: str) -> None:
    space, rest = load_sweep(name, ["trials=2", "train.epochs=3"])
    assert space.trials == 2
    assert rest == ["train.epochs=3"]
    assert load_config(space.config).name == space.config
    starts = load_starts(space, rest)
    assert list(starts) == space.configs
    assert {start.train.epochs for start in starts.values()} <= {3}
