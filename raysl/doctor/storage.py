"""Whether this machine and all nodes read and write one storage, and how fast."""

import os
import threading
import time
import uuid
from contextlib import suppress
from typing import Any

from raysl.doctor.findings import of_storage
from raysl.errors import ConfigError
from raysl.redact import redact_uri
from raysl.storage.folder import Folder

SAMPLE_BYTES = 16 << 20
STORAGE_S = 60.0


class StorageProbe:
    """A folder `.doctor_...` in a storage while inside, with a sample that every node has to be able to read.

    Attributes:
        uri: URI of the folder.
        facts: `uri` of the storage, `driver` (MB/s of `read` and `write` from this machine; None where it failed),
            `nodes` (the same by node, see `add`) and `problems`.
    """

    def __init__(self, storage: str) -> None:
        self.facts: dict[str, Any] = {"uri": storage, "driver": None, "nodes": {}, "problems": []}
        self.shown = redact_uri(storage)
        self.name = f".doctor_{uuid.uuid4().hex[:12]}"
        self.uri = ""
        # local folders that were made around the probe, the innermost first
        self._made: list[str] = []
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._answer: dict[str, Any] | Exception | None = None

    def __enter__(self) -> "StorageProbe":
        """Write the sample, in a thread, so that a storage that does not answer is not waited for."""
        self._thread.start()
        if not self._has_answered(STORAGE_S):
            self._fail(f"no answer within {STORAGE_S:.0f} s")
        return self

    def _has_answered(self, seconds: float) -> bool:
        """Return whether the thread ends within some seconds, and add its answer to the facts."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            return False
        answer, self._answer = self._answer, None
        if isinstance(answer, ConfigError):
            self._fail(str(answer))
        elif isinstance(answer, Exception):
            raise answer
        elif answer is not None:
            self.facts["driver"] = answer
        return True

    def _write(self) -> None:
        try:
            storage = Folder(self.facts["uri"])
            path = storage.path
            # noted before they are made, so that no folders of a mistyped path are left
            while storage.is_local and path and not os.path.lexists(path):
                self._made.append(path)
                path = os.path.dirname(path)
            self.uri = storage.uri_of(self.name)
            folder = Folder(self.uri)
            folder.make()
            folder.write("sample", os.urandom(SAMPLE_BYTES))
            self._answer = storage_speed(self.uri, "driver")
        except Exception as error:  # noqa: BLE001 - `_has_answered` raises it again
            self._answer = error

    def _fail(self, failure: str) -> None:
        self.facts["problems"].append(f"storage {self.shown} from this machine: {failure}")

    def add(self, names: dict[str, str], answers: dict[str, Any]) -> None:
        """Add what nodes, by id, answered, and whether what they wrote `arrives` here."""
        nodes = self.facts["nodes"]
        for node, answer in answers.items():
            seen = answer.value or {"sees": False, "error": answer.error}
            arrives = seen["sees"] and len(Folder(self.uri).read_if_there(node)) == SAMPLE_BYTES
            nodes[node] = seen | {"arrives": arrives}
        self.facts["problems"] += of_storage(self.facts["uri"], names, nodes)

    def __exit__(self, *_: object) -> None:
        """Delete all that was written, unless the storage does not answer, and the folders that were made for it."""
        # a sample that was written late is deleted too
        if not self._has_answered(0) or not self.uri:
            return
        try:
            Folder(self.facts["uri"]).remove_folder(self.name)
        except ConfigError as error:
            if not self.facts["problems"]:  # else it is the same once more
                self._fail(str(error))
        with suppress(OSError):
            # from the innermost outwards: rmdir refuses one that others use by now, and the loop ends there
            for path in self._made:
                os.rmdir(path)
        if self._made:
            self.facts["problems"].append(
                f"storage {self.shown} did not exist on this machine (a typo?); it was made to look at it and removed; "
                "make it, or correct storage="
            )


def look_at_storage(uri: str) -> dict[str, Any]:
    """Write to a storage from this machine and read it, without Ray; return the `facts` of a `StorageProbe`."""
    with StorageProbe(uri) as probe:
        pass
    return probe.facts


def storage_speed(uri: str, node: str) -> dict[str, Any]:
    """Read the sample of a `StorageProbe` and write it again under this node's name.

    Returns:
        `sees`: whether this is the folder that the driver wrote to; if so also `read` and `write`, in MB/s.
    """
    folder = Folder(uri)
    start = time.perf_counter()
    sample = folder.read_if_there("sample")
    middle = time.perf_counter()
    if not sample:
        return {"sees": False}
    folder.write(node, sample)
    end = time.perf_counter()
    megabytes = len(sample) / 1e6
    return {"sees": True, "read": round(megabytes / (middle - start), 1), "write": round(megabytes / (end - middle), 1)}
