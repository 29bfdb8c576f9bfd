"""The command line ``airflow-eos``: puts the commands together and turns errors into one line.

A module in ``airflow_eos.commands`` holds a group of commands as a ``typer.Typer`` named ``app``,
or single commands as functions. It must be cheap to import: what a command needs is imported inside
it, so that ``airflow-eos --help`` is quick, and works where Spark or Airflow is missing.
"""

from __future__ import annotations

import sys

import typer

from airflow_eos.commands import (
    audit,
    broker,
    doctor,
    foreign,
    new,
    package,
    recovery,
    status,
    transactions,
    upgrade,
)
from airflow_eos.errors import EosError

app = typer.Typer(
    name="airflow-eos",
    help="Exactly-once Spark streaming to Kafka: plan, recover, audit, try out.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # they could hold passwords
)
# Groups with add_typer, single commands with app.command("name")(function).
app.command("try")(new.try_out)
app.command("new")(new.new)
app.add_typer(broker.app, name="broker")
app.command("plan")(recovery.plan)
app.command("recover")(recovery.recover)
app.command("accept")(recovery.accept)
app.command("audit")(audit.audit)
app.command("doctor")(doctor.doctor)
app.command("status")(status.status)
app.command("ui")(status.ui)
app.command("drain")(recovery.drain)
app.command("rehearse")(upgrade.rehearse)
app.command("handover")(recovery.handover)
app.command("repartition")(upgrade.repartition)
app.command("disown")(recovery.disown)
app.command("blocked")(transactions.blocked)
app.command("hanging")(transactions.hanging)
app.add_typer(foreign.app, name="foreign")
app.command("package")(package.package)
app.command("demo", context_settings=broker.TO_THE_DEMO)(broker.demo)


def main() -> None:
    """Run the command line.

    An ``EosError`` is one message on standard error and exit status 2, without a traceback: it says
    what was found and what to do, and a traceback would only bury that.
    """
    try:
        app()
    except EosError as error:
        print(f"airflow-eos: {_shown(str(error))}", file=sys.stderr)  # noqa: T201
        if "--json" in sys.argv:
            print(_as_json(error))  # noqa: T201
        sys.exit(2)


def _as_json(error: EosError) -> str:
    """For programs: the class, the message, and what to do as data."""
    import msgspec

    told = {"error": type(error).__name__, "message": str(error), "remedies": error.remedies}
    return msgspec.json.format(msgspec.json.encode(told), indent=2).decode()


def _shown(message: str) -> str:
    """A message may quote what a checkpoint or a topic holds: a terminal must not obey it."""
    from airflow_eos.tables import printable

    return "\n".join(map(printable, message.splitlines()))
