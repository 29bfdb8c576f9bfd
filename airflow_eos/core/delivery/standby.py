"""A standby: a driver, warm and examined but without a term, that waits until another has ended.

A standby writes nothing that anybody relies on: one object of its own says that it is there. What
it sees of the running driver is evidence, by its own clock. Where that is wrong, it takes a term
like every start, and the driver that it took for dead finds the term before it shows anything more.
"""

from __future__ import annotations

import enum
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec.structs import replace

from airflow_eos.core.checkpoint import StartedBy, drain_requested, read_heartbeat
from airflow_eos.core.checkpoint.backend import COMMITS, METADATA, OFFSETS, SOURCES, STATE_STORES
from airflow_eos.core.checkpoint.drain import NOT_FOR_GOOD, Beginning
from airflow_eos.core.checkpoint.heartbeat import ENDED, STARTED_BY, beat_interval, who_asked
from airflow_eos.core.checkpoint.layout import newest_planned
from airflow_eos.core.checkpoint.liveness import (
    LivenessProbe,
    process_mark,
    process_state,
    read_sign,
    why_gone,
)
from airflow_eos.core.checkpoint.standby import (
    Standby,
    prune_standbys,
    remove_standby,
    write_standby,
)
from airflow_eos.core.closing import Closable, closed_on_error
from airflow_eos.core.delivery.causes import cause_of
from airflow_eos.core.delivery.java import give_memory_back, trim
from airflow_eos.core.delivery.spark_session import stateful
from airflow_eos.core.delivery.task import collected
from airflow_eos.core.delivery.workers import WarmUps, are_beside, kept_warm
from airflow_eos.core.log import Log
from airflow_eos.errors import (
    NO_RETRY_HEALS,
    CalledOffError,
    CheckpointError,
    ConfigurationError,
    EosError,
    OvertakenError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQueryManager

    from airflow_eos.core.checkpoint import CheckpointStore, DrainRequest, Heartbeat
    from airflow_eos.core.checkpoint.liveness import SignOfLife
    from airflow_eos.core.checkpoint.standby import StandbyEnd
    from airflow_eos.core.delivery.start_option import Start

log = Log(__name__)

_STEP_S = 0.1
"""The interval at which the driver's process is looked for on this machine."""
_ENDING_LOOK_S, _ENDING_LOOK_DISK_S = 0.05, 0.02
_LOOK_S = 0.25
_ENDING_SAY_S = 0.5
"""The interval at which a standby says that it lives while the driver before it ends."""
_FRESH_S = 10.0
"""The age from which a start made ready while the driver ends is made ready anew."""
_AGAIN_S = 2.0
"""The pause after a start that could not be made ready: each asks all the systems."""
_EXAMINED_AT_MOST = 3
"""Looks at a pipeline that goes on meanwhile; a refusal at each of them is no accident."""

Ready = TypeVar("Ready", bound=Closable)
Started = TypeVar("Started")


class Turn(enum.Enum):
    """The next step of a standby."""

    WAIT = "stand by"
    TAKE = "take the term"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class TurnDecision:
    """A turn and its reason, in a few words."""

    turn: Turn
    reason: str


def whose_turn(
    sign: SignOfLife,
    signs: tuple[str, ...] | None,
    *,
    gone: str | None,
    request: DrainRequest | None,
    has_stood_by: bool,
) -> TurnDecision:
    """Decide what a standby does, from what it saw of the driver before it. Pure.

    ==========================================  ==================================  =====
    the newest driver                           asked to end by                     turn
    ==========================================  ==================================  =====
    there was none                                                                  TAKE
    ended before we came, or died               anybody                             TAKE
    has read everything                                                             LEAVE
    said that it has drained                    the app itself                      LEAVE
    said that it has drained, or has failed     a person                            LEAVE
    said that it has drained, or has failed     Airflow, or to hand over            TAKE
    said that it has failed                     nobody                              TAKE
    gone, or seen to stand still for long       a person                            LEAVE
    gone, or seen to stand still for long       nobody, Airflow, or to hand over    TAKE
    anything else                                                                   WAIT
    ==========================================  ==================================  =====

    Args:
        sign: the last look at the driver.
        signs: the signs of life in it, compared with earlier looks; see ``LivenessProbe``.
        gone: the evidence that the driver's process is gone; None: there is none.
        request: the request to end that is meant for this driver.
        has_stood_by: whether the driver was seen before, when it had not ended yet.
    """
    beat = sign.current
    if sign.heartbeat is None and sign.term == 0:
        return TurnDecision(Turn.TAKE, "no driver has ever run here")
    who = f"the driver of term {sign.term}" if beat is None else _who(beat)
    if beat is not None and beat.phase in ENDED:
        found = f"{who} said that it ended ({beat.end or beat.phase})"
    elif gone is not None:
        found = f"{who} is gone: {gone}"
    elif signs == ():
        found = f"{who} was seen to stand still"
    else:
        return TurnDecision(
            Turn.WAIT, "; ".join(signs or ()) or "whether it lives shows in a moment"
        )
    asked_by = who_asked(beat, request)
    if has_stood_by and (people := asked_by - NOT_FOR_GOOD):
        return TurnDecision(Turn.LEAVE, f"{found}; {min(people)} had asked it to end")
    done = beat is not None and (beat.end == "finished" or (beat.end == "drained" and not asked_by))
    return TurnDecision(Turn.LEAVE if has_stood_by and done else Turn.TAKE, found)


def _who(beat: Heartbeat) -> str:
    return f"driver {beat.application_id} (process {beat.pid} on {beat.host})"


class StandingBy:
    """A standby's record in the checkpoint, and its watch over the running driver.

    Args:
        store: the checkpoint.
        application_id: Spark's id of this application.
        still_wanted: raises where this start was asked to end.
        began: when this start began; now, where it is None.
        sleep, clock: seconds.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        application_id: str,
        still_wanted: Callable[[], None],
        began: Beginning | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._still_wanted = store, still_wanted
        self._began = began or Beginning.now(store)
        self._sleep, self._clock = sleep, clock
        self._interval_s = beat_interval(store.location).total_seconds()
        us = StartedBy.of_text(os.environ.get(STARTED_BY))
        self._said = Standby(
            name=us.submission if us is not None else uuid.uuid4().hex,
            started_by=us,
            application_id=application_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            process=process_mark(os.getpid()),
            behind=0,
            beat=0,
            interval_ms=int(1000 * self._interval_s),
        )
        self._said_at: float | None = None
        self._has_stood_by = False
        try:
            found = read_heartbeat(store)
        except CheckpointError:  # whether a driver was running is not known
            found = None
        self._found_driving = found is not None and found.phase not in ENDED
        self._is_ending = False

    def until_our_turn(self, make_ready: Callable[[], str | None] = lambda: None) -> int:
        """Wait for our turn; return the term after which ours is to come.

        Args:
            make_ready: called again and again while the driver ends as it was asked to; see
                :meth:`MadeReady.renew`. A driver that hands over waits for it.

        Raises:
            CalledOffError: no standby is needed: all is read, or a person has stopped the pipeline.
        """
        watch, sign, unanswered, was_ending = LivenessProbe(self._clock), None, False, False
        while True:
            look_at = self._clock() + (0.0 if sign is None else self._pause_s(sign))
            while (left := look_at - self._clock()) > 0 and not (
                sign and sign.current and process_state(sign.current) == "gone"
            ):
                self._sleep(min(_STEP_S, left))
            try:
                self._still_wanted()
                found_now = read_sign(self._store)
                signs = watch.hold(found_now)
                sign = watch.seen or found_now
                found = self._judged(sign, signs)
                if found.turn is Turn.WAIT:
                    self._has_stood_by = True
                    if self._is_ending and not was_ending:  # what was said of another time is over
                        self._write(behind=sign.term, is_ready=False, reason="")
                    was_ending = self._is_ending
                    self._say(sign.term, make_ready() if was_ending else self._said.reason)
                unanswered = False
            except CheckpointError as error:  # no answer, which says nothing of the driver
                if not unanswered:
                    log.warning("standby_got_no_answer", error=str(error))
                watch, sign, unanswered = LivenessProbe(self._clock), None, True
                self._sleep(_LOOK_S)
                continue
            if found.turn is Turn.TAKE:
                log.info("standby_takes_over", after=sign.term, why=found.reason)
                return sign.term
            if found.turn is Turn.LEAVE:
                raise CalledOffError(
                    f"{found.reason}: nobody is needed to stand by for {self._store.location} any "
                    "more. Nothing was begun, and nothing is lost."
                )

    def leave(self, error: BaseException) -> None:
        """Record that this standby has ended, and why, for whoever has started it."""
        end: StandbyEnd = "failed"
        if isinstance(error, CalledOffError):
            end = "called off"
        elif isinstance(error, NO_RETRY_HEALS):
            end = "refused"
        reason = f"{type(error).__name__}: {error}"
        try:
            self._write(end=end, reason=reason)
        except EosError as untold:
            log.warning("standby_left_without_a_word", error=str(untold))

    def drive(self) -> None:
        """Remove the standby's record: this process is the driver now."""
        try:
            remove_standby(self._store, self._said.name)
        except EosError as error:
            log.warning("standby_not_removed", error=str(error))

    def _judged(self, sign: SignOfLife, signs: tuple[str, ...] | None) -> TurnDecision:
        beat, gone = sign.current, None
        submission = None if beat is None else beat.submission
        request = drain_requested(
            self._store, term=sign.term, submission=submission, began=self._began
        )
        if beat is not None and beat.phase not in ENDED:
            gone = why_gone(self._store, beat)
        self._is_ending = request is not None
        # A driver that ended while we were examined, which takes time, had not ended before.
        is_new = self._found_driving and beat is not None and beat.phase in ENDED
        asked_since = request is not None and self._began.is_before(request)
        has_stood_by = self._has_stood_by or is_new or asked_since
        return whose_turn(sign, signs, gone=gone, request=request, has_stood_by=has_stood_by)

    def _pause_s(self, sign: SignOfLife) -> float:
        """Return the pause: some looks per beat, as a store bills each; short while it ends."""
        if self._is_ending:
            return _ENDING_LOOK_DISK_S if self._store.is_on_a_disk else _ENDING_LOOK_S
        interval_s = sign.heartbeat.interval_ms / 1000 if sign.heartbeat else self._interval_s
        return max(_LOOK_S, interval_s / 4)

    def _say(self, term: int, why_not: str | None) -> None:
        """Say behind whom we stand by and whether we are ready: on a change, and each interval."""
        now, every_s = self._clock(), self._interval_s
        if self._is_ending:  # who hands over goes by what it sees change since it was asked
            every_s = min(every_s, _ENDING_SAY_S)
        said = {"behind": term, "is_ready": why_not is None, "reason": why_not or ""}
        due = self._said_at is None or now - self._said_at >= every_s
        if due or any(getattr(self._said, name) != value for name, value in said.items()):
            if self._said_at is None:
                log.info("standing_by", behind_term=term, checkpoint=self._store.location)
            self._write(**said)
            self._said_at = now

    def _write(self, **changes: Any) -> None:
        said = replace(self._said, beat=self._said.beat + 1, **changes)
        write_standby(self._store, said)
        if not self._said.beat:
            prune_standbys(self._store)
        self._said = said  # and not before: what did not arrive is said again


class MadeReady(Generic[Ready]):
    """A start prepared up to its term while the driver before it still ends.

    Kept for a short time only: the last batch of that driver may take hours.

    Args:
        make: prepares the start, anew each time.
        warm_ups: ended by the first call; nothing is ready beside one that still runs.
        clock: seconds.
    """

    def __init__(
        self,
        make: Callable[[], Ready],
        warm_ups: WarmUps,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make, self._warm_ups, self._clock = make, warm_ups, clock
        self._made: tuple[float, Ready] | None = None
        self._refused: tuple[float, str] | None = None

    def renew(self) -> str | None:
        """Prepare where the last is not fresh; return None once all is ready.

        Else return the error that nothing could be prepared for, or nothing where it only takes
        time. The error comes again in :meth:`take`.
        """
        self._warm_ups.end()  # they would take time from the start that they are to speed up
        if not self._is_fresh():
            if self._refused is not None and self._clock() - self._refused[0] < _AGAIN_S:
                return self._refused[1]
            self.close()
            try:
                self._made, self._refused = (self._clock(), self._make()), None
            except EosError as error:
                self._refused = self._clock(), f"{type(error).__name__}: {error}"
                log.warning("standby_not_ready_yet", error=str(error))
                return self._refused[1]
        return "" if self._warm_ups.is_running else None

    def take(self) -> Ready:
        """Return the prepared start if fresh, else prepare one now; the caller closes it."""
        self._warm_ups.end()
        if self._made is None or not self._is_fresh():
            self.close()
            return self._make()
        (_, ready), self._made = self._made, None
        return ready

    def close(self) -> None:
        """Close a prepared start that nobody took."""
        if self._made is not None:
            self._made[1].close()
            self._made = None

    def _is_fresh(self) -> bool:
        return self._made is not None and self._clock() - self._made[0] <= _FRESH_S


def stand_by(
    standing: StandingBy,
    *,
    examine: Callable[[], None],
    start: Callable[[int], Started],
    make_ready: Callable[[], str | None] = lambda: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Started:
    """Examine what a start examines, stand by, and start when the turn has come.

    Args:
        standing: the record of this standby, which watches the driver.
        examine: raises what a start would raise, and changes nothing.
        start: takes the term after the given one, or raises ``OvertakenError``; then starts.
        make_ready: called again and again while the driver ends because it was asked to.
        sleep: seconds.

    Raises:
        EosError: this app cannot follow the running driver, which goes on undisturbed.
    """
    try:
        _examined(examine, sleep)
        while True:
            after = standing.until_our_turn(make_ready)
            try:
                started = start(after)
            except OvertakenError as error:
                log.info("standby_was_overtaken", why=str(error))
                continue
            standing.drive()
            return started
    except BaseException as error:
        standing.leave(error)
        raise


def _examined(examine: Callable[[], None], sleep: Callable[[float], None]) -> None:
    """Examine, more than once: a running pipeline may be read half before and half after."""
    for left in reversed(range(_EXAMINED_AT_MOST)):
        try:
            examine()
        except EosError:
            if not left:
                raise
            sleep(1.0)
        else:
            return


# --- a start that stands by -----------------------------------------------------------------------


def follow(
    examined: Callable[[Beginning | None], Start],
    admit: Callable[[Start], None],
    run: Callable[[Start, int], Started],
    require_wanted: Callable[[CheckpointStore], None],
) -> Started:
    """Stand by with a start; when the turn comes, run one that was asked anew.

    What the first one has asked is as old as the wait. ``examined`` makes a start, of one that
    began before; :mod:`.start` has the others.
    """
    first = examined(None)
    first.workers_answer()
    standing = StandingBy(
        first.store,
        began=first.began,
        application_id=first.spark.sparkContext.applicationId,
        still_wanted=partial(require_wanted, first.store),
    )
    warm_ups = WarmUps(*[lambda: warm_up(first, again=lambda: bool(warm_ups))] * WARM_UPS)

    def ready(start: Start) -> Start:
        with closed_on_error(start):
            admit(start)
            start.guarantee.ask_ahead(start)
        return start

    prepared_again = MadeReady(lambda: ready(examined(first.began)), warm_ups)
    with ExitStack() as warm, closing(prepared_again):

        def examine() -> None:
            first.store.check_create_if_absent()
            with closing(ready(first)):
                warm_up(first)
            warm.enter_context(kept_warm(resting(first), first=warm_ups))

        return stand_by(
            standing,
            examine=examine,
            start=lambda after: run(prepared_again.take(), after),
            make_ready=prepared_again.renew,
        )


def resting(start: Start) -> Callable[[], None]:
    """Return what a standby does after its warm-ups, again and again.

    A cluster would take back executors that are idle. Workers beside the driver go, as Spark ends
    those: their daemon stays, with all loaded, and forks them while the start connects.

    Java gives back the memory that the warm-ups took, twice, since some of it is let go only after
    a while, and from then on what each round has left; or nothing any more once it refuses.
    """

    def giving() -> Iterator[None]:
        gateway = start.spark.sparkContext._gateway  # noqa: SLF001 - the driver's Java
        for give in chain((give_memory_back, give_memory_back), repeat(trim)):
            give(gateway)
            yield

    given = giving()

    def act() -> None:
        if not are_beside(start.spark):
            start.sink.check(start.spark)
        next(given, None)

    return act


# --- warm up --------------------------------------------------------------------------------------
# Run the newest batch once more, in a copy of Spark's log and into nothing, before the turn comes.
#
# Where the state has another form than this app's, Spark refuses it here, while the other driver
# goes on. And the first batch becomes faster: classes are loaded and compiled, sources are opened,
# Python workers have seen the app's functions.


_WITHIN_S = 120
WARM_UPS = 20
"""Runs that warm up: Java compiles what runs often, and halves the time of a first batch."""
_EVALUATED_S = 1.0
"""The time for which a run evaluates its batch: to start Spark's query takes a second as well."""
_FOLDERS = "airflow-eos-standby-"
_OF_SOURCES = 20
"""Files of a source's log that are copied at most; a source of files has more: not evaluated."""
_OF_THE_STATE = "STATE_STORE_"
_UNCOMPUTED = "STATE_STORE_COMMIT_VALIDATION_FAILED"
"""What Spark says at the end of a batch whose state nobody computed, which is what was meant."""
_SCHEMAS = ("_metadata", "_stateSchema")


def warm_up(start: Start, *, again: Callable[[], bool] = lambda: False) -> None:
    """Plan the newest batch as a start would, and let tasks read and compute its rows.

    Rows of a query that keeps state are not computed: the state is not copied. ``again``: whether a
    short batch may be computed once more. Nothing is delivered, or written to the checkpoint.

    Raises:
        ConfigurationError: the state in the checkpoint has another form than the query's.
    """
    store, frame, is_own = start.store, start.read.frame, start.read.own is not None
    # The very plan of a start's batches, except that no task writes.
    rows = frame if is_own else start.sink.tasks(start.sink.rows(frame), only=(), warms=True)
    is_computed = not is_own and not stateful(frame)
    newest = newest_planned(store)
    if newest is None:
        return
    streams = rows.sparkSession.streams
    had_ended = _any_has_ended(streams)
    planned = is_whole = False

    def into_nothing(batch: DataFrame, _batch_id: int) -> None:
        nonlocal planned
        planned = True
        if is_computed and is_whole:
            until = time.monotonic() + _EVALUATED_S
            collected(batch, start.sink.names)
            while again() and time.monotonic() < until:
                collected(batch, start.sink.names)

    # Spark may still use its files for a moment after it has ended.
    with tempfile.TemporaryDirectory(prefix=_FOLDERS, ignore_cleanup_errors=True) as folder:
        is_whole = _copied(store, newest, Path(folder))
        try:
            query = (
                rows.writeStream.outputMode(start.settings.output_mode)
                .foreachBatch(into_nothing)
                .option("checkpointLocation", f"file://{folder}")
                .trigger(once=True)
                .start()
            )
            try:
                query.awaitTermination(_WITHIN_S)
            finally:
                query.stop()
        except Exception as error:  # whatever Spark raises, the start itself raises it again
            cause = cause_of(error)
            of_the_state = cause.kind.startswith(_OF_THE_STATE)  # else the copy may lack something
            if not planned and of_the_state and cause.restart_heals is False:
                raise ConfigurationError(
                    f"This app cannot follow the one that runs on {store.location}: {cause}. That "
                    "one goes on."
                ) from error
            if not (planned and not is_computed and cause.kind == _UNCOMPUTED):
                log.warning("standby_is_not_warm", batch=newest, why=str(cause))
        finally:
            if not had_ended:  # else Spark would forget with ours a query of the user's
                streams.resetTerminated()


def _any_has_ended(streams: StreamingQueryManager) -> bool:
    """Whether ``awaitAnyTermination`` would return, or raise, at once.

    It does for ever after a query of the session has ended: after ours, an app that waits for its
    queries in that way would end as soon as it drives.
    """
    try:
        return bool(streams._jsqm.awaitAnyTermination(1))  # noqa: SLF001 - in ms
    except Exception:  # noqa: BLE001 - that of the query that has ended
        return True


def _copied(store: CheckpointStore, newest: int, folder: Path) -> bool:
    """Copy Spark's log up to ``newest``, without its commit; return whether sources are whole."""
    names = [f"{OFFSETS}/{newest}"]
    if newest:
        names += [f"{OFFSETS}/{newest - 1}", f"{COMMITS}/{newest - 1}"]
    of_sources = [
        entry.path
        for source in store.folders(SOURCES)
        for entry in store.list(f"{SOURCES}/{source}")
    ]
    is_whole = len(of_sources) <= _OF_SOURCES
    for name in [*names, *(of_sources if is_whole else ()), *_schemas(store)]:
        content = store.get(name)
        if content is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    # An id of its own: two queries with one id do not run in one JVM.
    (folder / METADATA).write_text(f'{{"id":"{uuid.uuid4()}"}}', encoding="utf-8")
    return is_whole


def _schemas(store: CheckpointStore) -> Iterator[str]:
    """Yield the files that tell the form of the state: of each operator, and of its first part."""
    for operator in store.folders(STATE_STORES):
        first = f"{STATE_STORES}/{operator}/0"
        stores = [f"{first}/{name}" for name in store.folders(first) if name not in _SCHEMAS]
        for parent in (f"{STATE_STORES}/{operator}", first, *stores):
            for name in _SCHEMAS:
                yield from store.below(f"{parent}/{name}")
