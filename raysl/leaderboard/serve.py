"""`raysl runs --serve`: the page over all runs of a storage, made anew for each look, for this machine alone."""

import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from typing_extensions import override

from raysl.errors import ConfigError, log
from raysl.leaderboard.of_runs import RunsPage

ADDRESS = "127.0.0.1"
HOSTS = frozenset({ADDRESS, "localhost"})
"""Names under which a browser on this machine asks; another one comes from a page of a stranger (DNS rebinding)."""
KEPT_S = 3.0
"""Seconds for which a page is given again."""
REPORT = "report.html"
NO_SCRIPTS = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


class RunsServer(ThreadingHTTPServer):
    """Serves `/`, the page, and `/NAME/report.html` of its runs, on the loopback address.

    Args:
        port: number to listen on; 0 takes a free one.
    """

    daemon_threads = True

    def __init__(self, pages: RunsPage, port: int) -> None:
        self.pages = pages
        self._lock = threading.Lock()
        self._made: tuple[float, str] | None = None
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on port {port} of {ADDRESS}: {error.strerror}; give another --port, or 0 for a free one"
            ) from error

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{ADDRESS}:{self.server_address[1]}/"

    def page(self) -> str:
        """Return the page, at most `KEPT_S` old; several browsers wait for one to be made."""
        with self._lock:
            if self._made is None or time.monotonic() - self._made[0] > KEPT_S:
                self._made = time.monotonic(), self.pages.html(is_served=True)
            return self._made[1]

    def report(self, name: str) -> bytes | None:
        """Return the page of a run by its name; None if the storage has no such run, or the run no page."""
        folder = self.pages.folder_of(name)
        return None if folder is None else folder.read_if_there(REPORT) or None


class _Handler(BaseHTTPRequestHandler):
    server: RunsServer

    def do_GET(self) -> None:
        """Answer with a page."""
        if self.headers.get("Host", "").rpartition(":")[0] not in HOSTS:
            self._answer(HTTPStatus.FORBIDDEN, b"ask for http://127.0.0.1 or http://localhost")
            return
        path = unquote(self.path.partition("?")[0])
        try:
            if path == "/":
                self._answer(HTTPStatus.OK, self.server.page().encode())
                return
            name, _, file = path.strip("/").rpartition("/")
            report = self.server.report(name) if file == REPORT else None
        except ConfigError as error:
            log.warning("the page cannot be made: %s", error)
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, f"the page cannot be made: {error}".encode())
            return
        if report is None:
            self._answer(HTTPStatus.NOT_FOUND, b"there is no such page; the list of runs is at /")
        else:
            # reports are files of run folders, which others may have written, so none of their scripts is run
            self._answer(HTTPStatus.OK, report, NO_SCRIPTS)

    def _answer(self, status: HTTPStatus, content: bytes, policy: str = "") -> None:
        kind = "text/html" if status == HTTPStatus.OK else "text/plain"
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if policy:
            self.send_header("Content-Security-Policy", policy)
        self.end_headers()
        self.wfile.write(content)

    @override
    def log_message(self, format: str, *args: object) -> None:
        log.debug(format, *args)
