"""Losses on the spectrum of a batch of embeddings, which is wide where they use all dimensions: nuclear norm, Frobenius
norm and coding rate; and on what the spectra of two views share."""

from collections.abc import Sequence

import torch
from torch import Tensor

from raysl.losses.precision import at_least_fp32


def nuclear_norm(rows: Tensor) -> Tensor:
    """Sum of the singular values of matrices [..., N, D]: the capacity that MMCR raises for centroids and lowers within
    an image (Yerxa et al. 2023, arXiv 2303.03307, eq. 2).

    For N rows of length 1 it is at most N for N <= D, where the rows are orthogonal, and sqrt(N) where they are one.

    >>> nuclear_norm(torch.eye(2)), nuclear_norm(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    (tensor(2.), tensor(1.4142))

    Returns:
        Of each matrix [...], at least float32.
    """
    with torch.autocast(rows.device.type, enabled=False):
        values: Tensor = torch.linalg.svdvals(at_least_fp32(rows))
        return values.sum(dim=-1)


def mmcr(z: Tensor, centroids: Tensor, local_weight: float = 0.0) -> Tensor:
    """Minus the nuclear norm of the centroids of all images, plus that of each image's views (MMCR, Yerxa et al. 2023,
    arXiv 2303.03307, eq. 2).

    >>> z = torch.eye(2)[:, None].expand(2, 2, 2)  # two images, two equal views each
    >>> mmcr(z, centroids=z.mean(dim=1))
    tensor(-2.)

    Args:
        z: embeddings of this rank's images [B, V, D], of length 1.
        centroids: means over the views of each image of the whole batch [N, D], this rank's among them.
        local_weight: weight lambda of the mean over this rank's images of the nuclear norm of their views; 0 leaves
            them out.
    """
    loss = -nuclear_norm(centroids)
    return loss if local_weight == 0 else loss + local_weight * nuclear_norm(z).mean()


def frossl(z: Tensor, products: Sequence[Tensor], invariance: float = 1.0) -> Tensor:
    """Logarithms of the squared Frobenius norms of each view's products, which are least where the spectrum is even,
    and distance of the views from their mean (FroSSL, Skean et al. 2023, arXiv 2310.02903, eq. 6).

    >>> z = torch.eye(2)[:, None].expand(2, 2, 2)  # two images, two equal views, orthogonal dimensions of length 1
    >>> frossl(z, products=[torch.eye(2)] * 2) / 2  # of each view log(1/2)
    tensor(-0.6931)

    Args:
        z: embeddings of this rank's images [B, V, D], each dimension of each view of length 1 over the whole batch, as
            from `raysl.nn.moments.unit_columns`.
        products: the sum over all images of the outer products of each view's rows, V matrices [D, D].
        invariance: weight of V * D times the mean squared distance, summed over views.

    Raises:
        ValueError: if there are not as many matrices as views, of their width.
    """
    num_views, width = z.shape[1:]
    if [tuple(matrix.shape) for matrix in products] != [(width, width)] * num_views:
        raise ValueError(f"z {list(z.shape)} needs {num_views} products of [{width}, {width}]")
    with torch.autocast(z.device.type, enabled=False):
        z = at_least_fp32(z)
        spread = []
        for matrix in products:
            matrix = at_least_fp32(matrix)
            spread.append((matrix / matrix.diagonal().sum()).square().sum().log())
        distance = (z - z.mean(dim=1, keepdim=True)).square().mean() * num_views
        return torch.stack(spread).sum() + invariance * num_views * width * distance


def coding_rate(products: Tensor, num_rows: Tensor | float, eps: float = 0.2) -> Tensor:
    """Half the logarithm of the determinant of I + D / (N eps) times the products of rows: the volume that they fill
    (Yu et al. 2020, arXiv 2006.08558, eq. 4; EMP-SSL, Tong et al. 2023, arXiv 2304.03977, eq. 1).

    >>> coding_rate(torch.eye(2), num_rows=2, eps=0.5)  # log(1 + 2)
    tensor(1.0986)

    Args:
        products: sums of the outer products of N rows of length 1, [..., D, D].
        num_rows: N.
        eps: allowed distortion, squared in the paper and not in its authors' code; above 0.

    Returns:
        Of each matrix [...], at least 0.
    """
    with torch.autocast(products.device.type, enabled=False):
        products = at_least_fp32(products)
        width = products.shape[-1]
        identity = torch.eye(width, dtype=products.dtype, device=products.device)
        root, _ = torch.linalg.cholesky_ex(identity + width / (num_rows * eps) * products)
        # the log-determinant is twice the sum of the logarithms of the Cholesky diagonal, so half of it is the sum
        half: Tensor = root.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
        return half


def ssl_ey(shared: Tensor, covariances: Sequence[Tensor]) -> Tensor:
    """Minus the variance that two views share, and the squared variance of each: least for canonical variates (SSL-EY,
    Chapman, Aguila and Wells 2023, arXiv 2310.01012, the loss of CCA for two views of one network).

    -2 tr(C) + tr(V V), where C holds the covariances between views, of the first with the second and of the second with
    the first, and V the sum of those within.

    >>> ssl_ey(torch.tensor(0.5), covariances=[torch.tensor([[0.5]])] * 2)  # one dimension, two equal views
    tensor(-1.)

    Args:
        shared: the trace of the covariances between the views, a scalar, as from
            `raysl.nn.moments.total_cross_covariance`.
        covariances: covariance matrices of the dimensions of each view over the whole batch, [D, D] each, as from
            `raysl.nn.moments.covariances`.

    Raises:
        ValueError: if there are not two matrices of one width.
    """
    shapes = [list(c.shape) for c in covariances]
    if len(shapes) != 2 or shapes[0] != shapes[1] or len(shapes[0]) != 2 or shapes[0][0] != shapes[0][1]:
        raise ValueError(f"covariances of shapes {shapes} must be two of [D, D]")
    with torch.autocast(shared.device.type, enabled=False):
        first, second = (at_least_fp32(c) for c in covariances)
        # V is symmetric, so the trace of V V is its sum of squares.
        return (first + second).square().sum() - 4 * at_least_fp32(shared)
