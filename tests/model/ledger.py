"""The topic that remembers who owns a prefix, with a stop before every request."""

from __future__ import annotations

import uuid

import msgspec

from airflow_eos.checkpoint import Decision
from airflow_eos.errors import KafkaUnavailableError
from airflow_eos.kafka.transactions.ownership import ownership
from airflow_eos.protocol.ownership import Note, Owner, Ownership
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
        self._nonce = uuid.uuid4().hex

    def read(self) -> Ownership:
        return external("read notes", lambda: ownership(self._records, self.prefix), no_answer)

    def claim(self, owner: Owner) -> Ownership:
        found = self.read()
        if found.owner is not None:
            return found
        self._append("claim", owner)
        return self.read()

    def note(self, decision: Decision, owner: Owner) -> None:
        self._append("note", Note.of(decision, owner))

    def _append(self, kind: str, value: object) -> None:
        key = msgspec.json.encode({"prefix": self.prefix, kind: self._nonce})
        record = (key, msgspec.json.encode(value))
        external(f"append {kind}", lambda: self._records.append(record), no_answer)
