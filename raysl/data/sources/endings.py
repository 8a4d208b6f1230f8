"""What the names of image files end in."""

ENDINGS = {
    "JPEG": ("jpg", "jpeg", "jpe", "jfif"),
    "MPO": ("jpg", "jpeg", "mpo"),
    "PNG": ("png",),
    "WEBP": ("webp",),
    "GIF": ("gif",),
    "BMP": ("bmp", "dib"),
    "TIFF": ("tif", "tiff"),
    "PPM": ("ppm", "pgm", "pbm", "pnm"),
    "JPEG2000": ("jp2", "j2k", "jpx"),
}
"""Endings by the format, as Pillow calls it, of those that raysl reads."""

IMAGES = tuple(dict.fromkeys(ending for endings in ENDINGS.values() for ending in endings))
EXTENSIONS = tuple(f".{ending}" for ending in IMAGES)
UNREADABLE = tuple(f".{ending}" for ending in ("heic", "heif", "avif", "jxl", "svg", "psd", "tga", "dng", "cr2", "nef"))
"""Images too, in formats that raysl does not read."""


def is_image(path: str) -> bool:
    """Whether a file is an image that raysl reads, by the ending of its name."""
    return path.lower().endswith(EXTENSIONS)
