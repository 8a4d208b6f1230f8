"""Settings about the cluster that a run is started on."""

from dataclasses import dataclass, field
from typing import Annotated

from raysl.config.component import MAY_CHANGE
from raysl.config.ranges import Within

Amount = Annotated[float, Within(0, 1_000_000)]


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """What the cluster may grow to, and how long a run waits for it."""

    max_cpus: Amount | None = field(default=None, metadata=MAY_CHANGE)
    """CPUs that the cluster's autoscaler may add up to. Default: as its configuration says, which is read on the head
    node or from the RayCluster; if it cannot be read, the CPUs that are up."""
    max_gpus: Amount | None = field(default=None, metadata=MAY_CHANGE)
    """GPUs that the cluster's autoscaler may add up to. Default: likewise."""
    wait_minutes: Annotated[float, Within(0.01, 1_000_000)] | None = field(default=None, metadata=MAY_CHANGE)
    """Minutes that a run waits for nodes, or for others to free them, before it fails. Default: for ever; it says each
    minute what is missing."""
