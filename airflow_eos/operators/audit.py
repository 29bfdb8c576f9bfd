"""Compare what went in with what a reader sees."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_eos.arguments import Duration, taken
from airflow_eos.hooks.arguments import CheckedArguments, as_rendered, no_retry_where_useless

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg


class AuditOperator(CheckedArguments):
    """Fails unless a ``read_committed`` reader has every row exactly once and in order.

    It fails also where that is not known, as behind retention. The input must be at rest: a row
    that the app has not come to yet counts as lost, unless its checkpoint is given. Returns the
    report as a dictionary (XCom): ``verdict`` (``exact``, ``violated``, ``unknown``), the counts,
    the first offending rows, and ``unjudged``.

    Args:
        input_topic: what the app reads; a list of several topics (templated).
        output_topic: what the app writes (templated).
        kafka_config_id: Kafka connection (templated).
        id_expression: what names a row in both topics: ``key``, ``value.<field>`` or
            ``headers.<name>`` (templated).
        order_by: the key, in the input, within which the order must be kept (templated).
        dead_letter_topic: where malformed rows go (templated).
        dead_letter_id: what names a row there, if it is not ``id_expression`` (templated).
        checkpoint_location: of the app: then rows that no decision names are found (templated).
        storage_conn_id: connection of the checkpoint's object store, of type ``aws``,
            ``google_cloud_platform`` or ``wasb``; None leaves it to the environment (templated).
        storage_options: further options of that store, such as ``aws_region``; no secrets.
        broker_timeout: how long to wait for a broker that says nothing.
        fail_on_violation: False reports without failing: whoever takes the report looks at its
            ``verdict``.
    """

    template_fields: Sequence[str] = (
        "input_topic",
        "output_topic",
        "kafka_config_id",
        "id_expression",
        "order_by",
        "dead_letter_topic",
        "dead_letter_id",
        "checkpoint_location",
        "storage_conn_id",
    )
    ui_color = "#e2ece9"

    def __init__(
        self,
        *,
        input_topic: str | Sequence[str] | XComArg,
        output_topic: str | XComArg,
        kafka_config_id: str | XComArg = "kafka_default",
        id_expression: str | XComArg = "value.id",
        order_by: str | XComArg = "key",
        dead_letter_topic: str | XComArg | None = None,
        dead_letter_id: str | XComArg | None = None,
        checkpoint_location: str | XComArg | None = None,
        storage_conn_id: str | XComArg | None = None,
        storage_options: Mapping[str, str] | None = None,
        broker_timeout: Duration = 30.0,
        fail_on_violation: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.input_topic: str | Sequence[str] = as_rendered(input_topic)
        self.output_topic: str = as_rendered(output_topic)
        self.kafka_config_id: str = as_rendered(kafka_config_id)
        self.id_expression: str = as_rendered(id_expression)
        self.order_by: str = as_rendered(order_by)
        self.dead_letter_topic: str | None = as_rendered(dead_letter_topic)
        self.dead_letter_id: str | None = as_rendered(dead_letter_id)
        self.checkpoint_location: str | None = as_rendered(checkpoint_location)
        self.storage_conn_id: str | None = as_rendered(storage_conn_id)
        self.storage_options = storage_options
        self.broker_timeout: timedelta = taken("broker_timeout", broker_timeout)
        self.fail_on_violation = fail_on_violation

    def execute(self, context: Context) -> Any:  # noqa: ARG002 - Airflow's signature
        """Return the report as a dictionary.

        Raises:
            AuditError: rows lost, duplicated, reordered, visible too early, or still open; or not
                all of them can be judged.
            AirflowFailException: an expression that names no part of a row.
        """
        from airflow_eos.hooks.kafka import KafkaSettingsHook
        from airflow_eos.hooks.store import CheckpointStoreHook
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
