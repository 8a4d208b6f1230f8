"""Whether the workers of a run see the folder that the driver wrote to, on all nodes."""

from functools import partial

import ray.util

from raysl import distributed as dist
from raysl.cluster.board import Board
from raysl.errors import ConfigError, StorageError
from raysl.process.screen import named
from raysl.runs.folder import PROBE_FILE, RunFolder
from raysl.storage.folder import outlast

_SEEN = "folder seen"


def find_folder(folder: RunFolder, probe: str, board: Board) -> None:
    """Look for the driver's note in the run's folder from all nodes; every rank calls it.

    Workers that replace others wait for it for up to half an hour, since those have seen it.

    Raises:
        StorageError: if a node does not see the folder any more.
        ConfigError: if a node has never seen it.
    """
    if not folder.is_local:
        return
    # the answer of rank 0 counts for all: each branch has collective calls that every rank must join
    if dist.gather_objects(board.read(_SEEN))[0]:
        outlast(partial(_check_seen, folder, probe))
    elif blind := _blind_nodes(folder, probe):
        raise ConfigError(
            f"storage {folder.uri} is a local folder that the {named('node', blind)} do not share with the driver; "
            "give storage= a folder that all nodes share, or a URI such as s3://bucket/runs"
        )
    if dist.is_main():
        board.write(_SEEN, True)


def _check_seen(folder: RunFolder, probe: str) -> None:
    if blind := _blind_nodes(folder, probe):
        raise StorageError(
            f"the folder {folder.uri} has gone on the {named('node', blind)}; bring it back, then the same command "
            "goes on"
        )


def _blind_nodes(folder: RunFolder, probe: str) -> list[str]:
    """Return the nodes whose workers do not see the driver's note in the run's folder."""
    try:
        sees = folder.read(PROBE_FILE).decode() == probe
    except ConfigError:
        sees = False
    return sorted({name for name in dist.gather_objects("" if sees else ray.util.get_node_ip_address()) if name})
