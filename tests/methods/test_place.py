"""Which ranks normalise together."""

from raysl.nn.batch_norm import SyncBatchNorm, local_statistics
from tests.rank_processes import RunRanks
from tests.train.problem import problem


def normalising() -> dict[str, tuple[bool, int]]:
    """For each setting, whether layers know of a group, and how many statistics differ between ranks."""
    found = {}
    for ranks in ("null", "1", "2", "node"):
        method = problem(f"train.sync_bn_ranks={ranks}")[0].method
        layers = [layer for layer in method.modules() if isinstance(layer, SyncBatchNorm)]
        assert layers
        found[ranks] = (any(layer.process_group is not None for layer in layers), len(local_statistics(method)))
        assert all(layer.process_group is layers[0].process_group for layer in layers)
    return found


def test_ranks_normalise_with_their_neighbours_or_their_node(run_ranks: RunRanks) -> None:
    for rank in run_ranks(2, normalising):
        is_grouped, num_local = rank["1"]
        assert is_grouped
        assert num_local > 0
        for ranks in ("null", "2", "node"):
            assert rank[ranks] == (False, 0), "both ranks are on one node"
