"""How a drill went, through whichever notifier the house uses."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.notifier import BaseNotifier

if TYPE_CHECKING:
    from airflow.sdk import Context


class DrillNotifier(BaseNotifier):
    """Says how long recovery took, and sends it with another notifier.

    Give it to ``notifiers`` of :func:`airflow_eos.factory.eos_drill`::

        DrillNotifier(lambda text: SlackNotifier(slack_conn_id="ops", text=text))

    Args:
        send: makes a notifier of the text, such as Slack's or SMTP's.
        report: what ``drill`` found, as JSON, or a template that gives it (templated).
    """

    template_fields: Sequence[str] = ("report",)

    def __init__(
        self,
        send: Callable[[str], BaseNotifier],
        *,
        report: str = "{{ ti.xcom_pull(task_ids='drill', key='report') | tojson }}",
    ) -> None:
        super().__init__()
        self.send = send
        self.report = report

    def notify(self, context: Context) -> None:
        """Send the message, rendered already."""
        self.send(in_words(json.loads(self.report))).notify(context)


def in_words(report: dict[str, Any] | None) -> str:
    """One sentence; of a drill that found nothing, why."""
    if not report:
        return "**The drill failed** before it found anything: see the log of its task."
    if "seconds" not in report:
        return f"**The drill failed:** {report['why']}"
    verdict = "The drill went well" if report["ok"] else "**Recovery took too long**"
    return (
        f"{verdict}: {report['seconds']} s from the kill to the next commit, {report['limit_s']:g} "
        f"s allowed ({report['killed']}; {report['successor']} committed batch {report['batch']})."
    )
