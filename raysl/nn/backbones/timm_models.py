"""The networks of timm (PyTorch Image Models, Wightman 2019), by their names there; timm is an optional dependency."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from raysl.errors import ConfigError
from raysl.nn.backbones.published import Published, hub_file, torch_file
from raysl.nn.backbones.wrapped import WRONG_SIZE, WrappedBackbone, check_known, replace_drop_path

ARGUMENTS = {"img_size": "image_size", "drop_path_rate": "drop_path"}
"""Our settings by timm's names."""
CHANNELS = 3  # timm's default
CONVERSION = "checkpoint_filter_fn"
"""Name of the function in a module of timm that converts the official files of its networks."""


class TimmModel(WrappedBackbone):
    """A network of timm without its classifier, by its name there: `resnet50`, `vit_small_patch16_224`.

    Features are timm's for `num_classes=0`. Weights start at random, as in timm, or with `pretrained` as published. The
    stages are timm's intermediates, maps [B, C, H, W]: `stage1`, `stage2`, ... or, if all have one resolution,
    `block1`, `block2`, ...; and `features`, the output of `forward`.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(WrappedBackbone.Config):
        """Settings of a network of timm."""

        name: str = "timm"
        model: str = "resnet50"
        """Name of a network, without the name of its weights after a dot, see `timm.list_models()`."""
        revision: str | None = None
        """Commit of the repository of `pretrained` weights on the Hugging Face Hub, 40 digits. Default: the newest,
        which the run notes."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        timm = _timm()
        check_known(config.model, timm.list_models(), "timm")
        network: Any = _build(timm, config)
        replace_drop_path(network, timm.layers.DropPath, "drop_prob")
        sides = network.default_cfg.get("input_size") or (3, 224, 224)
        self._wrap(network, config.image_size or int(sides[-1]))
        self._widths = _stages(network)

    @classmethod
    def published(cls, config: Config) -> Published:
        """Return the weights that timm names for the network, from the Hugging Face Hub, else from their address."""
        timm, tag = _timm(), config.pretrained
        check_known(config.model, timm.list_models(), "timm")
        tags = [name.partition(".")[2] for name in timm.list_pretrained(f"{config.model}.*")]
        if tag is not True and tag not in tags:
            known = ", ".join(tags) or "none"
            raise ConfigError(f"backbone.pretrained: {config.model} of timm has no weights {tag!r}; it has {known}")
        facts: Any = timm.models.get_pretrained_cfg(config.model if tag is True else f"{config.model}.{tag}")
        if facts is None or not facts.has_weights:
            raise ConfigError(f"backbone.pretrained: {config.model} of timm has no weights; choose another model")
        name = f"{config.model}.{facts.tag}" if facts.tag else str(config.model)
        if facts.hf_hub_id:
            file = hub_file(facts.hf_hub_id, _hub_names(facts.hf_hub_filename), config.revision)
        elif config.revision is not None:
            raise ConfigError(f"backbone.revision: {name} is not on the Hugging Face Hub; leave it out")
        else:
            file = torch_file(facts.url) if isinstance(facts.url, str) else torch_file(*facts.url)
        return Published(name, file, file.tensors(), tuple(facts.mean), tuple(facts.std))

    def _library_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors by timm's names, after timm's own conversion of official files where that fits more."""
        convert = getattr(sys.modules[_timm().model_entrypoint(self.config.model).__module__], CONVERSION, None)
        wanted = {name: value.shape for name, value in self.network.state_dict().items()}

        def num_fits(some: Mapping[str, Any]) -> int:
            return sum(isinstance(value, Tensor) and wanted.get(name) == value.shape for name, value in some.items())

        if convert is None or num_fits(tensors) == len(wanted):
            return tensors
        try:
            converted: dict[str, Tensor] = dict(convert(dict(tensors), self.network))
        except (KeyError, ValueError, IndexError, TypeError, AttributeError, RuntimeError, AssertionError):
            return tensors  # they are of another network, and stay to be compared by their names
        return converted if num_fits(converted) > num_fits(tensors) else tensors

    def _whole_network(self) -> nn.Module:
        return _build(_timm(), self.config, num_classes=10)

    def library_options(self) -> dict[str, Any]:
        """Return the arguments with which `timm.create_model` makes this network."""
        size = self.config.image_size
        chans = self.in_channels
        return (
            {"num_classes": 0}
            | ({} if size is None else {"img_size": size})
            | ({} if chans == CHANNELS else {"in_chans": chans})
        )

    @property
    def stage_widths(self) -> dict[str, int]:
        """Channels of the stages, from the first to the last, and of `features`."""
        return {**self._widths, "features": self.feature_dim}

    def no_decay(self) -> set[str]:
        """Return the parameters that timm excludes from decay, such as tokens and position embeddings."""
        network: Any = self.network
        excluded = network.no_weight_decay() if hasattr(network, "no_weight_decay") else ()
        return {f"network.{name}" for name, _ in network.named_parameters() if name in excluded}

    @property
    def num_layers(self) -> int | None:
        """Number of the last of timm's groups of layers; None if it has none for the network."""
        return max(self._layers.values(), default=None)

    def layer_of(self, name: str) -> int:
        """Return the number of a parameter's group: mostly 0 for the stem, then one per stage or block of a ViT."""
        return self._layers[name]

    @cached_property
    def _layers(self) -> dict[str, int]:
        network: Any = self.network
        if not hasattr(network, "group_matcher"):
            return {}
        groups = _timm().models.group_parameters(network, network.group_matcher(coarse=True), reverse=True)
        return {f"network.{name}": number for name, number in groups.items()}

    @override
    def stages(self, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        known = self.stages_up_to(names)
        outputs: dict[str, Tensor] = {}
        numbers = sorted({known.index(name) for name in names if name != "features"})
        if numbers:
            with self._size_errors(images):
                maps = self._intermediates(images, numbers)
            outputs = dict(zip((known[number] for number in numbers), maps, strict=True))
        if "features" in names:
            outputs["features"] = self(images)
        return {name: outputs[name] for name in names}

    def _intermediates(self, images: Tensor, numbers: list[int]) -> list[Tensor]:
        forward: Any = self.network.forward_intermediates
        # Copies: later layers may overwrite an intermediate in place.
        return [
            out.clone()
            for out in forward(images, indices=numbers, intermediates_only=True, stop_early=True, output_fmt="NCHW")
        ]


def _timm() -> ModuleType:
    try:
        import timm
        import timm.layers
        import timm.models
    except ImportError as error:
        raise ConfigError("backbone=timm needs timm, which is not installed: pip install timm") from error
    return timm  # type: ignore[no-any-return]


def _hub_names(name: str | None) -> list[str]:
    """Return the names of a file on the Hub, those without pickles first; none for timm's usual ones."""
    if name is None or not name.endswith((".bin", ".pth")):
        return [] if name is None else [name]
    stem = name.rpartition(".")[0]
    return [f"{stem.replace('pytorch_model', 'model')}.safetensors", f"{stem}.safetensors", name]


def _build(timm: ModuleType, config: TimmModel.Config, num_classes: int = 0) -> nn.Module:
    """Build the network; without classes it has no classifier."""
    settings = {argument: getattr(config, setting) for argument, setting in ARGUMENTS.items()}
    arguments = {name: value for name, value in settings.items() if value is not None}
    if config.in_channels != CHANNELS:
        arguments["in_chans"] = config.in_channels
    try:
        return timm.create_model(config.model, pretrained=False, num_classes=num_classes, **arguments)  # type: ignore[no-any-return]
    except TypeError as error:
        for argument, setting in (ARGUMENTS | {"in_chans": "in_channels"}).items():
            if argument in arguments and argument in str(error):
                raise ConfigError(
                    f"backbone.{setting}: {config.model} of timm has no {argument}; leave it out"
                ) from error
        raise
    except WRONG_SIZE as error:
        if config.image_size is None or isinstance(error, NotImplementedError):
            raise
        raise ConfigError(f"backbone.image_size {config.image_size} does not fit {config.model}: {error}") from error


def _stages(network: nn.Module) -> dict[str, int]:
    """Return the widths of timm's intermediates, by name."""
    if not hasattr(network, "forward_intermediates") or not hasattr(network, "feature_info"):
        return {}
    info: Any = network.feature_info
    rows = list(info) if isinstance(info, list) else list(info.info)
    word = "block" if len({row["reduction"] for row in rows}) == 1 and len(rows) > 1 else "stage"
    return {f"{word}{number}": int(row["num_chs"]) for number, row in enumerate(rows, 1)}
