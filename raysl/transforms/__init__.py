"""Batched augmentations with parameters for each sample, and the recipes of views that are made of them.

Everything random is a function of (seed, epoch, sample index, view): see `raysl.transforms.random`.
"""

from raysl.transforms.auto_augment import AutoAugment
from raysl.transforms.channels import network_input
from raysl.transforms.color import Autocontrast, Equalize, Invert, Posterize, RandomPhotometric, Sharpness, ToLab
from raysl.transforms.crop import Canvas, CenterCrop, Crop, RandomCrop, RandomResizedCrop
from raysl.transforms.erasing import RandomErasing
from raysl.transforms.functional import normalize
from raysl.transforms.geometric import Affine, HorizontalFlip, RandomRotation90, VerticalFlip
from raysl.transforms.inverse_block import CyclicMask, InverseBlockMask
from raysl.transforms.masking import BlockMask, Mask, PartMask, PrefixMask, RandomMask, UnitMask
from raysl.transforms.mix import CutMix, Mixup, MixupOrCutMix
from raysl.transforms.multi_block import MultiBlockMask
from raysl.transforms.photometric import ColorJitter, GaussianBlur, Grayscale, Solarize
from raysl.transforms.rand_augment import RandAugment
from raysl.transforms.random import SampleRandom
from raysl.transforms.recipes import AsymmetricCrops, AsymmetricMultiCrop, Crops, MultiCrop
from raysl.transforms.shifted_crop import ShiftedCrop
from raysl.transforms.tiles import Tiles, permutation_table
from raysl.transforms.transform import Transform
from raysl.transforms.view import View
from raysl.transforms.view_recipe import ViewRecipe, evaluation_recipe

__all__ = [
    "Affine",
    "AsymmetricCrops",
    "AsymmetricMultiCrop",
    "AutoAugment",
    "Autocontrast",
    "BlockMask",
    "Canvas",
    "CenterCrop",
    "ColorJitter",
    "Crop",
    "Crops",
    "CutMix",
    "CyclicMask",
    "Equalize",
    "GaussianBlur",
    "Grayscale",
    "HorizontalFlip",
    "InverseBlockMask",
    "Invert",
    "Mask",
    "Mixup",
    "MixupOrCutMix",
    "MultiBlockMask",
    "MultiCrop",
    "PartMask",
    "Posterize",
    "PrefixMask",
    "RandAugment",
    "RandomCrop",
    "RandomErasing",
    "RandomMask",
    "RandomPhotometric",
    "RandomResizedCrop",
    "RandomRotation90",
    "SampleRandom",
    "Sharpness",
    "ShiftedCrop",
    "Solarize",
    "Tiles",
    "ToLab",
    "Transform",
    "UnitMask",
    "VerticalFlip",
    "View",
    "ViewRecipe",
    "evaluation_recipe",
    "network_input",
    "normalize",
    "permutation_table",
]
