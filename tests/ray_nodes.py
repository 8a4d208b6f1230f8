"""Nodes of a Ray cluster as child processes, which end without touching any other Ray of the machine."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

RAY = str(Path(sys.executable).with_name("ray"))


def start_node(
    *words: str, log: Path, before: str = "", environment: Mapping[str, str] = {}
) -> subprocess.Popen[bytes]:
    """`ray start --block` with these words.

    Args:
        words: of the command.
        log: file for what it says.
        before: shell command that runs before it in a mount namespace of the node's own.
        environment: more variables of the node's processes.
    """
    command = [RAY, "start", "--block", "--disable-usage-stats", *words]
    if before:
        command = ["unshare", "--mount", "sh", "-c", f'{before} && exec "$0" "$@"', *command]
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env={**client_environment(), **environment})


@contextlib.contextmanager
def some_nodes(folder: Path, *cpus: int, before: str = "", labels: Sequence[str] = ()) -> Iterator[str]:
    """The address of a cluster of a head and more nodes inside.

    Args:
        folder: folder of what the nodes print.
        cpus: of the head and of each other node.
        before: shell command for the other nodes, see `start_node`.
        labels: of each node, such as `ray-subcluster=a`; none if empty.
    """
    labelled = [[f"--labels={each}"] for each in labels] or [[] for _ in cpus]
    (port,) = free_ports(1)
    sessions = tempfile.mkdtemp(prefix="ray_")  # short: the paths of its sockets have a limit
    words = (f"--port={port}", f"--temp-dir={sessions}", "--include-dashboard=false")
    nodes = [start_node("--head", f"--num-cpus={cpus[0]}", *labelled[0], *words, log=folder / "head.log")]
    try:
        wait_for_line("Ray runtime started", folder / "head.log", nodes[0])
        address = f"127.0.0.1:{port}"
        for number in range(1, len(cpus)):
            other = (f"--address={address}", f"--num-cpus={cpus[number]}", *labelled[number])
            nodes.append(start_node(*other, log=folder / f"node-{number}.log", before=before))
            wait_for_line("Ray runtime started", folder / f"node-{number}.log", nodes[number])
        yield address
    finally:
        for node in reversed(nodes):
            end_node(node)
        shutil.rmtree(sessions, ignore_errors=True)


def end_node(process: subprocess.Popen[bytes]) -> None:
    """End a node and all that it started."""
    started = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def kill_node(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a node and all that it started, as when a machine loses its power."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for child in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait()


def client_environment() -> dict[str, str]:
    """Of a process that talks to such a cluster: its token, and `python` as the one that runs here."""
    make_token()
    left_out = ("RAY_ADDRESS", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")  # with the second a head refuses other nodes
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"  # a job says `python`
    return {**kept, "RAY_AUTH_MODE": "token", "PATH": path}


def make_token() -> None:
    """Write the token that Ray keeps in the home folder, where this machine has none: `ray start` asks for one."""
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
        return
    path = Path.home() / ".ray" / "auth_token"
    path.parent.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError), open(path, "x", opener=_private) as file:
        file.write(secrets.token_hex(32))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)


def free_ports(num: int) -> list[int]:
    """Ports that nobody listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(num)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_for_port(port: int, process: subprocess.Popen[bytes] | None) -> None:
    """Wait until someone listens at a port, and fail if the process ends before."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process is None or process.poll() is None, "the node ended"
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise TimeoutError(f"nobody listens at port {port}")


def wait_for_line(text: str, log: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until a text stands in a node's log, and fail if the process ends before."""
    deadline = time.monotonic() + 120
    while text not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)
