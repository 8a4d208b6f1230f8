"""What the order of samples costs to read and how well it shuffles, known before anything is read."""

import dataclasses
import shlex
from dataclasses import dataclass

from raysl.config.dump import plain, write_inline
from raysl.config.schema import DataConfig
from raysl.data.order import FEW_LANES, Order
from raysl.process.screen import counted
from raysl.redact import redact

MOST_READ = 1.25
MOST_UNIT_ROWS = 4000
WORST_SHUFFLE = 20.0
"""A start warns beyond these."""
SMALL_UNIT_ROWS = 256
"""Units that are not larger need no ingest."""


@dataclass(frozen=True)
class Reads:
    """Reads, shuffle and memory of an order of samples with windows, or of an exact one.

    Args:
        num_units: read units of the dataset; 0 for an exact order, whose rows are read one by one.
        unit_rows: mean rows of a unit.
        window_rows: mean rows of a complete window.
        lanes: fixed parts of a batch.
        read: largest ratio of bytes read to bytes used in an epoch.
        shuffle: variance of the number of samples that batches of two epochs share, over its mean; 1 for exact orders.
        live_rows: samples that have been read and wait for their step, over all workers, without those fetched ahead.
    """

    num_units: int
    unit_rows: float
    window_rows: float
    lanes: int
    read: float
    shuffle: float
    live_rows: float

    @classmethod
    def of(cls, order: Order) -> "Reads":
        """Return the reads of an order of the current version.

        >>> import numpy as np
        >>> reads = Reads.of(Order(0, "images", np.full(20_000, 64), 4096, lanes=64, window=None, is_exact=False))
        >>> reads.window_rows, reads.read, reads.shuffle, reads.live_rows
        (512.0, 1.00315, 2.0, 16384.0)
        """
        if order.is_exact:
            return cls(0, 1.0, 1.0, order.lanes, 1.0, 1.0, 0.0)
        # an epoch of a mix cuts two units of each source, where it begins and ends
        num_units, lanes = int((order.unit_sizes > 0).sum()), order.lanes
        unit_rows, lane_rows = order.num_samples / num_units, order.batch_size / lanes
        # the rows of a lane bound its windows
        window_rows = min(order.window_units * unit_rows, order.num_samples / lanes)
        read = 1 + (lanes - 1 + 2 * len(order.mix)) / num_units
        # a batch has min(1, b / w) of a unit's rows together, for b rows of a lane and w of a window
        shuffle = 1 + unit_rows * min(1, lane_rows / window_rows) ** 2
        return cls(num_units, unit_rows, window_rows, lanes, read, shuffle, lanes * window_rows / 2)

    def lines(self, row_bytes: int) -> list[str]:
        """Return the numbers as sentences, for samples of some bytes that wait for their step."""
        if not self.num_units:
            return ["images are read one by one, in an exact permutation of those of an epoch"]
        return [
            f"{self.num_units:,} read units of {self.unit_rows:,.0f} images in {self.lanes} lanes: an epoch reads at "
            f"most {self.read:.3f} times the bytes it uses",
            f"windows of {self.window_rows:,.0f} images are shuffled: the overlap of batches of two epochs varies "
            f"{self.shuffle:.1f} times as much as with an exact permutation",
            f"{self._live_gb(row_bytes):.2f} GB of images wait for their step, over all workers",
        ]

    def warning(self, row_bytes: int, data: DataConfig) -> str | None:
        """Return a line if the files make reads, shuffle or memory bad, with the command that helps."""
        costs = []
        if self.read > MOST_READ:
            costs.append(f"an epoch reads up to {self.read:.1f} times the bytes it uses")
        if self.shuffle > WORST_SHUFFLE:
            costs.append(
                f"the overlap of batches of two epochs varies {self.shuffle:,.0f} times as much as with an exact "
                "permutation"
            )
        if self.unit_rows > MOST_UNIT_ROWS:
            costs.append(f"about {self._live_gb(row_bytes):,.1f} GB of images wait for their step in memory")
        ways, lanes = [], max(FEW_LANES, 1 << max(1, self.num_units // 4).bit_length() - 1)
        if self.unit_rows > SMALL_UNIT_ROWS:
            ways.append(f"{ingest_command(data)} stores them in smaller ones")
        if self.read > MOST_READ and lanes < self.lanes:
            ways.append(f"data.lanes={lanes} reads less, with at most {counted(lanes, 'worker')}")
        if not costs or not ways:
            return None
        units = f"{self.num_units:,} read units of {self.unit_rows:,.0f} images, for {counted(self.lanes, 'lane')}"
        return f"the training images are stored in {units}: {'; '.join(costs)}. {', or '.join(ways)}"

    def _live_gb(self, row_bytes: int) -> float:
        return self.live_rows * row_bytes / 1e9


def ingest_command(data: DataConfig) -> str:
    """Return the command that ingests the images of these settings.

    >>> from raysl.config.load import load_config
    >>> ingest_command(load_config("quickstart", ["data=parquet", "data.path=s3://bucket/a b"]).data)
    "raysl ingest data=parquet 'data.path=s3://bucket/a b' --out FOLDER"
    """
    common = {field.name for field in dataclasses.fields(DataConfig)} - {"limit", "skip", "subset", "subset_by"}
    settings = [f"data={data.name}"]
    for field in dataclasses.fields(data):
        value = getattr(data, field.name)
        if field.init and field.name not in common and value != field.default and value is not None:
            text = value if isinstance(value, str) else write_inline(plain(value))
            settings.append(f"data.{field.name}={text}")
    return redact(f"raysl ingest {' '.join(map(shlex.quote, settings))} --out FOLDER")


def describe_mix(order: Order) -> str | None:
    """Return a sentence on what an epoch takes from each source of a mix; None for any other order."""
    if not order.mix:
        return None
    first, shares = 0, []
    for part in order.mix:
        num = int(order.unit_sizes[first : first + part.units].sum())
        share = 100 * part.rows / order.num_samples
        shares.append(f"{share:.1f} % from {part.name}, {part.rows / num:.3g} times its {num:,}")
        first += part.units
    return f"an epoch of {order.num_samples:,} images takes {'; '.join(shares)}"
