"""The watchdog DAG, which checks a pipeline every minute, and what its tasks ask Airflow for."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import msgspec
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk import DAG, get_current_context

from airflow_eos.core.arguments import milliseconds
from airflow_eos.core.protocol.decision import one_line
from airflow_eos.factory.settings import Pipeline, pinned, rendered
from airflow_eos.hooks.answers import answered
from airflow_eos.hooks.runs import UNDER_WAY, count, start, task_state, why_it_stands
from airflow_eos.hooks.store import CheckpointStoreHook
from airflow_eos.sensors import CheckpointProgressSensor

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_eos.core.checkpoint import CheckpointStore, Heartbeat
    from airflow_eos.ops.supervision.progress import Conclusion

STARTS = 20
"""The most runs that replace one dead driver, until an app lives to write a heartbeat."""
ASKED_BY = "eos_asked_by"
"""The key in a run's configuration of the person who wants the app to run, even if drained."""
RESUME = "resume__"
"""The prefix of the run id of a resumption."""

_LOOK_S = 1.0
_MONDAY = datetime(2026, 1, 5, tzinfo=UTC)


def last_heartbeat(pipeline: Pipeline) -> Heartbeat | None:
    """Read the newest heartbeat of the pipeline's driver, in a task."""
    from airflow_eos.core.checkpoint import read_heartbeat

    return read_heartbeat(store_of(pipeline))


def resumption(pipeline: Pipeline) -> str:
    """Return the name of the run that is to replace the last driver (driver, number), in a task.

    The number of runs that began is in the checkpoint, so that it does not begin at 0 again once
    Airflow's rows are deleted.

    Raises:
        AirflowFailException: so many runs have failed that no other one is to begin.
    """
    from airflow_eos.core.checkpoint.recovery_notes import driver_of, next_start, resumption_of

    last, ti = last_heartbeat(pipeline), get_current_context()["ti"]
    driver = driver_of(last)

    def has_failed(number: int) -> bool | None:
        run_ids = [f"{RESUME}{driver}__{number}"]
        if count(ti, pipeline.dag_id, "failed", run_ids=run_ids):
            return True
        kept = count(ti, pipeline.dag_id, *UNDER_WAY, "success", run_ids=run_ids)
        return False if kept else None

    number = next_start(resumption_of(store_of(pipeline), last), has_failed, STARTS)
    if number is None:
        raise AirflowFailException(
            f"Nobody brings the pipeline back any more: {STARTS} runs of {pipeline.dag_id} in the "
            f"place of driver {driver} have failed. The log of the last says why; once that is "
            f"mended, trigger {pipeline.dag_id} by hand."
        )
    return f"{driver}__{number}"


def note_that_it_begins(pipeline: Pipeline) -> None:
    """Count this run in the checkpoint where it is to replace a driver, in a task."""
    from airflow_eos.core.checkpoint.recovery_notes import Replacement, note_resumption

    if (replaces := _replaces()) is None:
        return
    driver, number = replaces
    by = f"run {RESUME}{driver}__{number} of {pipeline.dag_id}"
    counted = Replacement(driver=driver, number=number + 1, limit=STARTS, by=by)
    note_resumption(store_of(pipeline), counted)


def refusal_is_noted(pipeline: Pipeline) -> AbstractContextManager[None]:
    """Note in the checkpoint where this run is refused for good, in a task."""
    from airflow_eos.core.checkpoint.recovery_notes import refusals_noted

    run = get_current_context()["dag_run"]
    return refusals_noted(store_of(pipeline), dag_id=pipeline.dag_id, run_id=run.run_id)


def stays_down(pipeline: Pipeline) -> str | None:
    """Return why the last driver is not to be replaced, in a task; None where it is, if dead.

    A failure that no restart heals is for a person. A person who asked the driver to stop wants it
    down, however it ended. Airflow asks in the name of a task that ended, and does not say why: a
    success was marked by a person, as a stopped task never is one by itself, and is noted in the
    checkpoint, where it lasts. Whatever else became of the task or its rows, nobody wants it down.

    Raises:
        AirflowFailException: Airflow stopped what another DAG had started, which has ended since.
    """
    from airflow_eos.core.checkpoint import drain_of
    from airflow_eos.core.checkpoint.drain import BY_AIRFLOW, NOT_FOR_GOOD
    from airflow_eos.core.checkpoint.heartbeat import who_asked
    from airflow_eos.core.checkpoint.recovery_notes import refusal_of

    last = last_heartbeat(pipeline)
    if refusal := refusal_of(store_of(pipeline), last):
        return str(refusal)
    if last is None:
        return None
    asked_by = who_asked(last, drain_of(store_of(pipeline), last, known=True))
    if people := asked_by - NOT_FOR_GOOD:
        how = "stopped" if last.phase == "stopped" else "died"
        return f"{min(people)} asked the app to stop, and it {how}"
    if BY_AIRFLOW in asked_by:
        return _marked_as_success(pipeline, last)
    if asked_by:
        return None  # the driver was to hand over, and no standby has taken over
    if last.phase == "failed" and last.restart_heals is False:
        return f"no restart heals what it ended with: {last.reason}"
    return "it ended in order" if last.phase == "stopped" else None


@dataclass(frozen=True, slots=True)
class Rescue:
    """Who brings a pipeline back, for people; ``stands`` says why that one does not get on."""

    by: str
    stands: str | None = None

    def __str__(self) -> str:
        """Name who it is, and why it stands."""
        return f"{self.by}: {self.stands}" if self.stands else self.by


def restart_in_progress(
    pipeline: Pipeline, queued: Collection[str] = (), *, except_run: str | None = None
) -> Rescue | None:
    """Return the standby, or run of the app's DAG, that brings the pipeline back, in a task.

    None where there is neither.

    Args:
        queued: DAGs of which runs were queued, and none was at work, at the look before.
        except_run: the id of a run that does not count.
    """
    from airflow_eos.core.checkpoint.recovery_notes import brought_back_by
    from airflow_eos.core.checkpoint.standby import living_standbys

    if living := living_standbys(store_of(pipeline)):
        return Rescue(f"{living[0]} stands by")
    found = under_way(pipeline.dag_id, queued, except_run=except_run)
    if found is None or found.stands:
        return found
    said = brought_back_by(store_of(pipeline), last_heartbeat(pipeline))
    return replace(found, by=f"{found.by}: {said}") if said else found


def under_way(
    dag_id: str, queued: Collection[str] = (), *, except_run: str | None = None
) -> Rescue | None:
    """Return that a run of the DAG is under way, and whether it gets on; None: there is none."""
    ti = get_current_context()["ti"]
    found = count(ti, dag_id, *UNDER_WAY)
    if found and except_run is not None:
        found -= count(ti, dag_id, *UNDER_WAY, run_ids=[except_run])
    if not found:
        return None
    stands = why_it_stands(ti, dag_id)
    if stands is None and dag_id in queued and not count(ti, dag_id, "running"):
        stands = (
            "it was queued a look ago, and none runs. Look whether that DAG is paused or has no "
            "slot, and at Airflow's scheduler"
        )
    return Rescue(f"a run of {dag_id} is under way", stands)


def is_alive(pipeline: Pipeline) -> str | None:
    """Return how the last driver was seen to live, in a task; None where it is dead.

    Waits until the answer is known: for three of the driver's intervals where it is dead.
    """
    from airflow_eos.core.checkpoint import StartedBy
    from airflow_eos.ops.supervision.exit_status import NextAction, choose
    from airflow_eos.ops.supervision.heartbeat_monitor import HeartbeatReading

    nobody = StartedBy(dag_id="", task_id="", run_id="", map_index=-1, submission="")
    pulse = HeartbeatReading(store_of(pipeline), every_s=_LOOK_S)
    while True:
        seen = pulse.look_if_it_answers(refused=True)
        choice = None if seen is None else choose(seen, nobody, None)
        if choice is not None and choice.action is not NextAction.LOOK:
            return choice.reason if choice.action is NextAction.REFUSE else None
        time.sleep(_LOOK_S)


def overtaken(pipeline: Pipeline) -> str | None:
    """Return why this run, which is to replace a driver, need not any more, in a task; or None."""
    from airflow_eos.core.checkpoint.recovery_notes import driver_of, refusal_of

    run = get_current_context()["dag_run"]
    if (replaces := _replaces()) is None:
        return None
    last = last_heartbeat(pipeline)
    if last is not None and last.started_by is not None and last.started_by.run_id == run.run_id:
        return None  # this run's own driver: somebody has cleared this run
    refusal = refusal_of(store_of(pipeline), last)
    if refusal is not None and refusal.run_id == run.run_id:
        return None  # this run's own refusal: no other run starts the app again
    if driver_of(last) != replaces[0]:
        return f"driver {driver_of(last)} has come since"
    return None if (run.conf or {}).get(ASKED_BY) else stays_down(pipeline)


def _replaces() -> tuple[str, int] | None:
    """Return the driver that this run is to replace, and the run's number; None: another kind."""
    run_id = get_current_context()["dag_run"].run_id
    driver, _, number = run_id.removeprefix(RESUME).rpartition("__")
    if not run_id.startswith(RESUME) or not number.isdecimal():
        return None
    return driver, int(number)


def _marked_as_success(pipeline: Pipeline, last: Heartbeat) -> str | None:
    """Return that a person marked the stopped driver's task as a success, and note it; or None."""
    from airflow_eos.core.checkpoint import request_drain

    us = last.started_by
    if us is None:
        return None
    ti = get_current_context()["ti"]
    map_index = None if us.map_index < 0 else us.map_index
    if task_state(ti, us.dag_id, us.run_id, us.task_id, map_index) == "success":
        by = f"the person who marked {us} as a success"
        request_drain(store_of(pipeline), requested_by=by, reason="marked", term=last.term)
        return f"{us} was marked as a success"
    if us.dag_id == pipeline.dag_id:
        return None
    if count(ti, us.dag_id, *UNDER_WAY, run_ids=[us.run_id]):
        return f"{us} is under way, and brings it back"
    raise AirflowFailException(
        f"Airflow stopped the app that {us} had started, and no run of that DAG is under way. "
        f"Whether it is to run is not known here: nothing is started. Trigger {pipeline.dag_id} to "
        "start it, or `airflow-eos drain` the checkpoint to keep it down."
    )


def store_of(pipeline: Pipeline) -> CheckpointStore:
    """Open the pipeline's checkpoint, in a task."""
    here = rendered(pipeline)
    return CheckpointStoreHook(here.storage_conn_id).open(here.checkpoint)


# --- watchdog -------------------------------------------------------------------------------------


_A_LOOK = timedelta(minutes=10)
"""The least timeout of a look: one that hangs would keep all later ones from starting."""
_BESIDES = timedelta(minutes=1)
"""The time of a look beside the trigger interval for which it holds a suspicion."""
_AGAIN_S = 5.0
MEMORY = "memory"
"""The XCom with the :class:`Memory` of a look."""
_WAITS_FOR = (
    "Its page in Airflow shows which task waits: a scheduled one for a slot of its pool, a queued "
    "one for a worker, a deferred one for the triggerer"
)
_DRIVERS_IN_VAIN = 3
"""The number of drivers, one after another, that are no accident: the first may have been well."""
_SHOWN = 3


class InVain(msgspec.Struct, frozen=True):
    """Drivers that came one after another, and settled nothing after batch ``batch``."""

    batch: int | None
    since_s: float
    driver: str
    drivers: int = 1

    def and_now(self, batch: int | None, driver: str) -> InVain | None:
        """Count the driver of now; None: another batch is settled since."""
        if self.batch != batch:
            return None
        drivers = self.drivers + (self.driver != driver)
        return msgspec.structs.replace(self, driver=driver, drivers=drivers)


class Memory(msgspec.Struct):
    """What a look remembers for the next; times in s since the epoch, by the scheduler's clock.

    It is in Airflow, and not in the checkpoint, whose disappearance it has to outlast.

    Attributes:
        wanted: location of a pipeline that is to run; None: it is to be down.
        open: since when which work is open.
        half_time_s: since when work has passed the half of its timeout.
        stalled: the driver that has stalled, and since when.
        vain: drivers that came and settled nothing.
        queued: DAGs of which runs were queued, and none was at work.
    """

    wanted: str | None = None
    open: dict[str, float] = {}
    half_time_s: float | None = None
    stalled: tuple[str, float] | None = None
    vain: InVain | None = None
    queued: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trouble:
    """What a look has found amiss, for people; ``red`` where somebody may have to look."""

    said: str
    red: bool = True


class WatchdogSensor(CheckpointProgressSensor):
    """Looks once at a pipeline, and starts its recovery where nobody is at it.

    Done where all is well; skipped where the pipeline is to be down, or is brought back and has
    time left; else failed. It is one task: Airflow stores a row and a log for each.

    Args:
        transactional_id_prefix, participant_conn_ids: see
            :class:`~airflow_eos.sensors.TransactionTimeoutSensor`.
    """

    template_fields: Sequence[str] = (
        *CheckpointProgressSensor.template_fields,
        "transactional_id_prefix",
        "participant_conn_ids",
    )

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        transactional_id_prefix: str | None = None,
        participant_conn_ids: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._pipeline = pipeline
        self.transactional_id_prefix = transactional_id_prefix
        self.participant_conn_ids = participant_conn_ids

    def execute(self, context: Context) -> None:
        """Look at the open work and at the progress; each also where the other got no answer.

        Raises:
            AirflowFailException: somebody may have to look: the reason.
            AirflowSkipException: the pipeline is down, as it is to be, or about to be back.
            EosError: a question got no answer, and nothing was found amiss.
        """
        memory = self._remembered(context["ti"])
        if down := self._why_down(context, memory):
            self._left_open(context, memory)
            raise AirflowSkipException(down)
        memory.wanted = store_of(self._pipeline).location
        found: list[Trouble | None] = []
        unanswered: list[Exception] = []
        for look in (self._running_out, self._stall):
            try:
                found.append(look(context, memory))
            except Exception as error:  # noqa: BLE001 - raised below, once the other has looked
                unanswered.append(error)
        memory.queued = self._queued() if any(found) else ()
        self._keep(context, memory)
        self._conclude([each for each in found if each is not None], unanswered)

    def stalled(self, context: Context, found: Conclusion) -> None:
        """Leave a stall to :meth:`execute`."""

    def _conclude(self, found: Sequence[Trouble], unanswered: Sequence[Exception]) -> None:
        if unanswered and not found:
            raise unanswered[0]
        said = ". ".join([each.said for each in found] + [str(each) for each in unanswered])
        if unanswered or any(each.red for each in found):
            raise AirflowFailException(f"{said}.")
        if found:
            raise AirflowSkipException(f"{said}.")

    def _why_down(self, context: Context, memory: Memory) -> str | None:
        """Return why there is nothing to watch; None: the app is to run, and may need help.

        A heartbeat that is gone does not say that no driver has run: a term says that one did.
        """
        from airflow_eos.core.checkpoint import newest_term
        from airflow_eos.core.checkpoint.watchdog_record import WatchdogRecord, note_look

        pipeline = self._pipeline
        last, store = last_heartbeat(pipeline), store_of(pipeline)
        if last is None and newest_term(store) == 0:
            _require_never_wanted(pipeline, store.location, memory)
            return f"Nobody has started {pipeline.dag_id} yet."
        interval_ms, run_id = interval_of(pipeline.watchdog_schedule), context["dag_run"].run_id
        look = WatchdogRecord(dag_id=pipeline.watchdog, run_id=run_id, interval_ms=interval_ms)
        note_look(store, look)
        return stays_down(pipeline) if last is not None and last.phase == "stopped" else None

    def _left_open(self, context: Context, memory: Memory) -> None:
        """Look for what stays open of a pipeline that is to be down: its readers stand still by it.

        Its driver ended without an answer to what is open, or a task of it woke up later. A system
        that gives no answer may be gone as the pipeline is: no trouble.

        Raises:
            AirflowFailException: something is open, and a recovery ends it.
        """
        if last_heartbeat(self._pipeline) is None:
            self._keep(context, Memory())
            return
        kept = Memory(open=memory.open, half_time_s=memory.half_time_s, queued=memory.queued)
        try:
            found = self._running_out(context, kept)
        except Exception as error:  # noqa: BLE001 - its connection may be gone, too
            self.log.warning("What is open was not told: %s", error)
            found = None
        kept.queued = self._queued() if found else ()
        self._keep(context, kept)
        if found is not None:
            self._conclude([found], [])

    def _running_out(self, context: Context, memory: Memory) -> Trouble | None:
        """Look for open work at half time; where no system tells its age, the memory does."""
        from airflow_eos.core.checkpoint.recovery_notes import driver_of
        from airflow_eos.ops.supervision.progress import SeenOpen, TimeoutJudge

        now_s = context["dag_run"].run_after.timestamp()
        seen = SeenOpen(lambda: now_s, memory.open)
        # Of what no timer ends, too: a batch that takes long is no trouble sooner than it was.
        half_time = cast("timedelta", self._pipeline.transaction_timeout) / 2
        watch = TimeoutJudge(
            prefix=self.transactional_id_prefix,
            checkpoint=self.checkpoint_location,
            part_left=0.5,
            max_age_ms=milliseconds(max(_A_LOOK, half_time)),
        )
        with self._asking():
            found = watch.look(*self._settings(), self._reach(), seen)
        memory.open = seen.since
        if not found:
            memory.half_time_s = None
            return None
        if memory.half_time_s is None:
            memory.half_time_s = now_s
        pipeline = self._pipeline
        at_it = under_way(pipeline.recovery, memory.queued)
        if at_it is None:  # unless a run that replaces the driver is at it
            driver = driver_of(last_heartbeat(pipeline))
            run_ids = [f"{RESUME}{driver}__{n}" for n in range(STARTS)]
            if count(context["ti"], pipeline.dag_id, *UNDER_WAY, run_ids=run_ids):
                at_it = under_way(pipeline.dag_id, memory.queued)
        named = ", ".join(f"{each['key']} of {each['participant']}" for each in found[:_SHOWN])
        said = one_line(f"{len(found)} pieces of open work run out of time, or stay open ({named})")
        return self._helped(context, said, at_it, now_s - memory.half_time_s)

    def _stall(self, context: Context, memory: Memory) -> Trouble | None:
        """Look whether the app makes progress; where it does not, who brings it back."""
        from airflow_eos.core.checkpoint.recovery_notes import driver_of, refusal_of
        from airflow_eos.ops.supervision.progress import Health

        pipeline, now_s = self._pipeline, context["dag_run"].run_after.timestamp()
        seen = self._seen(context)
        health, last = Health(seen["health"]), last_heartbeat(pipeline)
        driver, batch = driver_of(last), seen["batch_id"]
        if health is not Health.STALLED:
            memory.stalled = None
        elif memory.stalled is None or memory.stalled[0] != driver:
            memory.stalled = (driver, now_s)
        vain = memory.vain and memory.vain.and_now(batch, driver)
        at_work = health in (Health.WORKING, Health.STALLED)
        memory.vain = vain or InVain(batch, now_s, driver) if at_work else None
        in_vain = self._why_in_vain(memory.vain, now_s)
        if memory.stalled is None:
            return Trouble(f"{seen['reason']}; {in_vain}") if in_vain else None
        refusal = None if seen["alive"] else refusal_of(store_of(pipeline), last)
        reason = f"{self.checkpoint_location} has stalled: {seen['reason']}"
        said = "; ".join(str(each) for each in (reason, refusal, in_vain) if each)
        at_it = under_way(pipeline.recovery, memory.queued) or restart_in_progress(
            pipeline, memory.queued
        )
        if at_it is None and (down := stays_down(pipeline)):
            return Trouble(said if down in said else f"{said}. It stays down: {down}")
        found = self._helped(context, said, at_it, now_s - memory.stalled[1])
        # A driver that lives and makes no progress is not about to be started again.
        return replace(found, red=found.red or bool(seen["alive"] or in_vain))

    def _helped(self, context: Context, said: str, at_it: Rescue | None, lasts_s: float) -> Trouble:
        """Start a recovery where nobody is at it; not red while somebody is, and has time left."""
        if at_it is not None:
            red = bool(at_it.stands) or lasts_s >= self._within_s
            late = f", and nothing has come for {lasts_s:.0f} s. {_WAITS_FOR}"
            return Trouble(f"{said}. {at_it}{late if red and not at_it.stands else ''}", red)
        ti, recovery = context["ti"], self._pipeline.recovery
        run_id = f"watchdog__{context['dag_run'].run_id}__{ti.try_number}"
        stands = why_it_stands(ti, recovery) or start(recovery, run_id)
        return Trouble(f"{said}. {stands or f'Run {run_id} of {recovery} was started'}")

    def _queued(self) -> tuple[str, ...]:
        return tuple(filter(self._is_queued, (self._pipeline.recovery, self._pipeline.dag_id)))

    def _is_queued(self, dag_id: str) -> bool:
        ti = get_current_context()["ti"]
        return bool(count(ti, dag_id, "queued")) and not count(ti, dag_id, "running")

    def _seen(self, context: Context) -> Mapping[str, Any]:
        """Look until the pipeline's health is known."""
        while True:
            found = self.poke(context)
            seen = cast("Mapping[str, Any]", found.xcom_value)
            if found.is_done or seen["health"] == "stalled":
                return seen
            time.sleep(_AGAIN_S)

    @property
    def _within_s(self) -> float:
        return cast("timedelta", self._pipeline.first_batch_within).total_seconds()

    def _why_in_vain(self, vain: InVain | None, now_s: float) -> str | None:
        """Return that drivers come and go and no batch is settled; None: that was not seen, yet."""
        if vain is None or vain.drivers < _DRIVERS_IN_VAIN:
            return None
        if (lasts_s := now_s - vain.since_s) < self._within_s:
            return None
        return f"{vain.drivers} drivers came within {lasts_s:.0f} s, and settled no batch"

    def _remembered(self, ti: Any) -> Memory:
        """Return what the newest look remembered; nothing where nobody can read it any more.

        An XCom backend may have lost the value while its row stands: each look would fail by it.
        """
        asked = {"task_ids": self.task_id, "key": MEMORY, "include_prior_dates": True}
        try:  # without a map index Airflow lists those of all runs
            told = answered(ti.xcom_pull, **asked, map_indexes=-1)
            return Memory() if told is None else msgspec.convert(told, Memory)
        except Exception:
            self.log.exception("What looks before have seen cannot be read: it is seen anew")
            return Memory()

    def _keep(self, context: Context, memory: Memory) -> None:
        """Push the memory for later looks.

        Not from a run by hand of a scheduled DAG: it has no logical date, and PostgreSQL sorts such
        a run as the newest for ever.
        """
        by_hand = context["dag_run"].logical_date is None
        if self._pipeline.watchdog_schedule is None or not by_hand:
            answered(context["ti"].xcom_push, key=MEMORY, value=msgspec.to_builtins(memory))


def _require_never_wanted(pipeline: Pipeline, location: str, memory: Memory) -> None:
    """Refuse an empty folder where an earlier look has seen a pipeline that is to run."""
    if memory.wanted:
        raise AirflowFailException(
            f"No driver has ever run at {location}, and a look before has seen one at "
            f"{memory.wanted} that is to run: a disk that is not mounted, a checkpoint that was "
            "deleted, or a setting that has changed. Nothing is started. Bring it back, or trigger "
            f"{pipeline.dag_id} to begin anew there; pause this DAG where it is to stay down."
        )


def watchdog(pipeline: Pipeline, tags: list[str]) -> DAG:
    """Check whether the app makes progress and no transaction runs out of time; recover if not.

    Green: all is well. Skipped: the app is down as it is to be (nobody has started it, it ended in
    order, a person has stopped it), or somebody brings it back and has time left. Red: somebody may
    have to look. It has stalled, or work is at half time, and nobody was at it, or not in time, or
    in a DAG that is paused; drivers come and go, and none settles a batch; or a question got no
    answer, and then nothing is done. The task's log says which. To keep an app down, drain it.
    """
    look = max(_A_LOOK, 2 * (pipeline.trigger_interval + _BESIDES))
    with DAG(
        pipeline.watchdog,
        schedule=pipeline.watchdog_schedule,
        tags=tags,
        doc_md=watchdog.__doc__,
        # It only acts on a pipeline that somebody has started; paused, it sees no driver die.
        is_paused_upon_creation=False,
        **pinned(execution_timeout=look),
    ) as dag:
        WatchdogSensor(
            task_id="look",
            pipeline=pipeline,
            max_age=pipeline.stall_after,
            deferrable=False,
            do_xcom_push=False,
            **pipeline.transactions,
        )
    return dag


def interval_of(schedule: object) -> int | None:
    """Return the longest time between two runs, in ms; None for a schedule without one (assets)."""
    from croniter import CroniterError, croniter  # type: ignore[import-untyped]

    if isinstance(schedule, timedelta):
        return milliseconds(schedule)
    if not isinstance(schedule, str):
        return None
    # The longest pause around any hour of a week: nights without a look are no missed ones.
    week = (_MONDAY + timedelta(hours=n, seconds=1) for n in range(7 * 24))
    try:
        around = [croniter(schedule, each, ret_type=float) for each in week]
    except CroniterError:
        return None
    longest_s: float = max(each.get_next() - each.get_prev() for each in around)
    return round(1000 * longest_s)
