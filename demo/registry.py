"""A schema registry for tests and demos: the part of the REST protocol that they need.

``POST /subjects/NAME/versions`` registers a schema (a known one keeps its id), ``GET
/subjects/NAME/versions``, ``GET /subjects/NAME/versions/N`` (or ``latest``) and ``GET
/schemas/ids/N`` read.
"""

from __future__ import annotations

import json
import struct
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any

TYPE = "application/vnd.schemaregistry.v1+json"


class Registry(ThreadingHTTPServer):
    """A registry on the loopback interface, by default on a free port; ids count from 1."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.schemas: list[str] = []
        self.subjects: dict[str, list[int]] = {}

    @property
    def url(self) -> str:
        """The registry's address."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, path: list[str]) -> Any:
        """Return the answer to a GET of this path; a LookupError where there is none."""
        match path:
            case ["schemas", "ids", number] if 0 < int(number) <= len(self.schemas):
                return {"schema": self.schemas[int(number) - 1]}
            case ["subjects", subject, "versions"]:
                return list(range(1, len(self.subjects[subject]) + 1))
            case ["subjects", subject, "versions", version]:
                ids = self.subjects[subject]
                at = len(ids) if version == "latest" else int(version)
                found = {"subject": subject, "version": at, "id": ids[at - 1]}
                return found | {"schema": self.schemas[ids[at - 1] - 1]}
        raise LookupError(path)

    def register(self, subject: str, schema: str) -> int:
        """Register a schema under a subject, and return its id."""
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        ids = self.subjects.setdefault(subject, [])
        if number not in ids:
            ids.append(number)
        return number


class _Handler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        """Answer with versions or schemas."""
        try:
            self._say(200, self.server.answer(self.path.strip("/").split("/")))
        except LookupError:
            self._say(404, {"error_code": 40401, "message": "Subject or schema not found."})

    def do_POST(self) -> None:
        """Register the schema in the request's body."""
        match self.path.strip("/").split("/"):
            case ["subjects", subject, "versions"]:
                told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._say(200, {"id": self.server.register(subject, told["schema"])})
            case _:
                self._say(404, {"error_code": 404, "message": "HTTP 404 Not Found"})

    def log_message(self, *_: object) -> None:
        """Write no log."""

    def _say(self, status: int, what: object) -> None:
        body = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def running() -> Iterator[Registry]:
    """Run a registry in a thread while the block runs."""
    with Registry() as registry:
        thread = threading.Thread(target=registry.serve_forever)
        thread.start()
        try:
            yield registry
        finally:
            registry.shutdown()
            thread.join()


class Encoder:
    """Encodes records as a producer's serializer does: registers the schema, and frames records."""

    def __init__(self, registry: str, subject: str, schema: Mapping[str, Any]) -> None:
        import fastavro  # needed only where Avro is sent

        told = json.dumps({"schema": json.dumps(schema)}).encode()
        request = urllib.request.Request(  # noqa: S310 - the caller's own
            f"{registry}/subjects/{subject}/versions", told, {"Content-Type": TYPE}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            self._header = struct.pack(">bI", 0, json.load(answer)["id"])
        self._schema = fastavro.parse_schema(dict(schema))
        self._write = fastavro.schemaless_writer

    def __call__(self, record: Mapping[str, Any]) -> bytes:
        """Encode a record as it goes to Kafka."""
        into = BytesIO()
        self._write(into, self._schema, dict(record))
        return self._header + into.getvalue()


if __name__ == "__main__":
    with Registry(8081) as registry:
        registry.serve_forever()
