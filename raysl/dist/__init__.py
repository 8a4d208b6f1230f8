"""Training over several processes, as a property of functions: each is the identity on one.

The only package that touches `torch.distributed`: `collectives` exchanges tensors, `ddp` averages gradients,
`sharding` spreads weights and the state of the optimizer.
"""

from raysl.dist.collectives import Group as Group
from raysl.dist.collectives import all_gather as all_gather
from raysl.dist.collectives import all_gather_ragged as all_gather_ragged
from raysl.dist.collectives import all_least as all_least
from raysl.dist.collectives import all_mean as all_mean
from raysl.dist.collectives import all_sum as all_sum
from raysl.dist.collectives import all_true as all_true
from raysl.dist.collectives import average_ as average_
from raysl.dist.collectives import barrier as barrier
from raysl.dist.collectives import broadcast as broadcast
from raysl.dist.collectives import gather_objects as gather_objects
from raysl.dist.collectives import group_of as group_of
from raysl.dist.collectives import is_main as is_main
from raysl.dist.collectives import own_rows as own_rows
from raysl.dist.collectives import planned_rows as planned_rows
from raysl.dist.collectives import rank as rank
from raysl.dist.collectives import row_counts as row_counts
from raysl.dist.collectives import world as world
from raysl.dist.ddp import data_parallel as data_parallel
from raysl.dist.sharding import is_sharded as is_sharded
from raysl.dist.sharding import load_optimizer_state as load_optimizer_state
from raysl.dist.sharding import local as local
from raysl.dist.sharding import optimizer_state as optimizer_state
from raysl.dist.sharding import shard as shard
from raysl.dist.sharding import shared_as as shared_as
from raysl.dist.sharding import shared_optimizer as shared_optimizer
from raysl.dist.sharding import whole as whole
from raysl.dist.sharding import without_exchange as without_exchange
