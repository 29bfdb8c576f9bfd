"""The topic that remembers who owns a prefix, with a stop before every request."""

from __future__ import annotations

import uuid

import msgspec

from airflow_eos.core.checkpoint import Decision
from airflow_eos.core.protocol.participant import Note, Owner, Ownership, superseded
from airflow_eos.errors import KafkaUnavailableError
from airflow_eos.kafka.client.settings import DEFAULT_TOPIC
from airflow_eos.kafka.transactions.ownership import ownership
from tests.model.scheduler import external


def no_answer() -> Exception:
    return KafkaUnavailableError("no answer")


Records = list[tuple[bytes, bytes | None]]


class SteppedLedger:
    """See :class:`~airflow_eos.kafka.transactions.ownership.PrefixLedger`.

    ``records`` are everybody's.
    """

    def __init__(self, records: Records, prefix: str) -> None:
        self._records = records
        self.prefix = prefix
        self.topic = DEFAULT_TOPIC
        self._nonce = uuid.uuid4().hex
        self._known: set[Note] = set()

    def close(self) -> None:
        """Nothing is held."""

    def read(self) -> Ownership:
        found = external("read notes", lambda: ownership(self._records, self.prefix), no_answer)
        self._known = set(found.notes)
        return found

    def claim(self, owner: Owner) -> Ownership:
        found = self.read()
        if found.owner is not None:
            return found
        self._append("claim", self._nonce, msgspec.json.encode(owner))
        return self.read()

    def note(self, decision: Decision, owner: Owner) -> None:
        note = Note.of(decision, owner)
        self._append("note", _named(note), msgspec.json.encode(note))
        old = superseded(self._known, note)
        for each in old:
            self._append("note", _named(each), None)
        self._known = {*self._known.difference(old), note}

    def _append(self, kind: str, named: str, value: bytes | None) -> None:
        record = (msgspec.json.encode({"prefix": self.prefix, kind: named}), value)
        external(f"append {kind}", lambda: self._records.append(record), no_answer)


def _named(note: Note) -> str:
    return f"{note.batch}-{note.attempt}-{note.decision}-{note.pipeline}"
