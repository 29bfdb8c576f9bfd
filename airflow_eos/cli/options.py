"""Options that several commands share, and how a Kafka configuration is read from a file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from typer.core import TyperCommand, TyperGroup

from airflow_eos.core.arguments import TimeSpan, Word
from airflow_eos.core.settings import SETTINGS
from airflow_eos.errors import ConfigurationError, printable_lines

if TYPE_CHECKING:
    from airflow_eos.kafka.client.settings import KafkaSettings

SOMETHING_TO_DO, NEEDS_PERSON = 3, 4
"""Exit statuses of commands that only plan, or leave steps to a person."""

Checkpoint = Annotated[
    str, typer.Argument(help="The query's checkpoint: a path, s3a://, gs://, abfss://, hdfs:// …")
]
BootstrapServers = Annotated[
    str | None, typer.Option("--bootstrap-servers", "-b", help="Brokers, host:port,host:port.")
]
KafkaConfig = Annotated[
    Path | None,
    typer.Option(
        "--kafka-config",
        help="File with librdkafka settings (security.protocol, sasl.…), JSON or key=value lines.",
    ),
]
Reach = Annotated[
    Path | None,
    typer.Option(
        help="JSON file: how to reach the other participants, by name or kind, as "
        '{"totals": "host=db dbname=shop password=…"}.'
    ),
]
Prefix = Annotated[
    str | None,
    typer.Option(help="Transactional id prefix, if the checkpoint does not have it any more."),
]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(help="key=value for the checkpoint's store, as aws_endpoint=…; repeatable."),
]


class _Plain:
    """Help in which a flag takes no value, and an argument is called as in the docs."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, each with what its help shows in the place of a value."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in found:
            if each.param_type_name == "argument":
                each.metavar = each.name.upper()
            elif each.is_flag:
                each.metavar = ""
        return found

    def get_short_help_str(self, limit: int = 100) -> str:
        """Return the whole first sentence, for the list of commands in docs/reference."""
        found: str = super().get_short_help_str(limit)  # type: ignore[misc]
        return found


class PlainCommand(_Plain, TyperCommand):
    """A command with such a help."""


class PlainGroup(_Plain, TyperGroup):
    """A group of commands with such a help."""


def seconds(name: str, *, positive: bool = False, **option: Any) -> Any:
    """Return an option that is a duration: seconds, or a text with a unit, as everywhere."""
    kind = TimeSpan(positive=positive)

    def read(text: str | float) -> float:
        found: float = kind.of(f"--{name}", text).total_seconds()
        return found

    option["help"] += f" Default: {option.pop('show_default')}." if "show_default" in option else ""
    return typer.Option(parser=read, metavar="DURATION", show_default=False, **option)


def time_of(name: str) -> Any:
    """Return the option of a time that an app is told; type, text and default are the table's."""
    setting, option = SETTINGS[name], f"--{name.replace('_', '-')}"

    def read(text: object) -> Any:
        return setting.argument.of(option, text)

    return typer.Option(
        option,
        parser=read,
        metavar="DURATION",
        help=f"The app's {name}: {setting.text}. Default: {setting.default}.",
        show_default=False,
    )


def word(name: str, words: Iterable[str], **option: Any) -> Any:
    """Return an option that takes one of some words; its error names the nearest word."""
    field = Word(words=tuple(map(str, words)))

    def read(text: str) -> str:
        found: str = field.of(name, text)
        return found

    return typer.Option(name, parser=read, metavar="|".join(field.words), **option)


Timeout = Annotated[
    float,
    seconds(
        "timeout",
        positive=True,
        help="How long to look for a broker: seconds, or '1 minute'.",
        show_default="30 seconds",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def tell(answer: object, text: str, *, as_json: bool) -> None:
    """Print a command's answer: JSON for programs, a text for people.

    The text may name what a checkpoint holds: a terminal must not obey it.
    """
    typer.echo(msgspec.json.encode(answer).decode() if as_json else printable_lines(text))


def tell_json(answer: object) -> None:
    """Print JSON that people can read, too."""
    typer.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())


def require_confirmed(question: str, *, as_json: bool = False) -> None:
    """Ask on standard error; exit with status 1 unless a person confirms.

    ``as_json``: tell a program as JSON that nobody has confirmed, where no answer was printed yet.
    """
    try:
        confirmed = typer.confirm(question, err=True)
    except typer.Abort:  # nobody is there to answer, or Ctrl-C
        confirmed = False
    if not confirmed:
        if as_json:
            typer.echo('{"confirmed": false}')
        raise typer.Exit(1)


def whoever_asks() -> str:
    """Name the person at this command line, for those who read the request."""
    from airflow_eos.core.recovery.execute import user_name

    return f"cli {user_name()}"


def kafka_if_given(servers: str | None, file: Path | None) -> KafkaSettings | None:
    """Return :func:`kafka_settings`; None where nothing is given, as without Kafka."""
    return kafka_settings(servers, file) if servers or file else None


def kafka_settings(servers: str | None, file: Path | None) -> KafkaSettings:
    """Join the file and the servers; the servers on the command line win.

    Raises:
        ConfigurationError: Neither names brokers, or the file is neither JSON nor properties.
    """
    from airflow_eos.kafka.client.settings import KafkaSettings

    config = _read(file) if file is not None else {}
    if servers:
        config["bootstrap.servers"] = servers
    if not config:
        raise ConfigurationError(
            "Which Kafka cluster? Give --bootstrap-servers host:port, or --kafka-config FILE with "
            "the settings of the pipeline's own connection."
        )
    # A client's own log lines would go to the terminal, and none of them says what to do.
    return KafkaSettings.from_librdkafka({"log_level": 0, **config})


def reach_in(file: Path | None) -> dict[str, Any] | None:
    """Read from a JSON file how to reach participants; None where no file is given.

    Raises:
        ConfigurationError: The file is no JSON object; without its content, which has secrets.
    """
    if file is None:
        return None
    text = read_text("--reach", file)
    try:
        reach = json.loads(text)
    except (ValueError, RecursionError):
        reach = None
    if not isinstance(reach, dict):
        raise ConfigurationError(
            f"--reach {file} holds no JSON object. Expected one: for each participant, by its name "
            "or its kind, how to get there."
        )
    return reach


def storage_options(entries: list[str] | None) -> dict[str, str] | None:
    """Turn ``key=value`` entries into a mapping; None where there are none."""
    return pairs(entries, "--storage-option") if entries else None


def read_text(option: str, file: Path) -> str:
    """Read the file of an option (ConfigurationError: the file cannot be read)."""
    try:
        return file.read_text(encoding="utf-8-sig")  # editors on Windows begin a file with a mark
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{option} {file} cannot be read: {error}") from error


def _read(file: Path) -> dict[str, Any]:
    text = read_text("--kafka-config", file)
    if not text.lstrip().startswith("{"):
        lines = [line.strip() for line in text.splitlines()]
        return dict(pairs([x for x in lines if x and x[0] not in "#!"], str(file)))
    try:
        config: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError):
        # without the cause: its message and notes would carry pieces of the file, which has secrets
        raise ConfigurationError(
            f"--kafka-config {file} starts like JSON but is none. Expected one object of "
            "librdkafka settings."
        ) from None
    return config


def pairs(entries: list[str], where: str) -> dict[str, str]:
    """Return ``key=value`` entries as a mapping.

    Raises:
        ConfigurationError: an entry has no key; it is named by number, since it may be a secret.
    """
    found = {}
    for number, entry in enumerate(entries, 1):
        key, equals, value = entry.partition("=")
        if not equals or not key.strip():
            raise ConfigurationError(f"{where}: entry {number} is not of the form key=value.")
        found[key.strip()] = value.strip()
    return found
