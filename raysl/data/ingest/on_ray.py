"""Ingesting on all CPUs of a cluster."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import ray

from raysl.cluster.connection import connect
from raysl.cluster.tasks import fetch_once, raising_as_there
from raysl.cluster.waiting_for_nodes import wait_for_nodes
from raysl.config.arguments import instance
from raysl.config.schema import DataConfig
from raysl.data.ingest.ingest import Ingested, ingest_source
from raysl.data.ingest.parts import SplitPart, Work
from raysl.data.ingest.shard import Layout
from raysl.data.source import Split
from raysl.process.code_errors import explaining_code

if TYPE_CHECKING:
    from ray.data import Dataset

MOST_TASKS = 1000
"""Tasks that run or wait for a CPU at a time."""


def ingest(
    data: "DataConfig | Dataset",
    out: str,
    *,
    resize: int | None = None,
    quality: int = 95,
    rows_per_file: int | None = None,
    rows_per_group: int | None = None,
    seed: int | None = 0,
) -> Ingested:
    """Store all images of a dataset as Parquet files, which `data=parquet` streams; an interrupted ingest goes on.

    A `ray.data.Dataset` is streamed once, in the order of its rows. It has a column `image` of encoded files (bytes) or
    of uint8 arrays [H, W, C], may have `label` (integers or names; None: unlabelled) and `name` or `path`, and other
    columns are ignored. All its images are training images. The same rows in the same order and the same seed give the
    same files. Rows that are next to each other in the dataset stay in one file, in a random order: shuffle a dataset
    that is sorted by class before, such as by a `ray.data.FileShuffleConfig` with a seed.

    >>> import raysl
    >>> raysl.ingest(raysl.load_config("quickstart").data, "ingested").rows
    {'train': 1442, 'test': 355}

    Args:
        data: settings of a source, as `raysl.load_config(...).data`, or a dataset of Ray Data.
        out: local path or URI of a new folder, or of one that the same call began to fill.
        resize: short side that larger images are shrunk to, in pixels; None stores encoded files unchanged.
        quality: JPEG quality of shrunk images, 1 to 100.
        rows_per_file: images in a file; default: 10,000, and 1,024 of a dataset of Ray Data.
        rows_per_group: images in a row group, the read unit of training; default: as many as make about 8 MB.
        seed: seed of the order in which training images are stored; None keeps the order of a source.

    Raises:
        ConfigError: if a setting is out of its range, the dataset has no images or labels of two kinds, or the folder
            cannot be written or holds other files.
        RunFailed: if no image can be decoded, the storage keeps failing, or a function of the dataset raises.
    """
    sizes = {} if rows_per_file is None else {"rows_per_file": rows_per_file}
    layout = partial(Layout, rows_per_group=rows_per_group, seed=seed, resize=resize, quality=quality)
    if not isinstance(data, DataConfig):
        from ray.data import Dataset  # a second to import, which files do without

        from raysl.data.ingest.ray_dataset import ROWS_PER_FILE, ingest_dataset

        if isinstance(data, Dataset):
            return ingest_dataset(data, out, layout(**{"rows_per_file": ROWS_PER_FILE, **sizes}))
    way = "raysl.load_config('quickstart').data, or a ray.data.Dataset"
    return ingest_source(instance(data, DataConfig, "data", way), out, layout(**sizes), on_ray)


def on_ray(work: Work, splits: Mapping[str, Split], parts: Sequence[SplitPart]) -> Iterator[Any]:
    """Work on parts as tasks of one CPU each, on all CPUs that the cluster has or adds."""
    connect()
    wait_for_nodes([{"CPU": 1.0}], "ingest tasks")
    return _results(work, splits, parts)


def _results(work: Work, splits: Mapping[str, Split], parts: Sequence[SplitPart]) -> Iterator[Any]:
    """Yield what `work` returns for each part, in any order; each call is a task of one CPU.

    Ray repeats the task of a lost node elsewhere. What plain tasks return is small, and an execution of Ray Data would
    take some seconds to start.

    Raises:
        ConfigError, RunFailed: raised by `work`, or for code of the user that fails in it.
    """
    task, shared = ray.remote(num_cpus=1)(_call), [ray.put((work, splits))]
    rest = iter(parts)
    submitted = [task.remote(shared, part) for part in islice(rest, MOST_TASKS)]
    try:
        while submitted:
            (finished,), submitted = ray.wait(submitted)
            with raising_as_there():
                result = ray.get(finished)
            # before the yield, so that a CPU is not idle while the caller uses this result
            submitted += [task.remote(shared, part) for part in islice(rest, 1)]
            yield result
    finally:
        for each in submitted:
            ray.cancel(each)


@explaining_code(of_users=True)
def _call(shared: list[Any], part: SplitPart) -> Any:
    """Call a function for a part; `shared` holds a reference, which Ray would resolve outside of a list."""
    work, splits = fetch_once(shared[0])
    return work(splits[part.split], part)
