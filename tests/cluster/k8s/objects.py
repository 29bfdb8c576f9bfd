"""The objects of a cluster, their versions, and who watches them."""

from __future__ import annotations

import copy
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]
Matches = Callable[[Object], bool]


class RefusedError(Exception):
    """An answer of the API server that is not the one that was hoped for."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


@dataclass(frozen=True)
class Event:
    """``ADDED``, ``MODIFIED`` or ``DELETED``, at a version."""

    version: int
    plural: str
    kind: str
    seen: Object


class Objects:
    """All objects of one namespace; every change is an event with a version of its own."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._kept: dict[tuple[str, str], Object] = {}
        self._events: list[Event] = []
        self._closed = False

    @property
    def version(self) -> int:
        """Of the newest change."""
        return len(self._events)

    def create(self, plural: str, given: Object) -> Object:
        """Store a new object; a pod begins ``Pending``."""
        with self._changed:
            made = copy.deepcopy(given)
            meta = made.setdefault("metadata", {})
            name = meta.get("name") or meta.pop("generateName", "x-") + uuid.uuid4().hex[:5]
            if (plural, name) in self._kept:
                raise RefusedError(409, "AlreadyExists", f'{plural} "{name}" already exists')
            meta |= {
                "name": name,
                "namespace": meta.get("namespace", "default"),
                "uid": str(uuid.uuid4()),
                "creationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
            if plural == "pods":
                made["status"] = {"phase": "Pending"}
            return self._keep(plural, name, made, "ADDED")

    def get(self, plural: str, name: str) -> Object:
        """One object; refused where there is none."""
        with self._changed:
            try:
                return copy.deepcopy(self._kept[plural, name])
            except KeyError:
                message = f'{plural} "{name}" not found'
                raise RefusedError(404, "NotFound", message) from None

    def change(self, plural: str, name: str, make: Callable[[Object], Object]) -> Object:
        """Replace an object by what ``make`` makes of it; its identity stays."""
        with self._changed:
            old = self.get(plural, name)
            made = make(copy.deepcopy(old))
            keeps = ("name", "namespace", "uid", "creationTimestamp")
            made["metadata"] |= {each: old["metadata"][each] for each in keeps}
            return self._keep(plural, name, made, "MODIFIED")

    def find(self, plural: str, matches: Matches) -> tuple[list[Object], int]:
        """The objects that match, and the version at which they were seen."""
        with self._changed:
            kept = [each for (kind, _), each in self._kept.items() if kind == plural]
            return [copy.deepcopy(each) for each in kept if matches(each)], self.version

    def delete(self, plural: str, name: str, grace_s: int | None = None) -> Object:
        """Delete an object; a pod is only marked, since its node has to end it first."""
        with self._changed:
            old = self.get(plural, name)
            ended = old.get("status", {}).get("phase") in {"Succeeded", "Failed"}
            if plural != "pods" or ended:
                return self.remove(plural, name)
            spec = old["spec"].get("terminationGracePeriodSeconds", 30)
            marked = {
                "deletionTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "deletionGracePeriodSeconds": spec if grace_s is None else grace_s,
            }
            return self.change(plural, name, lambda it: it | {"metadata": it["metadata"] | marked})

    def remove(self, plural: str, name: str) -> Object:
        """Remove an object, and then what it owns (the garbage collector)."""
        with self._changed:
            old = self._kept.pop((plural, name))
            self._note("DELETED", plural, old)
            uid = old["metadata"]["uid"]
            owned = [
                key
                for key, each in self._kept.items()
                if any(o["uid"] == uid for o in each["metadata"].get("ownerReferences", ()))
            ]
            for each in owned:
                self.delete(*each)
            return old

    def watch(self, plural: str, since: int, matches: Matches) -> Iterator[Event | None]:
        """Each later event of an object that matches; None where a while nothing came."""
        while not self._closed:
            with self._changed:
                if len(self._events) <= since:
                    self._changed.wait(1)
                fresh = self._events[since:]
                since = len(self._events)
            yield from (each for each in fresh if each.plural == plural and matches(each.seen))
            yield None

    def close(self) -> None:
        """End all watches."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _keep(self, plural: str, name: str, made: Object, kind: str) -> Object:
        self._kept[plural, name] = made
        self._note(kind, plural, made)
        return copy.deepcopy(made)

    def _note(self, kind: str, plural: str, made: Object) -> None:
        version = len(self._events) + 1
        made["metadata"]["resourceVersion"] = str(version)
        self._events.append(Event(version, plural, kind, copy.deepcopy(made)))
        self._changed.notify_all()


def selector(query: Mapping[str, list[str]]) -> Matches:
    """What ``labelSelector`` and ``fieldSelector`` ask for; only the forms that Spark uses."""
    labels = _terms(query.get("labelSelector", [""])[0])
    fields = _terms(query.get("fieldSelector", [""])[0])

    def matches(it: Object) -> bool:
        found = it["metadata"].get("labels", {})
        return all(_holds(found.get(name), how, wanted) for name, how, wanted in labels) and all(
            _holds(_field(it, name), how, wanted) for name, how, wanted in fields
        )

    return matches


def _terms(text: str) -> list[tuple[str, str, tuple[str, ...]]]:
    terms = []
    while text := text.lstrip(","):
        head, _, rest = text.partition(",")
        if " in (" in head or " notin (" in head:
            inside, _, rest = text.partition(")")
            name, how, values = inside.replace("(", " ").split(None, 2)
            terms.append((name, how, tuple(each.strip() for each in values.split(","))))
        elif "!=" in head:
            name, _, value = head.partition("!=")
            terms.append((name, "notin", (value,)))
        elif "=" in head:
            name, _, value = head.partition("=")
            terms.append((name, "in", (value.lstrip("="),)))
        else:
            terms.append((head.lstrip("!"), "absent" if head.startswith("!") else "there", ()))
        text = rest
    return terms


def _holds(found: str | None, how: str, wanted: tuple[str, ...]) -> bool:
    if how in {"there", "absent"}:
        return (found is not None) is (how == "there")
    return (found in wanted) is (how == "in")


def _field(it: Object, path: str) -> str | None:
    found: Any = it
    for part in path.split("."):
        found = found.get(part, {})
    return found if isinstance(found, str) else None
