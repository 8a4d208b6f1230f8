"""Rank, spectrum and spread of features [N, D], computed in chunks and added up in float64."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

RANK_EPS = 1e-7
"""Added to each normalised singular value before the entropy; value from RankMe, section 3."""
LIDAR_DELTA = 1e-4
"""Added to each variance within images before dividing by it (Thilak et al. 2023, section 3)."""
PAIRS_AT_ONCE = 2**24
"""Pairs of rows whose distances are in memory at once."""
ROUNDING_SHARE = 1e-12
"""Variances up to this share of the largest one are rounding errors."""


class Spectrum:
    """Singular values and variances of features X [N, D], from one pass over the rows.

    If N <= D, keep the rows and use X X^T; otherwise accumulate the sums of x - o and of (x - o)^T (x - o), where o is
    the first row: those of equal rows are exactly 0. The singular values of X are the square roots of the eigenvalues
    of either product. In float64 those below 1e-8 of the largest are rounding errors, less than the precision of
    float32 features.

    Args:
        rows: chunks of the rows, float [n, D] each.
    """

    def __init__(self, rows: Iterable[Tensor]) -> None:
        self.num_rows = 0
        self._chunks: list[Tensor] = []
        self._origin = torch.empty(0)
        self._sum = torch.empty(0)
        self._second_moment: Tensor | None = None
        for chunk in rows:
            self._add(chunk)
        if not self.num_rows:
            raise ValueError("no rows to take a spectrum of")

    def singular_values(self) -> Tensor:
        """Singular values of the rows as they are, descending, float64 [min(N, D)]; RankMe does not centre them."""
        return self._sqrt_eigenvalues(is_centred=False)

    def variances(self) -> Tensor:
        """Variance (over N) of the centred rows along each principal direction, descending, float64 [min(N, D)]."""
        return self._sqrt_eigenvalues(is_centred=True).square() / self.num_rows

    def _sqrt_eigenvalues(self, is_centred: bool) -> Tensor:
        """Return the square roots of the eigenvalues of X X^T or X^T X, descending."""
        if self._second_moment is None:
            rows = torch.cat(self._chunks).double()
            rows = rows - rows.mean(dim=0) if is_centred else rows
            products = rows @ rows.T
        else:
            mean = self._sum / self.num_rows
            # rows about another point than their mean m add N times the square of the distance to it
            products = self._second_moment - self.num_rows * torch.outer(mean, mean)
            if not is_centred:
                mean = mean + self._origin
                products = products + self.num_rows * torch.outer(mean, mean)
        eigenvalues: Tensor = torch.linalg.eigvalsh(products)
        return eigenvalues.clamp_min(0).sqrt().flip(0)

    def _add(self, rows: Tensor) -> None:
        self.num_rows += len(rows)
        if self._second_moment is None and self.num_rows <= rows.shape[1]:
            self._chunks.append(rows)
            return
        for chunk in [*self._chunks, rows]:
            x = chunk.double()
            if self._second_moment is None:
                self._origin = x[0]
                self._sum, self._second_moment = torch.zeros_like(x[0]), x.new_zeros(x.shape[1], x.shape[1])
            x = x - self._origin
            self._sum = self._sum + x.sum(dim=0)
            self._second_moment = self._second_moment + x.T @ x
        self._chunks = []


def effective_rank(values: Tensor, eps: float = RANK_EPS) -> float:
    """Return exp of the entropy of normalised singular values: the number of directions that are in use.

    RankMe if the values are those of features (Garrido et al. 2023, equation 1); without `eps` it is the effective
    rank of Roy and Vetterli 2007. 0 if all values are 0.

    Args:
        values: at least 0, float64 [K].
        eps: number added to each normalised value.

    >>> round(effective_rank(torch.ones(8)), 3)
    8.0
    """
    total = values.sum()
    if total <= 0:
        return 0.0
    shares = values / total + eps
    return float((-(shares * shares.log()).sum()).exp())


def power_law_exponent(variances: Tensor, orders: tuple[int, int] = (11, 100)) -> float:
    """Return alpha of the fit variance ~ order ** -alpha (alpha-ReQ, Agrawal et al. 2022).

    Least squares on the logarithms with weights 1 / order, as in Stringer et al. 2019.

    Args:
        variances: descending, float64 [K].
        orders: first and last order of the fit; the largest variance has order 1. If fewer than ten of them have a
            variance above rounding, all orders above rounding are used.

    Returns:
        alpha; 0 if fewer than two variances are above rounding.
    """
    num = num_above_rounding(variances)
    first, last = orders[0], min(orders[1], num)
    if last - first < 9:
        first, last = 1, num
    if last <= first:
        return 0.0
    order = torch.arange(first, last + 1, dtype=torch.float64, device=variances.device)
    x, y, weight = order.log(), variances[first - 1 : last].double().log(), 1 / order
    weight = weight / weight.sum()
    # about their weighted means, the slope of the line is one ratio of sums
    x, y = x - (weight * x).sum(), y - (weight * y).sum()
    return -float((weight * x * y).sum() / (weight * x * x).sum())


def num_above_rounding(variances: Tensor) -> int:
    """Count the variances [K], descending, that exceed ROUNDING_SHARE of the largest."""
    return int((variances > ROUNDING_SHARE * variances[0]).sum())


def uniformity(features: Tensor, t: float = 2.0) -> float:
    """Return log of the mean of exp(-t |x - y|^2) over all pairs of different rows (Wang and Isola 2020, equation 5).

    Args:
        features: float [N, D], N at least 2. Rows are scaled to length 1 first; rows of zeros stay zeros.
        t: inverse width of the Gaussian.

    Returns:
        0 if all features are equal; about -2t if they are spread evenly over the sphere.
    """
    rows = F.normalize(features.float(), dim=1)
    # |x|^2, without the rounding error of the division: 1, or 0 for a row of zeros
    lengths = rows.square().sum(dim=1).round()  # [N]
    total = torch.zeros((), dtype=torch.float64, device=rows.device)
    size = max(1, PAIRS_AT_ONCE // len(rows))
    for chunk, chunk_lengths in zip(torch.split(rows, size), torch.split(lengths, size), strict=True):
        distances = (chunk_lengths[:, None] + lengths - 2 * chunk @ rows.T).clamp_min(0)  # squared, [n, N]
        total += (-t * distances).exp().sum(dtype=torch.float64)
    num = len(rows)
    # each row paired with itself has added 1
    return float(((total - num) / (num * (num - 1))).clamp_min(1e-300).log())


def alignments(views: Tensor) -> Tensor:
    """Return the mean squared distance of normalised views over all pairs of views of an image.

    Wang and Isola 2020, equation 4.

    Args:
        views: features [B, V, D], V at least 2.

    Returns:
        float64 [B]; 0 if all views of an image have equal features.
    """
    rows = F.normalize(views.double(), dim=2)
    num = views.shape[1]
    # the square of a sum holds the products of all pairs; without the squares, pairs of different views stay
    cosines = (rows.sum(dim=1).square().sum(dim=1) - rows.square().sum(dim=(1, 2))) / (num * (num - 1))  # [B]
    return (2 * rows.square().sum(dim=2).mean(dim=1) - 2 * cosines).clamp_min(0)


class Lidar:
    """Effective rank of a linear discriminant analysis in which each image is a class (Thilak et al. 2023).

    S_b is the covariance of the images' means; S_w is the mean covariance of an image's views, plus delta on the
    diagonal. The result is the effective rank of S_w^-1/2 S_b S_w^-1/2 (equations 1 to 4).
    """

    def __init__(self, width: int) -> None:
        self._means: list[Tensor] = []
        self._within = torch.zeros(width, width, dtype=torch.float64)  # sum over views of d d^T, d = view - mean
        self._num_views = 0

    def add(self, views: Tensor) -> None:
        """Add the views [B, V, D] of further images."""
        rows = views.double()
        means = rows.mean(dim=1)  # [B, D]
        deviations = (rows - means[:, None]).flatten(0, 1)  # [B*V, D]
        self._within = self._within.to(rows.device) + deviations.T @ deviations
        self._num_views += len(deviations)
        self._means.append(means)

    def rank(self, delta: float = LIDAR_DELTA) -> float:
        """Return LiDAR: from 0 to min(images - 1, D), but for RANK_EPS."""
        if not self._means:
            raise ValueError("no views; call add(views) first")
        means = torch.cat(self._means)
        means = means - means.mean(dim=0)  # [n, D]
        within = self._within / self._num_views
        within.diagonal().add_(delta)
        variances, directions = torch.linalg.eigh(within)
        # the means times S_w^-1/2, up to a rotation, which leaves the eigenvalues as they are
        scaled = means @ (directions * variances.clamp_min(delta).rsqrt())  # [n, D]
        # the smaller product has the same eigenvalues other than 0
        products = scaled @ scaled.T if len(scaled) < scaled.shape[1] else scaled.T @ scaled
        return effective_rank(torch.linalg.eigvalsh(products).clamp_min(0) / len(means))  # eigenvalues of a covariance
