"""What the settings of a checkpoint may do: others may have written them.

They name raysl's own components (`raysl.components.only_own_components`) and places that are only read
(`raysl.storage.foreign`). They cause no download of a dataset or of a network, and no write, unless the user trusts
the checkpoint.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import yaml

from raysl.config.component import ASKS_TRUST
from raysl.errors import ConfigError, log
from raysl.redact import texts_in
from raysl.storage.foreign import WITHHELD, problem

MOST_CHARACTERS = 8_000_000
MOST_LEVELS = 40
_FETCHED = re.compile(r"(hf[-_]hub|local[-_]dir):", re.IGNORECASE)
_PLAIN_OVERRIDE = re.compile(
    r"(?!.*(:\S|\bdownload\b|\bindex\b))(optim|train|method|backbone|data|views)(\.\w+)*=[\w.,\[\]{}:% +-]*", re.ASCII
)
"""An override that names neither code nor a place: no path, no `module:Class`, no quotes, aliases and variables."""
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

ConfigT = TypeVar("ConfigT")


def check_text(text: str, where: str) -> None:
    """Refuse YAML that raysl does not write: aliases, which a few lines multiply without end, and deep nesting.

    Text that is not YAML is left to the reader.
    """
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"{where} has {len(text):,} characters, more than the {MOST_CHARACTERS:,} that are read")
    level = 0
    try:
        # events come before the tree is built, in which aliases would be multiplied
        for event in yaml.parse(text, Loader=_Loader):
            line = 0 if event.start_mark is None else event.start_mark.line + 1
            if isinstance(event, yaml.AliasEvent):
                raise ConfigError(
                    f"{where} line {line}: stored settings have no aliases (*{event.anchor}); write it out"
                )
            level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if level > MOST_LEVELS:
                raise ConfigError(f"{where} line {line}: settings are nested more than {MOST_LEVELS} levels deep")
    except yaml.YAMLError as error:
        # Newer versions of libyaml have a limit of their own, and reach it before their first event.
        if "nesting" in str(getattr(error, "problem", "")):
            raise ConfigError(f"{where}: settings are nested more than {MOST_LEVELS} levels deep") from error
        return


def check_overrides(tree: Mapping[str, Any], where: str) -> None:
    """Refuse overrides `key=value` of benchmarks that could name code or a place: they are applied later."""
    benchmarks = tree.get("benchmarks")
    for key, node in benchmarks.items() if isinstance(benchmarks, dict) else ():
        listed = node.get("settings") if isinstance(node, dict) else None
        for override in listed if isinstance(listed, list) else [listed] if listed else []:
            if not isinstance(override, str) or not _PLAIN_OVERRIDE.fullmatch(override):
                raise ConfigError(
                    f"{where}: benchmarks.{key}.settings: {override!r} could name code or a place; if you trust the "
                    "checkpoint, say trust_code=True, on the command line --trust-code"
                )


def without_trust(config: ConfigT, where: str) -> ConfigT:
    """Return stored settings that do no more than read.

    A field with the metadata `ASKS_TRUST` gets its default, which a warning says. A URI that is not opened is marked,
    so that its use is an error and all else goes on: a user may give another source.
    """
    for text in texts_in(getattr(config, "backbone", None)):
        if _FETCHED.match(text):
            raise ConfigError(
                f"backbone {text!r} is fetched by that name, and {where} asks for it; if you trust it, say "
                "trust_code=True, on the command line --trust-code"
            )
    reset: list[str] = []
    changed: ConfigT = _change(config, "", reset)
    if reset:
        log.warning(
            "%s asks for %s, which is left out: it runs code, writes files or lifts a limit; give it as a setting, or "
            "say trust_code=True, on the command line --trust-code",
            where,
            " and ".join(reset),
        )
    return changed


def _change(value: Any, path: str, reset: list[str]) -> Any:
    if isinstance(value, str):
        return f"{WITHHELD}{value}" if problem(value) and not value.startswith(WITHHELD) else value
    if isinstance(value, Mapping):
        return {key: _change(item, f"{path}.{key}", reset) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_change(item, path, reset) for item in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    changes = {}
    for field in dataclasses.fields(value):
        setting, key = getattr(value, field.name), f"{path}.{field.name}".removeprefix(".")
        if not field.init:
            continue
        if ASKS_TRUST.items() <= field.metadata.items() and setting != field.default:
            reset.append(f"{key}={setting}")
            changes[field.name] = field.default
        elif (other := _change(setting, key, reset)) is not setting and other != setting:
            changes[field.name] = other
    return dataclasses.replace(value, **changes) if changes else value
