"""Reading the backbone of a checkpoint, with its settings and facts."""

from dataclasses import dataclass
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from raysl.checkpoint.checkpoint_folder import (
    BACKBONE_FILE,
    META_FILE,
    SETTINGS_FILE,
    Damaged,
    local_copy,
    newest,
    read_meta,
)
from raysl.components import resolve
from raysl.config.load import load_dumped
from raysl.config.schema import RunConfig
from raysl.data.batch import DataInfo
from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone
from raysl.storage.folder import Folder, join


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as benchmarks and notebooks need it: backbone, settings and facts."""

    uri: str
    config: RunConfig
    meta: dict[str, Any]
    backbone: Backbone

    @property
    def digest(self) -> str:
        """SHA-256 of the file of its backbone."""
        sha256: str = self.meta["files"][BACKBONE_FILE]["sha256"]
        return sha256

    @property
    def data(self) -> DataInfo:
        """Facts about the training images."""
        return DataInfo.stored(self.meta["data"], f"{join(self.uri, META_FILE)}: data")


def load_checkpoint(uri: str, trust_code: bool = False, config: RunConfig | None = None) -> Checkpoint:
    """Read a checkpoint, or the newest one of a run, from a local path or a URI.

    Args:
        trust_code: whether to import components of the checkpoint that are not raysl's.
        config: the current settings of the run, used in place of the stored ones, which lack credentials.
    """
    uri = newest(uri)
    with local_copy(uri, [META_FILE, SETTINGS_FILE, BACKBONE_FILE]) as folder:
        copy = Folder(str(folder))
        meta = read_meta(copy)
        if BACKBONE_FILE not in meta["files"]:
            raise Damaged(f"{join(uri, META_FILE)} is damaged: it does not list {BACKBONE_FILE}")
        if config is None:
            config = load_dumped(_settings(copy, uri), f"the checkpoint {uri}", trust_code)
        backbone: Backbone = resolve("backbone", config.backbone.name)(config.backbone)
        try:
            backbone.load_state_dict(load_file(folder / BACKBONE_FILE))
        except (OSError, RuntimeError, ValueError, SafetensorError) as error:
            raise ConfigError(f"cannot load the backbone of {uri}, {BACKBONE_FILE}: {error}") from error
    return Checkpoint(uri, config, meta, backbone.eval())


def load_backbone(checkpoint: str, trust_code: bool = False) -> Backbone:
    """Return the trained backbone of a checkpoint, or of a run's newest checkpoint, in evaluation mode.

    >>> import torch
    >>> backbone = load_backbone("cifar10/simclr")
    >>> backbone(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 128])

    Args:
        checkpoint: local path or URI of a checkpoint, or of a run's folder; or the name of a trained backbone that
            comes with raysl, of `raysl list weights`.
        trust_code: whether to import components of the checkpoint that are not raysl's.

    Returns:
        A module from images [B, 3, H, W], normalised by the run's `data.mean` and `data.std`, to features
        [B, feature_dim]; `.stages(x, names)` returns inner features. `raysl.transforms.network_input` makes such
        images, also for runs whose `data.channels` are not red, green and blue.

    Raises:
        ConfigError: if there is no checkpoint, it cannot be read, or it names code that is not trusted.
    """
    return load_checkpoint(checkpoint, trust_code).backbone


def _settings(folder: Folder, uri: str) -> str:
    try:
        return folder.read(SETTINGS_FILE).decode()
    except UnicodeDecodeError as error:
        raise Damaged(f"{join(uri, SETTINGS_FILE)} is damaged: it is not UTF-8 ({error})") from error
