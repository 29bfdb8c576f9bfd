"""Repair of Spark's files that a power cut, a full disk or a copy has damaged.

Spark syncs none of its files, and a disk or a copy may lose one that was synced. A file that is
empty, cut off, full of NULs, foreign or missing has no answer in it. It is written again where a
decision holds it or another entry proves it. A file that nothing rests on is put aside
(``eos/aside/``), and Spark makes it anew. Any other is lost for good, and the error names the ways
on. Hadoop's sum beside a file on a disk is a witness: a file that it contradicts is not whole; a
sum that is damaged itself says nothing, and is put aside, since Spark would stumble over it.

====================  ============================================================================
``offsets/N``         of a COMMIT decision: its text, byte for byte; of the newest batch, which
                      nobody has promised and Spark has not completed: put aside
``commits/N``         of the newest batch: put aside; the batch is run again, and its decision keeps
                      its rows from coming twice. Of the batch before a planned one: complete, or
                      Spark had not planned that, and its watermark stands there
``metadata``          the query's random id: its copy in ``eos/``, or else one of our making:
                      from 4.2 on Spark makes none where it finds a log
``sources/<i>/0``     where the first batch began: put aside once that batch is complete; before,
                      no start is let in without it (:func:`lost_beginning`)
====================  ============================================================================
"""

from __future__ import annotations

import re
import uuid
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import cached_property

from airflow_eos.core.checkpoint.backend import (
    ASIDE,
    COMMITS,
    METADATA,
    METADATA_COPY,
    OFFSETS,
    SOURCES,
    STATE_STORES,
)
from airflow_eos.core.checkpoint.decisions import DecisionLog
from airflow_eos.core.checkpoint.layout import batches_in, newest_planned
from airflow_eos.core.checkpoint.mend import Mend
from airflow_eos.core.checkpoint.spark_log import (
    UnknownVersionError,
    kafka_offsets,
    parse_commit,
    parse_kafka_start,
    parse_offsets,
    parse_query_id,
)
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.log import Log
from airflow_eos.core.protocol.decision import Verdict
from airflow_eos.errors import CheckpointFormatError, Remedy

log = Log(__name__)

_NEW = "start on a new checkpoint location"
_MISSING = "is missing"
_OF_ITS_BATCH = re.compile(r"\d+\.(delta|snapshot|zip|changelog)")
"""Name of a state file that is found by its batch alone; with ids it is ``7_<uuid>.delta``."""


def newest_known(store: CheckpointStore, decisions: DecisionLog) -> int | None:
    """Return the newest batch in ``offsets/``, or the one after it whose entry was lost."""
    newest = newest_planned(store)
    return newest if _lost(store, decisions, newest) is None else _after(newest)


def damage(store: CheckpointStore, decisions: DecisionLog) -> tuple[Mend, ...]:
    """Check all files that Spark will read when it starts; return the repairs, change nothing.

    Raises:
        CheckpointFormatError: something is lost for good; the message says what, and the ways on.
        StoreError: the store did not answer.
    """
    look = _Inspection(store, decisions)
    found = {each.path: each for each in look.all()}
    return (*found.values(), *(sums for path, sums in look.sums.items() if path not in found))


def lost_beginning(
    store: CheckpointStore, decisions: DecisionLog, newest: int | None
) -> CheckpointFormatError | None:
    """Return the error where batch 0 is to be run again, and where it began is lost.

    The gate asks this, and :func:`damage` does not: a look at open work can do without.
    """
    if newest is None or newest > 1:
        return None
    return _Inspection(store, decisions).lost_beginning(newest)


def mend(store: CheckpointStore, mends: Iterable[Mend]) -> None:
    """Carry the repairs out; doing it twice, or in two processes, is doing it once.

    Only a driver that has taken its term may put anything aside: one that sleeps before it does
    could take what another has written since. What is written again is the same, whoever does it.
    """
    for each in mends:
        if each.content is None:
            _put_aside(store, each)
            store.delete([beside(each.path)])
        else:
            log.warning("spark_entry_written_again", location=store.location, entry=str(each))
            store.delete([beside(each.path)])
            store.put(each.path, each.content.encode())


def beside(path: str) -> str:
    """Return the path of Hadoop's sum of a local file, where its client looks for one."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.crc" if folder else f".{name}.crc"


def agree(data: bytes, sums: bytes) -> bool | None:
    """Whether ``sums``, one of each part, are those of ``data``; None where they are no sums."""
    size, found = int.from_bytes(sums[4:8], "big"), sums[8:]
    if len(sums) < 8 or not sums.startswith(b"crc\0") or not size:
        return None
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    if len(found) < 4 * len(parts):
        return None
    return found == b"".join(zlib.crc32(part).to_bytes(4, "big") for part in parts)


def _put_aside(store: CheckpointStore, each: Mend) -> None:
    data = store.get(each.path)
    if data is None:
        return
    where = f"{ASIDE}/{each.path}.{uuid.uuid4().hex[:8]}"
    log.warning("spark_entry_put_aside", location=store.location, entry=str(each), where=where)
    store.put(where, data)
    store.delete([each.path])


class _Inspection:
    """One check; see :func:`damage`. A driver may go on meanwhile: commits are listed first."""

    def __init__(self, store: CheckpointStore, decisions: DecisionLog) -> None:
        self.sums: dict[str, Mend] = {}
        self._store = store
        self._decisions = decisions

    @cached_property
    def _complete(self) -> set[int]:
        return batches_in(self._store, COMMITS)

    def all(self) -> Iterator[Mend]:
        complete = self._complete
        newest = newest_planned(self._store)
        lost = _lost(self._store, self._decisions, newest)
        if lost is not None:
            newest = _after(newest)
        if max(complete, default=-1) > (-1 if newest is None else newest):
            raise self._gone(max(complete), "is missing, though the batch is complete")
        if found := self._wrong(METADATA, parse_query_id, required=newest is not None):
            kept = not self._wrong(METADATA_COPY, parse_query_id, required=True)
            made = uuid.uuid5(uuid.NAMESPACE_URL, self._store.location)
            yield Mend(
                path=METADATA,
                found=found,
                content=self._text(METADATA_COPY) if kept else f'{{"id":"{made}"}}',
                because=f"as {METADATA_COPY} has it" if kept else "and the query has a new id",
            )
        if newest is None:
            return
        over = self._first_is_complete(newest)
        for path, found in self._beginnings(newest, required=False):
            if over:
                because = "as the batch that began there is complete"
                yield Mend(path=path, found=found, because=because)
        watermark_ms = yield from self._entry(newest, newest)
        if newest:
            yield from self._entry(newest - 1, newest)
        if newest > 1 and not self._is_known(newest):  # put aside, so Spark reads the two before
            yield from self._entry(newest - 2, newest)
        yield from self._commits(newest, watermark_ms)

    def lost_beginning(self, newest: int) -> CheckpointFormatError | None:
        """See :func:`lost_beginning`."""
        if self._first_is_complete(newest):
            return None
        for path, found in self._beginnings(0, required=True):
            folder = path.removesuffix("/0")
            return CheckpointFormatError(
                f"{self._store.location}/{path} {found}: where the first batch began is lost "
                "for good, and the batch is not complete.",
                Remedy(
                    change=f"move the folder {folder} out of {self._store.location}",
                    start=True,
                    costs="the first batch begins where startingOffsets says now: with "
                    "'latest', rows that came since the first start are not read",
                ),
            )
        return None

    def _first_is_complete(self, newest: int) -> bool:
        """Whether batch 0 is not run again, so that nobody reads where it began."""
        if newest > 1 or not self._wrong(f"{COMMITS}/0", parse_commit, required=True):
            return True
        # Complete where Spark had planned batch 1, unless that plan is not known and put aside.
        return newest == 1 and self._is_known(newest)

    def _is_known(self, batch: int) -> bool:
        """Whether the batch's offsets are known, by its entry or by its decision."""
        if decided_offsets(self._decisions, batch) is not None:
            return True
        wrong = self._wrong(f"{OFFSETS}/{batch}", parse_offsets, required=True)
        return not (wrong or self._cut(batch))

    def _beginnings(self, batch: int, *, required: bool) -> Iterator[tuple[str, str]]:
        """Yield each ``sources/<i>/0`` that is wrong, and how.

        That of a Kafka source, Spark's or ours, holds offsets, and a source that has its folder had
        one; other sources keep there what they like.
        """
        ends = self._ends(batch) or self._ends(batch - 1)
        for source in self._store.folders(SOURCES):
            path = f"{SOURCES}/{source}/0"
            of_kafka = kafka_offsets(ends.get(source) or "") is not None
            parse: Callable[[bytes, str], object] = parse_kafka_start if of_kafka else _anything
            if found := self._wrong(path, parse, required=required and of_kafka):
                yield path, found

    def _ends(self, batch: int) -> dict[str, str | None]:
        """Return the end offsets of a batch, by source; empty where nobody can tell."""
        text = decided_offsets(self._decisions, batch) or self._text(f"{OFFSETS}/{batch}")
        try:
            return parse_offsets(text.encode(), OFFSETS).ends
        except CheckpointFormatError:
            return {}

    def _entry(self, batch: int, newest: int) -> Generator[Mend, None, int | None]:
        """Yield the repair of ``offsets/N``; return its watermark, where that is known."""
        path = f"{OFFSETS}/{batch}"
        found = self._wrong(path, parse_offsets, required=True)
        decided = decided_offsets(self._decisions, batch)
        if decided is not None:
            if found or self._text(path) != decided:
                yield Mend(
                    path=path,
                    found=found or "is not what the batch was decided with",
                    content=decided,
                    because=f"as the COMMIT decision of batch {batch} has it",
                    readable=not found,
                )
            return _watermark(decided)
        found = found or self._cut(batch)
        if not found:
            return _watermark(self._text(path))
        if batch != newest or self._store.head(f"{COMMITS}/{batch}") is not None:
            raise self._gone(batch, found)
        yield Mend(path=path, found=found, because="as nobody has promised anything of its batch")
        return None

    def _cut(self, batch: int) -> str:
        """Say how an entry is cut off at the end of a line; only the entry before shows that."""
        lines, before = (
            self._text(f"{OFFSETS}/{each}").splitlines() for each in (batch, batch - 1)
        )
        if lines[:1] == before[:1] == ["v1"] and len(lines) < len(before):
            return f"has {len(lines) - 2} sources, the batch before had {len(before) - 2}"
        return ""

    def _commits(self, newest: int, watermark_ms: int | None) -> Iterator[Mend]:
        """Yield repairs of the newest ``commits/N``, and of the one before while N is in flight."""
        again = "as the batch is run again: what it has decided keeps its rows from coming twice"
        path = f"{COMMITS}/{newest}"
        if found := self._wrong(path, parse_commit):
            yield Mend(path=path, found=found, because=again)
        elif self._store.head(path) is not None:
            return
        if newest == 0:
            return
        path = f"{COMMITS}/{newest - 1}"
        found = self._wrong(path, parse_commit, required=True)
        if not found:
            return
        if watermark_ms is None:
            # Nothing of the newest batch is known, so the one before is the newest.
            yield Mend(path=path, found=found, because=again)
            earlier = yield from self._entry(newest - 1, newest)
            if newest > 1:
                yield from self._entry(newest - 2, newest)
            yield from self._commits(newest - 1, earlier)
            return
        if self._names_state():
            raise CheckpointFormatError(
                f"{self._store.location}/{path} {found}: the batch is complete, and what Spark "
                "noted with it (the watermark, the ids of its state) is lost for good.",
                Remedy(change=f"restore {path} from a copy of the checkpoint", start=True),
                Remedy(
                    change=f"{_NEW}, with startingOffsets of the end of batch {newest - 1}",
                    start=True,
                    costs="the query's state is built anew",
                ),
            )
        yield Mend(
            path=path,
            found=found,
            content=f'v1\n{{"nextBatchWatermarkMs":{watermark_ms}}}',
            because=f"as batch {newest} was planned after it, with its watermark",
        )

    def _names_state(self) -> bool:
        """Whether commits name the state that goes with them (Spark's checkpoint format 2)."""
        texts = [self._text(f"{COMMITS}/{batch}") for batch in self._complete]
        whole = [text for text in texts if text.startswith("v")]
        if whole:
            return any('"stateUniqueIds":{"' in text for text in whole)
        names = [path.rpartition("/")[2] for path in self._store.below(STATE_STORES)]
        return bool(names) and not any(map(_OF_ITS_BATCH.fullmatch, names))

    def _gone(self, batch: int, found: str) -> CheckpointFormatError:
        """Return the error for a complete batch's lost entry that no COMMIT decision has."""
        return CheckpointFormatError(
            f"{self._store.location}/{OFFSETS}/{batch} {found}. Where batch {batch} ended is lost "
            "for good: no COMMIT decision has it.",
            Remedy(change=f"restore {OFFSETS}/{batch} from a copy of the checkpoint", start=True),
            Remedy(
                change=f"{_NEW}, with startingOffsets of the end of the newest batch that is known",
                start=True,
                costs=f"rows of batch {batch} come twice, and the query's state is built anew",
            ),
        )

    def _wrong(
        self, path: str, parse: Callable[[bytes, str], object], *, required: bool = False
    ) -> str:
        """Say what is wrong with a file; empty where nothing is.

        Raises:
            CheckpointFormatError: the file is whole, and of a version that nobody here can read.
        """
        data = self._store.get(path)
        if data is None:
            return _MISSING if required else ""
        if not data:
            return "is empty"
        if not data.strip(b"\0"):
            return "holds NULs alone"
        try:
            parse(data, f"{self._store.location}/{path}")
        except UnknownVersionError:
            raise
        except CheckpointFormatError:
            return f"holds {len(data)} bytes that are cut off or foreign"
        return self._contradicted(path, data)

    def _contradicted(self, path: str, data: bytes) -> str:
        """Say whether the sum that Hadoop's client wrote beside a file on a disk is another's."""
        sums = self._store.get(beside(path)) if self._store.is_on_a_disk else None
        if sums is None:
            return ""
        agrees = agree(data, sums)
        if agrees is None:
            because = "as the file beside it is whole by itself"
            self.sums[path] = Mend(path=beside(path), found="is damaged", because=because)
        return "is not what the sum beside it says" if agrees is False else ""

    def _text(self, path: str) -> str:
        return (self._store.get(path) or b"").decode("utf-8", errors="replace")


def decided_offsets(decisions: DecisionLog, batch: int) -> str | None:
    """Return ``offsets/N`` as the batch was promised with; None where nobody promised it."""
    decided = decisions.of_batch(batch)
    return next((each.offsets for each in decided if each.verdict is Verdict.COMMIT), None)


def _lost(store: CheckpointStore, decisions: DecisionLog, newest: int | None) -> Mend | None:
    """Return the repair of the next entry, whose batch was decided after a complete one.

    One entry alone: where more are missing, an older copy was put back.
    """
    after = _after(newest)
    decided = decided_offsets(decisions, after)
    if decided is None or (newest is not None and store.head(f"{COMMITS}/{newest}") is None):
        return None
    return Mend(
        path=f"{OFFSETS}/{after}",
        found=_MISSING,
        content=decided,
        because=f"as the COMMIT decision of batch {after} has it",
    )


def _after(newest: int | None) -> int:
    return 0 if newest is None else newest + 1


def _anything(_data: bytes, _where: str) -> None:
    """Accept a file whose form nobody here knows: only that it holds something is asked."""


def _watermark(text: str | None) -> int | None:
    """Return the watermark of an entry; None where it has none that can be read."""
    try:
        return None if text is None else parse_offsets(text.encode(), OFFSETS).watermark_ms
    except CheckpointFormatError:
        return None
