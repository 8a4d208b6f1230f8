"""Clusters of the images of a dataset in a Parquet file, written by `raysl cluster` and learned by ClusterFit."""

import json
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from raysl.errors import ConfigError
from raysl.storage.folder import Folder, cut, open_uri, storage_errors
from raysl.storage.records import Damaged, read_record

_NOTE = b"raysl"
"""Key of the note in the file's metadata."""


@dataclass(frozen=True)
class Assignments:
    """The cluster of each image.

    Args:
        clusters: int64 [N], in dataset order, 0 to num_clusters - 1.
        checkpoint: address of the checkpoint whose features were clustered.
        names: names of the images, for people who read the file; empty if unknown.
    """

    clusters: Tensor
    num_clusters: int
    fingerprint: str
    checkpoint: str
    names: tuple[str, ...] = ()

    def check(self, num_samples: int, fingerprint: str) -> None:
        """Refuse to use the clusters for other images; an empty fingerprint is an unknown one."""
        if len(self.clusters) != num_samples or fingerprint not in ("", self.fingerprint):
            raise ConfigError(
                f"the clusters are of {len(self.clusters)} images with the fingerprint {self.fingerprint!r}, but the "
                f"run has {num_samples} with {fingerprint or 'an unknown one'!r}; cluster the images of the run: "
                f"raysl cluster --checkpoint {self.checkpoint} data.path=..."
            )

    def write(self, path: str) -> None:
        """Write the columns index, name and cluster, and the rest as a note in the file."""
        note = {key: getattr(self, key) for key in ("num_clusters", "fingerprint", "checkpoint")}
        clusters = self.clusters.cpu().numpy()
        names = {"name": pa.array(self.names, pa.string())} if self.names else {}
        table = pa.table({"index": np.arange(len(clusters)), **names, "cluster": clusters})
        parent, name = cut(path)
        folder = Folder(parent or ".")
        folder.make()
        with folder.system.open_output_stream(f"{folder.path}/{name}") as stream:
            pq.write_table(table.replace_schema_metadata({_NOTE: json.dumps(note)}), stream)


def read_assignments(uri: str) -> Assignments:
    """Read the clusters in a file at a local path or a URI."""
    system, path = open_uri(uri)
    with storage_errors("read", uri), system.open_input_file(path) as file:
        try:
            table = pq.ParquetFile(file).read()  # not read_table: with torch loaded, its threads may abort at exit
        except (pa.ArrowException, OSError) as error:
            raise Damaged(f"{uri} is damaged: {str(error).splitlines()[0]}") from error
    kinds = {"num_clusters": int, "fingerprint": str, "checkpoint": str}
    columns = {name: table.schema.field(name).type for name in ("index", "cluster") if name in table.column_names}
    stored = (table.schema.metadata or {}).get(_NOTE)
    if stored is None or len(columns) < 2 or not all(map(pa.types.is_integer, columns.values())):
        raise ConfigError(f"{uri} has no clusters of images; raysl cluster --checkpoint RUN writes such a file")
    note = read_record(stored, uri, kinds)
    order = np.argsort(table["index"].to_numpy())
    clusters = table["cluster"].to_numpy()[order]
    if len(clusters) and not 0 <= clusters.min() <= clusters.max() < note["num_clusters"]:
        raise Damaged(f"{uri} is damaged: it has clusters {clusters.min()} to {clusters.max()}")
    numbers = torch.from_numpy(clusters.astype(np.int64))
    return Assignments(numbers, note["num_clusters"], note["fingerprint"], note["checkpoint"])
