"""Operators that plan a recovery, execute it, and audit the output topic against the input."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

from airflow.sdk import XComArg

from airflow_eos.core.arguments import (
    Anything,
    Duration,
    Flag,
    PositiveDuration,
    Texts,
    Topics,
    Word,
)
from airflow_eos.hooks.arguments import CheckedArguments, no_retry_where_useless
from airflow_eos.hooks.kafka import KafkaSettingsHook
from airflow_eos.hooks.store import CheckpointStoreHook, ParticipantsHook

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_eos.ops.supervision.recovery import Recovery

Actions = Annotated[Sequence[str], Texts(words=("commit", "abort", "orphan"))]
Ruling = Annotated[str, Word(words=("committed", "aborted"), none=("", "None"))]


class PlanRecoveryOperator(CheckedArguments):
    """Plans a recovery and changes nothing. Safe at any time, on a live pipeline too.

    Prints the plan to the log and returns it as a dictionary (XCom): ``steps``, each with
    ``action``, ``work`` (None for REPLAY), ``works``, ``participant``, ``age_ms``,
    ``time_left_ms``, ``rows`` and ``reason``, and ``alive``, the signs of life.

    Args:
        checkpoint_location: of the pipeline (templated).
        transactional_id_prefix: None means the one that the checkpoint names (templated).
        kafka_config_id: Kafka connection (templated).
        storage_conn_id: connection of the checkpoint's object store, of type ``aws``,
            ``google_cloud_platform`` or ``wasb``; None leaves it to the environment (templated).
        storage_options: further options of that store, such as ``aws_region``; no secrets.
        participant_conn_ids: connections of the pipeline's other participants, by name or kind,
            such as ``{"totals": "postgres_shop"}`` (templated).
    """

    ui_color = "#d8e2dc"

    def __init__(
        self,
        *,
        checkpoint_location: str | XComArg,
        transactional_id_prefix: str | XComArg | None = None,
        kafka_config_id: str | XComArg = "kafka_default",
        storage_conn_id: str | XComArg | None = None,
        storage_options: Mapping[str, str] | None = None,
        participant_conn_ids: Mapping[str, str] | XComArg | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._take(locals())

    def execute(self, context: Context) -> Any:  # noqa: ARG002 - Airflow's signature
        """Return the plan as a dictionary.

        Raises:
            AirflowFailException: the checkpoint names no pipeline, or one of another cluster.
            EosError: the checkpoint cannot be read, or the cluster cannot be reached.
        """
        with no_retry_where_useless():
            return json.loads(self._recovery().plan().to_json())

    def _recovery(self) -> Recovery:
        from airflow_eos.ops.supervision.recovery import Recovery

        store = CheckpointStoreHook(self.storage_conn_id, self.storage_options)
        return Recovery(
            checkpoint=self.checkpoint_location,
            kafka=KafkaSettingsHook(self.kafka_config_id).settings(),
            prefix=self.transactional_id_prefix,
            storage_options=store.options(),
            reach=ParticipantsHook(self.participant_conn_ids).reach(),
        )


class RecoverTransactionsOperator(PlanRecoveryOperator):
    """Commits promised transactions and aborts the others; a second run finds nothing to do.

    Where steps remain that only a person may decide, the task does all others first, then fails.
    Returns the report as a dictionary, and with ``dry_run`` the plan.

    Args:
        checkpoint_location, transactional_id_prefix, kafka_config_id: as for
            :class:`PlanRecoveryOperator`.
        storage_conn_id, storage_options, participant_conn_ids: as for
            :class:`PlanRecoveryOperator`.
        plan: what ``PlanRecoveryOperator`` returned (``plan.output``); None makes a new one. Only
            its listing is used, everything else is read again (templated).
        dry_run: print the plan, do nothing.
        allowed_actions: some of ``commit``, ``abort`` and ``orphan`` (aborts transactions that no
            checkpoint knows; templated).
        assume: what a person ruled about every promised transaction that the plan asks about (ASK),
            as nobody can read its outcome any more: ``committed`` (readers have seen the rows) or
            ``aborted`` (replay them). It stands for ever. None leaves them alone (templated).
        force: go on although the pipeline shows signs of life; it loses its running attempt.
        patience: how long a young heartbeat is watched before the pipeline counts as alive.
    """

    plan: Mapping[str, Any] | str | None
    allowed_actions: Sequence[str]
    assume: str | None
    force: bool
    patience: timedelta

    def __init__(
        self,
        *,
        plan: Annotated[Mapping[str, Any] | str, Anything()] | XComArg | None = None,
        dry_run: bool = False,
        allowed_actions: Actions | XComArg = ("commit", "abort"),
        assume: Ruling | XComArg | None = None,
        force: bool = False,
        patience: Duration = timedelta(minutes=1),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # BaseOperator has a method of the same name, which runs an operator without a DAG
        self._only_plan: bool = Flag().of("dry_run", dry_run)
        self._take({name: value for name, value in locals().items() if name != "dry_run"})

    def execute(self, context: Context) -> Any:  # noqa: ARG002 - Airflow's signature
        """Return the report as a dictionary.

        Raises:
            PipelineAliveError: signs of life, with the evidence, and ``force`` is off.
            AirflowFailException: steps were left that need a person or were not allowed.
            EosError: see :func:`airflow_eos.recovery.execute_recovery`.
        """
        from airflow_eos.core.protocol.decision import Outcome
        from airflow_eos.ops.supervision.recovery import print_plan
        from airflow_eos.recovery import Action, Plan, resolve

        with no_retry_where_useless():
            recovery = self._recovery()
            if self.plan is None:
                plan = recovery.plan()
            else:
                given = self.plan if isinstance(self.plan, str) else json.dumps(self.plan)
                plan = Plan.from_json(given)
                print_plan(plan)
            if self._only_plan:
                return json.loads(plan.to_json())
            if plan.steps and not self.force:
                recovery.wait_for_silence()
            if self.assume:  # the answer may come a day later: what came since was not its question
                asked = {step.work for step in plan.steps if step.action is Action.ASK}
                for step in recovery.plan().steps:
                    if step.action is Action.ASK and step.work is not None and step.work in asked:
                        outcome = Outcome(self.assume)
                        resolve(recovery.store, step.work, outcome, ruled_by="an Airflow task")
            allowed = frozenset(map(Action, self.allowed_actions))
            report = recovery.execute(plan, allow=allowed, force=self.force)
            report.require_complete()
            return json.loads(report.to_json())

    def _recovery(self) -> Recovery:
        return replace(super()._recovery(), patience=self.patience)


class AuditOperator(CheckedArguments):
    """Fails unless a ``read_committed`` reader has every row exactly once and in order.

    It fails also where that is not known, as behind retention or of rows without a key. The input
    must be at rest: a row that the app has not come to yet counts as lost, unless its checkpoint is
    given. Returns the report as a dictionary (XCom): ``verdict`` (``exact``, ``violated``,
    ``unknown``), the counts, ``order`` (``kept``, ``broken``, ``not judged``, ``not asked``), the
    first offending rows, and ``unjudged``.

    Args:
        input_topic: what the app reads; a list of several topics (templated).
        output_topic: what the app writes (templated).
        kafka_config_id: Kafka connection (templated).
        id_expression: what names a row in both topics: ``key``, ``value.<field>`` or
            ``headers.<name>`` (templated).
        order_by: the key, in the input, within which the order must be kept; ``none``: nobody asks
            for the order (templated).
        dead_letter_topic: where malformed rows go (templated).
        dead_letter_id: what names a row there, if it is not ``id_expression`` (templated).
        checkpoint_location: of the app: then rows that no decision names are found (templated).
        storage_conn_id, storage_options: as for :class:`PlanRecoveryOperator`.
        broker_timeout: how long to wait for a broker that says nothing.
        fail_on_violation: False reports without failing: whoever takes the report looks at its
            ``verdict``.
    """

    ui_color = "#e2ece9"

    input_topic: str | Sequence[str]
    output_topic: str
    id_expression: str
    order_by: str
    dead_letter_topic: str | None
    dead_letter_id: str | None
    broker_timeout: timedelta
    fail_on_violation: bool

    def __init__(
        self,
        *,
        input_topic: Topics | XComArg,
        output_topic: str | XComArg,
        kafka_config_id: str | XComArg = "kafka_default",
        id_expression: str | XComArg = "value.id",
        order_by: str | XComArg = "key",
        dead_letter_topic: str | XComArg | None = None,
        dead_letter_id: str | XComArg | None = None,
        checkpoint_location: str | XComArg | None = None,
        storage_conn_id: str | XComArg | None = None,
        storage_options: Mapping[str, str] | None = None,
        broker_timeout: PositiveDuration = 30.0,
        fail_on_violation: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._take(locals())

    def execute(self, context: Context) -> Any:  # noqa: ARG002 - Airflow's signature
        """Return the report as a dictionary.

        Raises:
            AuditError: rows lost, duplicated, reordered, visible too early, or still open; or not
                all of them can be judged.
            AirflowFailException: an expression that names no part of a row.
        """
        from airflow_eos.recovery import audit

        with no_retry_where_useless():
            store = CheckpointStoreHook(self.storage_conn_id, self.storage_options)
            report = audit(
                KafkaSettingsHook(self.kafka_config_id).settings(),
                self.input_topic,
                self.output_topic,
                id_expression=self.id_expression,
                order_by=self.order_by,
                dead_letter_topic=self.dead_letter_topic,
                dead_letter_id=self.dead_letter_id,
                checkpoint=self.checkpoint_location,
                storage_options=store.options(),
                timeout_s=self.broker_timeout.total_seconds(),
            )
        self.log.info("%s", report.summary())
        if self.fail_on_violation:
            report.require_ok()
        return json.loads(report.to_json())
