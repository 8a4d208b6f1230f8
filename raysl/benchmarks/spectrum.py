"""Measures of the spectrum and spread of features: functions, and sums that are added up chunk by chunk in float64."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

RANK_EPS = 1e-7
"""Added to the shares in the entropy; that of RankMe's paper, section 3."""
LIDAR_DELTA = 1e-4
"""Added to the variances within images, so that they can be divided by (Thilak et al. 2023, section 3)."""
PAIRS_AT_ONCE = 2**24
REAL = 1e-12


class Spectrum:
    """Singular values and variances of features, from one pass over the rows.

    With at most as many rows as dimensions the rows are kept, and their products with each other are used; else
    the sums of x and x x^T are. Both give the singular values of the whole [N, D]: they are the roots of the
    eigenvalues. In float64 roots below 1e-8 of the largest are rounding, which is less than float32 features tell.

    Args:
        rows: chunks of them, float [n, D] each.

    Raises:
        ValueError: if there are none.
    """

    def __init__(self, rows: Iterable[Tensor]) -> None:
        self.num = 0  # of rows
        self._kept: list[Tensor] = []
        self._sum: Tensor | None = None
        self._products: Tensor | None = None
        for part in rows:
            self._add(part)
        if not self.num:
            raise ValueError("no rows to take a spectrum of")

    def singular_values(self) -> Tensor:
        """Singular values of the rows, falling, float64 [min(N, D)]."""
        if self._products is None:
            rows = torch.cat(self._kept).double()
            return _roots(rows @ rows.T)
        return _roots(self._products)

    def variances(self) -> Tensor:
        """Variance (over N) along each principal direction, falling, float64 [min(N, D)]."""
        if self._products is None:
            rows = torch.cat(self._kept).double()
            rows = rows - rows.mean(dim=0)
            return _roots(rows @ rows.T).square() / self.num
        assert self._sum is not None
        mean = self._sum / self.num
        return _roots(self._products - self.num * torch.outer(mean, mean)).square() / self.num

    def _add(self, rows: Tensor) -> None:
        self.num += len(rows)
        if self._products is None and self.num <= rows.shape[1]:
            self._kept.append(rows)
            return
        for part in [*self._kept, rows]:
            wide = part.double()
            total, products = wide.sum(dim=0), wide.T @ wide
            self._sum = total if self._sum is None else self._sum + total
            self._products = products if self._products is None else self._products + products
        self._kept = []


def rank_of(values: Tensor) -> float:
    """Return the effective number of directions: exp of the entropy of normalised singular values.

    RankMe of the singular values of features (Garrido et al. 2023, equation 1); without the 1e-7 it is the effective
    rank of Roy and Vetterli 2007. 0 where all values are 0.

    Args:
        values: at least 0, float64 [K].

    >>> round(rank_of(torch.ones(8)), 3)
    8.0
    """
    total = values.sum()
    if total <= 0:
        return 0.0
    shares = values / total + RANK_EPS
    return float((-(shares * shares.log()).sum()).exp())


def power_law(variances: Tensor, orders: tuple[int, int] = (11, 100)) -> float:
    """Fit the alpha of variances that fall as order ** -alpha (alpha-ReQ, Agrawal et al. 2022; the fit is that of
    Stringer et al. 2019: least squares of the logarithms, each order weighted by its reciprocal).

    Args:
        variances: falling, float64 [K].
        orders: first and last that are fitted, from 1. Where fewer than ten of them have a variance above 1e-12 of the
            largest, below which all is rounding, it is all orders that have.

    Returns:
        alpha; 0 where fewer than two variances are above rounding: there is nothing that falls.
    """
    num = num_real(variances)
    first, last = orders[0], min(orders[1], num)
    if last - first < 9:
        first, last = 1, num
    if last <= first:
        return 0.0
    order = torch.arange(first, last + 1, dtype=torch.float64, device=variances.device)
    x, y, weight = order.log(), variances[first - 1 : last].double().log(), 1 / order
    weight = weight / weight.sum()
    x, y = x - (weight * x).sum(), y - (weight * y).sum()
    return -float((weight * x * y).sum() / (weight * x * x).sum())


def num_real(variances: Tensor) -> int:
    """Count the falling variances [K] above rounding: more than 1e-12 of the largest."""
    return int((variances > REAL * variances[0]).sum())


def uniformity(features: Tensor, t: float = 2.0) -> float:
    """Return the log of the mean of exp(-t |x - y|^2) over all pairs of features of length 1 (Wang and Isola 2020,
    equation 5).

    Args:
        features: float [N, D], N at least 2; brought to length 1 here. No row is paired with itself.
        t: of the Gaussian.

    Returns:
        Between about -2t, spread evenly over the sphere, and 0, collapsed.
    """
    rows = F.normalize(features.float(), dim=1)
    total = torch.zeros((), dtype=torch.float64, device=rows.device)
    lengths = rows.square().sum(dim=1).round()  # 1, or 0 for a row of zeros
    size = max(1, PAIRS_AT_ONCE // len(rows))
    for part, part_lengths in zip(torch.split(rows, size), torch.split(lengths, size), strict=True):
        squares = (part_lengths[:, None] + lengths - 2 * part @ rows.T).clamp_min(0)  # [n, N]
        total += (-t * squares).exp().sum(dtype=torch.float64)
    num = len(rows)
    return float(((total - num) / (num * (num - 1))).clamp_min(1e-300).log())


def alignments(views: Tensor) -> Tensor:
    """Return the mean squared distance of all pairs of normalised views of each image (Wang and Isola 2020, equation
    4).

    Args:
        views: features [B, V, D], V at least 2.

    Returns:
        float64 [B], from 0, all alike.
    """
    rows = F.normalize(views.double(), dim=2)
    num = views.shape[1]
    cosines = (rows.sum(dim=1).square().sum(dim=1) - rows.square().sum(dim=(1, 2))) / (num * (num - 1))  # [B]
    return (2 * rows.square().sum(dim=2).mean(dim=1) - 2 * cosines).clamp_min(0)


class Lidar:
    """The rank of the linear discriminant analysis that separates images by their views (Thilak et al. 2023).

    Each image is a class of its own. With S_b the covariance of the images' means and S_w the mean covariance of views
    around them plus delta on the diagonal, it is the effective rank of S_w^-1/2 S_b S_w^-1/2 (equations 1 to 4).

    Args:
        width: of the features.
    """

    def __init__(self, width: int) -> None:
        self._means: list[Tensor] = []
        self._within = torch.zeros(width, width, dtype=torch.float64)
        self._num = 0

    def add(self, views: Tensor) -> None:
        """Add views of further images [B, V, D]."""
        rows = views.double()
        means = rows.mean(dim=1)  # [B, D]
        apart = (rows - means[:, None]).flatten(0, 1)  # [B*V, D]
        self._within = self._within.to(rows.device) + apart.T @ apart
        self._num += len(apart)
        self._means.append(means)

    def rank(self, delta: float = LIDAR_DELTA) -> float:
        """Between 0 and min(images - 1, D), as far as 1e-7 of each share allows."""
        means = torch.cat(self._means)
        means = means - means.mean(dim=0)  # [n, D]
        within = self._within / self._num
        within.diagonal().add_(delta)
        variances, directions = torch.linalg.eigh(within)
        scaled = means @ (directions * variances.clamp_min(delta).rsqrt())  # [n, D]
        products = scaled @ scaled.T if len(scaled) < scaled.shape[1] else scaled.T @ scaled
        return rank_of(torch.linalg.eigvalsh(products).clamp_min(0) / len(means))


def _roots(products: Tensor) -> Tensor:
    """Return the roots of the eigenvalues of a symmetric matrix, falling."""
    values: Tensor = torch.linalg.eigvalsh(products)
    return values.clamp_min(0).sqrt().flip(0)
