"""Batched augmentations with parameters for each sample, and the recipes of views that are made of them.

Everything random is a function of (seed, epoch, sample index, view): see `raysl.transforms.random`.
"""

from raysl.transforms.crop import CenterCrop, Crop, RandomResizedCrop
from raysl.transforms.geometric import Affine, HorizontalFlip
from raysl.transforms.photometric import ColorJitter, GaussianBlur, Grayscale, Solarize
from raysl.transforms.random import SampleRandom
from raysl.transforms.transform import Transform
from raysl.transforms.view import View, ViewRecipe, evaluation_recipe, normalize

__all__ = [
    "Affine",
    "CenterCrop",
    "ColorJitter",
    "Crop",
    "GaussianBlur",
    "Grayscale",
    "HorizontalFlip",
    "RandomResizedCrop",
    "SampleRandom",
    "Solarize",
    "Transform",
    "View",
    "ViewRecipe",
    "evaluation_recipe",
    "normalize",
]
