"""The settings of an app: one struct, from which every other spelling of a setting follows.

A field has the name of the operator's argument; its type, its text and its default stand beside it.
Its flag on an app's command line, its variable in an app's environment and its field of
:class:`~airflow_eos.factory.Pipeline` follow by rule: ``batch_within`` is ``--batch-within``,
``EOS_BATCH_WITHIN_MS`` (durations are told in milliseconds) and ``batch_within``. Of it are made an
app's parser, a driver's environment, what a DAG gives its operator, and the options of ``doctor``.
docs/reference/app.md shows it.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import timedelta
from typing import Annotated, get_args, get_type_hints

from airflow_eos.core.arguments import (
    AVAILABLE_NOW,
    GUARANTEES,
    Anything,
    Argument,
    Count,
    Flag,
    GuaranteeName,
    PositiveSpan,
    Span,
    TimeSpan,
    milliseconds,
    spelled,
)

INTERVAL, TRIGGER = timedelta(seconds=1), TimeSpan(words=(AVAILABLE_NOW,))

SECRET_FILES = {
    "kafka": "EOS_KAFKA_CONFIG_FILE",
    "storage": "EOS_STORAGE_OPTIONS_FILE",
    "participants": "EOS_PARTICIPANTS_FILE",
}
"""The variables that name files with secret settings, by what the files hold."""

READ_ONCE = "EOS_READ_ONCE"
"""The variable that lists those of them whose file is removed once it is read; ``1`` lists all."""

SHORT = {
    "checkpoint_location": "checkpoint",
    "transactional_id_prefix": "prefix",
    "trigger_interval": "trigger",
}
"""The settings whose flag and field of ``Pipeline`` have a shorter name."""


@dataclass(frozen=True, kw_only=True)
class AppSettings:
    """The settings that an app is told: of each its type, its text, and its default."""

    bootstrap_servers: Annotated[
        str | None, f"Kafka's host:port, unless {SECRET_FILES['kafka']} names a configuration"
    ] = None
    checkpoint_location: Annotated[str, "path or URL"]
    transactional_id_prefix: Annotated[str, "of the transactional ids; owned by one checkpoint"]
    trigger_interval: Annotated[
        timedelta | str, TRIGGER, f"time between two batches, or {AVAILABLE_NOW}: read all and stop"
    ] = INTERVAL
    max_offsets_per_trigger: Annotated[Count | None, "most rows of a batch"] = None
    batch_within: Annotated[Span, "the longest batch expected"] = timedelta(minutes=1)
    recover_within: Annotated[Span, "from a crash to a recovery that ran"] = timedelta(minutes=5)
    transaction_timeout: Annotated[PositiveSpan, "how long a transaction may be open"] = timedelta(
        minutes=15
    )
    guarantee: Annotated[GuaranteeName, " or ".join(GUARANTEES)] = "exactly_once"
    outputs: Annotated[
        str | None, Anything(), "where rows go instead: JSON, or the path of a file with it"
    ] = None
    consumer_group: Annotated[
        str | None, "gets the offsets of what is settled, for lag tools; no consumer may use it"
    ] = None
    resume_from_group: Annotated[
        bool, "with an empty checkpoint, begin at the offsets of the consumer group"
    ] = False
    start: Annotated[
        str,
        "where the first start of a checkpoint begins: earliest, latest, a moment "
        "(2026-11-23T10:00:00Z), or the offset of each partition as JSON",
    ] = "earliest"
    skip_lost_input: Annotated[
        bool, "for one start: leave out rows that are gone from the input (failOnDataLoss=false)"
    ] = False
    standby: Annotated[bool, "stand by until the running driver has ended"] = False
    min_pause: Annotated[Span, "least pause after a batch"] = timedelta(0)
    batch_timeout: Annotated[PositiveSpan | None, "a batch whose tasks take longer fails"] = None
    num_retained: Annotated[int | None, "how many batches the logs keep"] = None

    @classmethod
    def of_arguments(cls, args: Namespace) -> AppSettings:
        """Return the settings of a parsed command line, whose defaults are of the environment.

        Raises:
            ConfigurationError: a value means nothing; by its flag, or the variable that has it.
        """
        given = {}
        for name, setting in SETTINGS.items():
            value = getattr(args, setting.short)
            is_told = value is not None and value == setting.from_environment(os.environ)
            said = setting.variable if is_told else setting.flag
            given[name] = setting.argument.of(said, value)
        return cls(**given)


@dataclass(frozen=True, slots=True)
class Setting:
    """A field of :class:`AppSettings`, with its default as a command line has it (or None)."""

    name: str
    argument: Argument
    text: str
    default: str | bool | None

    @property
    def short(self) -> str:
        """Its field of ``Pipeline``, and its value's name in a namespace of ``argparse``."""
        return SHORT.get(self.name, self.name)

    @property
    def flag(self) -> str:
        """Its flag on the command line of an app."""
        return f"--{self.short.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """Its variable in the environment of an app."""
        unit = "_MS" if isinstance(self.argument.type, TimeSpan) else ""
        return f"EOS_{self.name.upper()}{unit}"

    def from_environment(self, environment: Mapping[str, str]) -> str | bool | None:
        """Return what the environment says, as on a command line; None where it says nothing.

        Raises:
            ConfigurationError: the word of a flag is neither true nor false.
        """
        text = environment.get(self.variable)
        if not text:
            return None
        if isinstance(self.argument.type, Flag):
            return bool(self.argument.of(self.variable, text))
        return f"{text} milliseconds" if isinstance(self.argument.type, TimeSpan) else text


def table(struct: type[AppSettings]) -> dict[str, Setting]:
    """Return the settings that a struct has, by their names."""
    hints, found = get_type_hints(struct, include_extras=True), {}
    for field in fields(struct):
        [text] = (each for each in get_args(hints[field.name]) if isinstance(each, str))
        default = None if field.default is MISSING else field.default
        said = spelled(default) if isinstance(default, timedelta) else default
        found[field.name] = Setting(field.name, Argument.stated(hints[field.name]), text, said)
    return found


SETTINGS = table(AppSettings)


def environment(**given: object) -> dict[str, str]:
    """Return the variables that tell an app these settings; None and False are not told."""
    told = {}
    for name, value in given.items():
        if value is not None and value is not False:
            said = milliseconds(value) if isinstance(value, timedelta) else value
            told[SETTINGS[name].variable] = "true" if value is True else str(said)
    return told


def flags(**given: object) -> list[str]:
    """Return the words of a command line that tell an app these settings; None is not told."""
    told = {SETTINGS[name].flag: value for name, value in given.items() if value is not None}
    return [str(word) for pair in told.items() for word in pair]
