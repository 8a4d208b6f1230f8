"""`python -m tests.trained RUN NAME` packs a finished run as the backbone NAME, such as cifar10/simclr.

Without arguments it writes the cards and the tables of docs/weights.md again.
"""

import sys

from raysl.trained import trained_names
from tests.trained.card import write
from tests.trained.pack import pack

if len(sys.argv) > 1:
    run, name, *recipe = sys.argv[1:]
    dataset, _, method = name.partition("/")
    pack(run, name, *(recipe or [f"{method}_{dataset}"]))
    trained_names.cache_clear()
write()
