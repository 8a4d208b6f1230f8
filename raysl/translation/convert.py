"""From files of VISSL to a translation: their overrides, the settings that the user adds, and raysl's checks."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raysl.config.config_files import read_dotlist
from raysl.config.dump import leaves
from raysl.config.layers import merge, parse_overrides
from raysl.errors import ConfigError
from raysl.translation import vissl
from raysl.translation.translated import Translation
from raysl.translation.vissl_settings import read_tree


def convert_config(paths: Sequence[str], overrides: Sequence[str] = ()) -> Translation:
    """Translate a configuration of VISSL into settings of raysl.

    Nothing is run, imported or fetched: files are read as plain YAML.

    Args:
        paths: file of VISSL, and files that are laid over it, in their order.
        overrides: VISSL's keys, `config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=32`, and settings of raysl `key=value`, which
            hold over what is translated.

    Raises:
        ConfigError: if a file cannot be read, is no configuration of VISSL, or becomes something that raysl refuses.
    """
    tree: dict[str, Any] = {}
    for path in paths:
        tree = merge(tree, vissl.without_root(read_tree(path)))
    vissl_overrides = [word for word in overrides if re.match(r"\+|config\.", word)]
    for word in vissl_overrides:
        tree = merge(tree, vissl.without_root(read_dotlist(word.lstrip("+"))))
    ours = parse_overrides([word for word in overrides if word not in vissl_overrides])
    chosen = {".".join(keys): value for keys, value in leaves(ours)}
    name = Path(paths[0]).stem
    translation = vissl.translate(tree, str(chosen.get("name", name)), chosen)
    translation.command = shlex.join(["raysl", "convert-config", *paths, *overrides])
    try:
        translation.config()
    except ConfigError as error:
        raise ConfigError(f"raysl refuses what became of {paths[0]}; give these as key=value:\n{error}") from error
    return translation
