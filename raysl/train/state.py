"""The state of a training: everything that changes and that a checkpoint stores."""

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from raysl import __version__
from raysl import distributed as dist
from raysl.checkpoint.backbone import Checkpoint
from raysl.checkpoint.checkpoint_folder import BACKBONE_FILE, SETTINGS_FILE, STATE_FILE, seal, verify
from raysl.checkpoint.published import initial_weights
from raysl.checkpoint.tensors import load_tensors, save_tensors
from raysl.components import Classes
from raysl.config.arguments import text_or_path
from raysl.config.dump import dump
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.methods.method import Method
from raysl.methods.shared.device import place_on_device
from raysl.nn.adapters import add_adapters, merge_adapters
from raysl.nn.average import WeightAverage
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.backbones.freezing import freeze
from raysl.nn.batch_norm import local_statistics
from raysl.optim.build import build_optimizer
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.storage.folder import Folder
from raysl.train.warm_heads import check_heads
from raysl.user_files import short_name


@dataclass
class TrainState:
    """Everything that training changes and a checkpoint stores; the same on every rank whenever it is saved."""

    setup: Setup
    method: Method
    optimizer: Optimizer
    scaler: torch.amp.GradScaler = field(default_factory=lambda: torch.amp.GradScaler(enabled=False))
    """Scales the loss in fp16, where tiny gradients would become 0."""
    step: int = 0
    callbacks: dict[str, dict[str, Any]] = field(default_factory=dict)
    ended: str | None = None
    """Why a callback ended the run for good, before its last step."""
    export_buffers: dict[str, Tensor] = field(default_factory=dict)
    """Buffers by name that replace the exported backbone's own in checkpoints."""
    weights: dict[str, Any] | None = None
    """Origin of the initial weights if they are not random, see `raysl.checkpoint.published`."""
    average: WeightAverage | None = None
    """The average of the weights, if `train.ema` asks for one."""

    @classmethod
    def create(
        cls, setup: Setup, device: torch.device | str = "cpu", classes: Classes | None = None, is_new: bool = True
    ) -> "TrainState":
        """Return a fresh state, with initial weights that depend on the run's seed alone, or those of `method.weights`
        or `backbone.pretrained`.

        Args:
            setup: the facts to build from; `Setup.of(config, num_samples)` makes it.
            classes: the classes, where their names are not known in this process.
            is_new: whether to read or download such weights; a run that goes on does not need them.

        Raises:
            ConfigError: if those weights cannot be read or downloaded or do not fit the backbone, or `backbone.freeze`
                names an unknown stage or leaves nothing to train, or `train.warm_heads` is set and there are no heads.
        """
        config = setup.config
        classes = classes or Classes.of(config)
        torch.manual_seed(config.seed)
        weights = initial_weights(config, classes.backbone) if is_new else None
        backbone: Backbone = classes.backbone(config.backbone)
        # Filled before the method is built, which may copy the backbone into a teacher.
        if weights is not None:
            weights.fill_backbone(backbone)
        freeze(backbone, config.backbone.freeze)
        add_adapters(backbone, config.backbone.adapters)
        method: Method = classes.method(setup, backbone)
        if not any(parameter.requires_grad for parameter in method.parameters()):
            raise ConfigError(
                f"backbone.freeze={list(config.backbone.freeze)} leaves nothing to train: method={config.method.name} "
                "has no weights beside the backbone's; freeze fewer stages"
            )
        if config.train.warm_heads is not None:
            check_heads(method)
        origin = None if weights is None else weights.fill_method(method, method.given_parts)
        device = torch.device(device)
        place_on_device(method, config.train, device)
        optimizer = build_optimizer(method, config.optim, classes.optimizer, is_shared=config.train.parallel == "zero1")
        scaler = torch.amp.GradScaler(device.type, enabled=config.train.precision == "fp16")
        return cls(setup, method, optimizer, scaler, weights=origin, average=make_average(method, config))

    @property
    def config(self) -> RunConfig:
        """The run's settings."""
        return self.setup.config

    @property
    def device(self) -> torch.device:
        """Device of the method."""
        return next(self.method.parameters()).device

    def synchronise(self) -> None:
        """Make the state the same on every rank; the loop does so after each update.

        Running statistics of normalisation, which each rank tracks on its own rows, become their mean over ranks;
        values that are equal already keep their bits.
        """
        if dist.world() > 1:
            dist.average_(local_statistics(self.method))

    def follow(self, step: Step) -> None:
        """Update the average of the weights after the update that began at `step`."""
        if self.average is not None:
            self.average.update(self.method, step)

    def exported(self, as_copy: bool = False) -> Backbone:
        """Return the backbone to measure: the method's own, or a copy. Every rank calls it.

        It is always a copy if ranks hold shares or weights are averaged. A copy is whole and built from its settings
        alone: not compiled, and normalising over its own rows.
        """
        backbone = self.method.export()
        if not as_copy and not dist.is_sharded(self.method) and not self._is_averaged:
            return backbone
        weights = merge_adapters(dist.whole(self._exported_weights(), on_all=True))
        # its random weights are replaced below, and drawing them must not move the run's random numbers
        with torch.random.fork_rng(devices=[]):
            copy: Backbone = type(backbone)(backbone.config)
        copy.load_state_dict(weights)
        return copy.to(self.device).train(backbone.training)

    def tensors(self) -> dict[str, Any]:
        """Return the whole tensors of method, optimizer, average and exported backbone. Every rank calls it.

        If ranks hold shares, only the main rank gets the tensors, on the CPU.
        """
        return {
            "method": dist.whole(self.method.state_dict()),
            "optimizer": dist.optimizer_state(self.optimizer),
            "backbone": merge_adapters(dist.whole(self._exported_weights())),
        } | ({} if self.average is None else {"average": dist.whole(self.average.state_dict())})

    @property
    def _is_averaged(self) -> bool:
        return self.average is not None and self.config.train.ema_export

    def _exported_weights(self) -> dict[str, Tensor]:
        backbone = self.method.export()
        if self.average is None or not self._is_averaged:
            return backbone.state_dict()
        return self.average.averaged_state(self.method, backbone)

    @cached_property
    def _settings(self) -> str:
        """The settings as YAML, which takes longer to write than a small checkpoint."""
        return dump(self.setup.as_written)

    def save(self, folder: str | Path, metrics: dict[str, float], tensors: dict[str, Any] | None = None) -> None:
        """Write a checkpoint into a local folder; files that are there already become part of it.

        Args:
            metrics: numbers to store with it.
            tensors: the result of `tensors`; by default it is called, so every rank has to call `save`.
        """
        folder = Path(text_or_path(folder, "folder", "runs/mine/checkpoint_000000100"))
        folder.mkdir(parents=True, exist_ok=True)
        tensors = tensors or self.tensors()
        state = {
            "method": tensors["method"],
            "optimizer": tensors["optimizer"],
            "step": self.step,
            "callbacks": self.callbacks,
        }
        if self.average is not None:
            state["average"] = tensors["average"]
        if self.scaler.is_enabled():
            state["scaler"] = self.scaler.state_dict()
        save_tensors(state, folder / STATE_FILE)
        weights = {**tensors["backbone"], **self.export_buffers}
        content = to_safetensors({name: t.detach().cpu().contiguous() for name, t in weights.items()})
        (folder / BACKBONE_FILE).write_bytes(content)
        (folder / SETTINGS_FILE).write_text(self._settings)
        meta = {
            "raysl": __version__,
            "method": self.config.method.name,
            "step": self.step,
            "epochs": self.config.train.epochs,
            "data": asdict(self.setup.data),
            "order": self.setup.plan.stored_order,
            "metrics": metrics,
            "weights": self.weights,
            "ended": self.ended,
        }
        meta = {name: value for name, value in meta.items() if value is not None}
        # last, because it stores size and hash of every file written above
        seal(folder, meta)

    def load(self, folder: str | Path) -> None:
        """Load a checkpoint, a local folder, that was written at any number of ranks.

        Raises:
            ConfigError: if it has another format or method, is damaged, or holds objects other than tensors and
                primitives.
        """
        folder = Path(text_or_path(folder, "folder", "runs/mine/checkpoint_000000100"))
        copy = Folder(str(folder))
        meta = verify(copy, [STATE_FILE])
        check_resumable(meta, copy.uri, self.config)
        # Each tensor is read when it is copied to its place: neither the device nor the host holds a second state.
        tensors = load_tensors(folder / STATE_FILE, is_mapped=True)
        try:
            self.method.load_state_dict(dist.shard_like(self.method, tensors["method"]))
            dist.load_optimizer_state(self.optimizer, tensors["optimizer"])
            _lay_out_state(self.optimizer)
            if self.average is not None:
                self.average.load_state_dict(dist.shard_like(self.method, tensors["average"]))
        except (RuntimeError, ValueError, KeyError) as error:
            raise ConfigError(f"the checkpoint {folder} does not fit these settings: {error}") from error
        if self.scaler.is_enabled() and "scaler" in tensors:
            self.scaler.load_state_dict(tensors["scaler"])
        self.step = tensors["step"]
        # cloned, since the tensors that were read are views of the mapped file
        self.callbacks = tree_map_only(Tensor, Tensor.clone, tensors["callbacks"])
        self.weights = meta.get("weights")


def make_average(method: Method, config: RunConfig) -> WeightAverage | None:
    """Return the average of the weights that `train.ema` asks for, or None."""
    train = config.train
    if train.ema is None:
        return None
    return WeightAverage(method, train.ema, train.ema_every, train.ema_warmup, train.ema_buffers == "average")


def _lay_out_state(optimizer: Optimizer) -> None:
    """Give the state of each parameter its memory format, which fused kernels expect: a checkpoint of a CPU has another
    one than a GPU with `train.channels_last`."""
    for parameter, values in dist.own_state(optimizer).items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride():
                values[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def check_resumable(meta: dict[str, Any], uri: str, config: RunConfig) -> None:
    """Refuse to go on from a checkpoint of another method; the file of one may lie in another folder."""
    if short_name(meta["method"]) != short_name(config.method.name):
        raise ConfigError(
            f"{uri} is a checkpoint of the method {meta['method']!r}, not of {config.method.name!r}; "
            "give the run another name"
        )


def setup_of(checkpoint: Checkpoint) -> Setup:
    """Return the setup of a checkpoint's method, with a plan for the ranks of this process group."""
    return Setup.of(checkpoint.config, checkpoint.data.num_samples, checkpoint.data.num_classes)


def untrained_backbone(checkpoint: Checkpoint) -> Backbone:
    """Return the backbone with the initial weights of its run's seed, without weights of another run."""
    return TrainState.create(setup_of(checkpoint), is_new=False).method.export().eval()


def initial_backbone(checkpoint: Checkpoint) -> Backbone:
    """Return the backbone with the weights that its run began with: those of its seed, of `method.weights` or of
    `backbone.pretrained`.

    Raises:
        ConfigError: if those weights cannot be read, or are not the ones of that time.
        StorageError: if they cannot be downloaded.
    """
    origin = checkpoint.meta.get("weights")
    if origin is None:
        return untrained_backbone(checkpoint)
    setup, uri = setup_of(checkpoint), origin["uri"]
    if setup.method.weights is not None:
        # a run that goes on has newer checkpoints by now
        method = replace(setup.method, weights=uri)
        setup = replace(setup, config=replace(setup.config, method=method))
    state = TrainState.create(setup)
    assert state.weights is not None
    if state.weights["sha256"] != origin["sha256"]:
        raise ConfigError(f"the weights at {uri} have changed since the run began with them")
    return state.method.export().eval()
