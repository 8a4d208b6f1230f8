"""A bucket of an S3 server in this process, which answers as a test wants it to."""

import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from werkzeug.serving import make_server

UNAVAILABLE = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_EC2_METADATA_DISABLED": "true"}

Answer = Callable[..., Iterable[bytes]]


class Bucket:
    """The bucket and its server.

    Attributes:
        is_up: whether it answers; else with 503 Slow Down.
        delay_s: of each answer.
        held: pattern of addresses (`PUT /bucket-.../...`); the first request that fits waits until it is changed, and
            is then refused, as one whose sender has gone before all of it arrived.
        num_held: whether there was one: 0 or 1.
        num_refused: requests that were answered with 503.
    """

    def __init__(self) -> None:
        # It takes seconds to import, and few tests have a bucket.
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self.name = f"bucket-{uuid.uuid4().hex}"  # all servers of a process share moto's buckets
        self.is_up, self.delay_s, self.held = True, 0.0, ""
        self.num_held = self.num_refused = 0
        self._moto: Answer = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def storage(self) -> str:
        """Value of the setting `storage`."""
        query = "scheme=http&region=us-east-1&allow_bucket_creation=true"
        return f"s3://{self.name}/runs?endpoint_override=127.0.0.1:{self._server.server_port}&{query}"

    def close(self) -> None:
        """End the server."""
        self.held = ""
        self._server.shutdown()
        self._thread.join()

    def _answer(self, request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        time.sleep(self.delay_s)
        address = f"{request['REQUEST_METHOD']} {request['PATH_INFO']}"
        held = self.held
        if held and not self.num_held and re.search(held, address):
            self.num_held = 1
            while self.held == held:
                time.sleep(0.02)
        elif self.is_up:
            return self._moto(request, start)
        self.num_refused += 1
        request["wsgi.input"].read()  # a connection that is closed before is no answer
        start("503 Slow Down", [("Content-Type", "application/xml"), ("Content-Length", str(len(UNAVAILABLE)))])
        return [UNAVAILABLE]
