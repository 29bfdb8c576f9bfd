"""What an app is started with, and the run and the trigger that watch it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger

from airflow_eos.core.checkpoint import StartedBy
from airflow_eos.core.checkpoint.heartbeat import STARTED_BY
from airflow_eos.core.delivery.configured import OutputConfig, as_json, transactional_prefix
from airflow_eos.core.delivery.options import AppFacts
from airflow_eos.core.settings import environment
from airflow_eos.errors import ConfigurationError
from airflow_eos.hooks.kafka import KafkaSettingsHook
from airflow_eos.hooks.spark import SparkSubmission, SubmitEnvironment, SubmitTarget, redacting
from airflow_eos.hooks.store import CheckpointStoreHook, ParticipantsHook, checkpoint_of
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.links import push_links
from airflow_eos.ops.packaging import (
    PACKAGE,
    Secrets,
    build_archive,
    local_files,
    remove_leftovers,
    require_content,
)
from airflow_eos.ops.supervision.exit_status import Patience
from airflow_eos.ops.supervision.preflight import reached_within
from airflow_eos.ops.supervision.recovery import Recovery, recover_before_start
from airflow_eos.ops.supervision.rules import Rules
from airflow_eos.ops.supervision.run import StreamRun
from airflow_eos.ops.supervision.trigger_watch import AppResult, TriggerPoll
from airflow_eos.secret_names import is_secret
from airflow_eos.triggers.app import AppTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_eos.core.checkpoint.rehearsal import RehearsalRequest
    from airflow_eos.operators.arguments import StreamingArguments
    from airflow_eos.ops.supervision.preflight import TimeoutBudget

_UPLOAD = "spark.kubernetes.file.upload.path"


def submission_of(
    task: StreamingArguments,
    target: SubmitTarget,
    started_by: StartedBy,
    folder: Path,
    secrets: Secrets,
) -> SparkSubmission:
    """Make the submission that starts the app; unless it is a standby, no driver is alive now."""
    _require_content(task)
    if not task.standby:
        remove_leftovers(folder, task.checkpoint_location)
    told = {STARTED_BY: started_by.as_text(), **_told(task), **environment(standby=task.standby)}
    if target.is_cluster:
        _require_no_secret(task.env_vars or {})
    _require_upload_path(task, target)
    handed = target.hand_over(secrets, folder, told)
    arguments = _arguments(task, target, folder, handed)
    arguments["conf"] = redacting(target.conf(started_by, task.conf or {}))
    if not target.is_cluster:
        return SparkSubmission(task.application, env=handed.told, arguments=arguments)
    arguments["env_vars"] = dict(handed.told)
    if target.is_kubernetes:
        # Without it the hook looks for the driver's exit code in what spark-submit prints.
        arguments["track_driver_via_k8s_api"] = True
    return SparkSubmission(
        task.application,
        env={},
        arguments=arguments,
        detached=True,
        spent=[Path(path) for path in handed.shipped],
    )


def preflight(task: StreamingArguments, secrets: Secrets) -> tuple[SubmitTarget, Recovery]:
    """Check settings and connections before Spark starts; return the target and recovery."""
    target = _target(task)
    settings = KafkaSettings.from_librdkafka(secrets.kafka)
    prefix = prefix_in_use(
        task.guarantee, task.outputs, task.transactional_id_prefix, task.budget, secrets
    )
    return target, Recovery(
        checkpoint=task.checkpoint_location,
        kafka=settings,
        prefix=prefix,
        storage_options=secrets.storage,
        reach=secrets.participants,
        patience=task.patience,
        first=reached_within(task.budget, settings),
    )


def with_keys_of_now(task: StreamingArguments, recovery: Recovery) -> Recovery:
    """Return the recovery with the connections as they are: a try outlasts passwords and tokens."""
    secrets = secrets_of(task)
    now = replace(
        recovery,
        kafka=KafkaSettings.from_librdkafka(secrets.kafka),
        storage_options=secrets.storage,
        reach=secrets.participants,
    )
    return recovery if now == recovery else now  # which has the checkpoint open


def run_of(
    task: StreamingArguments,
    context: Context,
    target: SubmitTarget,
    recovery: Recovery,
    folder: Path,
) -> StreamRun:
    """Make the run that starts or adopts the app and watches it; each start has the keys of now."""
    stream = StreamRun(
        recovery.store,
        task_of(context),
        submit=lambda identity: submission_of(task, target, identity, folder, secrets_of(task)),
        recover=lambda: recover_before_start(
            with_keys_of_now(task, recovery),
            known_dead=stream.is_dead,
            act=task.recover_before_start,
        ),
        on_first_heartbeat=lambda driver: push_links(task, context, driver),
        reopen=lambda: checkpoint_of(task),
        rules=rules_of(task, target),
    )
    return stream


def run_to_stop(task: StreamingArguments, context: Context) -> StreamRun:
    """Make a run that can only stop the app."""

    def nobody(*_: Any) -> Any:
        raise AssertionError  # a run that only stops starts nothing

    rules = rules_of(task, _target(task))
    return StreamRun(
        checkpoint_of(task), task_of(context), submit=nobody, recover=nobody, rules=rules
    )


def _target(task: StreamingArguments) -> SubmitTarget:
    return SubmitTarget.of(task.conn_id, deploy_mode=task.deploy_mode, conf=task.conf or {})


def rehearsal_of(
    task: StreamingArguments,
    target: SubmitTarget,
    request: RehearsalRequest,
    folder: Path,
    secrets: Secrets,
) -> SparkSubmission:
    """Make a rehearsal's submission: it delivers nothing; the pipeline may run, its files stay."""
    _require_content(task)
    if target.is_cluster:
        raise ConfigurationError(
            "A rehearsal runs its driver on the worker: expected deploy_mode='client'."
        )
    # Without the name of who started it: it is no driver of the pipeline.
    handed = target.hand_over(secrets, folder, _told(task) | request.environment())
    arguments = _arguments(task, target, folder, handed)
    arguments["conf"] = redacting(task.conf or {})
    return SparkSubmission(task.application, env=handed.told, arguments=arguments)


def _told(task: StreamingArguments) -> dict[str, str]:
    """Return the variables by which the app finds its settings; no secret among them."""
    told = environment(
        checkpoint_location=task.checkpoint_location,
        transactional_id_prefix=task.transactional_id_prefix,
        **asdict(task.budget),
        guarantee=task.guarantee,
        outputs=as_json(task.outputs),
        consumer_group=task.consumer_group,
        min_pause=task.policy.min_pause or None,
        batch_timeout=task.policy.timeout,
        num_retained=task.policy.num_retained,
    )
    return told | {name: str(value) for name, value in (task.env_vars or {}).items()}


def _arguments(
    task: StreamingArguments, target: SubmitTarget, folder: Path, handed: SubmitEnvironment
) -> dict[str, Any]:
    """Return the arguments of ``SparkSubmitHook``, but for the Spark properties (``conf``)."""
    if shown := sorted(filter(is_secret, task.conf or {})):
        task.log.warning(
            "conf has %s: everybody on this machine can read it on spark-submit's command line. "
            "Put it into a file that only this user may read, and give that as properties_file.",
            ", ".join(shown),
        )
    shipped = str(build_archive(folder / PACKAGE)) if task.ship_package else None
    return {
        **task.of_the_hook(),
        "conn_id": task.conn_id,
        "py_files": ",".join(filter(None, [task.py_files, shipped])) or None,
        "files": ",".join(filter(None, [task.files, *handed.shipped.values()])) or None,
        "name": task.name or task.task_id,
        "application_args": [str(argument) for argument in task.application_args],
        # Overrides Spark's own defaults: a driver elsewhere would not find its settings.
        "deploy_mode": "cluster" if target.is_cluster else "client",
    }


def _require_upload_path(task: StreamingArguments, target: SubmitTarget) -> None:
    """Refuse local files on Kubernetes, unless there is an upload folder that the pods reach."""
    if not (target.is_cluster and target.is_kubernetes) or task.properties_file:
        return  # properties_file may set the upload folder, and only Spark reads that file
    if (task.conf or {}).get(_UPLOAD):
        return
    local = local_files(task.application, *(getattr(task, each) for each in _LISTS))
    if task.ship_package:
        local.append("this package (ship_package)")
    if local:
        raise ConfigurationError(
            f"On Kubernetes nothing brings {', '.join(local)} to the driver's pod. Expected "
            "local:///… for what is in the image, and ship_package=False where it has this "
            f"package, as that of deploy/Dockerfile; or set conf[{_UPLOAD!r}] to a folder that "
            "the pods reach, too (s3a://…, hdfs://…)."
        )


_LISTS = ("py_files", "files", "jars", "archives")
"""The arguments that list files."""


def _require_content(task: StreamingArguments) -> None:
    lists = {each: getattr(task, each) for each in _LISTS}
    if task.content is not None:
        require_content(task.content, task.application, conf=task.conf, **lists)


def _require_no_secret(env_vars: Mapping[str, object]) -> None:
    """Refuse names of secrets in ``env_vars``: everybody on the machine reads a command line."""
    found = [name for name in env_vars if is_secret(name)]
    if found:
        raise ConfigurationError(
            f"env_vars has {', '.join(found)}: in deploy mode 'cluster' variables are on the "
            "command line of spark-submit, and in what the cluster shows of the app. Hand a "
            "secret over in a file: --files on YARN, a mounted secret on Kubernetes; name that "
            "file in a variable that ends in _FILE."
        )


_POD_OF_ONE_TASK = "AIRFLOW_IS_K8S_EXECUTOR_POD"
"""The variable that the KubernetesExecutor sets in its pods, each of which ends with its task."""


def rules_of(task: StreamingArguments, target: SubmitTarget) -> Rules:
    """Return the rules of one try; log the reason where a deferrable task does not defer."""
    stays = _why_it_stays(task, target) if task.deferrable else None
    if stays is not None:
        task.log.warning("Not deferred: %s", stays)
    return Rules(
        strategy=task.restart,
        drain_timeout=task.drain_timeout,
        patience=Patience(task.patience.total_seconds(), task.submit_timeout.total_seconds()),
        cancel=task.cancel,
        hand_over=task.deferrable and stays is None,
        standby=task.standby,
        manager=target.manager,
    )


def _why_it_stays(task: StreamingArguments, target: SubmitTarget) -> str | None:
    if task.standby:
        return "a trigger watches a driver, and this one may stand by for long before it is one"
    if not target.is_cluster and _POD_OF_ONE_TASK in os.environ:
        return "the driver is in this pod, which ends with the task"
    if task.cancel != "leave" and not hasattr(BaseTrigger, "on_kill"):
        return (
            "below Airflow 3.3 nobody tells a trigger that a user has stopped its task, so the app "
            "would go on. Set cancel='leave' to defer all the same"
        )
    return None


def trigger_of(task: StreamingArguments, target: SubmitTarget, outcome: AppResult) -> AppTrigger:
    """Make the trigger with which the triggerer watches the app."""
    watch = TriggerPoll.of(
        outcome, checkpoint=task.checkpoint_location, rules=rules_of(task, target)
    )
    return AppTrigger(
        watch=watch.as_dict(),
        storage_conn_id=task.storage_conn_id,
        storage_options=task.storage_options,
        poke_interval=task.poke_interval.total_seconds(),
    )


def task_of(context: Context) -> StartedBy:
    """Return the identity of the running task instance, with an empty ``submission``.

    Outside of Airflow each call returns another identity, so that none adopts an app.
    """
    ti = context.get("ti")
    if ti is None:
        run_id = f"outside-of-airflow-{uuid.uuid4().hex}"
        return StartedBy(dag_id="", task_id="", run_id=run_id, map_index=-1, submission="")
    return StartedBy(
        dag_id=ti.dag_id,
        task_id=ti.task_id,
        run_id=ti.run_id,
        map_index=ti.map_index if ti.map_index is not None else -1,
        submission="",
    )


def secrets_of(task: StreamingArguments) -> Secrets:
    """Read the secrets from the task's connections; Airflow masks them in every log from now on."""
    return Secrets(
        kafka=KafkaSettingsHook(task.kafka_config_id).librdkafka(),
        storage=CheckpointStoreHook(task.storage_conn_id, task.storage_options).options(),
        participants=ParticipantsHook(task.participant_conn_ids).reach(),
    )


_THE_APPS_OWN = "the-apps-own"


def prefix_in_use(
    guarantee: str, outputs: object, prefix: str | None, budget: TimeoutBudget, secrets: Secrets
) -> str | None:
    """Return the prefix under which a recovery has to look, whatever the checkpoint says.

    None where no output writes to Kafka under ``prefix``: a recovery that looked there would see
    nothing, and ignore what the checkpoint says of the other outputs.

    Raises:
        ConfigurationError: the guarantee or an output cannot work.
    """
    app = AppFacts(
        kafka=KafkaSettings.from_librdkafka(secrets.kafka),
        prefix=_THE_APPS_OWN if prefix is None else prefix,
        transaction_timeout=budget.transaction_timeout,
        batch_within=budget.batch_within,
        recover_within=budget.recover_within,
    )
    made = OutputConfig.of(guarantee, outputs).outputs(app, secrets.participants)
    used = not made or any(transactional_prefix(each) == prefix for each in made)
    return prefix if used else None
