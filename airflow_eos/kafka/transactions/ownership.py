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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_eos.errors import OwnershipError
from airflow_eos.kafka.client import compacted
from airflow_eos.kafka.client.compacted_topic import require_topic

if TYPE_CHECKING:
    from airflow_eos.kafka.client.settings import KafkaSettings
    from airflow_eos.protocol.decision import Decision

TOPIC = "airflow-eos.prefixes"
_MORE = "airflow-eos disown"


class _Key(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    prefix: str
    claim: str | None = None
    note: str | None = None


class _Claim(msgspec.Struct, frozen=True):
    location: str


class Note(msgspec.Struct, frozen=True, order=True):
    """A decision that was relied on: its batch, attempt and nonce."""

    batch: int
    attempt: int
    decision: str


@dataclass(frozen=True, slots=True)
class Ownership:
    """What the topic says of one prefix.

    Attributes:
        owner: the location of the checkpoint whose claim is the earliest; None where none is.
        newest: the highest note of all drivers; None where no batch was delivered yet.
        keys: of every record, to forget them by.
    """

    owner: str | None
    newest: Note | None
    keys: tuple[bytes, ...]

    def require(
        self,
        prefix: str,
        location: str,
        *,
        newest_planned: int | None,
        decisions_of: Callable[[int], Sequence[Decision]],
    ) -> None:
        """Refuse a prefix of another checkpoint, and a checkpoint older than what it delivered.

        Args:
            prefix: whose ownership this is.
            location: of the checkpoint that wants to use it.
            newest_planned: the newest batch of Spark's offset log there.
            decisions_of: the decisions of a batch there.

        Raises:
            OwnershipError: with what was found and how to go on.
        """
        if self.owner is not None and self.owner != same_place(location):
            raise OwnershipError(
                f"Transactional id prefix {prefix!r} belongs to the checkpoint {self.owner} on "
                f"this cluster, not to {location}. Choose another prefix. If you moved the "
                f"checkpoint on purpose: {_MORE} {prefix}, then start again."
            )
        note = self.newest
        planned = -1 if newest_planned is None else newest_planned
        if note is None or planned > note.batch:
            return  # a later batch was planned on it, so it has seen this one through
        # Its decision alone says nothing where the batch is not even planned: a driver that was
        # alive when the copy was put back in place has written it there.
        decided = decisions_of(note.batch) if planned == note.batch else ()
        if not any(each.nonce == note.decision for each in decided):
            raise OwnershipError(
                f"Checkpoint {location} (newest batch {planned}) does not hold the decision of "
                f"batch {note.batch}, attempt {note.attempt}, which was delivered under its prefix "
                f"{prefix!r}: it was lost, or restored from an older copy, and would deliver rows "
                "again. Restore the newest copy (offsets/, commits/ and eos/ together). To start "
                f"anew knowingly, use a new prefix, or: {_MORE} {prefix}."
            )


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


def same_place(location: str) -> str:
    """The location, alike for the schemes by which Hadoop and others name one store."""
    scheme, found, rest = location.partition("://")
    aliases = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "abfs", "wasb": "abfs"}
    return f"{aliases.get(scheme, scheme)}://{rest}" if found else location
