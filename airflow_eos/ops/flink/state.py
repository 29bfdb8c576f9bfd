"""Kafka transactions promised by a checkpoint of Flink, and the plan for open ones; no I/O.

The file is ``_metadata`` in a checkpoint's or savepoint's folder, as Flink writes it to restore
from. Each sink's operator state is in it or, above ``state.storage.fs.memory-threshold``, in a file
beside it. Only the versions named below are read: anything unknown in the file is refused, since a
promise could be in it.

=====================  ==============================================  =========================
data                   of Flink (2.2.1) or flink-connector-kafka (5.0)  versions
=====================  ==============================================  =========================
metadata               MetadataV6Serializer, which all before it build  4, 5, 6
committer's state      CommittableCollectorSerializer                  2, checkpoint 1, subtask 2
a promise              KafkaCommittableSerializer                      1
writer's state         KafkaWriterStateSerializer                      1, 2
=====================  ==============================================  =========================
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from airflow_eos.errors import CheckpointFormatError, Remedy
from airflow_eos.kafka.transactions.identity import OpenTransaction, TransactionIdentity

COMMITTER, WRITER = "streaming_committer_raw_states", "writer_raw_states"
"""Flink's names of a sink's operator states."""
_MAGIC, _MASTER_MAGIC, _COLLECTOR_MAGIC = 0x4960672D, 0xC96B1696, 0xB91F252C
_JAVA = b"\xac\xed\x00\x05"
_BY_HAND = (
    Remedy(change="restore Flink from this checkpoint, which commits what it promises"),
    Remedy(
        change="let the transactions time out",
        costs="the rows of those that the checkpoint promises",
    ),
)


@dataclass(frozen=True, slots=True)
class OperatorState:
    """One list state of one subtask, and where its bytes are.

    Attributes:
        offsets: where each element begins.
        data: the bytes; None where they are in a file of their own.
        file: that file, relative to the checkpoint's folder; empty where ``data`` is set.
    """

    name: str
    offsets: tuple[int, ...]
    data: bytes | None
    file: str = ""


@dataclass(frozen=True, slots=True)
class FlinkCheckpoint:
    """The promised Kafka transactions of a completed checkpoint.

    Attributes:
        promised: the transactions to commit, whichever job restores the checkpoint.
        prefixes: the transactional id prefixes of the job's sinks.
    """

    number: int
    promised: tuple[TransactionIdentity, ...]
    prefixes: tuple[str, ...]


def read_checkpoint(metadata: bytes, read: Callable[[str], bytes]) -> FlinkCheckpoint:
    """Return the promised transactions of a checkpoint, and its sinks' prefixes.

    Args:
        read: returns the bytes of a file beside it, by its relative name.

    Raises:
        CheckpointFormatError: the file is unknown in part, or not whole; with what was found.
    """
    number, states = read_metadata(metadata)
    promised: list[TransactionIdentity] = []
    prefixes: set[str] = set()
    prepared: set[str] = set()
    for state in states:
        if state.name not in {COMMITTER, WRITER}:
            continue
        data = state.data if state.data is not None else read(state.file)
        for element in _elements(state, data):
            if state.name == COMMITTER:
                promised += _committables(element)
            else:
                prefix, ids = _writer(element)
                prefixes.add(prefix)
                prepared |= ids
    names = {each.transactional_id for each in promised}
    if len(names) != len(promised):
        raise _refused("the same transactional id promised twice", "each once")
    if not prepared <= names:  # writer and committer both name them: as good as a checksum
        raise _refused(
            f"{min(prepared - names)} prepared by a sink's writer and by no committer", "both"
        )
    return FlinkCheckpoint(number, tuple(sorted(promised)), tuple(sorted(prefixes)))


# --- the bytes ------------------------------------------------------------------------------------


class _Reader:
    """Reader of Java's ``DataInput`` formats, from bytes that may be damaged."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._at = 0
        self._what = what

    def take(self, count: int) -> bytes:
        left = len(self._data) - self._at
        if not 0 <= count <= left:
            raise self.refused(f"{left} bytes left", f"{count} more")
        self._at += count
        return self._data[self._at - count : self._at]

    def inside(self, data: bytes) -> _Reader:
        """Return a reader of bytes that were read from this one."""
        return _Reader(data, self._what)

    def u8(self) -> int:
        return self.take(1)[0]

    def i16(self) -> int:
        return int.from_bytes(self.take(2), signed=True)

    def i32(self) -> int:
        return int.from_bytes(self.take(4), signed=True)

    def u32(self) -> int:
        return int.from_bytes(self.take(4))

    def i64(self) -> int:
        return int.from_bytes(self.take(8), signed=True)

    def text(self) -> str:
        raw = self.take(int.from_bytes(self.take(2)))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.refused(f"the text {raw!r}", "UTF-8") from error

    def sized(self) -> bytes:
        return self.take(self.i32())

    def past(self, *widths: int | str) -> None:
        """Skip fields: for each an int of so many bytes, or for a ``str`` a text."""
        for width in widths:
            self.text() if isinstance(width, str) else self.take(width)

    def count(self, smallest: int = 1) -> int:
        """Read the number of the elements that follow, of at least ``smallest`` bytes each."""
        found = self.i32()
        if not 0 <= found * smallest <= len(self._data) - self._at:
            raise self.refused(f"a count of {found}", "one that fits into the file")
        return found

    def flag(self) -> bool:
        found = self.i32()
        self.expect(found in {0, 1}, found, "0 or 1")
        return bool(found)

    def expect(self, right: bool, found: object, expected: str) -> None:  # noqa: FBT001
        if not right:
            raise self.refused(str(found), expected)

    def end(self) -> None:
        left = len(self._data) - self._at
        self.expect(left == 0, f"{left} bytes more", "the end")

    def refused(self, found: str, expected: str) -> CheckpointFormatError:
        return _refused(f"{found} in {self._what} at byte {self._at}", expected)


def _refused(found: str, expected: str) -> CheckpointFormatError:
    return CheckpointFormatError(
        f"This is no checkpoint of Flink that can be read for sure: found {found}, expected "
        f"{expected}. Nothing was done.",
        *_BY_HAND,
    )


# --- the metadata file ----------------------------------------------------------------------------


def read_metadata(data: bytes) -> tuple[int, tuple[OperatorState, ...]]:
    """Return the checkpoint's number, and the operator states of all subtasks of all operators.

    Raises:
        CheckpointFormatError: as :func:`read_checkpoint`.
    """
    read = _Reader(data, "_metadata")
    magic, version = read.u32(), read.i32()
    read.expect(magic == _MAGIC, f"{magic:#x}", f"{_MAGIC:#x}, with which each begins")
    read.expect(version in {4, 5, 6}, f"version {version}", "4, 5 or 6")
    number = read.i64()
    read.expect(number > 0, f"checkpoint {number}", "a number above 0")
    for _ in range(read.count(8)):
        magic = read.u32()
        read.expect(magic == _MASTER_MAGIC, f"{magic:#x}", f"{_MASTER_MAGIC:#x}, a master state")
        read.sized()
    states = [each for _ in range(read.count(20)) for each in _operator(read, version)]
    read.expect(read.take(4) == _JAVA, "something else", "the checkpoint's properties")
    _java_value(read, [])
    read.end()
    return number, tuple(states)


def _operator(read: _Reader, version: int) -> Iterator[OperatorState]:
    if version >= 5:
        read.past("name", "uid")
    read.past(16, 4, 4)  # id, parallelism, maximum parallelism
    _stream(read)  # the operator coordinator's state
    subtasks = read.i32()
    if subtasks == -1:  # the whole operator has finished
        return
    for _ in range(subtasks):
        if read.i32() >= 0:  # negative: the subtask has finished
            for _ in ("managed", "raw"):
                if read.flag():
                    yield from _operator_states(read)
            for _ in ("managed", "raw"):
                _keyed(read)
            for _ in ("input", "output"):
                found = read.i32()
                read.expect(found == 0, f"rows in flight ({found})", "none: an aligned checkpoint")


def _operator_states(read: _Reader) -> Iterator[OperatorState]:
    kind = read.u8()
    read.expect(kind in {0, 4}, f"operator state of kind {kind}", "4, or 0 for none")
    if kind == 0:
        return
    named = []
    for _ in range(read.count(7)):
        name, _mode = read.text(), read.u8()
        named.append((name, tuple(read.i64() for _ in range(read.count(8)))))
    data, file = _stream(read)
    for name, offsets in named:
        if name in {COMMITTER, WRITER} and offsets:
            known = data is not None or file
            read.expect(bool(known), f"{name} in a shared file", "here, or in a file beside")
        yield OperatorState(name, offsets, data, file)


def _stream(read: _Reader) -> tuple[bytes | None, str]:
    """Read a state handle: return its bytes, or the file beside; neither if they are elsewhere."""
    kind = read.u8()
    match kind:
        case 0 | 16:
            pass
        case 1:
            read.past("name")
            return read.sized(), ""
        case 2:
            read.past(8, "path")
        case 6:
            file = read.text()
            read.past(8)
            plain = re.fullmatch("[A-Za-z0-9_-][A-Za-z0-9._-]*", file) is not None
            read.expect(plain, f"the file {file!r}", "a name in the checkpoint's folder")
            return None, file
        case 15:
            read.past(8, 8, 4, "path", "id")
        case _:
            raise read.refused(f"a state handle of kind {kind}", "0, 1, 2, 6, 15 or 16")
    return None, ""


def _keyed(read: _Reader) -> None:
    """Skip keyed state (windows, joins and the like): it has no promises."""
    kind = read.u8()
    match kind:
        case 0:
            pass
        case 3 | 7 | 12:
            read.past(4)
            read.past(8 * read.count(8))
            _stream(read)
            read.past(*["id"] * (kind == 12))
        case 5 | 11:
            read.past(8, "backend", 4, 4, *[8] * (kind == 11))
            _stream(read)
            for _ in ("shared", "private"):
                for _ in range(read.count(3)):
                    read.past("id")
                    _stream(read)
            read.past(*["id"] * (kind == 11))
        case _:
            raise read.refused(f"keyed state of kind {kind}", "0, 3, 5, 7, 11 or 12")


# --- the properties, as Java serializes an object -------------------------------------------------

_WIDTHS = dict(zip("BCDFIJSZ", (1, 2, 8, 4, 4, 8, 2, 1), strict=True))
_Fields = tuple[str, ...]


def _java_value(read: _Reader, handles: list[object], depth: int = 0) -> None:
    """Skip one Java object: only at the file's end is it known that the file is whole."""
    tag = read.u8()
    read.expect(depth < 10, "an object in an object in …", "at most 10")
    match tag:
        case 0x70:  # null
            pass
        case 0x71:  # a reference to an earlier object
            _known(read, handles)
        case 0x74:
            handles.append(read.text())
        case 0x7E:  # an enum's value
            _java_class(read, handles)
            handles.append(None)
            _java_value(read, handles, depth + 1)
        case 0x73:
            fields = _java_class(read, handles)
            handles.append(None)
            for kind in fields:
                if kind in _WIDTHS:
                    read.take(_WIDTHS[kind])
                else:
                    _java_value(read, handles, depth + 1)
        case _:
            raise read.refused(f"{tag:#x} in the properties", "an object")


def _java_class(read: _Reader, handles: list[object]) -> _Fields:
    """Read a class and return the kinds of its fields, its superclass's first."""
    tag = read.u8()
    if tag == 0x70:
        return ()
    if tag == 0x71:
        found = _known(read, handles)
        read.expect(isinstance(found, tuple), "no class", "a class")
        return found if isinstance(found, tuple) else ()
    read.expect(tag == 0x72, f"{tag:#x}", "a class")
    read.past("name", 8)
    handle = len(handles)
    handles.append(())
    flags = read.u8()
    read.expect(flags in {0x02, 0x12}, f"flags {flags:#x}", "a plain object or an enum")
    kinds: list[str] = []
    for _ in range(read.i16()):
        kind = chr(read.u8())
        read.text()
        if kind in "L[":
            _java_value(read, handles)
        else:
            read.expect(kind in _WIDTHS, f"a field of {kind!r}", "a kind of Java's")
        kinds.append(kind)
    read.expect(read.u8() == 0x78, "an annotation", "none")
    fields = handles[handle] = (*_java_class(read, handles), *kinds)
    return fields


def _known(read: _Reader, handles: list[object]) -> object:
    handle = read.i32() - 0x7E0000
    read.expect(0 <= handle < len(handles), f"handle {handle}", f"one of {len(handles)}")
    return handles[handle]


# --- the states of a sink -------------------------------------------------------------------------


def _elements(state: OperatorState, data: bytes) -> Iterator[_Reader]:
    """Yield a reader for each element of a list state."""
    for offset in state.offsets:
        if not 0 <= offset <= len(data):
            raise _refused(f"{state.name} at byte {offset} of {len(data)}", "within its bytes")
        yield _Reader(_Reader(data[offset:], state.name).sized(), state.name)


def _versioned(read: _Reader, *versions: int) -> tuple[int, _Reader]:
    found = read.i32()
    read.expect(found in versions, f"version {found}", " or ".join(map(str, versions)))
    return found, read.inside(read.sized())


def _listed(read: _Reader, version: int) -> Iterator[_Reader]:
    found = read.i32()
    read.expect(found == version, f"a list of version {found}", str(version))
    for _ in range(read.count(4)):
        yield read.inside(read.sized())


def _committables(element: _Reader) -> Iterator[TransactionIdentity]:
    _, read = _versioned(element, 2)
    element.end()
    magic = read.u32()
    read.expect(magic == _COLLECTOR_MAGIC, f"{magic:#x}", f"{_COLLECTOR_MAGIC:#x}")
    for checkpoint in _listed(read, 1):
        checkpoint.past(8, 4)  # checkpoint number, number of subtasks
        for subtask in _listed(checkpoint, 2):
            subtask.past(4)
            for request in _listed(subtask, 0):
                yield _committable(request)
            subtask.past(4, 4)  # number of requests, number of failed ones
            subtask.end()
        checkpoint.end()
    read.end()


def _committable(request: _Reader) -> TransactionIdentity:
    _, read = _versioned(request, 1)
    epoch, producer, name = read.i16(), read.i64(), read.text()
    read.expect(epoch >= 0 and producer >= 0 and name != "", f"producer {producer}", "Kafka's")
    read.end()
    request.past(4)  # retries
    state = request.i32()
    request.expect(state in {0, 1}, f"a request in state {state}", "0 (received) or 1 (retry)")
    request.end()
    return TransactionIdentity(name, producer, epoch)


def _writer(element: _Reader) -> tuple[str, frozenset[str]]:
    """Read a writer's state: its prefix, and the ids it has prepared and not seen committed."""
    version, read = _versioned(element, 1, 2)
    element.end()
    prefix = read.text()
    prepared: list[str] = []
    if version == 2:
        read.past(4, 4)  # the subtasks that the writer owns
        ownership = read.i32()
        read.expect(ownership in {0, 1}, f"ownership {ownership}", "0 or 1")
        for _ in range(read.count(10)):
            prepared.append(read.text())
            read.past(8)  # the checkpoint
    read.end()
    return prefix, frozenset(prepared)


# --- plan -----------------------------------------------------------------------------------------
# The plan for Flink's open and promised transactions: facts in, plan out; no I/O.


_COMMITTED = frozenset({"PrepareCommit", "CompleteCommit"})
_ABORTED = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})


class ForeignAction(enum.Enum):
    """A plan's action for one transaction."""

    COMMIT = "commit"
    """The checkpoint promises the transaction, and it is open."""
    ABORT = "abort"
    """The transaction is open under a prefix that a person named, and is not promised."""
    COMMITTED = "committed"
    """The checkpoint promises the transaction, and it is committed: nothing to do."""
    LOST = "lost"
    """The transaction is promised and cannot be committed, or its outcome is not known."""
    LEAVE = "leave"
    """The transaction is not Flink's by its form, or of a prefix that no person named: leave it."""


class ForeignStep(msgspec.Struct, frozen=True):
    """One transaction of a plan, with its action and the reason.

    Times in milliseconds; 0 where the transaction is not open.
    """

    action: ForeignAction
    transactional_id: str
    producer_id: int
    producer_epoch: int
    reason: str
    started_at_ms: int = 0
    places: tuple[tuple[str, int], ...] = ()

    @property
    def identity(self) -> TransactionIdentity:
        """The transaction's identity in Kafka."""
        return TransactionIdentity(self.transactional_id, self.producer_id, self.producer_epoch)


class ForeignPlan(msgspec.Struct, frozen=True):
    """A plan for all transactions; valid for one moment: a later plan may differ."""

    location: str
    checkpoint: int
    prefixes: tuple[str, ...]
    steps: tuple[ForeignStep, ...]

    def of(self, *actions: ForeignAction) -> tuple[ForeignStep, ...]:
        """Return the steps with one of these actions."""
        return tuple(step for step in self.steps if step.action in actions)


class CoordinatorState(msgspec.Struct, frozen=True):
    """A transactional id's present state and producer, as its coordinator describes them."""

    state: str
    producer_id: int
    producer_epoch: int


def is_of_flink(transactional_id: str, prefix: str) -> bool:
    """Whether an id has a Flink sink's form with this prefix: ``<prefix>-<subtask>-<number>``."""
    return re.fullmatch(re.escape(prefix) + "-[0-9]+-[0-9]+", transactional_id) is not None


def make_plan(
    location: str,
    checkpoint: FlinkCheckpoint,
    prefixes: Collection[str],
    still_open: Mapping[OpenTransaction, str],
    told: Mapping[str, CoordinatorState],
    raised: Collection[int] = (0,),
) -> ForeignPlan:
    """Plan to commit promised open transactions, and to abort others open under the prefixes.

    Args:
        prefixes: the prefixes that a person named.
        still_open: all open transactions under the prefixes, each with its program by its id's
            form.
        told: the state of each promised id; absent where its coordinator does not know the id.
        raised: by how much a commit may have raised the epoch on that cluster.
    """
    by_identity = {each.identity: each for each in still_open}
    steps = [
        _promised(each, prefixes, by_identity.get(each), told.get(each.transactional_id), raised)
        for each in checkpoint.promised
    ]
    for each, whose in still_open.items():
        if each.identity in checkpoint.promised:
            continue
        flinks = any(is_of_flink(each.transactional_id, prefix) for prefix in prefixes)
        reason = f"not promised by checkpoint {checkpoint.number}" if flinks else f"of {whose}"
        steps.append(
            _step(
                ForeignAction.ABORT if flinks else ForeignAction.LEAVE, each.identity, reason, each
            )
        )
    order = list(ForeignAction)
    steps.sort(key=lambda step: (order.index(step.action), step.identity))
    return ForeignPlan(location, checkpoint.number, tuple(sorted(prefixes)), tuple(steps))


def _promised(
    promise: TransactionIdentity,
    prefixes: Collection[str],
    still_open: OpenTransaction | None,
    told: CoordinatorState | None,
    raised: Collection[int],
) -> ForeignStep:
    if not any(is_of_flink(promise.transactional_id, prefix) for prefix in prefixes):
        return _step(ForeignAction.LEAVE, promise, "promised; its prefix was not named")
    if still_open is not None:
        return _step(ForeignAction.COMMIT, promise, "promised, and open", still_open)
    if told is None:
        return _step(ForeignAction.LOST, promise, "its coordinator does not know it any more")
    # A producer that takes the id raises its epoch, too: its commit is not the promised one's.
    above = told.producer_epoch - promise.producer_epoch
    same = told.producer_id == promise.producer_id
    if same and above in raised and told.state in _COMMITTED:
        return _step(ForeignAction.COMMITTED, promise, "committed already")
    if same and above in {0, 1} and told.state in _ABORTED:  # every timeout raises the epoch
        return _step(ForeignAction.LOST, promise, "aborted: by its timeout, or whoever took its id")
    found = f"{told.state}, producer {told.producer_id}, epoch {told.producer_epoch}"
    return _step(ForeignAction.LOST, promise, f"not known: its id has been used since ({found})")


def _step(
    action: ForeignAction,
    identity: TransactionIdentity,
    reason: str,
    still_open: OpenTransaction | None = None,
) -> ForeignStep:
    return ForeignStep(
        action,
        identity.transactional_id,
        identity.producer_id,
        identity.producer_epoch,
        reason,
        still_open.started_at_ms if still_open else 0,
        still_open.partitions if still_open else (),
    )
