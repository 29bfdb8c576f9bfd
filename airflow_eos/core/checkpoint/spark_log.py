"""A reader of Spark's own files in one checkpoint."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import msgspec

from airflow_eos.core.checkpoint.backend import METADATA, SOURCES, StoredObject, is_batch
from airflow_eos.core.checkpoint.mend import Mend
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.errors import CheckpointFormatError

OFFSETS_VERSIONS = frozenset({1, 2})
COMMITS_VERSIONS = frozenset({1, 2, 3})
_VOID = "-"
_VERSION = re.compile(r"v([1-9][0-9]{0,8})", re.ASCII)
_NEXT = (
    "Spark would stumble over it too. Restore the file from a copy of the checkpoint, or start "
    "the query on a new checkpoint location."
)

KafkaOffsets = dict[str, dict[int, int]]
"""topic → partition → offset of the next row."""

T = TypeVar("T")


class UnknownVersionError(CheckpointFormatError):
    """A file that a newer Spark wrote, and that has nothing wrong with it."""


class _QueryMetadata(msgspec.Struct):
    id: str


class _BatchMetadata(msgspec.Struct, rename="camel"):
    batch_watermark_ms: int
    batch_timestamp_ms: int
    conf: dict[str, str] = {}


class _CommitMetadata(msgspec.Struct, rename="camel"):
    next_batch_watermark_ms: int = 0


@dataclass(frozen=True, slots=True)
class OffsetsEntry:
    """The content of one ``offsets/N``. Times in ms; ``batch_timestamp_ms`` None in old files.

    ``ends`` maps each source (its position from 0, or its name in a v2 file) to the JSON of the
    offset at which the batch ends, None where the source has none yet. ``conf`` are the settings
    that Spark runs the batch with, whatever the session has.
    """

    version: int
    batch_timestamp_ms: int | None
    watermark_ms: int | None
    ends: dict[str, str | None]
    conf: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """The content of one ``commits/N``; the watermark in ms, 0 where the query has none."""

    version: int
    next_watermark_ms: int


def parse_query_id(data: bytes, where: str) -> str:
    """Return the query's id from the file ``metadata``; CheckpointFormatError where it has none."""
    query_id = _json(data, _QueryMetadata, where).id
    try:
        uuid.UUID(query_id)
    except ValueError as error:
        raise CheckpointFormatError(f"{where}: id {query_id!r} is not a UUID. {_NEXT}") from error
    return query_id


def parse_offsets(data: bytes, where: str) -> OffsetsEntry:
    """Parse the content of ``offsets/N``.

    Raises:
        CheckpointFormatError: empty, truncated, not text, of an unknown version, or foreign.
    """
    version, lines = _versioned(data, OFFSETS_VERSIONS, where)
    if len(lines) < 2:
        raise CheckpointFormatError(
            f"{where} ends after {len(lines) + 1} lines: expected the version, the batch's "
            f"metadata and a line for each source. It is truncated. {_NEXT}"
        )
    if lines[0].strip() or version > 1:
        batch = _json(lines[0].encode(), _BatchMetadata, f"{where}, line 2")
    else:
        batch = None  # Spark before 2.1.1 wrote an empty line
    ends: dict[str, str | None] = {}
    for number, line in enumerate(lines[1:]):
        name, offset = (
            (str(number), line) if version == 1 else _named(line, f"{where}, line {number + 3}")
        )
        if name in ends:
            raise CheckpointFormatError(f"{where} has source {name!r} twice. {_NEXT}")
        if offset != _VOID:
            _json(offset.encode(), object, f"{where}, line {number + 3}")
        ends[name] = None if offset == _VOID else offset
    return OffsetsEntry(
        version,
        batch.batch_timestamp_ms if batch else None,
        batch.batch_watermark_ms if batch else None,
        ends,
        batch.conf if batch else {},
    )


def parse_commit(data: bytes, where: str) -> CommitEntry:
    """Parse the content of ``commits/N``.

    Raises:
        CheckpointFormatError: empty, truncated, not text, of an unknown version, or foreign.
    """
    version, lines = _versioned(data, COMMITS_VERSIONS, where)
    if len(lines) != 1:
        raise CheckpointFormatError(
            f"{where} has {len(lines) + 1} lines: expected the version and a line of JSON. {_NEXT}"
        )
    commit = _json(lines[0].encode(), _CommitMetadata, f"{where}, line 2")
    return CommitEntry(version, commit.next_batch_watermark_ms)


def parse_kafka_start(data: bytes, where: str) -> KafkaOffsets:
    """Parse ``sources/<i>/0``, the offsets at which a Kafka source began.

    Raises:
        CheckpointFormatError: it is not such a file.
    """
    _, lines = _versioned(data.removeprefix(b"\0"), frozenset({1}), where)
    offsets = kafka_offsets(lines[0]) if len(lines) == 1 else None
    if offsets is None:
        raise CheckpointFormatError(f"{where} does not hold the offsets of a Kafka source. {_NEXT}")
    return offsets


def kafka_offsets(raw: str) -> KafkaOffsets | None:
    """Parse ``{"topic": {"0": 12}}``; None if it is the offset of another kind of source."""
    try:
        told = msgspec.json.decode(raw, type=dict[str, dict[str, int]])
        # A source of ours records more than offsets, by a name that no topic can have.
        topics = {name: topic for name, topic in told.items() if not name.startswith("/")}
        found = msgspec.convert(topics, dict[str, dict[int, int]], str_keys=True)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    partitions = [item for topic in found.values() for item in topic.items()]
    if not partitions or any(partition < 0 or offset < 0 for partition, offset in partitions):
        return None
    return found


def _versioned(data: bytes, known: frozenset[int], where: str) -> tuple[int, list[str]]:
    """Return the version in the first line, and the other lines."""
    if not data:
        raise CheckpointFormatError(f"{where} is empty: half written. {_NEXT}")
    try:
        first, *others = data.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise CheckpointFormatError(f"{where} is not UTF-8 text: foreign. {_NEXT}") from error
    match = _VERSION.fullmatch(first.strip())
    if match is None:
        raise CheckpointFormatError(
            f"{where} begins with {first[:40]!r}: expected a version such as 'v1'. It is truncated "
            f"or not a file of Spark's checkpoint. {_NEXT}"
        )
    version = int(match[1])
    if version not in known:
        raise UnknownVersionError(
            f"{where} has version v{version}: this release reads v1 to v{max(known)}. A newer "
            "Spark wrote it; install a release of airflow-provider-eos that knows this Spark."
        )
    return version, others


def _named(line: str, where: str) -> tuple[str, str]:
    name, colon, offset = line.partition(":")
    if not name or not colon:
        raise CheckpointFormatError(
            f"{where}: {line[:40]!r} is not <source>:<offset>. It is truncated. {_NEXT}"
        )
    return name, offset


def _json(data: bytes, kind: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CheckpointFormatError(
            f"{where} cannot be read ({error}): truncated or foreign. {_NEXT}"
        ) from error


Log = Literal["offsets", "commits"]


class SparkLog:
    """A reader of ``metadata``, ``offsets/``, ``commits/`` and ``sources/`` of one checkpoint.

    An absent file is None. A file that is truncated, foreign or of an unknown version raises
    CheckpointFormatError; a store that does not answer, StoreError.
    """

    def __init__(self, store: CheckpointStore, mends: Sequence[Mend] = ()) -> None:
        self._store = store
        self._mended = {each.path: each for each in mends}
        self.location = store.location

    def query_id(self) -> str | None:
        """Return the id of the query that began this checkpoint."""
        data = self._get(METADATA)
        return None if data is None else parse_query_id(data, self._where(METADATA))

    def offsets(self, batch: int) -> OffsetsEntry | None:
        """Return the batch's entry; one without sources where nobody can read the planned one."""
        path = f"offsets/{batch}"
        data = self._get(path)
        if data is None and path in self._mended:
            return OffsetsEntry(0, None, None, {})
        return None if data is None else parse_offsets(data, self._where(path))

    def commit(self, batch: int) -> CommitEntry | None:
        """Return the commit of the batch, which says that the batch is complete."""
        path = f"commits/{batch}"
        data = self._get(path)
        if data is None and path in self._mended:
            return CommitEntry(0, 0)
        return None if data is None else parse_commit(data, self._where(path))

    def began(self, source: str) -> KafkaOffsets | None:
        """Return where a Kafka source began, recorded of a source that has a number for a name.

        None also where the record cannot be read: the gate refuses a start where it matters.
        """
        if not is_batch(source):
            return None  # a named source keeps its beginning elsewhere
        path = f"{SOURCES}/{source}/0"
        try:
            return parse_kafka_start(self._get(path) or b"", self._where(path))
        except UnknownVersionError:
            raise
        except CheckpointFormatError:
            return None

    def find(self, log: Log, batch: int) -> StoredObject | None:
        """Return the batch's file in a log, with size and time, but do not read it."""
        path = f"{log}/{batch}"
        its = self._mended.get(path)
        if its is None:
            return self._store.head(path)
        if its.content is None and log == "commits" and not self._is_planned(batch + 1):
            return None
        # A lost file's time is lost, too. The time of a file that was written next to it stands in,
        # since only times of the store can be compared with one another.
        beside = (f"offsets/{batch + 1}", f"commits/{batch}", f"offsets/{batch}")
        near = next((seen for at in beside if (seen := self._store.head(at)) is not None), None)
        at_ms = near.modified_at_ms if near is not None else 0
        return self._store.head(path) or StoredObject(path, str(batch), 0, at_ms)

    def newest(self, log: Log) -> StoredObject | None:
        """Return the newest file of a log, by a listing; hidden files do not count.

        Nothing but a listing tells: a driver that slept adds again what was purged.
        """
        found = self._store.list(log)
        for entry in found:
            if not is_batch(entry.name):
                raise CheckpointFormatError(
                    f"{self._where(entry.path)} is foreign: expected only batch numbers there. "
                    "Find out what wrote it and move it away."
                )
        there: dict[int, StoredObject | None] = {int(entry.name): entry for entry in found}
        for path in self._mended:
            folder, _, name = path.rpartition("/")
            if folder == log and is_batch(name):
                there[int(name)] = self.find(log, int(name))
        standing = [batch for batch, entry in there.items() if entry is not None]
        return there[max(standing)] if standing else None

    def _is_planned(self, batch: int) -> bool:
        path = f"offsets/{batch}"
        return path in self._mended or self._store.head(path) is not None

    def _get(self, path: str) -> bytes | None:
        """Return the file's content as it is once mended."""
        its = self._mended.get(path)
        if its is None:
            return self._store.get(path)
        return None if its.content is None else its.content.encode()

    def _where(self, path: str) -> str:
        return f"{self.location}/{path}"
