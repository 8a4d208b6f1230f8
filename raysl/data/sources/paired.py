"""Several datasets side by side: sample i has the i-th image of each."""

from dataclasses import dataclass, replace

from typing_extensions import override

from raysl.data.source import Combined, ConfigError, Int64s, Rows, Split
from raysl.data.split import Over
from raysl.hashing import digest


class Paired(Combined):
    """Corresponding images of several sources of the same length: colour and depth, photograph and sketch.

    Labels are those of the first source, images of the others are its rows' `partners`. There are held-out images if
    every source has some.

    The settings of the pipeline (image size, normalisation, lanes, window and so on) and `label_type` belong to this
    node and are refused on the inner sources.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Combined.Config):
        """The sources."""

        name: str = "paired"

    @override
    def split(self, name: str) -> Split | None:
        if len(self.config.sources) < 2:
            raise ConfigError(
                "paired needs data.sources=, at least two sources: {a: {name: image_folder, path: ...}, ...}"
            )
        if name == "train":
            return _PairedSplit({key: source.required(name) for key, source in self._sources.items()})
        parts = {key: split for key, source in self._sources.items() if (split := source.optional(name)) is not None}
        return _PairedSplit(parts) if len(parts) == len(self._sources) else None


class _PairedSplit(Over):
    def __init__(self, parts: dict[str, Split]) -> None:
        sizes = {key: split.num_samples for key, split in parts.items()}
        if len(set(sizes.values())) > 1:
            counts = ", ".join(f"{key} {size:,}" for key, size in sizes.items())
            raise ConfigError(f"paired sources must have the same number of images, not {counts}")
        first, *self.others = parts.values()
        self.take_over(first)
        self.inner = tuple(parts.values())
        self.num_validation = 0
        self.is_random_access = all(split.is_random_access for split in parts.values())
        self.notes = tuple(note for split in parts.values() for note in split.notes)
        self.num_sources = sum(split.num_sources for split in parts.values())
        fingerprints = " ".join(split.fingerprint for split in parts.values())
        self.fingerprint = digest(fingerprints)

    def read(self, index: Int64s) -> Rows:
        rows, *others = (split.read(index) for split in (self.split, *self.others))
        partners = [partner for other in others for partner in (replace(other, partners=()), *other.partners)]
        return Rows(rows.images, rows.labels, rows.names, (*rows.partners, *partners))
