"""A private folder for one run of an app: what it is told in secret, and the shipped package."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.arguments import milliseconds
from airflow_eos.checkpoint.heartbeat import STARTED_BY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_eos.checkpoint import StartedBy
    from airflow_eos.supervision.preflight import TimeoutBudget

PACKAGE = "airflow_eos.zip"
_KEPT = ".kept"


@contextmanager
def private_folder(checkpoint_location: str) -> Iterator[Path]:
    """Give a new folder that only this user may enter, and remove it with all that is in it.

    Where this process is ended by SIGKILL it stays behind, until :func:`remove_leftovers` is
    called for the same checkpoint. The lock says that it is in use, and dies with the process.
    """
    folder = Path(tempfile.mkdtemp(prefix=_prefix(checkpoint_location)))
    try:
        with _locked(folder):
            yield folder
    finally:
        if not (folder / _KEPT).exists():
            shutil.rmtree(folder, ignore_errors=True)


def leave_behind(folder: Path) -> None:
    """Keep the folder although this process ends: an app that lives on runs from what is in it.

    :func:`remove_leftovers` of a later task on this machine removes it.
    """
    (folder / _KEPT).touch()


def remove_leftovers(folder: Path, checkpoint_location: str) -> None:
    """Remove what a killed task left for the same checkpoint, beside ``folder``.

    Only when no driver of the pipeline is alive any more: it may still need the package.
    """
    for other in folder.parent.glob(f"{_prefix(checkpoint_location)}*"):
        found = other.lstat()
        if other == folder or other.is_symlink() or found.st_uid != os.getuid():
            continue
        try:
            with _locked(other):
                shutil.rmtree(other)
        except OSError:  # in use, or already removed by somebody else
            continue


@dataclass(frozen=True, slots=True)
class Secrets:
    """What an app must know and nobody else may see.

    Attributes:
        kafka: librdkafka's configuration.
        storage: options of the checkpoint's object store.
        participants: how to reach the others who take part, by name or kind.
    """

    kafka: Mapping[str, Any] = field(repr=False)
    storage: Mapping[str, str] = field(repr=False)
    participants: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def hand_over(self, folder: Path) -> dict[str, str]:
        """Write the files for one start, for this user only (0600); return where they are.

        ``airflow_eos.sinks.app`` removes them once it has read them. So they are written anew for
        each start, and live for the seconds that a driver needs to come up.
        """
        told = {"EOS_KAFKA_CONFIG_FILE": _write(folder / "kafka.json", self.kafka)}
        if self.storage:
            told["EOS_STORAGE_OPTIONS_FILE"] = _write(folder / "storage.json", self.storage)
        if self.participants:
            told["EOS_PARTICIPANTS_FILE"] = _write(folder / "participants.json", self.participants)
        return told


def app_environment(
    checkpoint_location: str,
    prefix: str | None,
    budget: TimeoutBudget,
    started_by: StartedBy | None,
) -> dict[str, str]:
    """Return the variables by which the app finds its settings; no secret among them.

    ``started_by`` is None of an app that rehearses: it is no driver of the pipeline.
    """
    times = {
        "EOS_TRIGGER_INTERVAL_MS": budget.trigger_interval,
        "EOS_BATCH_WITHIN_MS": budget.batch_within,
        "EOS_RECOVER_WITHIN_MS": budget.recover_within,
        "EOS_TRANSACTION_TIMEOUT_MS": budget.transaction_timeout,
    }
    found = {
        "EOS_CHECKPOINT_LOCATION": checkpoint_location,
        **({STARTED_BY: started_by.as_text()} if started_by is not None else {}),
        **{name: str(milliseconds(time)) for name, time in times.items()},
    }
    return found if prefix is None else found | {"EOS_TRANSACTIONAL_ID_PREFIX": prefix}


def _prefix(checkpoint_location: str) -> str:
    """A name in the temporary folder by which a later task knows whose folder it was."""
    return f"airflow-eos-{hashlib.sha256(checkpoint_location.encode()).hexdigest()[:16]}-"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; OSError where another process does."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def write_private(path: Path, text: str) -> str:
    """Write a new file that only this user may read; returns its path."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return str(path)


def _write(path: Path, content: Mapping[str, Any]) -> str:
    return write_private(path, json.dumps(dict(content)))
