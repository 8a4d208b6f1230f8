"""NPID++: instance discrimination with more negatives and more epochs.

Misra and van der Maaten 2019, arXiv 1912.01991, section 4 ("NPID++"): PIRL without its transformed images, lambda 0, as
the baseline of its comparisons. The method is NPID (Wu et al. 2018, arXiv 1805.01978).
"""

from dataclasses import dataclass

from raysl.config.ranges import Count
from raysl.methods.npid import NPID


class NPIDPlus(NPID):
    """Recognises each image among many others in a memory bank."""

    @dataclass(frozen=True, kw_only=True)
    class Config(NPID.Config):
        """The settings of PIRL's comparison; its batches, epochs and learning rate are in
        `configs/imagenet/npid_plus.yaml`."""

        name: str = "npid_plus"
        num_negatives: Count = 32000
        """Rows of the bank that an image is compared with, drawn with replacement (section 3)."""
