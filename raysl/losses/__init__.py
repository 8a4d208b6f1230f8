"""Losses: pure functions, tensors in, a scalar out (or a scalar with its terms).

They compute at least in fp32, and float64 in stays float64. Where a loss compares this rank's rows with "the batch",
the batch is an argument, gathered by `raysl.distributed.all_gather`, or its moments are, summed by `raysl.nn.moments`.
No loss reads a number from its tensors or selects by a mask, so none waits for a GPU.
"""

from raysl.losses.batch_contrast import batch_info_nce, co2, info_nce
from raysl.losses.classification import one_hot, smoothed, soft_binary_cross_entropy, soft_cross_entropy, top_share
from raysl.losses.clustering import (
    UNKNOWN,
    IBOTLoss,
    cluster_cross_entropy,
    dino,
    ibot,
    masked_prediction,
    swapped_prediction,
)
from raysl.losses.contrastive import MACLLoss, contrastive_accuracy, dcl, macl, nt_xent, sup_con
from raysl.losses.gradients import hog, hog_patches
from raysl.losses.masks import DetConLoss, detcon
from raysl.losses.matches import best_matches, spread
from raysl.losses.noise import bank_cross_entropy, nce, nce_log_norm, self_normalised_nce
from raysl.losses.non_contrastive import (
    BarlowTwinsLoss,
    VICRegLoss,
    barlow_twins,
    byol,
    gram,
    koleo,
    negative_cosine,
    off_diagonal_squares,
    vibcreg,
    vicreg,
)
from raysl.losses.normality import VISRegTerms, characteristic_sums, epps_pulley, quantile_distance, visreg
from raysl.losses.precision import at_least_fp32
from raysl.losses.reconstruction import masked_patch_l1, masked_patch_mse, patchify, unnormalise_patches, unpatchify
from raysl.losses.relations import cka
from raysl.losses.spectrum import coding_rate, frossl, mmcr, nuclear_norm, ssl_ey

__all__ = [
    "UNKNOWN",
    "BarlowTwinsLoss",
    "DetConLoss",
    "IBOTLoss",
    "MACLLoss",
    "VICRegLoss",
    "VISRegTerms",
    "at_least_fp32",
    "bank_cross_entropy",
    "barlow_twins",
    "batch_info_nce",
    "best_matches",
    "byol",
    "characteristic_sums",
    "cka",
    "cluster_cross_entropy",
    "co2",
    "coding_rate",
    "contrastive_accuracy",
    "dcl",
    "detcon",
    "dino",
    "epps_pulley",
    "frossl",
    "gram",
    "hog",
    "hog_patches",
    "ibot",
    "info_nce",
    "koleo",
    "macl",
    "masked_patch_l1",
    "masked_patch_mse",
    "masked_prediction",
    "mmcr",
    "nce",
    "nce_log_norm",
    "negative_cosine",
    "nt_xent",
    "nuclear_norm",
    "off_diagonal_squares",
    "one_hot",
    "patchify",
    "quantile_distance",
    "self_normalised_nce",
    "smoothed",
    "soft_binary_cross_entropy",
    "soft_cross_entropy",
    "spread",
    "ssl_ey",
    "sup_con",
    "swapped_prediction",
    "top_share",
    "unnormalise_patches",
    "unpatchify",
    "vibcreg",
    "vicreg",
    "visreg",
]
