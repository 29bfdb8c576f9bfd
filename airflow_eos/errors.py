"""Every error that the package raises: one small tree, each class behind its base class.

A message says what was found, what was expected, and what to do next. What to do next is data, too
(:class:`Remedy`): a program may follow a remedy, and the message is made from it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

_TWO_STOPS = re.compile(r"(?<![./ ])\.\.(?=\s|$)")
"""Where a sentence ends with another program's sentence, which has a full stop of its own."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One way out of an error, to be followed to the letter.

    ``CHECKPOINT`` in a command stands for the checkpoint's location, where the error does not know
    it. How a system is reached (``-b``, ``--kafka-config``, ``--reach``) is up to the reader.

    Attributes:
        commands: command lines, one after another, complete with their arguments.
        settings: of the app or of a server, name to value, to be set before the next step.
        change: what only a person can do, as an imperative sentence without its full stop.
        start: whether to start the app again at the end.
        costs: what this remedy gives up, for people; empty: nothing.
    """

    commands: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)
    change: str = ""
    start: bool = False
    costs: str = ""

    def at(self, location: str) -> Remedy:
        """Return the remedy with this checkpoint's location in its commands."""
        commands = tuple(
            each.replace("CHECKPOINT", shlex.quote(location)) for each in self.commands
        )
        return replace(self, commands=commands)

    def __str__(self) -> str:
        steps = [self.change] if self.change else []
        if self.settings:
            steps.append("set " + ", ".join(f"{k}={v}" for k, v in self.settings.items()))
        if self.commands:
            steps.append("run " + ", then ".join(f"`{each}`" for each in self.commands))
        if self.start:
            steps.append("start the app again")
        said = ", then ".join(steps)
        if said.partition(" ")[0].isalpha():  # a word, and no command line of a server's own
            said = said[:1].upper() + said[1:]
        return f"{said} (this costs: {self.costs})" if self.costs else said


class EosError(Exception):
    """The root of the tree: catch it to catch every error that the package raises on purpose.

    Args:
        found: what was found and what was expected, as whole sentences.
        remedies: the ways out, at the end of the message; of several, a person chooses one.
    """

    remedies: tuple[Remedy, ...] = ()
    """The ways out; a class's own are those of its errors that name none."""

    def __init__(self, found: str = "", *remedies: Remedy) -> None:
        if remedies:
            self.remedies = remedies
            found = f"{found} {advice(remedies)}"
        super().__init__(_TWO_STOPS.sub(".", sayable(found)))

    look: str = ""
    """Where a person looks first, and what has become of the rows; ``airflow-eos explain``."""

    def __init_subclass__(cls, look: str = "", **remedy: Any) -> None:
        """Make the other fields given to a class the remedy of its errors that name none."""
        super().__init_subclass__()
        if look:
            cls.look = look
        if remedy:
            cls.remedies = (Remedy(**remedy),)

    def __reduce__(self) -> tuple[object, ...]:
        """Keep message and remedies whole when an error crosses processes."""
        return (_rebuilt, (type(self), str(self), self.remedies))


def sayable(text: str) -> str:
    """Return ``text`` as valid UTF-8: a disk has names that are no text, which no JSON takes."""
    return text.encode(errors="backslashreplace").decode()


def printable(text: str) -> str:
    """Return a line with control characters as escapes: a terminal must not obey it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """Make each line of ``text`` printable; see :func:`printable`."""
    return "\n".join(map(printable, text.splitlines()))


def advice(remedies: tuple[Remedy, ...]) -> str:
    """Return the remedies as sentences: the one, or those that a person decides between."""
    if len(remedies) == 1:
        return f"{remedies[0]}."
    return "Decide: " + "; or ".join(f"({n}) {each}" for n, each in enumerate(remedies, 1)) + "."


def _rebuilt(kind: type[EosError], message: str, remedies: tuple[Remedy, ...]) -> EosError:
    error = kind(message)
    error.remedies = remedies
    return error


class ConfigurationError(
    EosError,
    change="correct the setting that it names",
    start=True,
    look="The message names the setting, its value and what it takes. An app says it before it "
    "reads a row, so nothing has begun.",
):
    """An argument, option or connection cannot work as given."""


class TimeoutBudgetError(
    ConfigurationError,
    change="raise transaction_timeout, or promise less (batch_within, recover_within)",
    start=True,
    look="The message adds up trigger, batch and promised recovery time. The broker's "
    "transaction.max.timeout.ms limits the sum.",
):
    """The transaction timeout does not cover trigger + batch + promised recovery time."""


class UnknownClusterError(
    ConfigurationError,
    change="say which cluster it is (-b or --kafka-config)",
    look="Neither the command nor the checkpoint says where Kafka is.",
):
    """A participant is in a Kafka cluster, and nobody has said in which cluster."""


class LocalEnvironmentError(
    EosError,
    change="install what it names",
    look="The message names the program or package. It concerns this machine and no pipeline.",
):
    """This machine lacks something that the embedded broker or the demo needs."""


class CheckpointError(
    EosError,
    change="make the checkpoint readable",
    start=True,
    look="The path that the message names, and whether this user may read it. Nothing was changed.",
):
    """The checkpoint cannot be trusted or read."""


class CheckpointFormatError(
    CheckpointError,
    change="put back the file that it names, as this checkpoint had it last",
    start=True,
    look="Was the disk full, did the power fail, or did a newer release write the file? No "
    "copy: see docs/recovery.md#after-a-power-cut. Nothing was guessed.",
):
    """A file of the checkpoint is truncated, garbled, foreign or of an unknown version."""


class ContinuityError(
    CheckpointError,
    change="move the entries that it names out of the checkpoint, or begin on a new one",
    start=True,
    costs="a repartition of the state that was made meanwhile is undone",
    look="The message has both ends. Was Spark told to skip a batch, did another sink run on "
    "this checkpoint, was the number of partitions changed without airflow-eos "
    "repartition? Where it says that a decision was lost, put that back. Nothing of the batch is "
    "visible.",
):
    """A batch would begin earlier or later than the newest promise ended."""


class OwnershipError(
    CheckpointError,
    change="use the checkpoint and the prefix that belong together (the message names both)",
    start=True,
    look="The message names both sides: the checkpoint and prefix here, and who owns them "
    "there. An older copy of a checkpoint that was put back is refused so, too. Nothing "
    "was written.",
):
    """The checkpoint or the prefix belongs to another pipeline."""


class StoreError(
    CheckpointError,
    change="bring the store back",
    start=True,
    look="The store's own log and status. A store that overwrites where it must refuse can hold "
    "no checkpoint. Whether the last write stands is not known; the next start looks.",
):
    """The object store failed, or cannot create an object only if it is absent."""


class KafkaError(
    EosError,
    change="mend what the cluster refuses",
    start=True,
    look="The message has the broker's own code. The broker's log of that second says more.",
):
    """The Kafka cluster refused a request or could not be reached."""


class KafkaUnavailableError(
    KafkaError,
    change="bring the brokers back",
    start=True,
    look="Can this machine reach each broker that the message names? What was promised waits "
    "for its timeout, which airflow-eos plan shows.",
):
    """No broker answered within the time allowed."""


class TopicError(
    KafkaError,
    change="create the topic, or give the right, that it names",
    start=True,
    look="airflow-eos doctor lists topics and rights. A topic that was made again: "
    "docs/recovery.md#the-input-is-gone.",
):
    """A topic or partition is missing, or may not be used."""


class InputError(
    KafkaError,
    change="put the rows back, or read from a new checkpoint",
    start=True,
    look="Topic, partition and offsets are in the message. Retention, a topic that was made "
    "again or a damaged batch: docs/recovery.md#the-input-is-gone.",
):
    """Rows that a batch was planned to read are gone (retention, a new topic), or garbled."""


class RowError(
    KafkaError,
    change="send the row elsewhere, or make it as it is expected",
    start=True,
    look="The message names the column, and where it can the row. The batch is planned, so the "
    "same rows come again at each start.",
):
    """A row cannot be sent as it is: wrong type, too large, not nullable."""


class FencedError(
    KafkaError,
    start=True,
    look="Another driver, or a recovery, uses the same prefix. Nothing of this one is visible. "
    "Again and again: two pipelines share a prefix.",
):
    """Somebody else has taken the transactional id since this producer took it."""


class TransactionError(
    KafkaError,
    commands=("airflow-eos recover CHECKPOINT",),
    start=True,
    look="airflow-eos plan CHECKPOINT: what is open, and since when. The coordinator may just "
    "be moving.",
):
    """The coordinator's answer fits no state that we may act on."""


class DeliveryError(
    EosError,
    start=True,
    look="The cause that the message ends with, and the batch's number in the driver's log. "
    "What was written is not visible; the batch comes again. The same batch again and "
    "again: airflow-eos status CHECKPOINT.",
):
    """A batch could not be delivered now; nothing wrong has become visible."""


class BatchTimeoutError(
    DeliveryError,
    change="raise the timeout of the policy, or let a batch have fewer rows",
    start=True,
    look="How long earlier batches took (airflow-eos ui CHECKPOINT). Again and again: "
    "docs/from-flink.md#the-timeout-of-a-batch.",
):
    """The tasks of a batch took longer than the checkpoint policy allows; it was given up."""


class SupersededError(
    DeliveryError,
    change="keep one of the drivers",
    start=True,
    look="Who took the newest term: airflow-eos status CHECKPOINT. This driver has shown "
    "nothing since; the other one goes on.",
):
    """Another driver, or a recovery, decided the attempt that this driver was preparing."""


class OvertakenError(
    SupersededError,
    look="Two standbys waited and one was faster, or somebody started the app by hand. Nothing "
    "was begun here.",
):
    """Another driver has taken the term that this driver was to take, and so began nothing."""


class PromiseLostError(
    DeliveryError,
    look="For how long the pipeline was down: longer than transaction_timeout. No row is lost: "
    "a start delivers them again. If it happens often, raise transaction_timeout.",
):
    """A transaction named by a COMMIT decision was aborted by its timeout; a restart replays it."""


class NonDeterministicReplayError(
    DeliveryError,
    change="put back what the query depended on",
    start=True,
    look="A clock, a random number or a table that has changed makes other rows. keep_rows "
    "helps from the next batch on. If it cannot be put back: "
    "docs/recovery.md#accept-a-batch-as-it-is.",
):
    """Evaluated again, the batch gives other rows than were promised; nothing was made visible."""


class InputLostError(
    NonDeterministicReplayError,
    change="accept what is left of the input, as it says",
    start=True,
    look="The message has the partitions, offsets and rows that it costs: "
    "docs/recovery.md#the-input-is-gone.",
):
    """The input has lost rows of a batch since it was promised: retention, or compaction."""


class RecoveryError(
    EosError,
    commands=("airflow-eos recover CHECKPOINT",),
    start=True,
    look="What was done stays done, and a second run goes on from there. Does a driver run "
    "meanwhile? airflow-eos status CHECKPOINT.",
):
    """Recovery stopped before it changed anything it should not."""


class PipelineAliveError(
    RecoveryError,
    change="stop the app",
    commands=("airflow-eos recover CHECKPOINT --force",),
    start=True,
    costs="the attempt at the running batch, which is written again",
    look="The sign of life that the message quotes: is that driver the one that is wanted? Else "
    "wait until its heartbeat stands still.",
):
    """The pipeline shows signs of life; ending its transactions would cost it an attempt."""


class ForeignDriverError(
    PipelineAliveError,
    change="stop the app that runs there, where it is not the one that is wanted",
    start=True,
    look="The message names the task, or the user and machine, that runs it.",
):
    """Another task runs the pipeline, or somebody started it by hand: not ours to take over."""


class DecisionNeededError(
    RecoveryError,
    commands=("airflow-eos plan CHECKPOINT",),
    look="The lines ASK and ORPHAN of the plan say what to rule and what each ruling costs. All "
    "other steps are done.",
):
    """The plan holds steps that only a person may decide."""


class AuditError(
    EosError,
    commands=("airflow-eos plan CHECKPOINT",),
    change="keep both topics as they are",
    look="airflow-eos audit with --json has partitions, offsets and rows. Does the reader use "
    "read_committed? Retention removes the evidence.",
):
    """Rows are lost, duplicated, reordered or visible too early; or nobody can know."""


class RehearsalError(
    EosError,
    change="look at the report, and start the new version only if you want these rows",
    look="The report names the first rows that differ. The running version goes on untouched.",
):
    """A new version gives other rows than were delivered, or fails; or nobody can know."""


class AppFailedError(
    EosError,
    start=True,
    look="The driver's log ends with the cause. Airflow starts the app again as often as its "
    "operator says.",
):
    """The streaming app ended without having finished in order."""


class AppRefusedError(
    AppFailedError,
    change="do what the error in the driver's log says",
    start=True,
    look="The last line of the driver's log names the error: ask airflow-eos explain for that one.",
):
    """The app ended with an error that no restart can heal."""


class AppStoppedError(
    EosError,
    start=True,
    look="Who cleared, failed or timed out the task: Airflow's audit log. No row is lost.",
):
    """The app was stopped because its Airflow task was: never a success of its own accord."""


class CalledOffError(
    EosError,
    start=True,
    look="Who asked for it is in the message; another start took its place.",
):
    """This start of the app was asked to end before it had begun; it has changed nothing."""


def name_of(error: EosError) -> str:
    """Return the name of the error's class, or of its nearest base class in this module."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == __name__)


NO_RETRY_HEALS = (
    AppRefusedError,
    ConfigurationError,
    ContinuityError,
    DecisionNeededError,
    ForeignDriverError,
    NonDeterministicReplayError,
    OwnershipError,
    RehearsalError,
    RowError,  # the batch is planned: the same rows come again, until app, topic or table change
)
"""Errors that come again with every retry until a person changes something."""

REFUSED_FOR_GOOD = (ContinuityError, NonDeterministicReplayError, OwnershipError)
"""Those :data:`NO_RETRY_HEALS` whose cause is in checkpoint or cluster, whoever starts. Not among
them: what a task may set right by itself, another's end, or what a person is asked already."""

REFUSED_STATUS = 78
"""The exit status of an app that met a :data:`NO_RETRY_HEALS` error: EX_CONFIG of sysexits.h."""


def exit_status(error: EosError) -> int:
    """Return the status with which an app exits after an error; 0 if there is nothing to do."""
    if isinstance(error, CalledOffError):
        return 0
    return REFUSED_STATUS if isinstance(error, NO_RETRY_HEALS) else 1
