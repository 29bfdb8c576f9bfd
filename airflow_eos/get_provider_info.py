"""The provider's description and its command, as Airflow reads them by its own schema.

No connection type is declared: the package lives on Airflow's own ``kafka`` and ``spark``
connections.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from airflow_eos import hooks as _hooks  # noqa: F401 - an old Airflow ends here

if TYPE_CHECKING:
    from airflow.cli.cli_config import CLICommand

_INTEGRATION = "Airflow EOS"
_DOCS = "https://github.com/airflow-eos/airflow-eos/tree/main/docs"
_GUIDES = ("airflow", "recovery", "events", "people")


def _option(description: str, *, default: str, example: str | None = None) -> dict[str, Any]:
    # Airflow formats defaults with names of its own: a brace of ours is written twice.
    return {
        "description": description,
        "version_added": "0.1.0",
        "type": "string",
        "example": example,
        "default": default.replace("{", "{{").replace("}", "}}"),
    }


_OPTIONS = {
    "pipelines": _option(
        "Pipelines whose DAGs do not say in plain words where the checkpoint is, "
        "as a JSON list. All others are found by themselves. See docs/page.md.",
        default="[]",
        example='[{"dag_id": "etl", "task_id": "run", "checkpoint_location": "s3a://lake/etl"}]',
    ),
    "stall_after": _option(
        "After how long (seconds, or a text with a unit) a commit, a batch in flight or a start is "
        "too old for a pipeline that is alive: the page calls it stalled.",
        default="300",
        example="5 minutes",
    ),
    "spark_ui_url": _option(
        "Spark's own UI, made of ``{host}`` and ``{application_id}`` of the last heartbeat.",
        default="http://{host}:4040",
        example="https://yarn.example/proxy/{application_id}/",
    ),
    "page_url": _option(
        "The pipeline on the page, made of ``{airflow}`` (Airflow's own address), "
        "``{pipeline}`` (its id there) and ``{checkpoint}``.",
        default="{airflow}/plugin/eos-pipelines#/{pipeline}",
    ),
    "recovery_url": _option(
        "Where a recovery is planned, made of ``{airflow}`` and ``{recovery_dag}``.",
        default="{airflow}/dags/{recovery_dag}",
    ),
    "recovery_dag": _option(
        "The DAG that recovers, made of ``{dag_id}`` of the task.",
        default="{dag_id}_recovery",
        example="eos_recovery",
    ),
}


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata; the entry point ``apache_airflow_provider`` names this."""
    return {
        "package-name": "airflow-provider-eos",
        "name": _INTEGRATION,
        "description": "Exactly-once Spark streaming to Kafka, run and recovered by Airflow.",
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": _DOCS,
                "how-to-guide": [f"/docs/{page}.md" for page in _GUIDES],
                "tags": ["software"],
            }
        ],
        "hooks": [_modules("hooks.kafka", "hooks.spark")],
        "operators": [_modules("operators.streaming", "operators.recovery", "operators.events")],
        "sensors": [_modules("sensors.progress")],
        "triggers": [_modules("triggers.app", "triggers.polling", "triggers.settled")],
        "extra-links": [
            f"airflow_eos.links.{link}"
            for link in ("SparkUILink", "PipelinePageLink", "RecoveryLink")
        ],
        "notifications": [
            f"airflow_eos.notifications.{notifier}"
            for notifier in ("RecoveryPlanNotifier", "DrillNotifier")
        ],
        "cli": ["airflow_eos.get_provider_info.get_commands"],
        "config": {
            "airflow_eos": {
                "description": "The page of all pipelines, and where links of tasks lead.",
                "options": _OPTIONS,
            }
        },
    }


def _modules(*names: str) -> dict[str, Any]:
    return {
        "integration-name": _INTEGRATION,
        "python-modules": [f"airflow_eos.{name}" for name in names],
    }


def get_commands() -> list[CLICommand]:
    """Return the commands that the provider adds to ``airflow``; cheap, as each start calls it.

    One command passes all arguments on: two descriptions of them would differ one day.
    """
    from airflow.cli.cli_config import ActionCommand, Arg

    told = "as for airflow-eos; try: airflow eos -- --help"
    rest = Arg(("arguments",), nargs="...", help=told)  # type: ignore[no-untyped-call]
    return [
        ActionCommand(
            name="eos",
            help="Exactly-once Spark streaming: plan, recover, audit, status, drain",
            func=run,
            args=(rest,),
        )
    ]


def run(args: Any) -> None:
    """Run ``airflow-eos`` with the arguments of ``airflow eos``."""
    from airflow_eos.__main__ import main

    given = args.arguments  # only a first -- is ours: a later one separates an app's arguments
    sys.argv = ["airflow-eos", *(given[1:] if given[:1] == ["--"] else given)]
    main()
