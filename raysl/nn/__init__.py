"""The parts of networks that methods share: heads, teachers, queues and banks, moments over the batch."""

from raysl.nn.backbones.init import init_linear
from raysl.nn.backbones.maps import features_and_map, last_map
from raysl.nn.backbones.positions import sincos_positions
from raysl.nn.collapse import COLLAPSE, batch_collapse
from raysl.nn.dino_head import Centre, DINOHead, HeadConfig, NestedHead
from raysl.nn.ema import Teacher
from raysl.nn.heads import OutputNorm, Prototypes, mlp
from raysl.nn.iter_norm import IterNorm
from raysl.nn.memory_bank import MemoryBank
from raysl.nn.moments import centred, covariances, cross_correlation, products, total_cross_covariance, unit_columns
from raysl.nn.queue import Queue
from raysl.nn.views import GROUPS, ViewNorm, at_places, features_of_views, masked_places, multi_crop, token_crops

__all__ = [
    "COLLAPSE",
    "GROUPS",
    "Centre",
    "DINOHead",
    "HeadConfig",
    "IterNorm",
    "MemoryBank",
    "NestedHead",
    "OutputNorm",
    "Prototypes",
    "Queue",
    "Teacher",
    "ViewNorm",
    "at_places",
    "batch_collapse",
    "centred",
    "covariances",
    "cross_correlation",
    "features_and_map",
    "features_of_views",
    "init_linear",
    "last_map",
    "masked_places",
    "mlp",
    "multi_crop",
    "products",
    "sincos_positions",
    "token_crops",
    "total_cross_covariance",
    "unit_columns",
]
