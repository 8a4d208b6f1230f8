"""The CPUs on which a run counts for its threads, kept in `cpus.json` of its folder.

Another number of threads rounds sums otherwise, so every start of the run takes the number of the first one, whatever
else the machine does by then.
"""

import json
from dataclasses import asdict

from raysl.errors import log
from raysl.process.cpus import Cpus, CpuTime, measure_cpus
from raysl.runs.folder import RunFolder
from raysl.storage.records import read_as

CPUS_FILE = "cpus.json"


def claim_cpus(folder: RunFolder, since: CpuTime | None) -> Cpus | None:
    """Return the CPUs on which a run counts: those of its first start, else those that other work leaves now.

    Args:
        since: beginning of the measurement; None: nothing is measured.

    Returns:
        None where nothing is kept and nothing is measured: the run counts on all CPUs of its machines.
    """
    if content := folder.read_if_there(CPUS_FILE):
        return read_as(Cpus, content, folder.uri_of(CPUS_FILE))
    if since is None:
        return None
    cpus = measure_cpus(since)
    folder.write(CPUS_FILE, json.dumps(asdict(cpus)).encode())
    if cpus.free < cpus.usable:
        event = (
            f"other work takes part of the {cpus.usable} CPUs, so the threads of this run are made for {cpus.free}; "
            "train.threads sets another number"
        )
        folder.note(event)
        log.info(event)
    return cpus
