"""Backbones around networks of other libraries."""

import difflib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from raysl.config.ranges import Side, Within
from raysl.config.schema import BackboneConfig
from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.drop_path import DropPath
from raysl.nn.evaluating import evaluating

WRONG_SIZE = (RuntimeError, ValueError, AssertionError, IndexError)
"""Exceptions that networks raise for images of a size that does not fit."""
AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")
"""Beginnings of the names of classifiers inside GoogLeNet and Inception, which train with them only."""


class WrappedBackbone(Backbone):
    """A network of another library without its classifier; names in its state dict start with `network.`.

    A subclass calls `_wrap` at the end of its `__init__`.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(BackboneConfig):
        """Settings of a network named by its library."""

        model: str
        """Name of the network."""
        image_size: Side | None = None
        """Side of the images in pixels, for networks that take only one size, as most transformers do. Default: the
        network's own, mostly 224."""
        drop_path: Annotated[float, Within(0, 1, below=True)] | None = None
        """Rate at which training drops the last block for a sample, for networks with stochastic depth; earlier blocks
        follow in proportion. Default: the network's own."""
        pretrained: bool | str = False
        """Begin with the library's published weights, true for its default ones, or their name: IMAGENET1K_V1 or
        a1_in1k. A new run downloads them once, on its driver, and checks their SHA-256; workers and resumed runs get
        them from the run's checkpoints. `method.weights` replaces them."""

        @property
        def is_pretrained(self) -> bool:
            """Whether a new run begins with published weights of the network."""
            return self.pretrained is not False

        def at_random(self) -> Self:
            """Return these settings without published weights."""
            return replace(self, pretrained=False)

    network: nn.Module

    @classmethod
    def check_side(cls, config: Any, side: int) -> None:
        """Refuse images that do not fit."""
        if problem := cls.without_weights(config)._size_problem(side, side):
            raise ConfigError(problem)

    @property
    def title(self) -> str:
        """Name of the network in its library."""
        return str(self.config.model)

    @property
    def feature_stages(self) -> tuple[str, ...]:
        """Names of the stages that `forward` returns."""
        return ("features",)

    def forward(self, images: Tensor) -> Tensor:
        """Return features [B, feature_dim] of normalised images [B, 3, H, W]."""
        with self._size_errors(images):
            return self.network(images)  # type: ignore[no-any-return]

    def renamed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors by the names in `state_dict`, from those of the library; the classifier keeps its names."""
        heads = self._head_names()
        named = {name.removeprefix("network."): value for name, value in tensors.items()}
        return {
            name if name in heads or name.startswith(AUXILIARY) else f"network.{name}": value
            for name, value in self._library_tensors(named).items()
        }

    def _library_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors by the library's present names, from those of its older files."""
        return tensors

    def _head_names(self) -> set[str]:
        """Return the library's names of the tensors of the classifier."""
        # weights drawn for a network that is thrown away must not move the run's random numbers
        with torch.random.fork_rng(devices=[]):
            try:
                with torch.device("meta"):
                    whole = self._whole_network()
            except RuntimeError:  # some networks compute with their tensors in `__init__`
                whole = self._whole_network()
        return set(whole.state_dict()) - set(self.network.state_dict())

    def _whole_network(self) -> nn.Module:
        raise NotImplementedError

    def _wrap(self, network: nn.Module, native_size: int) -> None:
        """Store the network and find the width of its features without computing any."""
        self.network = network
        self.native_size = native_size
        self._device = torch.device("meta")
        try:
            features = self._try_size(native_size, native_size)
        except WRONG_SIZE:  # some networks compute with tensors that cannot be moved to the meta device
            self._device = next(network.parameters()).device
            features = self._try_size(native_size, native_size)
        if features.ndim != 2:
            raise ConfigError(
                f"{self.config.model} returns features of shape {list(features.shape)}, and a backbone must return one "
                "vector per image; choose another model"
            )
        self.feature_dim = features.shape[1]

    def _try_size(self, height: int, width: int) -> Tensor:
        """Compute features of two images of this size, on the meta device if possible, so without values."""
        named = [*self.network.named_parameters(), *self.network.named_buffers()]
        tensors = {name: tensor.to(self._device) for name, tensor in named}
        images = torch.zeros(2, self.in_channels, height, width, device=self._device)
        with evaluating(self.network):
            out: Tensor = functional_call(self.network, tensors, (images,))
        return out.detach()

    def _fits(self, height: int, width: int) -> bool:
        try:
            self._try_size(height, width)
        except WRONG_SIZE:
            return False
        return True

    def _size_problem(self, height: int, width: int) -> str:
        """Return the problem with images of this size; empty if they fit."""
        if self._fits(height, width):
            return ""
        sides = sorted({*(2**power for power in range(1, 10)), self.native_size})
        fit = next((side for side in sides if self._fits(side, side)), self.native_size)
        model, config = self.config.model, self.config
        message = f"images of {height}x{width} pixels do not fit {model}; {fit}x{fit} do"
        if fit == self.native_size and config.image_size != height == width:
            message += f", and others may with backbone.image_size={height}"
        return message

    @contextmanager
    def _size_errors(self, images: Tensor) -> Iterator[None]:
        try:
            yield
        except WRONG_SIZE as error:
            problem = self._size_problem(*images.shape[-2:])
            if not problem:
                raise
            raise ValueError(problem) from error


def replace_drop_path(network: nn.Module, kind: type[nn.Module], rate_of: str) -> nn.Module:
    """Replace the network's modules for stochastic depth by `DropPath`, in place.

    Args:
        kind: class of its modules for stochastic depth, which drop each sample separately.
        rate_of: name of their attribute for the rate.
    """
    named = [(name, module) for name, module in network.named_modules() if isinstance(module, kind)]
    for number, (name, module) in enumerate(named):
        network.set_submodule(name, DropPath(float(getattr(module, rate_of)), number))
    return network


def check_known(model: str, names: Collection[str], library: str) -> None:
    """Refuse a name that a library does not have."""
    if model in names:
        return
    near = difflib.get_close_matches(model, names, n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"it has {', '.join(sorted(names)[:100])}"
    raise ConfigError(f"backbone.model: {library} has no classification model {model!r}; {hint}")
