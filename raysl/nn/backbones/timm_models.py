"""The networks of timm (PyTorch Image Models, Wightman 2019), by their names there; timm is installed apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from raysl.errors import ConfigError
from raysl.nn.backbones.wrapped import WRONG_SIZE, WrappedBackbone, check_known, with_own_draws

ARGUMENTS = {"img_size": "image_size", "drop_path_rate": "drop_path"}
"""What timm calls our settings."""


class TimmModel(WrappedBackbone):
    """A network of timm without its classifier, by its name there: `resnet50`, `vit_small_patch16_224`.

    Features are what timm gives for `num_classes=0`. Weights start at random, as timm's do. The stages are those that
    timm has intermediates of, maps [B, C, H, W]: `stage1`, `stage2`, ... or, where all are of one resolution, `block1`,
    `block2`, ...; and `features`, which is what `forward` gives.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(WrappedBackbone.Config):
        """Settings of a network of timm."""

        name: str = "timm"
        model: str = "resnet50"
        """Name of a network, without the name of its weights behind a dot, see `timm.list_models()`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        timm = _timm()
        check_known(config.model, timm.list_models(), "timm")
        network: Any = _built(timm, config)
        with_own_draws(network, timm.layers.DropPath, "drop_prob")
        sides = network.default_cfg.get("input_size") or (3, 224, 224)
        self._wrap(network, config.image_size or int(sides[-1]))
        self._widths = _stages(network)

    @property
    def stage_widths(self) -> dict[str, int]:
        """Channels of the stages, from the first to the last, and of `features`."""
        return {**self._widths, "features": self.feature_dim}

    def no_decay(self) -> set[str]:
        """What timm says should not decay, such as tokens and position embeddings."""
        network: Any = self.network
        told = network.no_weight_decay() if hasattr(network, "no_weight_decay") else ()
        return {f"network.{name}" for name, _ in network.named_parameters() if name in told}

    @property
    def num_layers(self) -> int | None:
        """Of the groups that timm parts the network into; None where it does not."""
        return max(self._layers.values(), default=None)

    def layer_of(self, name: str) -> int:
        """Number of a parameter's group: as a rule 0 for the stem, then one for each stage, or each block of a ViT."""
        return self._layers[name]

    @cached_property
    def _layers(self) -> dict[str, int]:
        network: Any = self.network
        if not hasattr(network, "group_matcher"):
            return {}
        groups = _timm().models.group_parameters(network, network.group_matcher(coarse=True), reverse=True)
        return {f"network.{name}": number for name, number in groups.items()}

    def stages(self, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Inner features by name, in the order asked for; nothing is computed beyond the deepest one.

        Args:
            images: normalised images [B, 3, H, W].
            names: of `stage_widths`: maps [B, C, H', W'], and `features` [B, feature_dim].

        Raises:
            ValueError: if a name is no stage of this network, or the images do not fit; the message has what does.
        """
        known = list(self.stage_widths)
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"no stage {unknown[0]!r} in {self.config.model}; its stages: {', '.join(known)}")
        found: dict[str, Tensor] = {}
        wanted = sorted({known.index(name) for name in names if name != "features"})
        if wanted:
            with self._telling_sizes(images):
                found = dict(zip((known[place] for place in wanted), self._intermediates(images, wanted), strict=True))
        if "features" in names:
            found["features"] = self(images)
        return {name: found[name] for name in names}

    def _intermediates(self, images: Tensor, places: list[int]) -> list[Tensor]:
        forward: Any = self.network.forward_intermediates
        return [  # what follows one may write over it
            out.clone()
            for out in forward(images, indices=places, intermediates_only=True, stop_early=True, output_fmt="NCHW")
        ]


def _timm() -> ModuleType:
    try:
        import timm
        import timm.layers
        import timm.models
    except ImportError as error:
        raise ConfigError("backbone=timm needs timm, which is not installed: pip install timm") from error
    return timm  # type: ignore[no-any-return]


def _built(timm: ModuleType, config: TimmModel.Config) -> nn.Module:
    """The network less its classifier."""
    settings = {theirs: getattr(config, ours) for theirs, ours in ARGUMENTS.items()}
    arguments = {name: value for name, value in settings.items() if value is not None}
    try:
        return timm.create_model(config.model, pretrained=False, num_classes=0, **arguments)  # type: ignore[no-any-return]
    except TypeError as error:
        for theirs, ours in ARGUMENTS.items():
            if theirs in arguments and theirs in str(error):
                raise ConfigError(f"backbone.{ours}: {config.model} of timm has no {theirs}; leave it out") from error
        raise
    except WRONG_SIZE as error:
        if config.image_size is None or isinstance(error, NotImplementedError):
            raise
        raise ConfigError(f"backbone.image_size {config.image_size} does not fit {config.model}: {error}") from error


def _stages(network: nn.Module) -> dict[str, int]:
    """Widths of the intermediates that timm gives, by name."""
    if not hasattr(network, "forward_intermediates") or not hasattr(network, "feature_info"):
        return {}
    told: Any = network.feature_info
    rows = list(told) if isinstance(told, list) else list(told.info)
    word = "block" if len({row["reduction"] for row in rows}) == 1 and len(rows) > 1 else "stage"
    return {f"{word}{number}": int(row["num_chs"]) for number, row in enumerate(rows, 1)}
