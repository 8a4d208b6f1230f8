"""The colour behind transparent images."""

from collections.abc import Sequence

from raysl.errors import ConfigError

Color = tuple[int, int, int]
"""Red, green and blue, in [0, 255]."""

WHITE: Color = (255, 255, 255)
NO_BACKGROUND = "none"


def parse_color(background: str | Sequence[int]) -> Color | None:
    """Return the colour that a setting names; None where transparency is to be dropped.

    Args:
        background: a CSS name (`white`), `#rrggbb`, [red, green, blue] in [0, 255], or `none`.
    """
    if background == "white":
        return WHITE
    if background == NO_BACKGROUND:
        return None
    rule = "give a name such as white or black, '#rrggbb', [red, green, blue] in [0, 255], or none: ignore transparency"
    if not isinstance(background, str):
        if len(background) == 3 and all(type(value) is int and 0 <= value <= 255 for value in background):
            return (background[0], background[1], background[2])
        raise ConfigError(f"background: {list(background)} is not a colour; {rule}")
    from PIL import ImageColor

    try:
        color = ImageColor.getrgb(background)
    except ValueError as error:
        raise ConfigError(f"background: {background!r} is not a colour; {rule}") from error
    if not all(0 <= value <= 255 for value in color):  # Pillow accepts `rgb(300,0,0)`
        raise ConfigError(f"background: {background!r} is {list(color)}, outside [0, 255]; {rule}")
    if len(color) != 3:
        raise ConfigError(f"background: {background!r} has an alpha channel; {rule}")
    return (color[0], color[1], color[2])
