"""Messages to people: a recovery plan to decide from, the result of a drill, and a deadline."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.notifier import BaseNotifier

try:
    # Public, and left out of the stub that Airflow ships.
    from airflow.sdk import DeadlineAlert, DeadlineReference  # type: ignore[attr-defined]
except ImportError:  # Airflow 3.1 has them, and exports them not
    from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from airflow_eos.core.arguments import PositiveDuration, TimeSpan
from airflow_eos.core.protocol.decision import one_line

if TYPE_CHECKING:
    from airflow.sdk import AsyncCallback, Context, SyncCallback  # type: ignore[attr-defined]

    from airflow_eos.recovery import Plan


_ADDRESS = re.compile(r"://|www\.|@", re.IGNORECASE)
FEW = 12
"""The most steps that a message lists; a phone shows no more."""


class RecoveryPlanNotifier(BaseNotifier):
    """A notifier that puts a recovery plan into words and sends it with another notifier.

    Give it to ``notifiers`` of the approval, or to ``on_success_callback`` of the task that plans::

        RecoveryPlanNotifier(lambda text: SlackNotifier(slack_conn_id="ops", text=text))

    Args:
        send: makes a notifier of the text, such as Slack's or SMTP's.
        plan: the plan as JSON, or a template that gives it (templated).
        only_if_asked: stay silent unless a person must decide.
    """

    template_fields: Sequence[str] = ("plan",)

    def __init__(
        self,
        send: Callable[[str], BaseNotifier],
        *,
        plan: str = "{{ ti.xcom_pull(task_ids='plan') | tojson }}",
        only_if_asked: bool = False,
    ) -> None:
        super().__init__()
        self.send = send
        self.plan = plan
        self.only_if_asked = only_if_asked

    def notify(self, context: Context) -> None:
        """Send the message, rendered already."""
        text = self._text()
        if text is not None:
            self.send(text).notify(context)

    async def async_notify(self, context: Context) -> None:
        """Send the message from the triggerer."""
        text = self._text()
        if text is not None:
            await self.send(text).async_notify(context)

    def _text(self) -> str | None:
        from airflow_eos.recovery import Plan

        found: Any = json.loads(self.plan)
        if found is None:
            return None
        plan = Plan.from_json(self.plan)
        return None if self.only_if_asked and not plan.needs_person else plan_in_words(plan)


def plan_in_words(plan: Plan) -> str:
    """Return the plan as Markdown: first what needs a person, then the rest, most urgent first."""
    from airflow_eos.ops.tables import time_left
    from airflow_eos.recovery import Action

    asked = (Action.ASK, Action.ORPHAN)
    steps = sorted(
        plan.steps,
        key=lambda step: (
            step.action not in asked,
            step.time_left_ms is None,
            step.time_left_ms or 0,
        ),
    )
    batch = "no batch in flight" if plan.in_flight is None else f"batch {plan.in_flight} in flight"
    lines = [f"Recovery plan of {_code(plan.location)}: {batch}, {len(steps)} steps."]
    if plan.needs_person:
        lines.append(f"**{plan.count(*asked)} of them wait for a person.**")
    if plan.alive:
        lines.append(f"The pipeline shows signs of life: {_words('; '.join(plan.alive))}.")
    for step in steps[:FEW]:
        what = _code(step.work.key) if step.work else f"{step.works} pieces of work"
        rows = "" if step.rows is None else f", {step.rows} rows"
        left = "" if step.time_left_ms is None else f", time left {time_left(step.time_left_ms)}"
        lines.append(f"- **{step.action.value}** {what}{rows}{left}: {_words(step.reason)}")
    if len(steps) > FEW:
        lines.append(f"- and {len(steps) - FEW} more")
    return "\n".join(lines)


def _code(name: str) -> str:
    """Return a foreign name as Markdown code, so that the name cannot change how it is shown."""
    return f"`{one_line(name).replace('`', chr(39))}`"


def _words(said: str) -> str:
    """Return a sentence with foreign names as Markdown without links, pictures and HTML.

    An address would be a link by itself, so it is shown as code.
    """
    text = re.sub(r"([\[<])", r"\\\1", one_line(said).replace("`", "'"))
    return " ".join(_code(w) if _ADDRESS.search(w) else w for w in text.split(" "))


# --- drill ----------------------------------------------------------------------------------------
# The result of a drill, sent with any notifier.


class DrillNotifier(BaseNotifier):
    """A notifier that says how long recovery took and sends it with another notifier.

    Give it to ``notifiers`` of :func:`airflow_eos.factory.eos_drill`::

        DrillNotifier(lambda text: SlackNotifier(slack_conn_id="ops", text=text))

    Args:
        send: makes a notifier of the text, such as Slack's or SMTP's.
        report: the result of ``drill`` as JSON, or a template that gives it (templated).
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
        self.send(drill_in_words(json.loads(self.report))).notify(context)


def drill_in_words(report: dict[str, Any] | None) -> str:
    """Say how a drill went in one sentence; if it found nothing, say why."""
    if not report:
        return "**The drill failed** before it found anything: see the log of its task."
    if "seconds" not in report:
        return f"**The drill failed:** {_words(report['why'])}"
    verdict = "The drill went well" if report["ok"] else "**Recovery took too long**"
    return (
        f"{verdict}: {report['seconds']} s from the kill to the next commit, {report['limit_s']:g} "
        f"s allowed ({_words(report['killed'])}; {_words(report['successor'])} committed batch "
        f"{report['batch']})."
    )


# --- deadline -------------------------------------------------------------------------------------
# A deadline on the age of the last settled batch.


def settled_within(
    interval: PositiveDuration, callback: AsyncCallback | SyncCallback
) -> DeadlineAlert:
    """Return a ``deadline`` for an emitter's DAG: call back if no batch is settled for so long.

    The DAG's run begins when the batch before was told, and ends when the next one is; so the age
    of the run is the age of the last settled batch. The deadline cannot know whether there was
    anything to read: :class:`~airflow_eos.sensors.CheckpointProgressSensor` tells a stall.

    Args:
        interval: longer than the emitter's ``every``, the trigger interval and the longest batch.
        callback: an awaitable, or a notifier with ``async_notify``, which runs in the triggerer; or
            a function, which runs in the executor (Airflow 3.2 and later).
    """
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=TimeSpan(positive=True).of("interval", interval),
        callback=callback,
    )
