"""The colour that transparent images are seen on."""

from collections.abc import Sequence

from raysl.errors import ConfigError

Color = tuple[int, int, int]
"""Red, green and blue, in [0, 255]."""

WHITE: Color = (255, 255, 255)
NO_BACKGROUND = "none"


def color_of(background: str | Sequence[int]) -> Color | None:
    """The colour that a setting names; None where it says that alpha is to be dropped.

    Args:
        background: a name of CSS (`white`), `#rrggbb`, [red, green, blue] in [0, 255], or `none`.

    Raises:
        ConfigError: if it is none of these.
    """
    if background == "white":
        return WHITE
    if background == NO_BACKGROUND:
        return None
    rule = "give a name such as white or black, '#rrggbb', [red, green, blue] in [0, 255], or none, which drops alpha"
    if not isinstance(background, str):
        if len(background) == 3 and all(type(value) is int and 0 <= value <= 255 for value in background):
            return (background[0], background[1], background[2])
        raise ConfigError(f"background: {list(background)} is no colour; {rule}")
    from PIL import ImageColor

    try:
        found = ImageColor.getrgb(background)
    except ValueError as error:
        raise ConfigError(f"background: {background!r} is no colour; {rule}") from error
    if not all(0 <= value <= 255 for value in found):  # Pillow takes `rgb(300,0,0)` as it stands
        raise ConfigError(f"background: {background!r} is {list(found)}, outside [0, 255]; {rule}")
    if len(found) != 3:
        raise ConfigError(f"background: {background!r} has an alpha of its own; {rule}")
    return (found[0], found[1], found[2])
