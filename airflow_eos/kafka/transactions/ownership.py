"""The ledger of a transactional id prefix on a cluster: its owner, and the owner's newest decision.

A checkpoint cannot know that another one uses its prefix, or that it was restored from an older
copy: both would fence and abort what is promised elsewhere, or deliver again. So Kafka has the
ledger, in one compacted topic of one partition (``airflow-eos.prefixes``, or the one that the
setting ``airflow-eos.prefixes.topic`` names), with two kinds of records:

========================================  =====================================================
key                                       value
========================================  =====================================================
``{"prefix": p, "claim": nonce}``         ``{"pipeline": id, "location": checkpoint}``
``{"prefix": p, "note": text}``           ``{"batch": n, "attempt": a, "decision": nonce,
                                          "pipeline": id}``: a decision, before its first commit;
                                          the text is of all four
``{"prefix": p, "note": "-1-0--"}``       :data:`GIVEN_UP`: a person has disowned the prefix
========================================  =====================================================

The earliest claim wins, by the order of the log; a claim has a key of its own, so compaction never
moves it. A note has a key of its own, so a driver that wakes up late replaces no newer note: a
reader takes the highest note of its own pipeline. A driver that notes a decision removes the
earlier notes that it has read (:func:`~airflow_eos.core.protocol.participant.superseded`), so that
compaction leaves one or a few of a pipeline, however often it has started. (A consumer group, which
this replaces, expires after a week without a batch, lets two claim at once, and is read as lag.)

All pipelines of a cluster share the topic, and so will later releases. Every key is a JSON object
with ``prefix``, for good: a key with another prefix, or none, is skipped, whatever else it has. An
unreadable record of the own prefix is reported, and ``airflow-eos disown`` removes it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import msgspec

from airflow_eos.core.protocol.decision import Decision
from airflow_eos.core.protocol.participant import Note, Owner, Ownership, superseded
from airflow_eos.errors import Remedy
from airflow_eos.kafka.client import compacted_topic as compacted
from airflow_eos.kafka.client.compacted_topic import require_topic
from airflow_eos.kafka.client.settings import KafkaSettings


class _Key(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    prefix: str
    claim: str | None = None
    note: str | None = None


class _OfPrefix(msgspec.Struct, frozen=True):
    prefix: str


GIVEN_UP = Note(-1, 0, "", "")
"""The note that ``airflow-eos disown`` leaves: a person's word that an older copy may go on.

Older releases read it, and take it for nobody's. The next note of a pipeline removes it.
"""
_NOT_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def ownership(
    records: Iterable[tuple[bytes, bytes | None]], prefix: str, servers: str = ""
) -> Ownership:
    """Return a prefix's owner and notes from the topic's records, in the order of the log; pure.

    Args:
        records: keys and values, of all prefixes.
        prefix: the prefix whose owner and notes are returned.
        servers: the bootstrap servers for the commands in remedies.
    """
    claims: dict[bytes, Owner] = {}
    notes: dict[bytes, Note] = {}
    unreadable: dict[bytes, str] = {}
    for raw, value in records:
        if not _is_of(raw, prefix):
            continue
        for known in (claims, notes, unreadable):
            known.pop(raw, None)
        if value is None:
            continue
        try:
            key = msgspec.json.decode(raw, type=_Key)
            if (key.claim is None) is (key.note is None):
                raise msgspec.ValidationError("neither a claim nor a note")
            if key.claim is not None:
                claims[raw] = msgspec.json.decode(value, type=Owner)
            else:
                notes[raw] = msgspec.json.decode(value, type=Note)
        except _NOT_JSON as error:
            unreadable[raw] = f"{raw[:200]!r}: {error}"
    told = {raw: note for raw, note in notes.items() if note != GIVEN_UP}
    at = f" -b {servers}" if servers else ""
    disown = f"airflow-eos disown {prefix}{at}"
    end = f"airflow-eos recover CHECKPOINT{at} --prefix {prefix} --allow orphan"
    return Ownership(
        called=f"transactional id prefix {prefix!r}",
        owner=next(iter(claims.values()), None),
        notes=tuple(told.values()),
        given_up=len(told) < len(notes),
        give_up=Remedy(commands=(f"{disown} --yes",), start=True),
        move=Remedy(commands=(f"{disown} --moved --yes",), start=True),
        clear=Remedy(commands=(end,), start=True),
        unreadable=tuple(unreadable.values()),
        keys=(*claims, *told, *unreadable),
    )


def _is_of(key: bytes, prefix: str) -> bool:
    """Whether a key has the prefix, by the part of it that all releases can read."""
    try:
        return msgspec.json.decode(key, type=_OfPrefix).prefix == prefix
    except _NOT_JSON:
        return False


def _is_note(key: bytes) -> bool:
    try:
        return msgspec.json.decode(key, type=_Key).note is not None
    except _NOT_JSON:
        return False


def _note_key(prefix: str, note: Note) -> _Key:
    text = f"{note.batch}-{note.attempt}-{note.decision}-{note.pipeline}"
    return _Key(prefix=prefix, note=text)


class PrefixLedger:
    """Reader and writer of one prefix's claims and notes.

    Args:
        topic: the topic of the records, if a checkpoint names it; else the one in the settings.
    """

    def __init__(self, settings: KafkaSettings, *, prefix: str, topic: str | None = None) -> None:
        self.prefix = prefix
        self.topic = topic or settings.prefixes_topic
        self._settings = settings
        self._nonce = uuid.uuid4().hex
        self._known: set[Note] = set()
        self._is_there = False  # whether the topic was checked
        self._reader: compacted.CompactedTopicReader | None = None
        self._writer: compacted.Appender | None = None

    def read(self) -> Ownership:
        """Return the prefix's present owner and notes; none where the topic is absent.

        Raises:
            KafkaError: the topic may not be read, or (KafkaUnavailableError) does not answer.
        """
        if self._reader is None:
            self._reader = compacted.CompactedTopicReader(self._settings, self.topic)
        found = ownership(self._reader.read(), self.prefix, self._settings.bootstrap_servers)
        self._known = {*found.notes, *([GIVEN_UP] if found.given_up else [])}
        return found

    def claim(self, owner: Owner) -> Ownership:
        """Claim the prefix if it has no owner; return its ownership, which may be another's.

        Raises:
            KafkaError: the topic cannot be created, read or written, or has other settings.
        """
        require_topic(self._settings, self.topic)
        self._is_there = True
        found = self.read()
        self._appender().connect()  # else the first batch's note would wait for this
        if found.owner is not None:
            return found
        own = _Key(prefix=self.prefix, claim=self._nonce)
        self._append(own, owner)
        return self.read()

    def note(self, decision: Decision, owner: Owner) -> None:
        """Note a decision that is going to be relied on, before the first commit of its batch.

        Raises:
            KafkaError: whether the decision is noted is not known; nothing may be committed.
        """
        note = Note.of(decision, owner)
        self._append(_note_key(self.prefix, note), note)
        old = [*superseded(self._known, note), *(self._known & {GIVEN_UP})]
        for each in old:  # acknowledged with the next note, or never: then a reader sees them again
            self._appender().append(msgspec.json.encode(_note_key(self.prefix, each)), None)
        self._known = {*self._known.difference(old), note}
        self._close_reader()  # needed no more: a driver that notes has read, and runs for months

    def forget(self, *, moved: bool = False) -> int:
        """Remove the prefix's records, as a person asks: the next start owns it. Return how many.

        Args:
            moved: keep the notes, for an owner that will claim the prefix from another location.

        Raises:
            KafkaError: the topic may not be written or does not answer.
        """
        keys = [key for key in self.read().keys if not (moved and _is_note(key))]
        for key in keys:
            self._appender().append(key, None)
        if not moved:
            word = _note_key(self.prefix, GIVEN_UP), GIVEN_UP
            self._appender().append(*map(msgspec.json.encode, word))
        self._appender().flush()
        return len(keys)

    def close(self) -> None:
        """Close the connections; claims and notes stay."""
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
            if not self._is_there and compacted.is_absent(self._settings, self.topic):
                require_topic(self._settings, self.topic)  # the topic was deleted after the claim
            self._writer = compacted.Appender(self._settings, self.topic)
        return self._writer
