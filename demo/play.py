"""Plays the demo: the app is killed, Airflow recovers and resumes it, an audit counts every row."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_eos.core.checkpoint import CheckpointStore, read_heartbeat, request_drain
from airflow_eos.core.checkpoint.liveness import signs_of_life
from airflow_eos.core.checkpoint.progress import read_state
from airflow_eos.errors import CheckpointError, LocalEnvironmentError
from airflow_eos.ops.tables import duration
from airflow_eos.recovery import Action, audit, plan_recovery
from demo.adopted import require_same
from demo.leftovers import end_worker_of
from demo.patience import Patience
from demo.scenario import ACTS
from demo.stage import INPUT, ORDER_ID, OUTPUT, REJECTED, STALL_AFTER_S, stage

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint import Heartbeat
    from airflow_eos.recovery import AuditReport, Plan
    from demo.rest import DagRun
    from demo.scenario import Act
    from demo.stage import Source, Stage
    from demo.story import Live, Story

_POLL_S = 0.5


def play(orders: int, story: Story, source: Source = "spark") -> AuditReport:
    """Play the whole demo; none of its processes is left when this returns or raises.

    Raises:
        LocalEnvironmentError: this machine lacks something, or a step made no progress.
    """
    story.chapter("The stage")
    with stage(orders, story, source) as on:
        performance = Performance(on, story, orders)
        run = on.airflow.api.trigger("eos_orders_etl")
        story.say("Started the DAG eos_orders_etl: it submits the Spark app")
        for number, act in enumerate(ACTS, start=1):
            performance.die(number, act, run)
            following = ACTS[number] if number < len(ACTS) else None
            run = performance.recover(following)
        performance.finish(run, *performance.kill_the_worker(run))
        story.say("An independent read_committed reader compares what went in with what came out")
        report = audit(
            on.kafka,
            INPUT,
            OUTPUT,
            id_expression=ORDER_ID,
            dead_letter_topic=REJECTED,
            checkpoint=str(on.checkpoint),
        )
        story.end(report, deaths=len(ACTS))
        return report


class Performance:
    """The acts on one stage. One ``run`` of ``eos_orders_etl`` is one life of the app."""

    def __init__(self, on: Stage, story: Story, orders: int) -> None:
        self._on = on
        self._story = story
        self._orders = orders
        self._api = on.airflow.api
        self._store = CheckpointStore.open(str(on.checkpoint))

    def die(self, number: int, act: Act, run: DagRun) -> None:
        """Let the app run until its failpoint kills it, and wait until Airflow has noticed."""
        self._deliver(run, f"Life {number} of the app", lambda: self._on.was_hit(act.failpoint))
        self._story.act(number, act)
        state = read_state(self._store)
        self._story.say(
            f"SIGKILL in batch {state.in_flight}; delivered before: {self._delivered():,} of "
            f"{self._orders:,} orders"
        )
        self._story.say(act.expect)
        if act.until_timeout:
            self._leave_alone()
        self._wait_until_noticed(run)

    def recover(self, following: Act | None) -> DagRun:
        """Let Airflow recover the app; return the run in which it lives until the next act."""
        lives = self._api.runs("eos_orders_etl")
        self._story.show_plan(self._plan())
        if following is not None:
            self._on.arm(following.failpoint)
        before = self._api.runs("eos_recovery")
        # The watchdog usually runs every minute; the demo does not wait for the schedule.
        self._follow(self._api.trigger("eos_watchdog"))
        if self._follow(self._newer("eos_recovery", before)).state != "success":
            raise LocalEnvironmentError("The DAG eos_recovery failed; see its tasks' logs.")
        left = self._plan()
        self._story.say(
            "eos_watchdog saw the stall, eos_recovery did what the plan says. Open transactions "
            f"now: {len(left.listed)}. It resumes the app"
        )
        return self._newer("eos_orders_etl", lives)

    def kill_the_worker(self, run: DagRun) -> tuple[Heartbeat, set[tuple[str, str]]]:
        """Kill Airflow's task and worker, but not the app, which goes on; then clear the task.

        Returns the app's heartbeat, and the XComs that the killed task had pushed.
        """
        before = self._delivered()
        self._deliver(run, f"Life {len(ACTS) + 1} of the app", lambda: self._delivered() > before)
        app = self._driver()
        killed_at = self._delivered()
        end_worker_of(app.pid)
        self._story.chapter(f"{len(ACTS) + 1} · killed: Airflow's worker, not the app")
        self._story.say("SIGKILL for the task's process and for its worker; the app goes on")
        self._until(lambda live: self._has_failed(run, live))
        self._story.say(
            f"Airflow calls the task failed. Since then: {self._delivered() - killed_at:,} orders. "
            "The task is cleared, as a person or its retries would do it"
        )
        said = self._api.xcoms(run, "run")
        self._api.clear(run, "run")
        return app, said

    def finish(self, run: DagRun, app: Heartbeat, said: set[tuple[str, str]]) -> None:
        """Wait until the next try takes the app over and the app delivers the rest; drain it."""

        def watched() -> bool:
            require_same(app, self._driver())
            # A try pushes the links of the app that it watches.
            return bool(self._api.xcoms(run, "run") - said)

        self._deliver(run, "The same life", watched)
        self._story.say("Its next try took over the app that it found, and started none")
        self._deliver(run, "The same life", lambda: self._delivered() == self._orders)
        require_same(app, self._driver())
        request_drain(self._store, requested_by="demo", reason="all is read", term=app.term)
        self._deliver(run, "Drained", lambda: self._now(run).ended)
        if self._now(run).state != "success":
            raise LocalEnvironmentError("The last run of eos_orders_etl failed; see its logs.")
        self._story.say(
            "The app has read everything, and was asked to drain. It ended in order; its DAG run "
            "is green"
        )

    def _deliver(self, run: DagRun, text: str, reached: Callable[[], bool]) -> None:
        """Show the rows delivered until ``reached``."""

        def look(live: Live) -> bool:
            live.say(text, self._delivered())
            if reached():
                return True
            if self._now(run).ended and not reached():
                raise LocalEnvironmentError(f"The run {run.run_id} of eos_orders_etl ended early.")
            return False

        self._until(look, self._orders)

    def _leave_alone(self) -> None:
        """Wait until the broker has aborted every promised transaction."""

        def look(live: Live) -> bool:
            waiting = [step for step in self._plan().steps if step.action is Action.COMMIT]
            left_ms = max((step.time_left_ms or 0 for step in waiting), default=0)
            live.say(
                f"Nobody helps. The broker gives up on {len(waiting)} promised transactions in "
                f"{duration(left_ms)}"
            )
            return not waiting

        self._until(look)
        self._story.say("The broker has aborted every transaction of the decision")

    def _wait_until_noticed(self, run: DagRun) -> None:
        """Wait until Airflow has seen the app fail, and the watchdog would call it a stall."""

        def look(live: Live) -> bool:
            state, now_ms = read_state(self._store), time.time_ns() // 1_000_000
            silent = not signs_of_life(self._store)
            age_ms = now_ms - (state.committed_at_ms or 0)
            live.say("The run fails, the heartbeat falls silent")
            return self._now(run).ended and silent and age_ms > STALL_AFTER_S * 1000

        self._until(look)

    def _has_failed(self, run: DagRun, live: Live) -> bool:
        state = self._api.tasks(run)["run"]
        live.say(f"Airflow's task: {state}. The app: {self._delivered():,} orders")
        # A scheduler that has seen the task fail ends the run, even if it was cleared meanwhile.
        return state == "failed" and self._now(run).ended

    def _follow(self, run: DagRun) -> DagRun:
        """Show the tasks of a run until it has ended."""

        def look(live: Live) -> bool:
            tasks = self._api.tasks(run)
            live.say(f"{run.dag_id}: " + "  ".join(f"{n} {s}" for n, s in tasks.items()))
            return self._now(run).ended

        self._until(look)
        return self._now(run)

    def _driver(self) -> Heartbeat:
        found = read_heartbeat(self._store)
        if found is None:
            raise LocalEnvironmentError("The app has delivered, and its heartbeat is not there.")
        return found

    def _newer(self, dag_id: str, known: list[DagRun]) -> DagRun:
        """Return the run that was triggered since ``known`` was listed."""
        runs = self._api.runs(dag_id)
        if len(runs) == len(known):
            raise LocalEnvironmentError(
                f"Airflow was expected to trigger {dag_id}, and did not; see the tasks' logs."
            )
        return runs[-1]

    def _now(self, run: DagRun) -> DagRun:
        [found] = [each for each in self._api.runs(run.dag_id) if each.run_id == run.run_id]
        return found

    def _plan(self) -> Plan:
        return plan_recovery(str(self._on.checkpoint), self._on.kafka)

    def _delivered(self) -> int:
        """Count the rows of the input up to the last completed batch."""
        try:
            state = read_state(self._store)
        except CheckpointError:
            return 0  # Spark is just writing its first files
        offsets = [
            (source.start if state.in_flight is not None else source.end) or {}
            for source in state.sources
        ]
        return sum(sum(topic.values()) for source in offsets for topic in source.values())

    def _until(self, look: Callable[[Live], bool], total: int | None = None) -> None:
        with self._story.live(total) as live:
            patience = Patience("the next act")
            while not look(live):
                patience.see((live.shown, self._delivered()))
                time.sleep(_POLL_S)
