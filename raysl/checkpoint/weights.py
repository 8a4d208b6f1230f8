"""Weights that a new run takes over from the checkpoint of another one (`method.weights`).

Only tensors are read, and no component that the checkpoint names is imported: tensors fit by their names and shapes.
Its settings are read for messages only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from raysl.checkpoint.checkpoint_folder import (
    BACKBONE_FILE,
    META_FILE,
    SETTINGS_FILE,
    STATE_FILE,
    has_state,
    local_copy,
    newest,
    read_meta,
)
from raysl.checkpoint.tensors import load_tensors
from raysl.components import ALIASES
from raysl.config.dump import plain
from raysl.config.initial_weights import refuse_published
from raysl.config.load import stored_tree
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.nn.adapters import is_adapter, merge_adapters
from raysl.nn.backbones.adapt import adapt
from raysl.nn.backbones.backbone import Backbone
from raysl.redact import redact_uri
from raysl.storage.folder import Folder, join
from raysl.storage.records import check_types
from raysl.user_files import short_name

Tensors = Mapping[str, Tensor]
_NO_SHAPE = ("adapters", "in_channels", "freeze", "pretrained", "revision", "zero_init_residual", "drop_path")
"""Settings of a backbone on which neither the shapes of its tensors nor its features depend."""


@dataclass(frozen=True)
class Weights:
    """Tensors of a checkpoint.

    Args:
        sha256: hashes of the files that were read, by name.
        method_state: tensors of the whole method, adapters merged, if it is the run's method too and the checkpoint has
            them, else None.
        hint: settings that would make the run's backbone equal to that of the checkpoint, as far as they are known.
        has_method: whether the checkpoint has more than its backbone, which those that come with raysl have not.
    """

    uri: str
    method: str
    step: int
    sha256: dict[str, str]
    backbone: Tensors
    method_state: Tensors | None
    hint: str
    has_method: bool = True

    def fill_backbone(self, backbone: Backbone) -> None:
        """Load these weights into a fresh backbone; those for other images are adapted by the rules of `adapt`."""
        backbone.load_state_dict(self.check_backbone(backbone))

    def check_backbone(self, backbone: Backbone) -> Tensors:
        """Return the tensors for a backbone, which may be on the meta device; refuse one that they do not fit."""
        what = f"method.weights: the backbone of {self.uri} is another one"
        advice = f"set {self.hint}" if self.hint else "set the backbone of that run"
        return fitting(backbone, self.backbone, what, f"{advice}, or give other weights")

    def fill_method(self, method: nn.Module, given_parts: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Load the other parts of a fresh method, whose backbone is loaded already, where all tensors of a part fit.

        A part is a direct child or buffer of the method, such as its projector or its queue.

        Args:
            given_parts: parts that stay as they are, with the setting that says where they come from,
                `Method.given_parts`.

        Returns:
            For `meta.json`: origin of the weights, hashes of their files, parts that were taken and parts that were
            left out.
        """
        mine = parts_of({name: value for name, value in method.state_dict().items() if not is_adapter(name)})
        taken, left_out = {"backbone": len(self.backbone)}, {}
        notes = adapted_by(method, self.backbone)
        if self.method_state is None:
            why = f"the checkpoint is of the method {self.method!r}" if self.has_method else "it has the backbone alone"
            left_out = {name: why for name in mine if name != "backbone"}
        else:
            stored = parts_of(self.method_state)
            for name in dict.fromkeys([*mine, *stored]):
                if name == "backbone" and misfits(mine[name], stored.get(name, {})):
                    continue  # the exported one fits, which `fill_backbone` has taken
                if given_parts and name in given_parts and name in mine:
                    left_out[name] = f"method.{given_parts[name]} says where it comes from"
                elif problems := misfits(mine.get(name, {}), stored.get(name, {})):
                    left_out[name] = problems[0]
                else:
                    # not strict, since the tensors of all other parts are missing here
                    method.load_state_dict(dict(stored[name]), strict=False)
                    taken[name] = len(stored[name])
        return {
            "uri": redact_uri(self.uri),
            "method": self.method,
            "step": self.step,
            "sha256": self.sha256,
            "taken": [f"{name} ({num} tensors)" for name, num in taken.items()],
            "left_out": [f"{name} ({why})" for name, why in left_out.items()],
            **({"adapted": notes} if notes else {}),
        }


def fitting(backbone: Backbone, tensors: Tensors, what: str, advice: str) -> Tensors:
    """Return tensors as `adapt` makes them fit a backbone.

    Args:
        what: beginning of the message about tensors that do not fit; `advice` is its end.

    Raises:
        ConfigError: if a tensor is missing, has another shape that no rule of `adapt` covers, or is unknown.
    """
    adapted, _ = adapt(backbone, tensors)
    if problems := misfits(backbone.state_dict(), adapted):
        more = f", and {len(problems) - 1} more such tensors" if len(problems) > 1 else ""
        raise ConfigError(f"{what}: {problems[0]}{more}; {advice}")
    return adapted


def adapted_by(method: nn.Module, tensors: Tensors) -> list[str]:
    """Return a line for each tensor of a method's backbone that `adapt` makes of others."""
    backbone = method.get_submodule("backbone")
    return adapt(backbone, tensors)[1] if isinstance(backbone, Backbone) else []


def read_weights(config: RunConfig) -> Weights:
    """Read the weights at `method.weights`: of a checkpoint, or of the newest whole one of a run."""
    assert config.method.weights is not None
    refuse_published(config.method.weights)
    try:
        uri = newest(config.method.weights, [BACKBONE_FILE, STATE_FILE])
        meta = check_types(read_meta(Folder(uri)), join(uri, META_FILE), {"method": str, "step": int})
        is_same = has_state(meta) and _target(meta["method"]) == _target(config.method.name)
        names = [BACKBONE_FILE, *([STATE_FILE] if is_same else [])]
        with local_copy(uri, [META_FILE, SETTINGS_FILE, *names]) as folder:
            state = _load_method(folder / STATE_FILE) if is_same else None
            backbone = _load_backbone(folder / BACKBONE_FILE)
            hint = _hint(folder / SETTINGS_FILE, config)
            hashes = {name: Folder(str(folder)).sha256(name) for name in names}
    except ConfigError as error:
        raise ConfigError(f"method.weights: {error}") from error
    return Weights(uri, meta["method"], int(meta["step"]), hashes, backbone, state, hint, has_state(meta))


def _load_method(path: Path) -> Tensors:
    state: Tensors = check_types(load_tensors(path), str(path), {"method": Mapping})["method"]
    check_types(state, f"{path}: method", dict.fromkeys(state, Tensor))
    return merge_adapters(state)


def _load_backbone(path: Path) -> Tensors:
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    return tensors


def _target(method: str) -> str:
    return short_name(ALIASES["method"].get(method, method))


def parts_of(state: Tensors) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a method by part, a direct child or buffer of it."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in state.items():
        parts.setdefault(name.partition(".")[0], {})[name] = value
    return parts


def misfits(mine: Tensors, stored: Tensors) -> list[str]:
    """Describe each tensor that has not the same shape on both sides."""
    problems = []
    for name in dict.fromkeys([*mine, *stored]):
        shape, stored_shape = (list(side[name].shape) if name in side else "not" for side in (mine, stored))
        if shape != stored_shape:
            problems.append(f"{name} is {stored_shape} there and {shape} here")
    return problems


def is_counter(name: str) -> bool:
    """Whether a tensor counts batches: old files lack it, and features do not depend on it."""
    return name.endswith("num_batches_tracked")


def _hint(settings: Path, config: RunConfig) -> str:
    """Return the settings of a checkpoint's backbone that differ from the run's, as text `key=value`."""
    try:
        tree = stored_tree(settings.read_text(encoding="utf-8"), str(settings))
    except (ConfigError, OSError, UnicodeDecodeError):
        return ""
    stored, mine = tree.get("backbone"), plain(config.backbone)
    if not isinstance(stored, dict):
        return ""
    return " ".join(
        f"backbone.{key}={value}" for key, value in stored.items() if key not in _NO_SHAPE and mine.get(key) != value
    )
