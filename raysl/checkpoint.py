"""What a run saves: the state of training, the layout on disk, and how it is read back safely.

A checkpoint is a folder:

* `train_state.pt`: method, optimizer, step and callbacks; tensors and primitives only (`weights_only=True`)
* `backbone.safetensors`: the exported backbone
* `run.yaml`: the run's settings
* `meta.json`: format, raysl version, method, step, dataset, metrics
"""

import json
import pickle
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.optim import Optimizer

import raysl
from raysl import dist
from raysl.components import resolve
from raysl.config.load import dump
from raysl.config.schema import BackboneConfig, ConfigError, RunConfig
from raysl.config.stored import load_dumped
from raysl.data.batch import DataInfo
from raysl.methods.method import Method
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.batch_norm import convert_sync_batch_norm, norm_statistics
from raysl.optim.build import build_optimizer
from raysl.storage import Folder

FORMAT = 1


@dataclass
class TrainState:
    """What training changes and a checkpoint keeps: the same on every rank whenever it is saved."""

    config: RunConfig
    data: DataInfo
    method: Method
    optimizer: Optimizer
    step: int = 0
    callbacks: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def create(
        cls,
        config: RunConfig,
        data: DataInfo,
        device: torch.device | str = "cpu",
        method_class: type[Method] | None = None,
        backbone_class: type[Backbone] | None = None,
        optimizer_class: type[Optimizer] | None = None,
    ) -> "TrainState":
        """A fresh state; the initial weights are a function of the run's seed.

        Args:
            config: the run's settings.
            data: the dataset.
            device: where the method lives.
            method_class, backbone_class, optimizer_class: resolved already, for names that are not known here.
        """
        torch.manual_seed(config.seed)
        backbone = (backbone_class or resolve("backbone", config.backbone.name))(config.backbone)
        method = (method_class or resolve("method", config.method.name))(config.method, backbone, data)
        if config.train.sync_bn and dist.world() > 1:
            method = convert_sync_batch_norm(method)
        method = method.to(device)
        return cls(config, data, method, build_optimizer(method, config.optim, optimizer_class))

    @property
    def device(self) -> torch.device:
        """Where the method lives."""
        return next(self.method.parameters()).device

    def synchronise(self) -> None:
        """Make the state the same on every rank: statistics of normalisation become their mean over ranks."""
        dist.average_(norm_statistics(self.method))

    def save(self, folder: Path, metrics: dict[str, float]) -> None:
        """Write a checkpoint into a local folder."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            "method": self.method.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "callbacks": self.callbacks,
        }
        torch.save(tensors, folder / "train_state.pt")
        weights = self.method.export().state_dict()
        save_file({name: t.detach().cpu().contiguous() for name, t in weights.items()}, folder / "backbone.safetensors")
        (folder / "run.yaml").write_text(dump(self.config))
        meta = {
            "format": FORMAT,
            "raysl": raysl.__version__,
            "method": self.config.method.name,
            "step": self.step,
            "data": asdict(self.data),
            "metrics": metrics,
        }
        (folder / "meta.json").write_text(json.dumps(meta, indent=1))

    def load(self, folder: Path) -> None:
        """Take back a checkpoint written at any number of ranks.

        Raises:
            ConfigError: if it is of another format or method, or its file holds more than tensors and primitives.
        """
        check_resumable(Folder(str(folder)), self.config)
        tensors = load_tensors(folder / "train_state.pt", self.device)
        try:
            self.method.load_state_dict(tensors["method"])
            self.optimizer.load_state_dict(tensors["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise ConfigError(f"the checkpoint {folder} does not fit these settings: {error}") from error
        self.step = tensors["step"]
        self.callbacks = tensors["callbacks"]


def load_tensors(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """A file of tensors and primitives.

    Raises:
        ConfigError: if it cannot be read, or holds anything else, such as code that a pickle would run.
    """
    if path.exists() and not zipfile.is_zipfile(path):  # a bare pickle, or half a file
        raise ConfigError(
            f"refused {path}: it is not what raysl writes, or it was cut off; go back to an older checkpoint"
        )
    try:
        loaded: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"refused {path}: it holds more than tensors and primitives ({reason})") from error
    except (OSError, RuntimeError, EOFError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    return loaded


def read_meta(folder: Folder) -> dict[str, Any]:
    """`meta.json` of a checkpoint.

    Raises:
        ConfigError: if there is none, or its format is another.
    """
    try:
        meta = json.loads(folder.read("meta.json"))
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"{folder.uri} is no checkpoint: {error}; a checkpoint folder holds meta.json") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        found, version = (meta.get("format"), meta.get("raysl")) if isinstance(meta, dict) else (None, None)
        raise ConfigError(
            f"{folder.uri} has checkpoint format {found!r}, this raysl reads format {FORMAT}; "
            f"open it with raysl {version or '(unknown)'}"
        )
    return meta


def check_resumable(folder: Folder, config: RunConfig) -> int:
    """The step of a checkpoint that a run is to go on from.

    Raises:
        ConfigError: if it is of another format or method.
    """
    meta = read_meta(folder)
    if meta["method"] != config.method.name:
        raise ConfigError(
            f"{folder.uri} is a checkpoint of the method {meta['method']!r}, not of {config.method.name!r}; "
            "give the run another name"
        )
    return int(meta["step"])


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint copied to this machine: what benchmarks and notebooks need of it."""

    uri: str
    config: RunConfig
    meta: dict[str, Any]
    backbone: Backbone

    def untrained(self) -> Backbone:
        """The backbone as it was before the first step."""
        data = DataInfo(**self.meta["data"])
        return TrainState.create(self.config, data).method.export().eval()


def load_checkpoint(uri: str, trust_code: bool = False, config: RunConfig | None = None) -> Checkpoint:
    """Read a checkpoint, or the newest one of a run, from a local path or a URI.

    Args:
        uri: of either.
        trust_code: whether the components that it names may be code that is not raysl's, which is then imported.
        config: the run's settings as they are in use, to take in place of those stored with it, without credentials.

    Raises:
        ConfigError: if there is none, it cannot be read, or it names code that is not trusted.
    """
    uri = newest(uri)
    with local_copy(uri) as folder:
        copy = Folder(str(folder))
        meta = read_meta(copy)
        if config is None:
            config = load_dumped(copy.read("run.yaml").decode(), f"the checkpoint {uri}", trust_code)
        backbone = _build_backbone(config.backbone)
        try:
            backbone.load_state_dict(load_file(folder / "backbone.safetensors"))
        except (OSError, RuntimeError, ValueError) as error:
            raise ConfigError(f"cannot load the backbone of {uri}: {error}") from error
    return Checkpoint(uri, config, meta, backbone.eval())


def load_backbone(checkpoint: str, trust_code: bool = False) -> Backbone:
    """The trained backbone of a checkpoint or of a run's newest checkpoint, in evaluation mode.

    Args:
        checkpoint: local path or URI of a checkpoint, or of a run's folder.
        trust_code: whether the components that it names may be code that is not raysl's, which is then imported.

    Returns:
        A module from images [B, 3, H, W], normalised by the run's `data.mean` and `data.std`, to features
        [B, feature_dim]; `.stages(x, names)` gives inner features.

    Raises:
        ConfigError: if there is no checkpoint, it cannot be read, or it names code that is not trusted.
    """
    return load_checkpoint(checkpoint, trust_code).backbone


def newest(uri: str) -> str:
    """The checkpoint at a URI: itself, or the newest one of the run there.

    Raises:
        ConfigError: if there is none.
    """
    folder = Folder(uri)
    if folder.exists("meta.json"):
        return folder.uri
    found = [name for name in folder.names() if name.startswith("checkpoint_") and folder.exists(f"{name}/meta.json")]
    if not found:
        raise ConfigError(f"no checkpoint at {folder.uri!r}; give the folder of a checkpoint or of a run that has one")
    return folder.uri_of(found[-1])


@contextmanager
def local_copy(uri: str) -> Iterator[Path]:
    """A folder as a local path: itself where it is local, else a copy that is removed afterwards."""
    folder = Folder(uri)
    if folder.is_local:
        yield Path(folder.path)
        return
    target = Path(tempfile.mkdtemp(prefix="raysl_checkpoint_"))
    try:
        folder.download(target)
        yield target
    finally:
        shutil.rmtree(target, ignore_errors=True)


def _build_backbone(config: BackboneConfig) -> Backbone:
    backbone: Backbone = resolve("backbone", config.name)(config)
    return backbone
