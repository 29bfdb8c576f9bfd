"""A query that reads what it writes: each batch gives the next one more rows, without end.

A topic is told by its id, which no two topics of any cluster share: so two clusters may have topics
of one name, and one cluster may be reached by two addresses. Folders are told by their paths.
"""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_eos.core.checkpoint.locations import LOCAL, located
from airflow_eos.core.delivery.outputs import OneSink, Outputs, WrappedSink
from airflow_eos.core.delivery.port import innermost
from airflow_eos.core.delivery.start_option import StartOption
from airflow_eos.errors import ConfigurationError, Remedy

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import DataFrame

    from airflow_eos.core.delivery.port import BatchSink, TaskReport
    from airflow_eos.core.delivery.start_option import Start

_BRACES = re.compile(r"\{([^{}]*)\}")


class OwnOutput(StartOption):
    """The places that a query's outputs write to, held against those that it reads.

    Args:
        sink: the sink, or the outputs.
        wanted: whether the query is to read its own output.
    """

    def __init__(self, sink: OneSink | Outputs, *, wanted: bool) -> None:
        every: list[Any] = (
            [each.sink for each in sink.outputs] if isinstance(sink, Outputs) else [sink.sink]
        )
        # Of an output whose rows are kept, the sink inside.
        self._sinks = () if wanted else tuple(innermost(each) for each in every)
        self._topics = {each.name: topics_of(()) for each, topics_of in self._of_topics()}
        self._ids: dict[tuple[str, str], str] = {}

    def watched(self, ids: Callable[[], Mapping[str, str]]) -> Callable[[], Mapping[str, str]]:
        """Return the question for topic → id of a source, with the answer held against ours.

        An output's cluster is asked for the ids of those topics alone whose names are read.
        """

        def asked() -> Mapping[str, str]:
            found = ids()
            ours = self._written(found)
            if both := sorted(name for name, its in found.items() if its in ours):
                _refuse(f"topic {', '.join(map(repr, both))}")
            return found

        return asked

    def _written(self, names: Collection[str]) -> set[str]:
        """Return the ids of topics of these names that outputs write to; one without is left out.

        Raises:
            KafkaError: an output's cluster does not answer.
        """
        for each, _ in self._of_topics():
            new = [
                n for n in names if n in self._topics[each.name] and (each.name, n) not in self._ids
            ]
            if new:
                told = each.topic_ids(new)
                self._ids |= {(each.name, topic): told.get(topic, "") for topic in new}
        return set(self._ids.values()) - {""}

    def _of_topics(self) -> Iterator[tuple[Any, Callable[..., set[str]]]]:
        for each in self._sinks:
            if (topics_of := getattr(each, "topics_of", None)) is not None:
                yield each, topics_of

    def before_term(self, start: Start) -> None:
        """Refuse a source of files, or of a table, in the folder of an output, or around it."""
        for sink in self._sinks:
            written = getattr(sink, "written_folder", None)
            for source in start.read.sources:
                if written and source.folder and _meet(str(source.folder), written):
                    _refuse(f"folder {written}")

    def wrap(self, _start: Start, sink: BatchSink) -> BatchSink:
        """Return ``sink``; where rows name their topics, those of each batch are held, too."""
        return _Noted(sink, self) if self._sinks else sink

    def note(self, reports: Sequence[TaskReport]) -> None:
        """Learn which topics a prepared batch has rows in."""
        for each, topics_of in self._of_topics():
            works = [r.work for r in reports if r.work and r.participant == each.name]
            self._topics[each.name] |= topics_of(works)


@dataclass(frozen=True)
class _Noted(WrappedSink):
    own: OwnOutput

    def prepare(self, rows: DataFrame, *, only: Collection[int] | None = None) -> list[TaskReport]:
        """See :meth:`BatchSink.prepare`."""
        reports = self.sink.prepare(rows, only=only)
        self.own.note(reports)
        return reports


def _refuse(target: str) -> NoReturn:
    raise ConfigurationError(
        f"The query reads its own output, {target}: each row that is written would be read and "
        "written again, without end. Nothing of it was made visible.",
        Remedy(change="let the query read, or write, elsewhere (a narrower pattern)", start=True),
        Remedy(
            change="give start_exactly_once reads_own_output=True",
            start=True,
            costs="rows go round for ever, unless the query leaves out those that it wrote",
        ),
    )


def _meet(read: str, written: str) -> bool:
    """Whether one of two folders is the other or in it; ``read`` may be a glob of Hadoop's."""
    ours = _parts(written, is_real=True)
    return any(
        all(fnmatch.fnmatchcase(o, r) for o, r in zip(ours, theirs, strict=False))
        for one in _expanded(read)
        for theirs in _read_by(one.replace("[^", "[!"))
    )


def _read_by(one: str) -> Iterator[list[str]]:
    """Yield the parts of a glob, and of each folder on a disk that it finds: it may be a link."""
    yield _parts(one)
    found = located(one).local
    if found is not None:
        for folder in Path("/").glob(str(found.relative_to("/"))):
            if folder.is_dir():
                yield _parts(glob.escape(str(folder.resolve())))


def _parts(location: str, *, is_real: bool = False) -> list[str]:
    """Return scheme and authority, and the folders of a path; ``is_real``: without links."""
    found = located(location)
    if found.local is not None:
        return [LOCAL, *(found.local.resolve() if is_real else found.local).parts]
    scheme, _, rest = str(found).partition("://")
    return [scheme.removesuffix("a") if scheme == "s3a" else scheme, *rest.strip("/").split("/")]


def _expanded(glob: str) -> list[str]:
    """Return the globs without braces that ``{a,b}`` stands for."""
    braces = _BRACES.search(glob)
    if braces is None:
        return [glob]
    before, after = glob[: braces.start()], glob[braces.end() :]
    return [each for one in braces[1].split(",") for each in _expanded(before + one + after)]
