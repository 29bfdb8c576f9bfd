"""Who owns a transactional id prefix on a cluster, and how far its owner has delivered.

A checkpoint cannot know that another one uses its prefix, or that it was restored from an older
copy: both would fence and abort what is promised elsewhere, or deliver again. So Kafka remembers
it, in one compacted topic of one partition, ``airflow-eos.prefixes``, with two kinds of records:

========================================  =====================================================
key                                       value
========================================  =====================================================
``{"prefix": p, "claim": nonce}``         ``{"location": checkpoint}``: written once
``{"prefix": p, "note": nonce}``          ``{"batch": n, "attempt": a, "decision": nonce}``: the
                                          newest decision of one driver, before its first commit
========================================  =====================================================

The earliest claim wins, by the order of the log; a claim has a key of its own, so compaction never
moves it. A driver has a key of its own, so a sleeper that wakes up takes nothing back: a reader
takes the highest note. (A consumer group, which this replaces, expires after a week without a
batch, lets two claim at once, and is read as lag.)
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_eos.kafka.client import compacted
from airflow_eos.kafka.client.compacted_topic import require_topic
from airflow_eos.protocol.ownership import Note, Ownership, same_place

if TYPE_CHECKING:
    from airflow_eos.kafka.client.settings import KafkaSettings
    from airflow_eos.protocol.decision import Decision

TOPIC = "airflow-eos.prefixes"


class _Key(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    prefix: str
    claim: str | None = None
    note: str | None = None


class _Claim(msgspec.Struct, frozen=True):
    location: str


def ownership(records: Iterable[tuple[bytes, bytes | None]], prefix: str) -> Ownership:
    """Read the records of the topic, in the order of the log; pure."""
    claims: dict[bytes, str] = {}
    notes: dict[bytes, Note] = {}
    for raw, value in records:
        key = msgspec.json.decode(raw, type=_Key)
        if key.prefix != prefix:
            continue
        claims.pop(raw, None)
        notes.pop(raw, None)
        if value is None:
            continue
        if key.claim is not None:
            claims[raw] = msgspec.json.decode(value, type=_Claim).location
        else:
            notes[raw] = msgspec.json.decode(value, type=Note)
    return Ownership(
        owner=next(iter(claims.values()), None),
        newest=max(notes.values(), default=None),
        keys=(*claims, *notes),
    )


def called(prefix: str) -> str:
    """The prefix, for people."""
    return f"transactional id prefix {prefix!r}"


def give_up(prefix: str) -> str:
    """What a person does to let another checkpoint have it."""
    return f"airflow-eos disown {prefix}"


class PrefixLedger:
    """The records of one prefix, as one process reads and adds to them."""

    def __init__(self, settings: KafkaSettings, *, prefix: str) -> None:
        self.prefix = prefix
        self._settings = settings
        self._nonce = uuid.uuid4().hex
        self._reader: compacted.Reader | None = None
        self._writer: compacted.Appender | None = None

    def read(self) -> Ownership:
        """What the topic says now; nobody owns anything where there is no topic.

        Raises:
            KafkaError: the topic may not be read, or (KafkaUnavailableError) does not answer.
        """
        if self._reader is None:
            self._reader = compacted.Reader(self._settings, TOPIC)
        return ownership(self._reader.read(), self.prefix)

    def claim(self, location: str) -> Ownership:
        """Own the prefix if nobody does; returns who owns it, which may be another.

        Raises:
            KafkaError: the topic cannot be made, read or written, or has other settings.
        """
        require_topic(self._settings, TOPIC)
        found = self.read()
        if found.owner is not None:
            return found
        own = _Key(prefix=self.prefix, claim=self._nonce)
        self._append(own, _Claim(same_place(location)))
        return self.read()

    def note(self, decision: Decision) -> None:
        """Note a decision that is going to be relied on, before the first commit of its batch.

        Raises:
            KafkaError: it is not known whether it is noted; nothing may be committed.
        """
        note = Note(decision.batch_id, decision.attempt, decision.nonce)
        self._append(_Key(prefix=self.prefix, note=self._nonce), note)
        self._close_reader()  # whoever notes has read; and a driver goes on for months

    def forget(self) -> int:
        """Give the prefix up, as a person's act: the next start owns it. Returns how many records.

        Raises:
            KafkaError: the topic may not be written or does not answer.
        """
        keys = self.read().keys
        for key in keys:
            self._appender().append(key, None)
        self._appender().flush()
        return len(keys)

    def close(self) -> None:
        """Let go of the connections; what is noted stays."""
        self._close_reader()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _append(self, key: _Key, value: Any) -> None:
        self._appender().append(msgspec.json.encode(key), msgspec.json.encode(value))
        self._appender().flush()

    def _appender(self) -> compacted.Appender:
        if self._writer is None:
            self._writer = compacted.Appender(self._settings, TOPIC)
        return self._writer
