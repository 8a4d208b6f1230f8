"""Weights that a new run begins with: those of another run (`method.weights`), or published ones
(`backbone.pretrained`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from raysl.checkpoint.weights import Weights, adapted_by, fitting, is_counter, parts_of, read_weights
from raysl.config.schema import RunConfig
from raysl.errors import log
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.backbones.published import Published


@dataclass(frozen=True)
class PublishedWeights:
    """Published weights of a run's backbone; other parts of the method begin at random."""

    library: str
    published: Published

    def fill_backbone(self, backbone: Backbone) -> None:
        """Load these weights into a fresh backbone."""
        mine = backbone.state_dict()
        modules = {name.partition(".")[0] for name in mine}
        named = backbone.renamed(self.published.tensors)
        # counters are those of the fresh backbone where an old file has none
        tensors = {
            **{name: value for name, value in mine.items() if is_counter(name)},
            **{name: value for name, value in named.items() if name.partition(".")[0] in modules},  # no classifier
        }
        what = f"backbone.pretrained: {self.published.name} does not fit these settings of the backbone"
        advice = "leave out settings that change its shape, such as backbone.image_size"
        backbone.load_state_dict(fitting(backbone, tensors, what, advice))

    def fill_method(self, method: nn.Module, given_parts: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return, for `meta.json`, the origin of the weights, and the parts of the method that begin at random."""
        parts = parts_of(method.state_dict())
        backbone = method.get_submodule("backbone")
        notes = adapted_by(method, backbone.renamed(self.published.tensors)) if isinstance(backbone, Backbone) else []
        file = self.published.file
        return {
            "uri": file.uri,
            "name": self.published.name,
            "library": self.library,
            "sha256": {file.path.name: file.sha256},
            **({} if file.revision is None else {"revision": file.revision}),
            "taken": [f"backbone ({len(parts['backbone'])} tensors)"],
            "left_out": [
                f"{name} (method.{given_parts[name]} says where it comes from)"
                if given_parts and name in given_parts
                else f"{name} (begins at random)"
                for name in parts
                if name != "backbone"
            ],
            **({"adapted": notes} if notes else {}),
        }


def initial_weights(config: RunConfig, backbone: type[Backbone]) -> Weights | PublishedWeights | None:
    """Return the weights that a new run begins with, or None for random ones.

    Args:
        config: settings of the run; `method.weights` comes before `backbone.pretrained`.

    Raises:
        ConfigError: if they cannot be read, or their hash is wrong.
        StorageError: if they cannot be downloaded.
    """
    if config.method.weights is not None:
        return read_weights(config)
    if not config.backbone.is_pretrained:
        return None
    published = backbone.published(config.backbone)
    is_same = len(published.mean) == len(config.data.mean)  # no normalisation of theirs fits other channels
    if is_same and (published.mean, published.std) != (config.data.mean, config.data.std):
        mean, std = (",".join(f"{value:g}" for value in values) for values in (published.mean, published.std))
        log.warning(
            f"{published.name} was trained on images normalised by other values than this run has; "
            f"data.mean=[{mean}] data.std=[{std}] are its own"
        )
    return PublishedWeights(config.backbone.name, published)


def describe_origin(origin: Mapping[str, Any]) -> str:
    """Describe the result of `fill_method` in a sentence."""
    left_out = f"; not taken: {', '.join(origin['left_out'])}" if origin["left_out"] else ""
    if "library" in origin:
        (digest,) = origin["sha256"].values()
        where = f"{origin['name']} of {origin['library']} ({origin['uri']}, SHA-256 {digest})"
    else:
        where = f"{origin['uri']} ({origin['method']}, step {origin['step']})"
    adapted = f"; adapted: {', '.join(origin['adapted'])}" if origin.get("adapted") else ""
    return f"begins with the weights of {where}: {', '.join(origin['taken'])}{left_out}{adapted}"
