"""A bucket of S3 in a child process, whose log tells each request that it was sent."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.ray_nodes import free_ports, wait_for_port

MARKER, PART = "marker of a folder", "part of a large file"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
REQUEST = re.compile(r'"([A-Z]+) (\S+) HTTP/1\.1" (\d{3})')


class Bucket:
    """A server of S3 on this machine with one bucket.

    Attributes:
        log: file with a line for each request.
        environment: variables with which a process may write to the bucket.
    """

    def __init__(self, folder: Path) -> None:
        self.log = folder / "moto.log"
        (self.port,) = free_ports(1)
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)
        wait_for_port(self.port, self.process)
        self.environment = {
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def uri(self, path: str = "runs") -> str:
        """The address of a folder in the bucket."""
        query = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1&allow_bucket_creation=true"
        return f"s3://bucket/{path}?{query}"

    def requests(self, first: int = 0) -> list[tuple[str, str, int]]:
        """Method, path and status of each request, from number `first` on."""
        found = REQUEST.findall(COLOUR.sub("", self.log.read_text()))
        return [(method, path, int(status)) for method, path, status in found[first:]]

    def close(self) -> None:
        """End the server."""
        self.process.kill()
        self.process.wait()


def kinds(requests: list[tuple[str, str, int]]) -> Counter[str]:
    """How many requests of each kind: what S3 does for them, and what it bills."""
    return Counter(kind(method, path) for method, path, _ in requests)


def kind(method: str, path: str) -> str:
    """The kind of a request."""
    base, _, query = path.partition("?")
    if method == "PUT" and base.endswith("/"):
        return MARKER
    if "uploads" in query or "uploadId=" in query:
        return PART
    if method == "GET" and "list-type" in query:
        return "list"
    if method == "POST":
        return "delete"
    return method.lower()
