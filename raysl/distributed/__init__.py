"""Training over several processes, by functions that are the identity on one process.

The only package that touches `torch.distributed`: `ranks` numbers and joins the processes, `rows` gathers and sends
rows of the batch, `collectives` exchanges other tensors, `parallel` averages gradients, and spreads weights and the
state of the optimizer.
"""

from raysl.distributed.collectives import all_least as all_least
from raysl.distributed.collectives import all_mean as all_mean
from raysl.distributed.collectives import all_stacked as all_stacked
from raysl.distributed.collectives import all_sum as all_sum
from raysl.distributed.collectives import all_true as all_true
from raysl.distributed.collectives import average_ as average_
from raysl.distributed.collectives import broadcast as broadcast
from raysl.distributed.collectives import gather_objects as gather_objects
from raysl.distributed.parallel import data_parallel as data_parallel
from raysl.distributed.parallel import is_shard as is_shard
from raysl.distributed.parallel import is_sharded as is_sharded
from raysl.distributed.parallel import load_optimizer_state as load_optimizer_state
from raysl.distributed.parallel import local as local
from raysl.distributed.parallel import optimizer_state as optimizer_state
from raysl.distributed.parallel import own_state as own_state
from raysl.distributed.parallel import shard as shard
from raysl.distributed.parallel import shard_like as shard_like
from raysl.distributed.parallel import shared_optimizer as shared_optimizer
from raysl.distributed.parallel import whole as whole
from raysl.distributed.parallel import without_exchange as without_exchange
from raysl.distributed.ranks import Group as Group
from raysl.distributed.ranks import barrier as barrier
from raysl.distributed.ranks import group_of as group_of
from raysl.distributed.ranks import is_main as is_main
from raysl.distributed.ranks import rank as rank
from raysl.distributed.ranks import world as world
from raysl.distributed.rows import all_gather as all_gather
from raysl.distributed.rows import all_gather_ragged as all_gather_ragged
from raysl.distributed.rows import exchange_rows as exchange_rows
from raysl.distributed.rows import loss_factor as loss_factor
from raysl.distributed.rows import own_rows as own_rows
from raysl.distributed.rows import planned_num as planned_num
from raysl.distributed.rows import planned_rows as planned_rows
from raysl.distributed.rows import planned_share as planned_share
from raysl.distributed.rows import row_counts as row_counts
from raysl.distributed.rows import row_shares as row_shares
