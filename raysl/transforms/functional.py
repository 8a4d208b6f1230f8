"""Image operations on a batch with one parameter per image, equal to torchvision's functions of one image.

Images are float [B, C, H, W] in [0, 1]. Parameters are tensors [B] and may stay on the CPU whatever device the images
are on: rows are chosen on the CPU without waiting for a GPU, and copies to the GPU are asynchronous. The functions are
pure and may return their input where there is nothing to do.

An image's result does not depend, to the last bit, on the other images of its batch or on the number of threads.
Therefore blurs and means are sums and products of whole tensors in a fixed order, in which each element sees the same
correctly rounded operations (neither BLAS nor a parallel reduction guarantees that), and exponentials and sines are
computed one by one in Python (vectorised ones may differ in the last bit between the body and the tail of an array).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raysl.config.ranges import Interpolation as Interpolation
from raysl.transforms import few_passes, programs
from raysl.transforms.device import to_device, to_type_of

LUMA = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue in grey (ITU-R 601-2, as torchvision rounds them)."""


def to_float(images: Tensor) -> Tensor:
    """Convert uint8 images [..., C, H, W] to float32 in [0, 1].

    >>> to_float(torch.tensor([0, 51, 255], dtype=torch.uint8))
    tensor([0.0000, 0.2000, 1.0000])
    """
    return images.div(torch.full((), 255.0, device=images.device))


def to_uint8(images: Tensor) -> Tensor:
    """Convert float images [..., C, H, W] to uint8, clamped to [0, 1] and rounded to the nearest of 256 levels.

    >>> to_uint8(torch.tensor([-1.0, 0.2, 2.0]))
    tensor([  0,  51, 255], dtype=torch.uint8)
    """
    return images.clamp(0.0, 1.0).mul_(255.0).round_().to(torch.uint8)


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return (images - mean) / std per channel, of float images in [0, 1] or uint8 images [..., C, H, W].

    >>> normalize(torch.ones(2, 3, 1, 1), mean=(0.5, 0.5, 0.5), std=(0.5, 0.25, 0.5))[0].flatten()
    tensor([1., 2., 1.])
    """
    if images.dtype == torch.uint8 and images.device.type == "cpu" and programs.HAS_KERNELS:
        return _normalize_on_cpu(images, mean, std)
    if not images.is_floating_point():
        images = to_float(images)
    shift = to_type_of(torch.tensor(mean, dtype=torch.float64), images)[:, None, None]
    scale = to_type_of(torch.tensor(std, dtype=torch.float64), images)[:, None, None]
    return (images - shift).div_(scale)


def _normalize_on_cpu(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """`normalize` uint8 images in one pass over the pixels."""
    from raysl.transforms import kernels

    flat = images.reshape(-1, *images.shape[-3:])
    out = torch.empty(flat.shape)
    pixels, values = flat.numpy(), out.numpy()
    fill = kernels.normalize_large if kernels.can_stream(pixels, values) else kernels.normalize
    fill(pixels, np.array(mean, np.float32), np.array(std, np.float32), values)
    return out.view(images.shape)


def horizontal_flip(images: Tensor, mask: Tensor) -> Tensor:
    """Mirror the images left to right where `mask`, bool [B], is true.

    >>> horizontal_flip(torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([True]))
    tensor([[[[2., 1.]]]])
    """
    return change_where(mask, images, lambda chosen: chosen.flip(-1))


def vertical_flip(images: Tensor, mask: Tensor) -> Tensor:
    """Mirror the images top to bottom where `mask`, bool [B], is true."""
    return change_where(mask, images, lambda chosen: chosen.flip(-2))


def grayscale(images: Tensor, mask: Tensor) -> Tensor:
    """Turn images grey where `mask`, bool [B], is true; the number of channels stays.

    Grey is the luma of three channels, and the mean of any other number.
    """
    return change_where(mask, images, lambda chosen: _luma(chosen).expand_as(chosen))


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert the values at or above `threshold` [B]; a threshold above 1 leaves an image as it is.

    >>> solarize(torch.tensor([0.25, 0.75]).view(1, 1, 1, 2), torch.tensor([0.5])).flatten()
    tensor([0.2500, 0.2500])
    """
    return change_where(threshold <= 1.0, images, _invert_from, threshold)


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Multiply by `factor` [B] >= 0: 0 is black, 1 the image itself.

    >>> adjust_brightness(torch.full((1, 3, 1, 1), 0.25), torch.tensor([2.0])).flatten()
    tensor([0.5000, 0.5000, 0.5000])
    """
    return images.mul(_column(factor, images)).clamp_(0.0, 1.0)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Move away from the mean grey of the image by `factor` [B] >= 0: 0 is that grey, 1 the image itself."""
    return _blend(images, _mean(_luma(images)), factor)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Move away from the pixel's grey by `factor` [B] >= 0: 0 is grey, 1 the image itself."""
    return images if images.shape[1] == 1 else _blend(images, _luma(images), factor)


def shift_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Add `factor` - 1, `factor` [B] >= 0: 0 is black, 1 the image itself; TensorFlow's `adjust_brightness`."""
    return images.add(_column(factor.double() - 1.0, images)).clamp_(0.0, 1.0)


def adjust_channel_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Move each channel away from its mean by `factor` [B] >= 0; TensorFlow's `adjust_contrast`."""
    means = torch.cat([_mean(images[:, channel, None]) for channel in range(images.shape[1])], dim=1)  # [B, C, 1, 1]
    return _blend(images, means, factor)


def adjust_hsv_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Multiply the saturation of HSV by `factor` [B] >= 0, up to 1; hue and value stay. TensorFlow's
    `adjust_saturation`."""
    if images.shape[1] == 1:
        return images
    highest, lowest = images.amax(dim=1, keepdim=True), images.amin(dim=1, keepdim=True)
    largest = highest / (highest - lowest).clamp_min(1e-20)  # the factor at which the saturation is 1
    share = torch.minimum(_column(factor, images), largest)
    return highest.sub(share * (highest - images)).clamp_(0.0, 1.0)


def adjust_hue(images: Tensor, factor: Tensor) -> Tensor:
    """Turn the hue by `factor` [B] in [-0.5, 0.5] turns, in exact HSV: colour = v - c + c * wave(hue).

    Raises:
        ValueError: if the images have neither one channel nor three.
    """
    if images.shape[1] == 1:
        return images
    if images.shape[1] != 3:
        raise ValueError(f"images of {images.shape[1]} channels have no hue; give red, green and blue")
    if images.device.type == "cuda":
        return few_passes.turn_hue(images, factor)
    red, green, blue = images.unbind(1)  # [B, H, W] each
    highest = torch.maximum(torch.maximum(red, green), blue)
    lowest = torch.minimum(torch.minimum(red, green), blue)
    chroma = highest - lowest

    # Masks are floats: products with 0 and 1 are exact, and many times faster on a CPU than a selection by booleans.
    is_red = torch.eq(highest, red, out=torch.empty_like(highest))
    is_green = torch.eq(highest, green, out=torch.empty_like(highest)).mul_(1.0 - is_red)
    is_blue = 1.0 - is_red - is_green
    hue = (green - blue).mul_(is_red).add_((blue - red).mul_(is_green)).add_((red - green).mul_(is_blue))
    hue.div_(chroma.clamp_min(1e-20))  # sixths of a turn from the leading colour; 0 for greys
    hue.add_(is_green.mul_(2.0)).add_(is_blue.mul_(4.0)).add_(to_type_of(factor.double() * 6.0, images)[:, None, None])
    hue.sub_(hue.mul(1.0 / 6.0).floor_().mul_(6.0))  # [0, 6]

    # over the hue each channel is a trapezoid around its colour; red's is turned over, around cyan at 3
    out = torch.empty_like(images)
    for channel, centre in enumerate((3.0, 2.0, 4.0)):
        wave = torch.sub(hue, centre, out=out[:, channel]).abs_()
        if channel == 0:
            wave.sub_(1.0)
        else:
            wave.neg_().add_(2.0)
        wave.clamp_(0.0, 1.0).mul_(chroma).add_(lowest)
    return out


def gaussian_blur(images: Tensor, sigma: Tensor, kernel_size: int) -> Tensor:
    """Blur with a Gaussian of `sigma` pixels [B], cut to an odd `kernel_size`, borders reflected; 0 leaves an image.

    Raises:
        ValueError: if the kernel is even, or its radius is not smaller than the image.
    """
    radius = kernel_size // 2
    if kernel_size % 2 == 0:
        raise ValueError(f"kernel_size {kernel_size} must be odd; try {kernel_size + 1}")
    check_blur(radius, (images.shape[-2], images.shape[-1]))
    if radius == 0:
        return images

    def blur(chosen: Tensor, sigma: Tensor) -> Tensor:
        weights = to_type_of(_gaussian_weights(sigma, radius), chosen)  # [b, radius + 1]
        correlate = depthwise_taps if chosen.device.type == "cuda" else symmetric_taps
        rows = F.pad(chosen, (0, 0, radius, radius), mode="reflect")
        mixed = correlate(rows, weights, -2)
        columns = F.pad(mixed, (radius, radius, 0, 0), mode="reflect")
        return correlate(columns, weights, -1)

    return change_where(sigma > 0.0, images, blur, sigma)


def check_blur(radius: int, size: tuple[int, int]) -> None:
    """Raise ValueError if the radius of a blur is not smaller than the images."""
    if radius >= min(size):
        limit = 2 * min(size) - 1
        raise ValueError(f"kernel_size {2 * radius + 1} is too large for {size} pixels; give at most {limit}")


def affine(images: Tensor, angle: Tensor, translate: Tensor, scale: Tensor, shear: Tensor) -> Tensor:
    """Rotate, scale, shear and shift about the centre; bilinear, black outside.

    Equal to `torchvision.transforms.functional.affine` on tensors with bilinear interpolation and `fill=None`.

    Args:
        images: float [B, C, H, W].
        angle: [B], degrees clockwise.
        translate: [B, 2], pixels to the right and down.
        scale: [B], > 0.
        shear: [B, 2], degrees along x and y.
    """
    height, width = images.shape[-2:]
    params = zip(angle.tolist(), translate.tolist(), scale.tolist(), shear.tolist(), strict=True)
    # grid_sample counts from -1 to 1 across the image, so pixels are divided by half a side
    half = torch.tensor([[0.5 * width], [0.5 * height]], dtype=torch.float64)
    matrix = torch.tensor([_inverse_affine(*param) for param in params], dtype=torch.float64).view(-1, 2, 3)
    matrix = to_type_of(matrix / half, images)
    x = (torch.arange(width, device=images.device, dtype=images.dtype) - (0.5 * width - 0.5))[None, None, :]
    y = (torch.arange(height, device=images.device, dtype=images.dtype) - (0.5 * height - 0.5))[None, :, None]
    grid = images.new_empty(len(images), height, width, 2)
    for axis in range(2):
        along_x, along_y, offset = matrix[:, axis, :, None, None].unbind(1)  # [B, 1, 1] each
        torch.add(along_x * x + offset, along_y * y, out=grid[..., axis])
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def resized_crop(
    image: Tensor,
    top: int,
    left: int,
    height: int,
    width: int,
    size: int,
    interpolation: Interpolation = "bilinear",
) -> Tensor:
    """A box of one uint8 image [C, H, W], resized to [C, size, size]; antialiased, as torchvision's.

    A box that already has the output's size is returned as it is.
    """
    box = image[:, top : top + height, left : left + width]
    if (height, width) == (size, size):
        return box
    # Torch resizes RGB pixels that lie in a row to pixels in a row, in half the time that planes or a part of a larger
    # image take; it recognises them by the strides of all four dimensions.
    pixels = box.permute(1, 2, 0).contiguous()[None].permute(0, 3, 1, 2)
    return F.interpolate(pixels, (size, size), mode=interpolation, antialias=True)[0]


def resize(image: Tensor, height: int, width: int, interpolation: Interpolation = "bilinear") -> Tensor:
    """One uint8 image [C, H, W] resized; antialiased, in the fixed-point arithmetic that torchvision uses."""
    return F.interpolate(image[None], (height, width), mode=interpolation, antialias=True)[0]


def resize_larger_side(image: Tensor, size: int) -> Tensor:
    """One uint8 image [C, H, W] resized so that its longer side has `size` pixels, as for retrieval."""
    height, width = image.shape[-2:]
    longer = max(height, width)
    return resize(image, max(1, height * size // longer), max(1, width * size // longer))


def change_where(mask: Tensor, images: Tensor, function: Callable[..., Tensor], *params: Tensor) -> Tensor:
    """Return the images, those where `mask`, bool [B], is true replaced by `function(chosen, *chosen_params)`."""
    rows = mask.nonzero().flatten()
    if len(rows) == 0:
        return images
    if len(rows) == len(images):
        return function(images, *params)
    on_device = to_device(rows, images.device)
    changed = function(images.index_select(0, on_device), *(param.index_select(0, rows) for param in params))
    return images.index_copy(0, on_device, changed)


def _invert_from(images: Tensor, threshold: Tensor) -> Tensor:
    is_bright = torch.ge(images, _column(threshold, images), out=torch.empty_like(images))
    return is_bright.sub_(images).abs_()  # |1 - x| or |0 - x|


def _column(values: Tensor, images: Tensor) -> Tensor:
    """Return values [B] as [B, 1, 1, 1] of the images' type and device."""
    return to_type_of(values, images)[:, None, None, None]


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    if images.device.type == "cuda":
        return few_passes.blend(images, other, factor)
    rest = _column(1.0 - factor.double(), images)
    return images.mul(_column(factor, images)).add_(rest * other).clamp_(0.0, 1.0)


def _luma(images: Tensor) -> Tensor:
    """Return the grey [B, 1, H, W]: the luma of three channels, else the mean of all channels."""
    num = images.shape[1]
    if num == 1:
        return images
    if num != 3:
        total = images[:, 0:1] + images[:, 1:2]
        for channel in range(2, num):
            total = total.add_(images[:, channel : channel + 1])
        return total.mul_(1.0 / num)
    if images.device.type == "cuda":
        return few_passes.weighted(images, LUMA)
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    return (red * LUMA[0]).add_(green * LUMA[1]).add_(blue * LUMA[2])


def _mean(planes: Tensor) -> Tensor:
    """Return the mean of [B, 1, H, W] as [B, 1, 1, 1], summed by halves so that the order of additions is fixed."""
    values = planes.flatten(1)
    num_values = values.shape[1]
    while values.shape[1] > 1:
        half = values.shape[1] // 2
        total = values[:, :half] + values[:, half : 2 * half]
        if values.shape[1] % 2:
            total[:, 0] += values[:, -1]
        values = total
    return (values * (1.0 / num_values))[:, :, None, None]


def _gaussian_weights(sigma: Tensor, radius: int) -> Tensor:
    """Return float64 [B, radius + 1]: weights at distances 0 to radius of a kernel that sums to 1 over both sides."""
    weights = []
    for width in sigma.tolist():
        sides = [math.exp(-0.5 * (distance / width) ** 2) for distance in range(1, radius + 1)]
        total = 1.0 + 2.0 * sum(sides)
        weights.append([1.0 / total, *(side / total for side in sides)])
    return torch.tensor(weights, dtype=torch.float64)


def symmetric_taps(padded: Tensor, weights: Tensor, dim: int) -> Tensor:
    """Correlate along `dim` with a symmetric kernel for each image: weights [B, radius + 1] by distance."""
    radius = weights.shape[1] - 1
    length = padded.shape[dim] - 2 * radius
    taps = weights[:, :, None, None, None].unbind(1)  # [B, 1, 1, 1] each
    total = padded.narrow(dim, radius, length) * taps[0]
    for distance in range(1, radius + 1):
        pair = padded.narrow(dim, radius - distance, length) + padded.narrow(dim, radius + distance, length)
        total.add_(pair.mul_(taps[distance]))
    return total


def depthwise_taps(padded: Tensor, weights: Tensor, dim: int) -> Tensor:
    """Return `symmetric_taps` by a convolution of each plane with its own kernel, for a GPU.

    There it reads the images once, and sums of whole tensors read them eight times for each tap. torch's own kernel
    for such convolutions adds the taps of a pixel in a fixed order, so it does not depend on other images either.
    """
    kernel = torch.cat([weights.flip(1)[:, :-1], weights], dim=1)  # [B, 2 * radius + 1]
    planes = padded.flatten(0, 1)[None]  # [1, B * C, H, W]
    kernel = kernel.repeat_interleave(padded.shape[1], dim=0)[:, None]  # [B * C, 1, 2 * radius + 1]
    kernel = kernel[..., None] if dim == -2 else kernel[..., None, :]
    mixed = F.conv2d(planes, kernel, groups=planes.shape[1])
    return mixed.view(*padded.shape[:2], *mixed.shape[2:])


def _inverse_affine(angle: float, translate: list[float], scale: float, shear: list[float]) -> list[list[float]]:
    """Return the map [2, 3] from output to input pixels, both counted from the centre."""
    turn, shear_x, shear_y = math.radians(angle), math.radians(shear[0]), math.radians(shear[1])
    shift_x, shift_y = translate
    a = math.cos(turn - shear_y) / math.cos(shear_y)
    b = -a * math.tan(shear_x) - math.sin(turn)
    c = math.sin(turn - shear_y) / math.cos(shear_y)
    d = -c * math.tan(shear_x) + math.cos(turn)
    return [
        [d / scale, -b / scale, (b * shift_y - d * shift_x) / scale],
        [-c / scale, a / scale, (c * shift_x - a * shift_y) / scale],
    ]
