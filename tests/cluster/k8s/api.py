"""The API server: REST over the objects, with watches as streams of JSON lines."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml  # type: ignore[import-untyped]

from tests.cluster.k8s.objects import Matches, Object, Objects, RefusedError, selector
from tests.cluster.k8s.rights import Rights, verb_of

KINDS = {
    "pods": "Pod",
    "services": "Service",
    "configmaps": "ConfigMap",
    "secrets": "Secret",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "networkpolicies": "NetworkPolicy",  # of Spark 4.2, in networking.k8s.io
}
_PATH = re.compile(
    r"/apis?(?:/networking.k8s.io)?/v1/namespaces/(?P<ns>[^/]+)/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?$"
)


class Api:
    """The server on a port of its own; it ends with :meth:`close`."""

    def __init__(self, objects: Objects, rights: Rights) -> None:
        handler = type("Handler", (_Handler,), {"objects": objects, "rights": rights})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, name="kube-api", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    objects: Objects
    rights: Rights
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            self._answer_to(body)
        except RefusedError as no:
            said = {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "code": no.code,
                "reason": no.reason,
                "message": str(no),
            }
            self._answer(said, no.code)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - the library's names

    def _answer_to(self, body: bytes) -> None:
        url = urlsplit(self.path)
        asked, query = _PATH.match(url.path), parse_qs(url.query)
        if asked is None or asked["plural"] not in KINDS or asked["ns"] != "default":
            raise RefusedError(404, "NotFound", f"the server could not find {url.path}")
        plural, name = asked["plural"], asked["name"]
        watch = query.get("watch", ["false"])[0] in {"true", "1"}
        self._require(verb_of(self.command, many=name is None, watch=watch), plural)
        if watch:
            self._watch(plural, int(query.get("resourceVersion", ["0"])[0] or 0), selector(query))
        elif self.command == "GET" and name is None:
            self._answer(self._list(plural, selector(query)))
        else:
            answer = self._one(plural, name, selector(query), body)
            self._answer(answer, 201 if self.command == "POST" else 200)

    def _require(self, verb: str, plural: str) -> None:
        self.rights.require(self.headers.get("Authorization"), verb, _group(plural), plural)

    def _one(self, plural: str, name: str | None, matches: Matches, body: bytes) -> Object:
        kept = self.objects
        if self.command == "POST":
            return _typed(plural, kept.create(plural, json.loads(body)))
        if self.command == "DELETE" and name is None:
            found, _ = kept.find(plural, matches)
            for each in found:
                kept.delete(plural, each["metadata"]["name"])
            return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        assert name is not None
        if self.command == "DELETE":
            grace = (json.loads(body) if body else {}).get("gracePeriodSeconds")
            return _typed(plural, kept.delete(plural, name, grace))
        if self.command == "PUT":
            return _typed(plural, kept.change(plural, name, lambda _: json.loads(body)))
        if self.command == "PATCH":
            return _typed(plural, self._patch(plural, name, body))
        return _typed(plural, kept.get(plural, name))

    def _patch(self, plural: str, name: str, body: bytes) -> Object:
        how = self.headers.get("Content-Type", "")
        if "apply-patch" in how:  # server-side apply makes what is not there
            given = yaml.safe_load(body)
            try:
                return self.objects.change(plural, name, lambda it: _merged(it, given))
            except RefusedError:
                self._require("create", plural)  # of whoever applies what is not there
                return self.objects.create(plural, given)
        change = json.loads(body)
        if "json-patch" in how:
            return self.objects.change(plural, name, lambda it: _patched(it, change))
        return self.objects.change(plural, name, lambda it: _merged(it, change))

    def _list(self, plural: str, matches: Matches) -> Object:
        found, version = self.objects.find(plural, matches)
        return {
            "kind": f"{KINDS[plural]}List",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": str(version)},
            "items": found,
        }

    def _watch(self, plural: str, since: int, matches: Matches) -> None:
        if self.headers.get("Upgrade"):
            # As behind a proxy without web sockets: fabric8 then asks for a stream of lines.
            raise RefusedError(503, "ServiceUnavailable", "no web sockets here")
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for event in self.objects.watch(plural, since, matches):
                if event is not None:
                    seen = {"type": event.kind, "object": _typed(plural, event.seen)}
                    line = json.dumps(seen).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except OSError:  # who watched has gone
            self.close_connection = True

    def _answer(self, said: Any, code: int = 200) -> None:
        body = json.dumps(said).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        pass


def _typed(plural: str, it: Object) -> Object:
    version = "/".join(filter(None, (_group(plural), "v1")))
    return {"kind": KINDS[plural], "apiVersion": version, **it}


def _group(plural: str) -> str:
    return "networking.k8s.io" if plural == "networkpolicies" else ""


def _merged(old: Object, given: Object) -> Object:
    """RFC 7396."""
    made = dict(old)
    for name, value in given.items():
        if value is None:
            made.pop(name, None)
        elif isinstance(value, dict) and isinstance(made.get(name), dict):
            made[name] = _merged(made[name], value)
        else:
            made[name] = value
    return made


def _patched(it: Object, steps: list[dict[str, Any]]) -> Object:
    """RFC 6902, the operations that fabric8 makes of an edit."""
    for step in steps:
        *path, last = (p.replace("~1", "/").replace("~0", "~") for p in step["path"][1:].split("/"))
        place: Any = it
        for part in path:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if isinstance(place, list):
            at = len(place) if last == "-" else int(last)
            if step["op"] == "add":
                place.insert(at, step["value"])
            elif step["op"] == "remove":
                del place[at]
            else:
                place[at] = step["value"]
        elif step["op"] == "remove":
            del place[last]
        else:
            place[last] = step["value"]
    return it
