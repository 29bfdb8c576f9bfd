"""``start_exactly_once``: refuse what cannot work, recover, then start the query."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast, get_args

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog, standing_request
from airflow_eos.core.checkpoint.cuts import CutWriter
from airflow_eos.core.checkpoint.decisions import PerishableRows
from airflow_eos.core.checkpoint.heartbeat import STARTED_BY, Beginning, StartedBy, request_to
from airflow_eos.core.checkpoint.inputs import BatchInput, require_computed_alike
from airflow_eos.core.checkpoint.mending import damage, lost_beginning, newest_known
from airflow_eos.core.checkpoint.offsets import OFFSET_LOG_2, require_same_sources
from airflow_eos.core.checkpoint.rehearsal import RehearsalRequest
from airflow_eos.core.checkpoint.repartition import require_finished
from airflow_eos.core.checkpoint.rulings import read_acceptance, read_rulings
from airflow_eos.core.checkpoint.topics import (
    input_change,
    lost_in_flight,
    same_topics_watched,
    warn_of_lost_rows,
)
from airflow_eos.core.closing import closed_on_error
from airflow_eos.core.delivery.batch import Authority, ExactlyOnceBatch, RunningPlan
from airflow_eos.core.delivery.batch_timeout import (
    GovernedSink,
    check_policy,
    chosen_trigger,
    retained_batches,
    retaining,
)
from airflow_eos.core.delivery.observed import (
    observed_decisions,
    observed_participant,
    observed_store,
    observer_of,
)
from airflow_eos.core.delivery.outputs import InPlanSink, OneSink, Output, Outputs
from airflow_eos.core.delivery.own_output import OwnOutput
from airflow_eos.core.delivery.policy import CheckpointPolicy
from airflow_eos.core.delivery.port import PROGRESS, Guarantee
from airflow_eos.core.delivery.query import ExactlyOnceQuery, GuardedBatch, HeartbeatWriter
from airflow_eos.core.delivery.rehearsal import Rehearsal
from airflow_eos.core.delivery.replay import ReplayChecks, promise_in_flight
from airflow_eos.core.delivery.source import (
    OwnSource,
    active_session,
    beside,
    check_sources,
    is_own,
    reads,
    require_one_cluster,
    tell_of_unheld,
    topics_read,
)
from airflow_eos.core.delivery.spark_session import (
    absolute,
    classic_session,
    deploy_mode,
    namespace,
    stateful,
    trigger_interval,
    warn_where_it_is_lost,
    warn_where_two_can_plan,
)
from airflow_eos.core.delivery.spill import tell_pipeline
from airflow_eos.core.delivery.standby import WARM_UPS, MadeReady, StandingBy, stand_by, warm_up
from airflow_eos.core.delivery.takeover import Admitted, record_drained, require_admitted, take_over
from airflow_eos.core.delivery.task import collected
from airflow_eos.core.delivery.weaker_guarantees import (
    AtLeastOnceBatch,
    AtMostOnceBatch,
    VisibilityMarkers,
    may_be_visible,
    require_never_exact,
    require_no_group,
    require_not_spent,
    require_nothing_promised,
    take_turn,
)
from airflow_eos.core.delivery.workers import WarmUps, kept_warm
from airflow_eos.core.protocol.group import reach_all
from airflow_eos.errors import CalledOffError, ConfigurationError, Remedy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.core.checkpoint import Phase
    from airflow_eos.core.checkpoint.mending import Mend
    from airflow_eos.core.checkpoint.topics import InputChange, TopicsRead
    from airflow_eos.core.delivery.observer import Observer
    from airflow_eos.core.delivery.port import BatchSink, Progress, ProgressPlace, Sink
    from airflow_eos.core.delivery.source import OpenedSource, StreamSource
    from airflow_eos.core.protocol.decision import SourceRead
    from airflow_eos.core.protocol.participant import Participant

_REFUSED_SETTINGS = {
    "spark.sql.streaming.offsetLog.formatVersion": ("2", OFFSET_LOG_2),
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": (
        "true",
        "Spark 4.2.0 goes by the positions of sources all the same, unless it writes offset log 2; "
        + OFFSET_LOG_2,
    ),
    "spark.sql.streaming.queryEvolution.enableSinkEvolution": (
        "true",
        "Spark then starts a query only if its sink has a name, and foreachBatch gives it none",
    ),
}
"""Settings of Spark 4.2: the value that is refused, and why."""
_OUTPUT_MODES = {"append": "Append", "update": "Update", "complete": "Complete"}


def require_startable(rows: DataFrame, *, output_mode: str, query_name: str | None) -> None:
    """Refuse a query that Spark would refuse to start.

    Args:
        rows: what the sink is going to write of the streaming query.
        output_mode: Spark's output mode.
        query_name: Spark's query name.

    Raises:
        ConfigurationError: Spark has no such output mode, or does not run this query with it; or
            a query of this name is running; or a setting that no start gets past.
    """
    spark = rows.sparkSession
    if output_mode.lower() not in _OUTPUT_MODES:
        raise ConfigurationError(
            f"output_mode {output_mode!r}: expected {', '.join(map(repr, _OUTPUT_MODES))}."
        )
    for name, (value, why) in _REFUSED_SETTINGS.items():
        if str(spark.conf.get(name, None)).lower() == value:
            raise ConfigurationError(
                f"{name} is {value}: {why}.", Remedy(change=f"leave {name} away", start=True)
            )
    if query_name and any(query.name == query_name for query in spark.streams.active):
        raise ConfigurationError(
            f"A query with the name {query_name!r} is running in this Spark session, and goes on. "
            "Stop it first (drain), or choose another query_name."
        )
    if spark.conf.get("spark.sql.streaming.unsupportedOperationCheck", "true") != "false":
        _require_supported(spark, rows, output_mode)


def _require_supported(spark: SparkSession, rows: DataFrame, output_mode: str) -> None:
    """Refuse by the check that ``start()`` makes; its call is the same from Spark 2 to 4.2."""
    from pyspark.errors import AnalysisException

    sql = spark._jvm.org.apache.spark.sql  # type: ignore[union-attr]  # noqa: SLF001
    mode = getattr(sql.streaming.OutputMode, _OUTPUT_MODES[output_mode.lower()])()
    plan = rows._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public name for it
    try:
        sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, mode)
    except AnalysisException as error:
        said = str(error).partition("\n")[0]
        raise ConfigurationError(
            f"Spark does not run this query with output_mode {output_mode!r}: {said} Choose "
            "another output_mode, or change the query."
        ) from error


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


# --- the batch function of each guarantee ---------------------------------------------------------
# Make a query's batch function, by its guarantee: refuse, take the term, recover.


def make_batch_function(
    spark: SparkSession,
    sink: OneSink | Outputs,
    store: CheckpointStore,
    governed: Callable[[BatchSink], BatchSink],
    interval: timedelta,
    heartbeat: HeartbeatWriter,
    evaluation: RunningPlan,
    resources: ExitStack,
    consumer_group: ProgressPlace | None = None,
    reading: ReplayChecks | None = None,
    after: int | None = None,
    unreadable: Callable[[], Iterable[Mend]] = tuple,
    reached: _Participants | None = None,
    in_plan: InPlanSink | None = None,
    reads: Sequence[SourceRead] = (),
) -> ExactlyOnceBatch | AtLeastOnceBatch | AtMostOnceBatch:
    """Refuse what cannot work; then take the term, which stops a running driver; then recover.

    ``after``: take the term after this one, or none. ``reached``: participants reached before.
    ``in_plan``: the sink in the query's plan, analysed before. ``reads``: what each source reads.
    """
    warn_where_it_is_lost(store)
    if sink.guarantee != "exactly_once":
        warn_where_two_can_plan(spark, store, sink.guarantee)
    if reached is None:
        _require_readable(store)
    retained = retained_batches(spark)
    driver = _driver(spark)
    if sink.guarantee == "at_least_once":
        return _at_least_once(sink, store, governed, driver, retained, heartbeat, unreadable)
    if sink.guarantee == "at_most_once":
        return _at_most_once(sink, store, governed, driver, retained, heartbeat)
    if reached is None:
        reached = _Participants.of(store, sink, interval, consumer_group, resources)
        store.check_create_if_absent()
    participant, progress = reached.participant, reached.progress
    require_not_spent(store)
    decisions = observed_decisions(store, heartbeat.observer)
    require_not_cancelled(store)
    tenure, offsets = take_over(
        store,
        decisions,
        participant,
        driver=driver,
        on_term=heartbeat.start,
        progress=progress,
        admitted=reached.admitted,
        after=after,
        unreadable=unreadable,
    )
    # Again: a driver of another guarantee that had not seen our term may have begun a batch.
    require_not_spent(store)
    if progress is not None:
        heartbeat.before_stopped = partial(record_drained, tenure, decisions, participant, progress)

    kept = PerishableRows(store, sink.keeping)
    cuts = CutWriter(store, participant, tenure.require, retained)

    def on_phase(batch_id: int, phase: Phase) -> None:
        heartbeat.mark(batch_id, phase)
        if phase == "preparing":
            tell_pipeline(spark, cuts.log.pipeline)
        if phase == "waiting":
            decisions.prune(batch_id - retained)
            kept.prune(batch_id)

    return ExactlyOnceBatch(
        governed(sink if promise_in_flight(store) else in_plan or InPlanSink(sink)),
        observed_participant(participant, heartbeat.observer),
        decisions,
        Authority(tenure, offsets, participant, evaluated_at=evaluation.at),
        rulings=partial(read_rulings, store),
        accepted=partial(read_acceptance, store),
        driver=f"{driver} run {uuid.uuid4().hex[:8]}",
        on_phase=on_phase,
        progress=progress,
        kept=kept,
        reading=reading,
        reads=BatchInput(store, decisions, reads, evaluation).promised,
        cut=cuts.write,
    )


@dataclass(frozen=True)
class _Participants:
    """All participants as one, and what the gate answered where it was asked already."""

    participant: Participant
    progress: Progress | None
    admitted: Admitted | None = None

    @classmethod
    def of(
        cls,
        store: CheckpointStore,
        sink: OneSink | Outputs,
        interval: timedelta,
        consumer_group: ProgressPlace | None,
        resources: ExitStack,
    ) -> _Participants:
        """Reach the participants; ``resources`` closes them."""
        progress = consumer_group.opened(store) if consumer_group is not None else None
        participant = resources.enter_context(closing(_reached(sink, interval, progress)))
        if progress is not None:
            resources.callback(progress.close)
        return cls(participant, progress)


def _driver(spark: SparkSession) -> str:
    """Return this driver's name, as terms and decisions show it to people."""
    return f"driver {spark.sparkContext.applicationId} on {socket.gethostname()}:{os.getpid()}"


def _require_readable(store: CheckpointStore) -> None:
    """Refuse what Spark would stumble over, before the term and with every guarantee."""
    decisions = DecisionLog(store)
    damage(store, decisions)
    require_finished(store)
    if (lost := lost_beginning(store, decisions, newest_known(store, decisions))) is not None:
        raise lost


def _reached(
    sink: OneSink | Outputs, interval: timedelta, progress: Progress | None
) -> Participant:
    """Reach all participants as one; the one that says how far the pipeline is comes last."""
    if progress is None:
        return sink.connect(interval)
    with closed_on_error(progress.participant) as last:
        return reach_all([partial(sink.connect, interval), lambda: last])


def _at_least_once(
    sink: OneSink | Outputs,
    store: CheckpointStore,
    governed: Callable[[BatchSink], BatchSink],
    driver: str,
    retained: int,
    heartbeat: HeartbeatWriter,
    unreadable: Callable[[], Iterable[Mend]],
) -> AtLeastOnceBatch:
    require_no_group(store)
    require_nothing_promised(store)
    require_not_cancelled(store)
    tenure = take_turn(store, driver=driver, unreadable=unreadable)
    require_no_group(store)  # both again: a driver that had not seen our term may have come between
    require_nothing_promised(store)
    heartbeat.start(tenure.term.number)
    return AtLeastOnceBatch(
        governed(InPlanSink(sink)),
        VisibilityMarkers(store),
        tenure,
        retained=retained,
        on_phase=heartbeat.mark,
    )


def _at_most_once(
    sink: OneSink | Outputs,
    store: CheckpointStore,
    governed: Callable[[BatchSink], BatchSink],
    driver: str,
    retained: int,
    heartbeat: HeartbeatWriter,
) -> AtMostOnceBatch:
    store.check_create_if_absent()
    require_never_exact(store)
    require_not_cancelled(store)
    tenure = take_turn(store, driver=driver)
    require_never_exact(store)  # again: a driver that had not seen our term may have come between
    heartbeat.start(tenure.term.number)
    return AtMostOnceBatch(
        governed(sink if may_be_visible(store) else InPlanSink(sink)),
        sink.marks or VisibilityMarkers(store),
        tenure,
        retained=retained,
        on_phase=heartbeat.mark,
    )


# --- start ----------------------------------------------------------------------------------------


def start_exactly_once(
    df: DataFrame | OwnSource,
    sink: Sink | Sequence[Output],
    *,
    checkpoint_location: str,
    trigger: Mapping[str, Any] | None = None,
    output_mode: str = "append",
    query_name: str | None = None,
    guarantee: Guarantee = "exactly_once",
    storage_options: Mapping[str, str] | None = None,
    policy: CheckpointPolicy | None = None,
    consumer_group: ProgressPlace | None = None,
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
    request = partial(
        _StartRequest.of,
        df,
        sink,
        checkpoint_location=checkpoint_location,
        trigger=trigger,
        output_mode=output_mode,
        query_name=query_name,
        guarantee=guarantee,
        storage_options=storage_options,
        policy=policy or CheckpointPolicy(),
        consumer_group=consumer_group,
        reads_own_output=reads_own_output,
    )
    if not standby:
        return request().start()
    if guarantee != "exactly_once":
        raise ConfigurationError(
            f"standby goes with guarantee 'exactly_once' (found {guarantee!r}): a standby may take "
            "a driver for dead that lives, and terms and decisions alone keep both exact."
        )
    first = request()
    standing = StandingBy(
        first.store,
        began=first.began,
        application_id=first.spark.sparkContext.applicationId,
        still_wanted=partial(require_not_cancelled, first.store),
    )
    warm_ups = WarmUps(*[lambda: first.warm_up(again=lambda: bool(warm_ups))] * WARM_UPS)
    # Asked anew when the turn comes: the earlier answers are as old as the wait.
    anew = MadeReady(lambda: request(are_warm=True, began=first.began).asked(), warm_ups)
    with ExitStack() as warm, closing(anew):

        def examine() -> None:
            first.examine()
            check = partial(first.sink.check, first.spark)
            warm.enter_context(kept_warm(check, first=warm_ups))

        return stand_by(
            standing,
            examine=examine,
            start=lambda after: anew.take().start(after=after),
            make_ready=anew.renew,
        )


@dataclass(frozen=True)
class _StartRequest:
    """A start as requested, once it has passed every check that needs no connection."""

    spark: SparkSession
    location: str
    store: CheckpointStore
    began: Beginning
    observer: Observer | None
    read: _Read
    sink: OneSink | Outputs
    trigger: Mapping[str, Any]
    output_mode: str
    query_name: str | None
    policy: CheckpointPolicy
    consumer_group: ProgressPlace | None
    reads_own_output: bool

    @classmethod
    def of(
        cls,
        df: DataFrame | OwnSource,
        sink: Sink | Sequence[Output],
        *,
        checkpoint_location: str,
        trigger: Mapping[str, Any] | None,
        output_mode: str,
        query_name: str | None,
        guarantee: Guarantee,
        storage_options: Mapping[str, str] | None,
        policy: CheckpointPolicy,
        consumer_group: ProgressPlace | None,
        reads_own_output: bool,
        are_warm: bool = False,
        began: Beginning | None = None,
    ) -> _StartRequest:
        """Refuse a start that cannot work; unless ``are_warm``, let the workers import modules.

        ``began``: when the start began that this is the rest of.
        """
        spark = active_session() if is_own(df) else classic_session(cast("DataFrame", df))
        trigger = chosen_trigger(trigger, policy)
        trigger_interval(trigger)
        location = absolute(spark, checkpoint_location)
        told = RehearsalRequest.told()
        if told is not None:
            rehearsal = Rehearsal(told, spark, location, storage_options)
            _rehearse(rehearsal, spark, df, sink, output_mode, query_name)
        store = CheckpointStore.open(location, storage_options=storage_options)
        observer = observer_of(store.location)
        store = observed_store(store, observer)
        began = began or Beginning.now(store)
        read = _read(df, spark, store, guarantee)
        check_policy(policy, guarantee)
        whole = beside(read.own, _one(sink, guarantee).bound(store))
        require_startable(whole.rows(read.frame), output_mode=output_mode, query_name=query_name)
        if not are_warm:
            whole.check(spark)
        if consumer_group is not None:
            require_one_cluster(read.sources)
            _check_progress(read.frame, whole, consumer_group)
        return cls(
            spark,
            location,
            store,
            began,
            observer,
            read,
            whole,
            trigger,
            output_mode,
            query_name,
            policy,
            consumer_group,
            reads_own_output,
        )

    @property
    def interval(self) -> timedelta:
        """The time that the query waits between batches."""
        return trigger_interval(self.trigger)

    def examine(self) -> None:
        """Refuse what a start would refuse before it takes the term; change nothing."""
        self.store.check_create_if_absent()
        with closing(self.asked()):
            self.warm_up()

    def warm_up(self, again: Callable[[], bool] = lambda: False) -> None:
        """Evaluate the newest batch once more, into nothing; see :func:`warm_up`."""
        frame, is_own = self.read.frame, self.read.own is not None
        # The very plan of a start's batches, except that no task writes.
        warm_up(
            self.store,
            frame if is_own else self.sink.tasks(self.sink.rows(frame), only=(), warms=True),
            output_mode=self.output_mode,
            evaluate=None
            if is_own or stateful(frame)
            else lambda tasks: collected(tasks, self.sink.names),
            again=again,
        )

    def asked(self) -> _AskedStart:
        """Ask what a start asks before it writes anything, and keep the connections open.

        For ``exactly_once`` alone: other guarantees have no gate.
        """
        with ExitStack() as resources:
            source = self._input(resources)
            _require_readable(self.store)
            require_not_spent(self.store)
            reached = _Participants.of(
                self.store, self.sink, self.interval, self.consumer_group, resources
            )
            admitted = require_admitted(
                self.store, reached.participant, _driver(self.spark), reached.progress
            )
            reached = replace(reached, admitted=admitted)
            in_plan = InPlanSink.of(self.sink, self.read.frame)
            return _AskedStart(self, source, reached, in_plan, resources.pop_all())

    def _input(self, resources: ExitStack) -> _Input:
        """Look at the sources' topics; refuse an input that has changed."""
        own = OwnOutput(self.sink, wanted=self.reads_own_output)
        own.require_other_folders(self.read.sources)
        topics = self.read.topics(self.spark, resources)
        look = same_topics_watched(self.store, own.watched([each.ids for each in topics]))
        warn_of_lost_rows(topics)
        # Asked once for both: after the term, rows wait for the answer.
        begun = [replace(each, begins=cache(each.begins)) for each in topics]
        change = partial(
            input_change, self.store, begun, available_now="availableNow" in self.trigger
        )
        change().require_accepted()
        self.read.require_same_sources(self.store)
        require_computed_alike(self.store, self.read.reads)
        return _Input(topics, look, change, own)

    def start(
        self, *, after: int | None = None, asked: _AskedStart | None = None
    ) -> ExactlyOnceQuery:
        """Take the term, recover, and start Spark's query. ``after``: see ``take_term``.

        What ``asked`` has asked before the term is not asked once more before it.
        """
        with ExitStack() as resources, retaining(self.spark, self.policy):
            source = self._input(resources) if asked is None else asked.source
            if asked is not None:
                resources.enter_context(asked.resources)
            heartbeat = _heartbeat(self.spark, self.store, self.interval, self.observer, self.began)
            evaluation = RunningPlan()

            def governed(sink: BatchSink) -> BatchSink:
                source.look()
                return GovernedSink(source.own.noting(sink), self.policy.timeout, source.look)

            try:
                batch = make_batch_function(
                    self.spark,
                    self.sink,
                    self.store,
                    governed,
                    self.interval,
                    heartbeat,
                    evaluation,
                    resources,
                    self.consumer_group,
                    ReplayChecks(
                        partial(stateful, self.read.frame),
                        partial(lost_in_flight, self.store, source.topics),
                    ),
                    after,
                    lambda: source.change().mends(),
                    None if asked is None else asked.reached,
                    None if asked is None else asked.in_plan,
                    self.read.reads,
                )
                streamed = batch.streamed(self.read.frame)
                heartbeat.start()
                run = GuardedBatch(batch, heartbeat, self.policy.min_pause)
                writer = (
                    streamed.writeStream.outputMode(self.output_mode)
                    .foreachBatch(run)
                    .option("checkpointLocation", self.location)
                    .trigger(**self.trigger)
                )
                name = self.query_name
                query = (writer.queryName(name) if name else writer).start()
                evaluation.of(query)
                heartbeat.follow(query)
            except BaseException as error:
                heartbeat.stop("failed", error)  # or "starting" would count as a sign of life
                raise
            return ExactlyOnceQuery(query, run, heartbeat, resources.pop_all())


class _Input(NamedTuple):
    """What the sources read: the topics, that they are the same, what has changed, what is ours."""

    topics: Sequence[TopicsRead]
    look: Callable[[], None]
    change: Callable[[], InputChange]
    own: OwnOutput


@dataclass(frozen=True)
class _AskedStart:
    """A start that is let in for now; only the term tells whether it still is."""

    request: _StartRequest
    source: _Input
    reached: _Participants
    in_plan: InPlanSink
    resources: ExitStack

    def start(self, *, after: int) -> ExactlyOnceQuery:
        """See :meth:`_StartRequest.start`."""
        return self.request.start(after=after, asked=self)

    def close(self) -> None:
        """Close the connections and clients that ``asked`` opened."""
        self.resources.close()


def _rehearse(
    rehearsal: Rehearsal,
    spark: SparkSession,
    df: DataFrame | OwnSource,
    sink: Sink | Sequence[Output],
    output_mode: str,
    query_name: str | None,
) -> NoReturn:
    """Rehearse on a copy, into nothing: do what a start does before it touches a system."""
    read = _read(df, spark, rehearsal.store, "exactly_once")
    read.require_same_sources(rehearsal.store)
    alone = _one(sink, "exactly_once").bound(rehearsal.store)
    require_startable(alone.rows(read.frame), output_mode=output_mode, query_name=query_name)
    topics = partial(read.topics, spark)
    rehearsal.run(
        read.frame,
        alone,
        topics,
        reads=read.reads,
        output_mode=output_mode,
        query_name=query_name,
    )


@dataclass(frozen=True)
class _Read:
    """The input of the query: a DataFrame, of Spark's sources or of one of ours."""

    frame: DataFrame
    own: OpenedSource | None
    sources: Sequence[StreamSource]

    @property
    def reads(self) -> tuple[SourceRead, ...]:
        """What each source reads, as its decisions promise it."""
        return (self.own.reads(),) if self.own is not None else tuple(map(reads, self.sources))

    def require_same_sources(self, store: CheckpointStore) -> None:
        """Refuse changed sources before the term: Spark refuses some after it, others never."""
        require_same_sources(store, [each.topics for each in self.sources])

    def topics(self, spark: SparkSession, resources: ExitStack) -> tuple[TopicsRead, ...]:
        """Return the topics of each source, as :class:`TopicsRead`, which asks their cluster."""
        if self.own is not None:
            return (self.own.topics(resources),)
        return topics_read(spark, self.sources, resources)


def _read(
    df: DataFrame | OwnSource, spark: SparkSession, store: CheckpointStore, guarantee: Guarantee
) -> _Read:
    """Return the query's input; refuse an unknown guarantee, and sources that cannot give it."""
    if guarantee not in get_args(Guarantee):
        raise ConfigurationError(
            f"guarantee {guarantee!r}: expected {' or '.join(map(repr, get_args(Guarantee)))}."
        )
    own = df.opened(spark, store) if is_own(df) else None
    frame = own.frame if own is not None else cast("DataFrame", df)
    found = _Read(frame, own, check_sources(frame, guarantee))
    if own is None and guarantee == "exactly_once":
        tell_of_unheld(found.sources)
    return found


def _one(sink: Sink | Sequence[Output], guarantee: Guarantee) -> OneSink | Outputs:
    """Return one sink, or several outputs as one."""
    if isinstance(sink, Sequence):
        return Outputs(tuple(sink), guarantee)
    return OneSink(sink, guarantee)


def _heartbeat(
    spark: SparkSession,
    store: CheckpointStore,
    interval: timedelta,
    observer: Observer | None,
    began: Beginning,
) -> HeartbeatWriter:
    return HeartbeatWriter(
        store,
        application_id=spark.sparkContext.applicationId,
        trigger=interval,
        master=str(spark.sparkContext.master),
        deploy_mode=deploy_mode(spark),
        namespace=namespace(spark),
        observer=observer,
        began=began,
    )


def _check_progress(df: DataFrame, sink: OneSink | Outputs, place: ProgressPlace) -> None:
    if sink.guarantee != "exactly_once" or PROGRESS in sink.names:
        raise ConfigurationError(
            f"consumer_group goes with guarantee 'exactly_once' (found {sink.guarantee!r}), whose "
            f"decisions name it, and no output may be called {PROGRESS!r} beside it."
        )
    kept = stateful(df) if place.resume else ()
    if kept:
        raise ConfigurationError(
            f"The query keeps state ({', '.join(kept)}), which is in its checkpoint alone: an "
            "empty one cannot go on from a consumer group. Leave ConsumerGroup(resume=True), which "
            "--resume-from-group says, away."
        )
