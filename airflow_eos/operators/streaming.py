"""Run a checkpointed Spark streaming app, exactly once, through its failures; or rehearse it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowTaskTimeout
from airflow.sdk import XComArg

from airflow_eos.core.arguments import Count
from airflow_eos.errors import RehearsalError
from airflow_eos.hooks.arguments import no_retry_of_what_was_drained, no_retry_where_useless
from airflow_eos.hooks.deadlines import TaskDeadline
from airflow_eos.operators.arguments import StreamingArguments

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_eos.hooks.spark import SparkSubmission
    from airflow_eos.ops.supervision.run import StreamRun
    from airflow_eos.ops.supervision.trigger_watch import AppResult


_STOPPED = (
    "Airflow called on_kill: a user cleared or marked the task, its rows were deleted, or the "
    "worker was shut down"
)


class SparkStreamingOperator(StreamingArguments):
    """Runs a Spark streaming app that delivers with ``start_exactly_once``, on every master.

    In order: check the chain of timeouts; *look at the checkpoint whether the app lives* and take
    it over, or recover what a former driver left open and submit; watch; after a failure recover
    and start again. The task is green only where the driver wrote that it stopped in order, its
    process (where it is a child of this one) exited with 0, *and* nothing is left open.

    A try that comes after a killed worker, a cleared task or a restarted scheduler adopts the app
    of the try before: the heartbeat in the checkpoint names the task that started it. An app of
    another task or run, or one started by hand, is refused by name and not retried.

    In deploy mode ``client`` the driver runs on the worker; in ``cluster`` (YARN, Kubernetes) it
    runs anywhere, and its heartbeat alone is watched. ``deferrable`` gives the worker's slot back
    once the app has beaten; where the executor ends every process with the task (a pod of its own)
    and the driver is on the worker, the task stays.

    On a user's clear or mark, on an execution timeout *and on a graceful shutdown of the worker*
    Airflow calls ``on_kill``: ``cancel`` says what becomes of the app. Airflow ends the task's
    process 5 s after a user's clear; the app goes on draining by itself, and the next try waits
    for it. A stopped task is never green.

    The app finds its settings in its environment (``EOS_...``, see docs/reference/app.md), and what
    is secret in files that only this user may read, gone once they are read. No secret is on a
    command line; in deploy mode ``cluster`` the environment is, so ``env_vars`` with the name of a
    secret are refused there. Secrets belong into connections, not into ``application_args``.

    A duration is a ``timedelta``, seconds, or a text such as ``"10 seconds"``; a template field
    takes another task's output, too.

    Args:
        checkpoint_location: what the app gives to ``start_exactly_once`` (templated).
        transactional_id_prefix: None means the one that the checkpoint names; then the first
            start, where there is none yet, has nothing to recover (templated).
        kafka_config_id: Kafka connection; its extra is a librdkafka configuration (templated).
        ship_package: send this package (not its dependencies) to the driver and the executors.
        storage_conn_id, storage_options, participant_conn_ids: see :class:`PlanRecoveryOperator`.
        outputs, guarantee, consumer_group: where the rows go in the place of the app's own topic,
            what is promised, and who shows how far it is: see docs/sinks.md (templated).
        content: digests of the files that were approved, as
            :func:`~airflow_eos.operators.submission.content_of` gives them: files of another
            content are not started, at no start and restart. None: whatever they hold (templated).
        trigger_interval, batch_within, recover_within, transaction_timeout: the budget of a
            transaction: the last must cover the sum of the first three, and the broker's
            ``transaction.max.timeout.ms`` must allow it.
        max_restarts, restart_delay: restarts within one Airflow try, and the pause before each;
            ``retries`` start the count again.
        policy: pauses, the timeout of batches, how many are kept, other restart strategies; in it
            ``interval`` is ``trigger_interval``, and ``restart`` the two above.
        recover_before_start: end what is open before each start. Without it the plan is only
            printed, and the app itself recovers as it starts.
        drain_timeout: how long the running batch may take to end when the task is stopped.
        patience: how long the heartbeat of an app that is watched may stand still.
        submit_timeout: longest time from the submit to the first heartbeat; and how long the
            process may still be there once its query has stopped in order.
        cancel: ``drain``: let the running batch end; ``kill``: at once, which costs that batch a
            second try; ``leave``: the app goes on, for the next try to take over.
        standby: where another task's driver runs, let the app stand by behind it, warm, and drive
            once that one has ended or hands over; it takes a slot all the while, and is not
            deferred. Two tasks may both have it. See docs/standby.md.
        deferrable: watch from the triggerer; None takes ``operators.default_deferrable``.
        poke_interval: how often the triggerer looks.
        **kwargs: of :class:`~airflow_eos.operators.streaming.SparkArguments` and Airflow.
    """

    ui_color = "#ffe8d6"

    _stream: StreamRun | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the app, or take it over; returns ``{"batch_id": last, "restarts": n, "end": …}``.

        ``end`` is ``succeeded`` where the app read everything, ``drained`` where somebody asked it
        to stop.

        Raises:
            AirflowFailException: settings that cannot work, a plan that a person must decide, or an
                app of another task.
            AppFailedError: the app failed once more than it may be restarted.
            AppStoppedError: the task was stopped; see ``cancel``.
        """
        return self._see_through(context, None, TaskDeadline.of(self))

    def execute_complete(
        self, context: Context, event: Mapping[str, Any], until_s: float | None = None
    ) -> dict[str, Any]:
        """Finish, or recover and start the app again, by the end that the trigger has seen.

        Where the trigger could not go on watching, look at the app again: it may live.

        Raises:
            AirflowTaskTimeout: the time of the task is over, its deferrals counted.
        """
        from airflow_eos.ops.supervision.trigger_watch import AppResult

        deadline = TaskDeadline(until_s)
        try:
            with deadline.kept():
                return self._see_through(context, AppResult.of_event(event), deadline)
        except AirflowTaskTimeout:
            self._stop_unwatched(context)
            raise

    def resume_execution(
        self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context
    ) -> Any:
        """Resume after the deferral; where the task's time ended meanwhile, stop the app.

        Raises:
            AirflowTaskTimeout: the task ran into its ``execution_timeout`` while it was deferred.
        """
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except Exception as error:
            # By its name: the class is in one module in Airflow 3.1 and in another in 3.3.
            if type(error).__name__ != "TaskDeferralTimeout":
                raise
            self._stop_unwatched(context)
            raise AirflowTaskTimeout(
                f"The task ran into its execution_timeout ({self.execution_timeout}) while the "
                "triggerer watched its app."
            ) from error

    def on_kill(self) -> None:
        """Stop the app as ``cancel`` says: Airflow calls on a user's action, timeout, shutdown."""
        if self._stream is not None:
            self._stream.stop(_STOPPED)

    def _stop_unwatched(self, context: Context) -> None:
        """Stop the app as ``cancel`` says where this process has not come to watch it."""
        if self._stream is not None:
            return  # which has stopped it

        from airflow_eos.operators.submission import run_to_stop

        run_to_stop(self, context).stop("the task ran into its execution_timeout")

    def _see_through(
        self, context: Context, before: AppResult | None, deadline: TaskDeadline
    ) -> dict[str, Any]:
        from airflow_eos.operators.submission import (
            preflight,
            run_of,
            secrets_of,
            trigger_of,
            with_keys_of_now,
        )
        from airflow_eos.ops.packaging import leave_behind, private_folder, remove_leftovers
        from airflow_eos.ops.supervision.recovery import leave_nothing_open

        how = before.ended if before is not None else None
        with no_retry_where_useless(), private_folder(self.checkpoint_location) as folder:
            with no_retry_of_what_was_drained(how):
                target, recovery = preflight(self, secrets_of(self))
            if before is not None and how is not None and how.in_order:
                outcome = before
                recovery.close_unused_connection()
            else:
                self._stream = stream = run_of(self, context, target, recovery, folder)
                try:
                    outcome = stream.until_finished(before)
                except BaseException:
                    if self.cancel == "leave" and stream.leaves_a_child:
                        leave_behind(folder)
                    raise
                finally:
                    recovery.close_unused_connection()
            how = outcome.ended
            if how is None:
                if not target.is_cluster:  # else its files were shipped, and are secret
                    leave_behind(folder)
                self.defer(
                    trigger=trigger_of(self, target, outcome),
                    method_name="execute_complete",
                    kwargs=deadline.kwargs,
                    timeout=deadline.left,
                )
                raise AssertionError  # it raised
            with no_retry_of_what_was_drained(how):
                ended = with_keys_of_now(self, recovery)
                batch_id, is_last = leave_nothing_open(ended, outcome.submission)
            if is_last:  # else another task's app may still use these files
                remove_leftovers(folder, self.checkpoint_location)
            end = how.end.name.lower()
            return {"batch_id": batch_id, "restarts": len(outcome.failures), "end": end}


_LOOK_S = 0.2


class RehearseOperator(StreamingArguments):
    """Fails unless a new version of an app gives the rows that the old one has delivered.

    The old version may run meanwhile: its checkpoint is copied, and else only read. The task fails
    also where the answer is not known, as behind retention. Returns the report as a dictionary
    (XCom): ``verdict`` (``same``, ``differs``, ``failed``, ``not known``), and by batch and output
    the counts and examples. The driver runs on the worker (deploy mode ``client``), also where the
    connection says otherwise.

    Args:
        batches: how many of the newest batches to rehearse (templated).
        key: columns that pair rows of the two versions; none: ``key``, where an output has one.
        examples: how many differing rows to show of each batch and output, in the log and in XCom.
        scratch: where executors of other machines reach the copy of the checkpoint, which stays
            there; None: a temporary folder of the worker, removed at the end (templated).
        keep: an empty topic to which the rows of outputs to Kafka go, too; None: none (templated).
        fail_on_difference: False reports without failing: whoever takes the report, as a person
            who approves it, looks at its ``verdict``.
        **kwargs: of :class:`SparkStreamingOperator`; ``application`` is the new version.
    """

    ui_color = "#f5e6cc"

    batches: int
    key: Sequence[str]
    examples: int
    scratch: str | None
    keep: str | None
    fail_on_difference: bool
    _submission: SparkSubmission | None = None

    def __init__(
        self,
        *,
        batches: Count | str | XComArg = 20,
        key: Sequence[str] = (),
        examples: int = 3,
        scratch: str | XComArg | None = None,
        keep: str | XComArg | None = None,
        fail_on_difference: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._take(locals())

    def execute(self, context: Context) -> Any:  # noqa: ARG002 - Airflow's signature
        """Return the report as a dictionary.

        Raises:
            AirflowFailException: rows differ, the new version failed, or the answer is not known;
                or settings that cannot work.
            AppFailedError: the app ended before anything was compared.
        """
        from airflow_eos.core.checkpoint.rehearsal import RehearsalRequest
        from airflow_eos.hooks.spark import SubmitTarget
        from airflow_eos.operators.submission import rehearsal_of, secrets_of
        from airflow_eos.ops.packaging import private_folder, remove_leftovers
        from airflow_eos.ops.rehearsal import report_of, report_view, sentence
        from airflow_eos.ops.tables import as_text

        rehearsal = f"{self.checkpoint_location} rehearsal"  # not the folders of the running app
        with no_retry_where_useless(), private_folder(rehearsal) as folder:
            remove_leftovers(folder, rehearsal)  # a copy of the state is large
            copy = f"{(self.scratch or '').rstrip('/')}/{uuid.uuid4().hex}"
            secrets = secrets_of(self)
            target = SubmitTarget.of(
                self.conn_id, deploy_mode=self.deploy_mode or "client", conf=self.conf or {}
            )
            told = RehearsalRequest(
                self.checkpoint_location,
                copy if self.scratch else str(folder / "checkpoint"),
                self.batches,
                tuple(self.key),
                self.examples,
                self.keep or "",
            )
            self._submission = rehearsal_of(self, target, told, folder, secrets)
            self._submission.start()
            try:
                while self._submission.running:
                    time.sleep(_LOOK_S)
            except BaseException:  # Ctrl-C under dag.test(): the app would go on unwatched
                self.on_kill()
                raise
            failure = self._submission.failure
            said = "It exited with 0." if failure is None else str(failure)
            report = report_of(told, said, secrets.storage)
            self.log.info("%s", as_text(report_view(report), width=160))
            if report.exit_status and self.fail_on_difference:
                raise RehearsalError(sentence(report))
        return json.loads(report.to_json())

    def on_kill(self) -> None:
        """Kill the rehearsal's app: a rehearsal begins no transaction that must be ended."""
        if self._submission is not None:
            self._submission.kill()
