"""The input of a start, held against what the checkpoint knows of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from airflow_eos.core.checkpoint.inputs import require_computed_alike
from airflow_eos.core.checkpoint.offsets import require_same_sources
from airflow_eos.core.checkpoint.topics import (
    input_change,
    lost_in_flight,
    same_topics_watched,
    warn_of_lost_rows,
)
from airflow_eos.core.delivery.start_option import StartOption

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint import CheckpointStore, Tenure
    from airflow_eos.core.checkpoint.mend import Mend
    from airflow_eos.core.checkpoint.topics import LostInput, TopicsRead
    from airflow_eos.core.delivery.own_output import OwnOutput
    from airflow_eos.core.delivery.start_option import Start


class InputCheck(StartOption):
    """The topics that the sources read, which are not the query's ``own`` output."""

    def __init__(self, own: OwnOutput) -> None:
        self._own = own
        self._topics: Sequence[TopicsRead] = ()
        self.look: Callable[[], None] = lambda: None
        """Refuses, with a ``TopicError``, a topic that was made again since the first look."""

    def before_term(self, start: Start) -> None:
        """Refuse an input that has changed; ask the clusters of its topics."""
        self._topics = topics = start.read.topics(start.spark, start.resources)
        ids = [self._own.watched(each.ids) for each in topics]
        self.look = same_topics_watched(start.store, ids)
        warn_of_lost_rows(topics)
        # Asked once for both: after the term, rows wait for the answer.
        begun = [replace(each, begins=cache(each.begins)) for each in topics]
        available_now = "availableNow" in start.settings.trigger
        self._change = partial(input_change, start.store, begun, available_now=available_now)
        self._change().require_accepted()
        # Before the term: Spark refuses some changed sources after it, others never.
        require_same_sources(start.store, [each.topics for each in start.read.sources])
        require_computed_alike(start.store, start.read.reads)

    def after_term(self, _start: Start, _tenure: Tenure) -> None:
        """Refuse a topic that was made again meanwhile."""
        self.look()

    def mends(self) -> Iterable[Mend]:
        """Return what mends entries of Spark's log that no source can read any more."""
        return self._change().mends()

    def lost(self, store: CheckpointStore) -> LostInput:
        """Return what is gone of the input of the batch in flight."""
        return lost_in_flight(store, self._topics)
