"""A backbone with imported weights, kept as a run of raysl with one checkpoint of step 0.

Everything that takes a run or a checkpoint takes it: benchmarks, features, `load_backbone`, `method.weights`.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save as to_safetensors

import raysl
from raysl.checkpoint.checkpoint_folder import BACKBONE_FILE, SETTINGS_FILE, checkpoint_name, seal, upload
from raysl.config.dump import dump
from raysl.config.schema import MethodConfig, RunConfig
from raysl.data.batch import Batch, DataInfo
from raysl.methods.method import Backbone, ConfigError, Method, Setup, Step, StepOutput
from raysl.storage.folder import Folder
from raysl.transforms.view_recipe import ViewRecipe, evaluation_recipe

NAME = f"{__name__}:Imported"
METHOD = "imported"  # in messages and `meta.json`


class Imported(Method):
    """Holds a backbone that was trained elsewhere; it trains nothing."""

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """Where the weights are from."""

        name: str = NAME
        origin: str = ""
        """The file that was converted."""
        layout: str = ""
        """How it was laid out."""

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse to train."""
        raise ConfigError(
            f"method.name={NAME} holds imported weights and trains nothing; give a method, such as method=simclr, and "
            "these weights by method.weights="
        )

    @classmethod
    def views(cls, setup: Setup) -> ViewRecipe:
        """Return the plain image, for reports."""
        data = setup.config.data
        return evaluation_recipe(data.image_size, data.eval_resize, data.eval_interpolation)

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Never called: `check` comes first."""
        raise AssertionError("imported weights are not trained")


def write_imported(backbone: Backbone, config: RunConfig, weights: dict[str, Any], draft: Path, out: Folder) -> str:
    """Write a folder that reads as a run with one checkpoint.

    Args:
        weights: origin of the weights, for `meta.json`.
        draft: local folder in which the checkpoint is made.

    Returns:
        The URI of the checkpoint.
    """
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in backbone.state_dict().items()}
    (draft / BACKBONE_FILE).write_bytes(to_safetensors(state))
    (draft / SETTINGS_FILE).write_text(dump(config))
    data = DataInfo(num_samples=config.train.batch_size, num_classes=0, eval_size=config.data.image_size)  # a batch
    meta = {
        "raysl": raysl.__version__,
        "method": METHOD,
        "step": 0,
        "epochs": 0,
        "data": asdict(data),
        "metrics": {},
        "weights": weights,
    }
    seal(draft, meta)
    name = checkpoint_name(0)
    upload(draft, out, name)
    return out.uri_of(name)
