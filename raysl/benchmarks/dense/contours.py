"""Region similarity J and contour accuracy F of masks (Perazzi et al., CVPR 2016, section 5.1).

The numbers and the treatment of borders are those of the repository davis2017-evaluation: masks without a pixel have J
of 1, contours lie half a pixel towards the origin, and points of two contours match within 0.8 % of the diagonal.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt

BOUND = 0.008
"""Largest distance of points that match, as a share of the diagonal, rounded up to whole pixels."""

Mask = NDArray[np.bool_]


def region_similarity(predicted: Mask, label: Mask) -> float:
    """Return the intersection over union of two masks [H, W], in [0, 1]; 1 where both are empty.

    >>> region_similarity(np.array([[True, True]]), np.array([[True, False]]))
    0.5
    """
    union = int((predicted | label).sum())
    return int((predicted & label).sum()) / union if union else 1.0


def contour_accuracy(predicted: Mask, label: Mask) -> float:
    """Return the F-measure of the contours of two masks [H, W], in [0, 1]: the harmonic mean of the share of predicted
    points that lie near the other contour and the share of labelled points that do.

    >>> square = np.zeros((20, 20), bool)
    >>> square[5:15, 5:15] = True
    >>> contour_accuracy(square, square)
    1.0
    """
    bound = math.ceil(BOUND * math.hypot(*label.shape))
    drawn, wanted = contour(predicted), contour(label)
    if not drawn.any() or not wanted.any():
        # one of precision and recall is 0, unless both are empty
        return float(drawn.any() == wanted.any())
    # all points lie in this rectangle: distances stay the same, and fewer pixels need one
    around = _around(drawn | wanted)
    drawn, wanted = drawn[around], wanted[around]
    precision, recall = _share_near(drawn, wanted, bound), _share_near(wanted, drawn, bound)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def contour(mask: Mask) -> Mask:
    """Return the pixels that differ from the one on the right, below, or both [H, W]; beyond the image a mask goes on
    as at its border.

    >>> contour(np.array([[False, True, True]]))
    array([[ True, False, False]])
    """
    padded = np.pad(mask, ((0, 1), (0, 1)), mode="edge")
    differs: Mask = (mask != padded[:-1, 1:]) | (mask != padded[1:, :-1]) | (mask != padded[1:, 1:])
    return differs


def _share_near(points: Mask, others: Mask, bound: int) -> float:
    """Return the share of points that have another one within a distance in pixels."""
    is_near = distance_transform_edt(~others) <= bound
    return int((points & is_near).sum()) / int(points.sum())


def _around(points: Mask) -> tuple[slice, slice]:
    """Return the rows and columns of the smallest rectangle with all points."""
    rows, columns = np.flatnonzero(points.any(axis=1)), np.flatnonzero(points.any(axis=0))
    return slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
