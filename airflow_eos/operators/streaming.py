"""Run a checkpointed Spark streaming app to its end, exactly once, through its failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_eos.hooks.failures import no_retry_of_what_was_drained, no_retry_where_useless
from airflow_eos.operators.streaming_arguments import StreamingArguments

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.sdk import Context

    from airflow_eos.hooks.target import Target
    from airflow_eos.supervision.recovering import Recovery
    from airflow_eos.supervision.run import StreamRun
    from airflow_eos.supervision.watch_app import Outcome
    from airflow_eos.supervision.workspace import Secrets


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

    The app finds its settings in its environment (``EOS_...``, see docs/airflow.md), and what is
    secret in files that only this user may read, gone once they are read. No secret is on a
    command line; in deploy mode ``cluster`` the environment is, so ``env_vars`` with the name of a
    secret are refused there. Secrets belong into connections, not into ``application_args``.

    Args:
        checkpoint_location: what the app gives to ``start_exactly_once`` (templated).
        transactional_id_prefix: None means the one that the checkpoint names; then the first
            start, where there is none yet, has nothing to recover (templated).
        kafka_config_id: Kafka connection; its extra is a librdkafka configuration (templated).
        ship_package: send this package (not its dependencies) to the driver and the executors.
        storage_conn_id, storage_options, participant_conn_ids: see :class:`PlanRecoveryOperator`.
        outputs, guarantee, consumer_group: where the rows go in the place of the app's own topic,
            what is promised, and who shows how far it is: see docs/sinks.md (templated).
        trigger_interval, batch_within, recover_within, transaction_timeout: the budget of a
            transaction: the last must cover the sum of the first three, and the broker's
            ``transaction.max.timeout.ms`` must allow it.
        max_restarts, restart_delay: restarts within one Airflow try, and the pause before each;
            ``retries`` start the count again.
        policy: pauses, the timeout of batches, how many are kept, other restart strategies; in it
            ``interval`` is ``trigger_interval``, and ``restart`` the two above.
        recover_before_start: end what is open before each start. Without it the plan is only
            printed, and the app itself recovers as it starts.
        drain_timeout: for the running batch to end when the task is stopped.
        patience: how long the heartbeat of an app that is watched may stand still.
        submit_timeout: from the submit to the first heartbeat; and so long the process may still be
            there once its query has stopped in order.
        cancel: ``drain``: let the running batch end; ``kill``: at once, which costs that batch a
            second try; ``leave``: the app goes on, for the next try to take over.
        deferrable: watch from the triggerer; None takes ``operators.default_deferrable``.
        poke_interval: how often the triggerer looks, in seconds.
        **kwargs: of :class:`~airflow_eos.operators.spark_arguments.SparkArguments` and Airflow.
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
        return self._see_through(context, None)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Judge the end that the trigger has seen: be done, or recover and start again.

        Where the trigger could not go on watching, look again: the app may live.
        """
        from airflow_eos.supervision.watch_app import Outcome

        return self._see_through(context, Outcome.of_event(event))

    def on_kill(self) -> None:
        """Stop the app as ``cancel`` says; on a user's action, a timeout, a worker's shutdown."""
        if self._stream is not None:
            self._stream.stop("Airflow called on_kill (a user's action or the worker's shutdown)")

    def _see_through(self, context: Context, before: Outcome | None) -> dict[str, Any]:
        from airflow_eos.hooks.secrets import secrets_of
        from airflow_eos.operators.watching import trigger_of
        from airflow_eos.supervision.recovering import leave_nothing_open
        from airflow_eos.supervision.workspace import (
            leave_behind,
            private_folder,
            remove_leftovers,
        )

        how = before.ended if before is not None else None
        with no_retry_where_useless(), private_folder(self.checkpoint_location) as folder:
            with no_retry_of_what_was_drained(how):
                secrets = secrets_of(self)
                target, recovery = self._preflight(secrets)
            if before is not None and how is not None and how.in_order:
                outcome = before
                recovery.let_go()
            else:
                stream = self._run_of(context, target, recovery, folder, secrets)
                try:
                    outcome = stream.until_finished(before)
                except BaseException:
                    if self.cancel == "leave" and stream.leaves_a_child:
                        leave_behind(folder)
                    raise
                finally:
                    recovery.let_go()
            how = outcome.ended
            if how is None:
                if not target.is_cluster:  # else its files were shipped, and are secret
                    leave_behind(folder)
                self.defer(
                    trigger=trigger_of(self, target, outcome), method_name="execute_complete"
                )
                raise AssertionError  # it raised
            with no_retry_of_what_was_drained(how):
                batch_id, is_last = leave_nothing_open(recovery, outcome.submission)
            if is_last:  # else another's app may run from them
                remove_leftovers(folder, self.checkpoint_location)
            end = how.end.name.lower()
            return {"batch_id": batch_id, "restarts": len(outcome.failures), "end": end}

    def _run_of(
        self, context: Context, target: Target, recovery: Recovery, folder: Path, secrets: Secrets
    ) -> StreamRun:
        """What starts the app, or takes it over, and watches it; ``on_kill`` stops it."""
        from airflow_eos.hooks.secrets import store_of
        from airflow_eos.hooks.task import task_of
        from airflow_eos.links.pipeline import push_links
        from airflow_eos.operators.submission import submission_of
        from airflow_eos.operators.watching import rules_of
        from airflow_eos.supervision.recovering import recover_before_start
        from airflow_eos.supervision.run import StreamRun

        self._stream = stream = StreamRun(
            recovery.store,
            task_of(context),
            submit=lambda us: submission_of(self, target, us, folder, secrets),
            recover=lambda: recover_before_start(
                recovery, known_dead=stream.is_dead, act=self.recover_before_start
            ),
            met=lambda driver: push_links(self, context, driver),
            reopen=lambda: store_of(self),
            rules=rules_of(self, target),
        )
        return stream

    def _preflight(self, secrets: Secrets) -> tuple[Target, Recovery]:
        """Check all that can be checked before anything is started."""
        from airflow_eos.hooks.outputs import prefix_in_use
        from airflow_eos.hooks.target import Target
        from airflow_eos.kafka.client.settings import KafkaSettings
        from airflow_eos.supervision.preflight import reached_within
        from airflow_eos.supervision.recovering import Recovery

        target = Target.of(self.conn_id, deploy_mode=self.deploy_mode, conf=self.conf or {})
        settings = KafkaSettings.from_librdkafka(secrets.kafka)
        prefix = prefix_in_use(
            self.guarantee, self.outputs, self.transactional_id_prefix, self.budget, secrets
        )
        return target, Recovery(
            checkpoint=self.checkpoint_location,
            kafka=settings,
            prefix=prefix,
            storage_options=secrets.storage,
            reach=secrets.participants,
            patience=self.patience,
            first=reached_within(self.budget, settings),
        )
