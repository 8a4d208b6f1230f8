"""The log of raysl, on the driver and in every process that it starts."""

import logging

log = logging.getLogger("raysl")
