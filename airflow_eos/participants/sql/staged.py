"""What is said of staged rows that a table does not take, before the decision and after it."""

from __future__ import annotations

from airflow_eos.errors import DecisionNeededError, DeliveryError, Remedy
from airflow_eos.protocol.decision import PreparedWork, WorkIdentity

FORETOLD = "decided_rows_may_be_refused"
HINT = (
    "Two tasks of a batch that have one key are found only after the decision, and ask a person: "
    "repartition the rows by the key."
)


def key_is_there(table: str, key: str) -> DeliveryError:
    """Of a row that was to be delivered, found by the task."""
    return DeliveryError(
        f"Table {table} has a row with the unique key ({key}) of a row that was to be delivered, "
        "or the task has two, and the sink only inserts: the unique constraint would refuse it, so "
        "nothing was made visible.",
        Remedy(change="leave such rows out in the query", start=True),
        Remedy(change="remove the row from the table", start=True, costs="that row"),
        Remedy(change="use UpsertSink, which replaces it", start=True),
    )


def cannot_be_moved(work: WorkIdentity, why: str, holding: str) -> DecisionNeededError:
    """Once they are decided."""
    return DecisionNeededError(
        f"The promised rows of {work} cannot be moved to their table: {why}. They wait in "
        f"{holding}, and nothing of this work is visible. Was the table changed, or does another "
        "row hold a unique key? Make room for them in the table, or correct them where they wait, "
        "then start again (or run airflow-eos recover). How, and how they are given up: "
        "docs/recovery.md, 'Rows that a table refuses'."
    )


def would_not_all_arrive(
    work: PreparedWork, moved: int, target: str, holding: str
) -> DecisionNeededError:
    """Where less or more would arrive than was promised."""
    return DecisionNeededError(
        f"{work.identity}: {work.rows} rows were promised, and {moved} would arrive in {target}. "
        "Nothing of it was made visible. Does a trigger drop rows, or has somebody changed "
        f"{holding}?"
    )
