"""ImageNet-C: images with common corruptions at five severities (Hendrycks and Dietterich 2019, arXiv 1903.12261)."""

from collections.abc import Mapping, Sequence

from raysl.data.sources.listing import list_folders
from raysl.errors import ConfigError
from raysl.storage.addresses import join

ALEXNET_ERRORS = {
    "gaussian_noise": 88.6428,
    "shot_noise": 89.4468,
    "impulse_noise": 92.2640,
    "defocus_blur": 81.9880,
    "glass_blur": 82.6268,
    "motion_blur": 78.5948,
    "zoom_blur": 79.8360,
    "snow": 86.6816,
    "frost": 82.6572,
    "fog": 81.9324,
    "brightness": 56.4592,
    "contrast": 85.3204,
    "elastic_transform": 64.6056,
    "pixelate": 71.7840,
    "jpeg_compression": 60.6500,
}
"""Top-1 error of AlexNet in percent on each corruption, the mean over its severities, as the authors' code has them
(hendrycks/robustness); four further corruptions of the dataset are for validation and not part of the mean."""
SEVERITIES = (1, 2, 3, 4, 5)


def corrupted_folders(uri: str) -> dict[str, list[str]]:
    """Return the folders of the five severities of each corruption, in `uri` or in folders of kinds such as `blur/`.

    Raises:
        ConfigError: if a corruption or a severity is missing: the mean would be of something else.
    """
    folders = {name: join(uri, name) for name in list_folders(uri)}
    # folders of kinds, such as blur/, hold the corruptions; a list, since the loop adds to the dict
    for kind in [name for name in folders if name not in ALEXNET_ERRORS]:
        inside = list_folders(folders[kind])
        folders |= {name: join(folders[kind], name) for name in inside if name in ALEXNET_ERRORS}
    if missing := [name for name in ALEXNET_ERRORS if name not in folders]:
        raise ConfigError(
            f"{len(missing)} of the {len(ALEXNET_ERRORS)} corruptions of ImageNet-C have no folder below {uri!r}, "
            f"first {missing[0]!r}; unpack noise.tar, blur.tar, weather.tar and digital.tar there"
        )
    by_severity = {}
    for name in ALEXNET_ERRORS:
        inside = list_folders(folders[name])
        if missing := [str(number) for number in SEVERITIES if str(number) not in inside]:
            raise ConfigError(f"{folders[name]!r} has no folder {missing[0]} of that severity; unpack ImageNet-C anew")
        by_severity[name] = [join(folders[name], str(number)) for number in SEVERITIES]
    return by_severity


def mean_corruption_error(errors: Mapping[str, Sequence[float]]) -> float:
    """Compute mCE in percent: errors summed over severities, divided by AlexNet's sum, averaged over corruptions.

    Args:
        errors: top-1 errors in percent at each severity, by corruption.
    """
    shares = [sum(rates) / len(rates) / ALEXNET_ERRORS[name] for name, rates in errors.items()]
    return 100 * sum(shares) / len(shares)
