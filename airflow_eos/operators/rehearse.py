"""Let a new version of an app evaluate delivered batches into nothing, and compare its rows."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import RehearsalError
from airflow_eos.hooks.arguments import as_rendered, no_retry_where_useless
from airflow_eos.operators.streaming import StreamingArguments

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from airflow_eos.hooks.spark import SparkSubmission

_LOOK_S = 0.2


class RehearseOperator(StreamingArguments):
    """Fails unless a new version of an app gives the rows that the old one has delivered.

    The old version may run meanwhile: its checkpoint is copied, and else only read. It fails also
    where that is not known, as behind retention. Returns the report as a dictionary (XCom):
    ``verdict`` (``same``, ``differs``, ``failed``, ``not known``), and by batch and output the
    counts and examples. The driver runs on the worker (deploy mode ``client``).

    Args:
        batches: how many, the newest ones (templated).
        key: columns that pair rows of the two versions; none: ``key``, where an output has one.
        examples: of each batch and output. They go to the log and to XCom.
        scratch: where executors of other machines reach the copy of the checkpoint, which stays
            there; None: a temporary folder of the worker, removed at the end (templated).
        keep: an empty topic to which the rows of outputs to Kafka go, too; None: none (templated).
        fail_on_difference: False reports without failing: whoever takes the report, as a person
            who approves it, looks at its ``verdict``.
        **kwargs: of :class:`SparkStreamingOperator`; ``application`` is the new version.
    """

    template_fields: Sequence[str] = (
        *StreamingArguments.template_fields,
        "batches",
        "scratch",
        "keep",
    )
    ui_color = "#f5e6cc"

    _submission: SparkSubmission | None = None

    def __init__(
        self,
        *,
        batches: int | str | XComArg = 20,
        key: Sequence[str] = (),
        examples: int = 3,
        scratch: str | XComArg | None = None,
        keep: str | XComArg | None = None,
        fail_on_difference: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.batches: int | str = as_rendered(batches)
        self.key = key
        self.examples = examples
        self.scratch: str | None = as_rendered(scratch)
        self.keep: str | None = as_rendered(keep)
        self.fail_on_difference = fail_on_difference

    def execute(self, context: Context) -> Any:  # noqa: ARG002 - Airflow's signature
        """Return the report as a dictionary.

        Raises:
            AirflowFailException: rows differ, the new version failed, or it is not known; or
                settings that cannot work.
            AppFailedError: it ended before anything was compared.
        """
        from airflow_eos.checkpoint.rehearsal import RehearsalRequest
        from airflow_eos.hooks.spark import SubmitTarget
        from airflow_eos.hooks.task import secrets_of
        from airflow_eos.operators.submission import rehearsal_of
        from airflow_eos.supervision.rehearsal import report_of, report_view, sentence
        from airflow_eos.supervision.workspace import private_folder
        from airflow_eos.tables import as_text

        rehearsal = f"{self.checkpoint_location} rehearsal"  # not the folders of who runs
        with no_retry_where_useless(), private_folder(rehearsal) as folder:
            secrets = secrets_of(self)
            target = SubmitTarget.of(
                self.conn_id, deploy_mode=self.deploy_mode, conf=self.conf or {}
            )
            told = RehearsalRequest(
                self.checkpoint_location,
                self._scratch(folder),
                int(self.batches),
                tuple(self.key),
                self.examples,
                self.keep or "",
            )
            self._submission = rehearsal_of(self, target, told, folder, secrets)
            self._submission.start()
            while self._submission.running:
                time.sleep(_LOOK_S)
            failure = self._submission.failure
            said = "It exited with 0." if failure is None else str(failure)
            report = report_of(told, said, secrets.storage)
            self.log.info("%s", as_text(report_view(report), width=160))
            if report.exit_status and self.fail_on_difference:
                raise RehearsalError(sentence(report))
        return json.loads(report.to_json())

    def on_kill(self) -> None:
        """Nothing was begun that somebody would have to end."""
        if self._submission is not None:
            self._submission.kill()

    def _scratch(self, folder: Path) -> str:
        if self.scratch is None:
            return str(folder / "checkpoint")
        return f"{self.scratch.rstrip('/')}/{uuid.uuid4().hex}"
