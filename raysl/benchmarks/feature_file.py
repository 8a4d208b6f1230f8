"""Features on disk: a Parquet file with a row for each image."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from raysl.addresses import cut, open_uri, telling
from raysl.errors import ConfigError
from raysl.storage import Folder


@dataclass(frozen=True)
class Features:
    """Features of a split, in dataset order.

    Args:
        features: float32 [N, D].
        labels: int64 [N], -1 where unlabelled; [N, K] of a multi-label dataset.
        index: int64 [N], the samples' places in the dataset.
        path: the Parquet file that holds the same.
    """

    features: Tensor
    labels: Tensor
    index: Tensor
    path: str


def write_features(found: Features) -> None:
    """Write features to the file at their path.

    Raises:
        ConfigError: if the storage fails.
    """
    rows = pa.FixedSizeListArray.from_arrays(pa.array(found.features.flatten().numpy()), found.features.shape[1])
    column = labels = found.labels.numpy()
    if labels.ndim == 2:
        column = pa.FixedSizeListArray.from_arrays(pa.array(labels.ravel()), labels.shape[1])
    table = pa.table({"index": found.index.numpy(), "label": column, "features": rows})
    parent, name = cut(found.path)
    folder = Folder(parent or ".")
    folder.make()
    with folder.system.open_output_stream(f"{folder.path}/{name}") as stream:
        pq.write_table(table, stream)


def read_features(path: str) -> Features:
    """Features that `write_features` or `raysl extract` wrote.

    Raises:
        ConfigError: if there is no such file, or it holds no features.
    """
    system, inside = open_uri(path)
    with telling("read", path), system.open_input_file(inside) as file:
        table = pq.read_table(file)
    if missing := [name for name in ("features", "label", "index") if name not in table.column_names]:
        raise ConfigError(f"{path} has no column {missing[0]!r}; give a file that raysl extract has written")
    features, labels, index = (_column(table, name) for name in ("features", "label", "index"))
    return Features(features.float(), labels, index, path)


def _column(table: pa.Table, name: str) -> Tensor:
    column = table.column(name).combine_chunks()
    if not pa.types.is_fixed_size_list(column.type):
        return torch.from_numpy(np.array(column))
    return torch.from_numpy(np.array(column.flatten()).reshape(len(column), column.type.list_size))
