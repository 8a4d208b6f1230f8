"""Transforms that a CPU applies by compiled kernels; a GPU applies them by operations on tensors."""

from raysl.transforms import ColorJitter, GaussianBlur, Grayscale, HorizontalFlip, Solarize

COMPILED = [
    HorizontalFlip(),
    Grayscale(p=0.5),
    Solarize(p=0.7),
    Solarize(p=0.7, threshold=(0.0, 1.0)),
    ColorJitter(p=1.0),
    ColorJitter(p=0.5, hue=0.0, contrast=(0.2, 3.0)),
    ColorJitter(p=1.0, brightness=0.0, contrast=0.0, saturation=0.0, hue=0.5),
    ColorJitter(p=0.8, arithmetic="tensorflow"),
    GaussianBlur(p=0.7, sigma=(0.1, 2.0)),
    GaussianBlur(p=1.0, sigma=(0.01, 9.0), kernel_size=7),
    GaussianBlur(p=1.0, kernel_size=1),
]
