"""``start_exactly_once``: refuse what cannot work, recover, then start the query.

A start asks its options in the order that the protocol needs (docs/protocol.md): what needs no
connection, what needs one, whether somebody has called it off; then it takes the term, which stops
a running driver, and asks again what that driver may have changed before it could see the term.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from airflow_eos.core.arguments import (
    GUARANTEES,
    Having,
    Instance,
    Place,
    Settings,
    Word,
    checked,
)
from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog, standing_request
from airflow_eos.core.checkpoint.drain import Beginning, request_to
from airflow_eos.core.checkpoint.heartbeat import STARTED_BY, StartedBy
from airflow_eos.core.checkpoint.mending import damage, lost_beginning, newest_known
from airflow_eos.core.checkpoint.repartition import require_finished
from airflow_eos.core.checkpoint.standby import standbys
from airflow_eos.core.delivery.batch_timeout import PolicyOption, chosen_trigger, retaining
from airflow_eos.core.delivery.class_archive import leave_later
from airflow_eos.core.delivery.committed_offsets import CommittedOffsets
from airflow_eos.core.delivery.exactly_once import ExactlyOnce
from airflow_eos.core.delivery.input_check import InputCheck
from airflow_eos.core.delivery.observed import observed_store, observer_of
from airflow_eos.core.delivery.outputs import as_one
from airflow_eos.core.delivery.own_output import OwnOutput
from airflow_eos.core.delivery.policy import CheckpointPolicy
from airflow_eos.core.delivery.query import ExactlyOnceQuery, GuardedBatch
from airflow_eos.core.delivery.rehearsal import rehearse_if_told
from airflow_eos.core.delivery.source import QueryInput, beside, session_of
from airflow_eos.core.delivery.spark_session import (
    QuerySettings,
    absolute,
    require_startable,
    trigger_interval,
    warn_where_it_is_lost,
    warn_where_two_can_plan,
)
from airflow_eos.core.delivery.standby import follow
from airflow_eos.core.delivery.start_option import GuaranteeOption, Start
from airflow_eos.core.delivery.weaker_guarantees import AtLeastOnce, AtMostOnce
from airflow_eos.core.delivery.workers import are_beside, meanwhile
from airflow_eos.errors import CalledOffError, ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_eos.core.delivery.outputs import Output
    from airflow_eos.core.delivery.port import BatchFunction, OffsetCommitTarget, Sink
    from airflow_eos.core.delivery.source import OwnSource
    from airflow_eos.core.protocol.decision import Guarantee


_GROUP = Having(what="a ConsumerGroup", name="connected")
_SINK = Having(what="a sink, such as KafkaSink, or a list of outputs", name="bound", several=True)


@checked
def start_exactly_once(
    df: DataFrame | OwnSource,
    sink: Annotated[Sink | Sequence[Output], _SINK],
    *,
    checkpoint_location: Place,
    trigger: Mapping[str, Any] | None = None,
    output_mode: str = "append",
    query_name: str | None = None,
    guarantee: Annotated[Guarantee, Word(words=GUARANTEES)] = "exactly_once",
    storage_options: Annotated[Mapping[str, str], Settings()] | None = None,
    policy: Annotated[CheckpointPolicy, Instance(kind="CheckpointPolicy")] | None = None,
    consumer_group: Annotated[OffsetCommitTarget, _GROUP] | None = None,
    standby: bool = False,
    reads_own_output: bool = False,
) -> ExactlyOnceQuery:
    """Start a streaming query whose rows a ``read_committed`` reader gets exactly once.

    Args:
        df: a streaming DataFrame; for Kafka with the columns value, and optionally key, topic,
            partition, headers, timestamp. Or an :class:`~airflow_eos.sources.ArrowKafkaSource`.
        sink: where the rows go, and within which times; or several outputs, which get their rows
            all or none.
        checkpoint_location: Spark's checkpoint; the decisions are kept in ``eos/`` below it. A
            local path, or a URL that obstore opens (s3, gs, az).
        trigger: ``{"processingTime": "1 second"}`` (the default) or ``{"availableNow": True}``.
        output_mode: Spark's output mode.
        query_name: Spark's query name.
        guarantee: ``exactly_once``; ``at_least_once``: rows are visible at once and possibly
            again after a crash; ``at_most_once``: at once, possibly missing after a crash.
        storage_options: for the object store (region, endpoint, credentials).
        policy: interval, pause and timeout of batches, and how many are kept.
        consumer_group: a :class:`~airflow_eos.sinks.ConsumerGroup` that shows how far the pipeline
            is, always the same for one checkpoint; only with ``exactly_once``.
        standby: where a driver of this checkpoint runs, stand by until it has ended, warm and
            examined, and start then; only with ``exactly_once``. See docs/standby.md.
        reads_own_output: let the query read a topic or folder that it writes to, which is refused
            otherwise.

    Returns:
        The running query; ``awaitTermination`` raises the error that ended it.

    Raises:
        ConfigurationError: an argument, a column or a source cannot work.
        TimeoutBudgetError: the timeouts do not fit together or the broker.
        OwnershipError: the checkpoint or the prefix belongs to another pipeline.
        TopicError, KafkaUnavailableError: the sink's topic or cluster is not there.
        DecisionNeededError: recovery found what only a person may decide.
        CalledOffError: this driver is not needed as a standby any more.
    """
    if standby and guarantee != "exactly_once":
        raise ConfigurationError(
            f"standby goes with guarantee 'exactly_once' (found {guarantee!r}): a standby may take "
            "a driver for dead that lives, and terms and decisions alone keep both exact."
        )
    policy = policy or CheckpointPolicy()
    trigger = chosen_trigger(trigger, policy)
    trigger_interval(trigger)
    location = absolute(session_of(df), checkpoint_location)
    return start_query(
        df,
        sink,
        QuerySettings(location, storage_options, trigger, policy, output_mode, query_name),
        guarantee=guarantee,
        consumer_group=consumer_group,
        standby=standby,
        reads_own_output=reads_own_output,
    )


def start_query(
    df: DataFrame | OwnSource,
    sink: Sink | Sequence[Output],
    settings: QuerySettings,
    *,
    guarantee: Guarantee = "exactly_once",
    consumer_group: OffsetCommitTarget | None = None,
    standby: bool = False,
    reads_own_output: bool = False,
) -> ExactlyOnceQuery:
    """Start a query with these settings; see :func:`start_exactly_once`."""
    spark, location = session_of(df), settings.checkpoint_location
    rehearse_if_told(df, sink, spark, settings)

    def examined(of_first: Beginning | None = None) -> Start:
        store = CheckpointStore.open(location, storage_options=settings.storage_options)
        observer = observer_of(store.location)
        store = observed_store(store, observer)
        began = of_first or Beginning.now(store)
        read = QueryInput.of(df, store, guarantee)
        bound = beside(read.own, as_one(sink, guarantee).bound(store))
        start = Start(spark, store, settings, read, bound, observer, began)
        offsets = CommittedOffsets(consumer_group)
        own = OwnOutput(start.sink, wanted=reads_own_output)
        checked = InputCheck(own)
        start.options = (offsets, own, checked, PolicyOption(checked))
        start.guarantee = guarantee_of(guarantee, checked, offsets)
        examine(start, asked_before=of_first is not None)
        return start

    return follow(examined, admit, run, require_not_cancelled) if standby else run(examined())


def guarantee_of(
    name: Guarantee, checked: InputCheck, offsets: CommittedOffsets
) -> GuaranteeOption:
    """Return the guarantee of that name; only exactly once keeps offsets."""
    if name == "exactly_once":
        return ExactlyOnce(checked, offsets)
    return AtLeastOnce(checked) if name == "at_least_once" else AtMostOnce()


def examine(start: Start, *, asked_before: bool) -> None:
    """Refuse what cannot work before anything is opened, and ask the workers.

    They answer while connections are opened: they take seconds, and write nothing. Those that were
    ``asked_before`` and are kept, as a cluster's are, need not answer again.
    """
    for option in start.options:
        option.examine(start)
    if not asked_before or are_beside(start.spark):
        start.workers_answer = meanwhile(partial(start.sink.check, start.spark))
    require_startable(start.sink.rows(start.read.frame), start.settings)


def admit(start: Start) -> None:
    """Ask all that is asked with open connections before the term; a standby asks as well."""
    try:
        for option in start.options:
            option.before_term(start)
        require_readable(start.store)
        start.guarantee.before_term(start)
    finally:
        start.workers_answer()  # if they cannot, that is the error: what they lack we may lack, too


def require_readable(store: CheckpointStore) -> None:
    """Refuse what Spark would stumble over."""
    decisions = DecisionLog(store)
    damage(store, decisions)
    require_finished(store)
    if (lost := lost_beginning(store, decisions, newest_known(store, decisions))) is not None:
        raise lost


def begin(start: Start, after: int | None = None) -> BatchFunction:
    """Refuse, take the term, refuse again, and return the function of the query's batches.

    ``after``: take the term after this one, or none, with a start that was admitted before.
    """
    store, name = start.store, start.sink.guarantee
    start.heartbeat.stood_by = after is not None
    if after is None:
        admit(start)
        if name != "at_least_once":  # which may write twice what two drivers begin
            store.check_create_if_absent()
    warn_where_it_is_lost(store)
    if name != "exactly_once":
        warn_where_two_can_plan(start.spark, store, name)
    start.guarantee.refuse(store)
    require_not_cancelled(store)
    tenure = start.guarantee.take_term(start, after)
    start.guarantee.refuse(store)  # again: who had not seen our term may have come between
    start.heartbeat.start(tenure.term.number)
    for option in start.options:
        option.after_term(start, tenure)
    return start.guarantee.batch(start, tenure)


def run(start: Start, after: int | None = None) -> ExactlyOnceQuery:
    """Take the term, recover, and start Spark's query; see :func:`begin`."""
    with start.resources, retaining(start.spark, start.settings.policy):
        heartbeat = start.heartbeat
        try:
            batch = begin(start, after)
            guarded = GuardedBatch(batch, heartbeat, start.settings.policy.min_pause)
            query = start.settings.started(batch.streamed(start.read.frame), guarded)
            start.plan.of(query)
            heartbeat.follow(query)
            leave_later(start.spark, is_watched=lambda: bool(standbys(start.store)))
        except BaseException as error:
            heartbeat.stop("failed", error)  # or "starting" would count as a sign of life
            raise
        return ExactlyOnceQuery(query, guarded, heartbeat, start.resources.pop_all())


# --- starts that were called off ------------------------------------------------------------------
# Stop a cancelled start before it takes over the checkpoint.
#
# A cluster lets a start wait for its turn. Whoever gave that start up has asked it to end, and has
# mostly started another; the term of the late start would stop the other one, and its recovery seal
# the other's attempt.


def require_not_cancelled(store: CheckpointStore) -> None:
    """Refuse to begin, without a term or a heartbeat, where this very start was asked to end.

    A request to a running driver, or to a term, does not count: this start has no term yet.

    Raises:
        CalledOffError: this start was asked to end.
        CheckpointError: the requests cannot be read.
    """
    identity = StartedBy.of_text(os.environ.get(STARTED_BY))
    if identity is None:
        return
    request = standing_request(store)  # where a former release wrote one
    if request is None or request.submission != identity.submission:
        request = request_to(store, identity.submission, known=True)
    if request is not None:
        raise CalledOffError(
            f"{request.requested_by} has asked this start of the app to end ({request.reason}) "
            f"before it began: it leaves {store.location} to the driver that runs it. Nothing was "
            f"begun, and nothing is lost. {identity} says whether the app is to be started again."
        )
