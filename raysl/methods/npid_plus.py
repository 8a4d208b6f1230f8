"""NPID++: instance discrimination with more negatives and more epochs.

Misra and van der Maaten 2019, arXiv 1912.01991, section 4 ("NPID++"): what remains of PIRL when its transformed images
are taken away, lambda 0, and so what it is compared with. The method is NPID (Wu et al. 2018, arXiv 1805.01978).
"""

from dataclasses import dataclass

from raysl.config.ranges import Count
from raysl.methods.npid import NPID


class NPIDPlus(NPID):
    """Recognition of each image among many others in a memory bank."""

    @dataclass(frozen=True, kw_only=True)
    class Config(NPID.Config):
        """The settings of PIRL's comparison; its batches, epochs and learning rate are in `configs/npid_plus.yaml`."""

        name: str = "npid_plus"
        num_negatives: Count = 32000
        """Rows of the bank that an image is told from, drawn with replacement from all (section 3)."""
