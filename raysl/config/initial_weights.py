"""The backbone's settings of the checkpoint that a new run begins with (`method.weights`)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from raysl.components import ALIASES, resolve
from raysl.config.config_files import expand, read
from raysl.config.dump import plain, write_inline
from raysl.config.fields import find, put
from raysl.config.schema import LIBRARIES
from raysl.config.trust import check_text
from raysl.errors import ConfigError, log
from raysl.redact import redact_tree, redact_uri
from raysl.trained import FOLDER, is_trained

WEIGHTS = ("method", "weights")
_FILE = "run.yaml"
_LEFT = {
    *("name", "in_channels", "image_size", "freeze", "adapters", "pretrained", "revision", "init"),
    *("zero_init_residual", "drop_path", "drop_path_uniform", "rope_shift", "rope_jitter", "rope_rescale"),
}
"""Settings that follow the images, or change how a network is trained and not what it computes."""
_OF_RECIPE = {"patch_size", "num_registers", "mask_token", "output"}
"""Settings for which the weights are adapted where a recipe has them, or that choose among the features."""


def with_run_of_weights(tree: dict[str, Any], storage: str, convert: Callable[[str, str], str]) -> dict[str, Any]:
    """Return a run's plain settings, whose `method.weights` is what `convert` makes of it and of the storage."""
    weights = find(tree, WEIGHTS)
    if not isinstance(weights, str) or "${" in weights:
        return tree
    try:
        weights, storage = expand(weights), expand(storage)
    except ConfigError:  # the check of all paths says so, with the key
        return tree
    converted = convert(weights, storage)
    return tree if converted == weights else put(tree, WEIGHTS, converted)


def refuse_published(weights: str | None) -> None:
    """Refuse the name of a published network where a run is expected: it is converted when a configuration is loaded.

    Raises:
        ConfigError: with the ways to convert it.
    """
    if weights is not None and weights.startswith(LIBRARIES):
        raise ConfigError(
            f"method.weights: {weights!r} is a published network, which `raysl plan CONFIG method.weights={weights}` "
            "and raysl.load_config(CONFIG, [...]) convert into a run of raysl; give the folder of that run"
        )


def with_their_backbone(tree: dict[str, Any], typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's plain settings, whose backbone is that of `method.weights` where the user gave none (`typed`).

    A run that goes on after its weights were deleted reads its own settings instead. Code outside raysl that a
    checkpoint names as its backbone is not taken.
    """
    weights = find(tree, WEIGHTS)
    if not isinstance(weights, str) or "${" in weights:
        return tree
    own_run = f"{tree.get('storage', './runs')}/{tree.get('name')}"
    stored = next(filter(None, map(_backbone_at, (weights, own_run))), None)
    before: dict[str, Any] = tree.get("backbone") or {}
    name = None if stored is None else stored.get("name")
    if stored is None or name not in ALIASES["backbone"] or typed.get("name", name) != name:
        return tree
    kept = before if before.get("name") == name else {"name": name}
    excluded = {*typed, *_LEFT, *(_OF_RECIPE & kept.keys())}
    taken = {key: value for key, value in stored.items() if key not in excluded}
    defaults = plain(resolve("backbone", name).Config())
    new = {key: value for key, value in taken.items() if kept.get(key, defaults.get(key)) != value}
    if kept != before or new:
        text = " ".join(f"backbone.{key}={write_inline(redact_tree(value))}" for key, value in new.items())
        log.info("method.weights=%s: the backbone is theirs, backbone=%s %s", redact_uri(weights), name, text)
    return {**tree, "backbone": {**kept, **taken, **typed}}


def _backbone_at(uri: str) -> dict[str, Any] | None:
    """Return the backbone's node in the settings of a run or a checkpoint; None if they cannot be read."""
    from raysl.storage.addresses import absolute
    from raysl.storage.folder import Folder

    try:
        folder = Folder(str(FOLDER / uri) if is_trained(uri) else absolute(expand(uri)))
        names = folder.names()
        checkpoints = sorted((name for name in names if name.startswith("checkpoint_")), reverse=True)
        texts: Iterable[bytes] = (folder.child(name).read_if_there(_FILE) for name in checkpoints)
        content = folder.read_if_there(_FILE) if _FILE in names else next(filter(None, texts), b"")
        text = content.decode()
        check_text(text, uri)
        tree = read(text, uri) if text else None
    except (ConfigError, OSError, UnicodeDecodeError):  # whoever reads the weights says so
        return None
    backbone = tree.get("backbone") if isinstance(tree, dict) else None
    return backbone if isinstance(backbone, dict) else None
