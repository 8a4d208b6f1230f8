"""Labels in the members of shards."""

import json

from raysl.data.sources.class_names import check_range, whole
from raysl.errors import ConfigError


def label_of(content: bytes, kind: str, label_key: str | None, where: str) -> int | None:
    """A label from a member.

    Args:
        content: an integer in text, or a JSON object.
        kind: `cls` or `json`.
        label_key: the field of the object.
        where: it stands, for messages.

    Returns:
        The label, None where there is no such field.

    Raises:
        ConfigError: if it is no integer, or out of its range.
    """
    label = _integer(content, where) if kind == "cls" else _field(content, label_key, where)
    if label is not None:
        check_range(label, label, where)
    return label


def _integer(content: bytes, where: str) -> int:
    try:
        return whole(content.decode())
    except ValueError as error:
        raise ConfigError(f"{where} holds {content[:40]!r}, not an integer") from error


def _field(content: bytes, label_key: str | None, where: str) -> int | None:
    try:
        fields = json.loads(content)
    except ValueError as error:
        raise ConfigError(f"{where} is no JSON: {error}") from error
    label = fields.get(label_key) if isinstance(fields, dict) else None
    if isinstance(label, float) and label.is_integer():  # as pandas writes integers of a column that lacks some
        return int(label)
    if label is not None and (isinstance(label, bool) or not isinstance(label, int)):
        raise ConfigError(f"{where}: {label_key} is {label!r}, not an integer; set data.label_key= to another field")
    return label
