"""Spot instances of AWS with a fall-back, for Ray's autoscaler: `provider` of a cluster file names this class.

    provider: {type: external, module: raysl.cluster.spot.SpotFirst, region: us-west-2}

Ray asks for a spot instance again and again while AWS has none, also where another group could do.
"""

import logging
from typing import Any

from ray.autoscaler.node_launch_exception import NodeLaunchException
from typing_extensions import override

from raysl.cluster.private import aws_nodes

_NO_SPOT = {
    "InsufficientInstanceCapacity",
    "MaxSpotInstanceCountExceeded",
    "SpotMaxPriceTooLow",
    "UnfulfillableCapacity",
}
"""Answers of EC2 that say that it has no spot instance to give, in any of the subnets."""

_logger = logging.getLogger(__name__)


class SpotFirst(aws_nodes()):  # type: ignore[misc]
    """AWS's nodes as Ray starts them, at the full price where a group asks for spot instances and AWS has none."""

    @override
    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> dict[str, Any]:
        """Start `count` instances of a group; return them by their ids.

        Raises:
            NodeLaunchException: if AWS has no instance at the full price either, or refuses for another reason.
        """
        on_demand = {name: value for name, value in node_config.items() if name != "InstanceMarketOptions"}
        if on_demand == node_config:
            return dict(super().create_node(node_config, tags, count))
        try:
            nodes = dict(super().create_node(node_config, tags, count))
        except NodeLaunchException as error:
            if error.category not in _NO_SPOT:
                raise
            nodes = {}
        if missing := count - len(nodes):
            _logger.info("AWS has no spot instance for %d of %d nodes; starting them at the full price", missing, count)
            nodes |= super().create_node(on_demand, tags, missing)
        return nodes
