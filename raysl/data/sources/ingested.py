"""What the manifest of an ingest says about the files of a split, so that a start reads neither footers nor labels."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from raysl.data.sources.class_names import LABELS
from raysl.data.sources.parquet_columns import CLASSES_KEY, Footers, Range, units_of

IMAGES = "image"


@dataclass(frozen=True)
class IngestedSplit:
    """One split of an ingest, as its manifest has it.

    Args:
        footers: contents of these files' footers.
        labels_digest: see `labels_digest`.
    """

    paths: tuple[str, ...]
    footers: Footers
    labels_digest: str


def stored_schema(classes: Sequence[str], is_multilabel: bool, has_names: bool = False) -> pa.Schema:
    """Return the schema of the files that an ingest writes.

    Args:
        has_names: whether labels are stored as the names of their classes.
    """
    label = pa.list_(pa.int64()) if is_multilabel else pa.string() if has_names else pa.int64()
    fields = {"index": pa.int64(), IMAGES: pa.large_binary(), LABELS: label, "name": pa.string()}
    return pa.schema(fields, metadata={CLASSES_KEY: json.dumps(classes).encode()})


def ingested_splits(folder: str, manifest: Mapping[str, Any]) -> list[IngestedSplit]:
    """Return the splits that a manifest describes in full.

    Lists of labels whose number of classes is unknown are read from the files.

    Args:
        folder: path of the ingest, empty or ending in a slash.
    """
    entries = [entry for entry in manifest["splits"].values() if entry["files"]]
    return [_split(folder, entry) for entry in entries if entry["classes"] or not entry["is_multilabel"]]


def _split(folder: str, entry: Mapping[str, Any]) -> IngestedSplit:
    files = {f"{folder}{file['name']}": file for file in entry["files"]}
    paths = tuple(sorted(files))
    classes, is_multilabel, has_names = entry["classes"], entry["is_multilabel"], entry["has_names"]
    ranges: dict[str, Range | None] = {}
    if not (is_multilabel or has_names):
        ranges = {path: (files[path]["labels"][0], files[path]["labels"][1]) for path in paths}
    footers = Footers(
        {paths[0]: stored_schema(classes, is_multilabel, has_names)},
        ranges,
        *units_of([np.array(files[path]["groups"], np.int64) for path in paths]),
        entry["column_bytes"],
        entry["fingerprint"],
        label_width=len(classes) if is_multilabel else None,
        has_names=has_names,
    )
    return IngestedSplit(paths, footers, entry["labels_digest"])
