"""From a file of another library to a translation: which library, which overrides, what raysl says to the result."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raysl.config.dump import leaves
from raysl.config.files import read_dotlist
from raysl.config.layers import merge, parse_overrides
from raysl.errors import ConfigError
from raysl.translation import solo_learn, vissl
from raysl.translation.theirs import read_list, read_tree
from raysl.translation.translated import Translation


def convert_config(paths: Sequence[str], words: Sequence[str] = ()) -> Translation:
    """Translate a configuration of VISSL or solo-learn into settings of raysl.

    Nothing is run, imported or fetched: files are read as plain YAML.

    Args:
        paths: its file, and files that are laid over it, in their order.
        words: overrides of it, `config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=32` or `+optimizer.lr=0.1`, and settings of
            raysl `key=value`, which hold over what is translated.

    Raises:
        ConfigError: if a file cannot be read, is of neither library, or becomes something that raysl refuses.
    """
    tree: dict[str, Any] = {}
    for path in paths:
        own = read_tree(path)
        listed = solo_learn.augmentations_file(own, path)
        if listed is not None and listed.is_file() and "augmentations" not in own:
            own = {**own, "augmentations": read_list(str(listed))}
        tree = merge(tree, vissl.without_root(own))
    theirs = [word for word in words if re.match(r"\+|config\.", word)]
    for word in theirs:
        tree = merge(tree, vissl.without_root(read_dotlist(word.lstrip("+"))))
    ours = parse_overrides([word for word in words if word not in theirs])
    chosen = {".".join(keys): value for keys, value in leaves(ours)}
    name = Path(paths[0]).stem
    done = _library(tree, paths[0])(tree, str(chosen.get("name", name)), chosen)
    done.command = shlex.join(["raysl", "convert-config", *paths, *words])
    try:
        done.config()
    except ConfigError as error:
        raise ConfigError(f"raysl refuses what became of {paths[0]}; give these as key=value:\n{error}") from error
    return done


def _library(tree: dict[str, Any], path: str) -> Callable[[Mapping[str, Any], str, Mapping[str, Any]], Translation]:
    if "LOSS" in tree:
        return vissl.translate
    if isinstance(tree.get("method"), str) and isinstance(tree.get("optimizer"), dict):
        return solo_learn.translate
    raise ConfigError(
        f"{path} is of neither VISSL (config: with LOSS and OPTIMIZER) nor solo-learn (method: and optimizer:); of "
        "lightly's scripts docs/coming-from-lightly-or-solo-learn.md has the settings"
    )
