"""What was seen before a person was asked is looked at again: the answer may come an hour later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from airflow_eos.cli.app import app
from airflow_eos.core.protocol.decision import WorkIdentity
from airflow_eos.core.protocol.participant import Note, Owner, Ownership
from airflow_eos.core.recovery.plan import Step
from airflow_eos.errors import PipelineAliveError
from airflow_eos.kafka.transactions.listing import HangingTransaction
from airflow_eos.ops.flink.state import ForeignAction, ForeignPlan, ForeignStep
from airflow_eos.recovery import Action
from tests.support.pipelines import plan_of

T = TypeVar("T")


def in_turn(looks: Sequence[T]) -> Callable[..., T]:
    """Give one after the other, and then the last one for ever."""
    left = list(looks)
    return lambda *_, **__: left.pop(0) if len(left) > 1 else left[0]


def answer(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "-b", "h:1"], input="y\n")


@pytest.fixture(autouse=True)
def no_broker(monkeypatch) -> None:
    connected = lambda settings: nullcontext(SimpleNamespace(settings=settings))  # noqa: E731
    monkeypatch.setattr("airflow_eos.kafka.client.connection.ConnectionPool", connected)


# --- disown ---------------------------------------------------------------------------------------


@pytest.fixture
def disown(monkeypatch, tmp_path) -> Callable[..., tuple[Result, list[bool]]]:
    owner = Owner("mine", str(tmp_path))

    def call(then: dict[str, Any], *options: str, lives: bool = False) -> Any:
        shown = Ownership("prefix 'etl'", owner, keys=(b"k",))
        now = Ownership("prefix 'etl'", **{"owner": owner, "keys": (b"k",), **then})
        forgotten: list[bool] = []

        def forget(*, moved: bool) -> int:
            forgotten.append(moved)
            return 1

        ledger = SimpleNamespace(read=in_turn([shown, now]), forget=forget, close=lambda: None)
        signs = in_turn([(), ("it beats",) if lives else ()])
        monkeypatch.setattr("airflow_eos.core.checkpoint.liveness.signs_of_life", signs)
        made = lambda *_, **__: ledger  # noqa: E731
        monkeypatch.setattr("airflow_eos.kafka.transactions.ownership.PrefixLedger", made)
        monkeypatch.setattr("airflow_eos.kafka.transactions.listing.untimed", lambda *_: [])
        return answer("disown", "etl", *options), forgotten

    return call


def test_a_prefix_that_is_as_it_was_shown_is_forgotten(disown):
    result, forgotten = disown({})
    assert (result.exit_code, forgotten) == (0, [False]), result.output


DELIVERED = {"notes": (Note(7, 1, "d", "mine"),)}


@pytest.mark.parametrize(
    "meanwhile",
    [{"then": {"owner": Owner("theirs", "/ck")}}, {"then": DELIVERED}, {"then": {}, "lives": True}],
    ids=["claimed by another", "delivered", "started"],
)
def test_a_prefix_whose_pipeline_goes_on_while_the_person_is_asked_is_not_forgotten(
    disown, meanwhile
):
    result, forgotten = disown(**meanwhile)
    assert isinstance(result.exception, PipelineAliveError)
    assert "othing was forgotten" in str(result.exception)
    assert forgotten == []


def test_who_forces_it_is_not_held_up_by_what_its_owner_delivers(disown):
    assert disown(DELIVERED, "--force")[1] == [False]


# --- recover --assume -----------------------------------------------------------------------------


def test_what_yesterdays_plan_asks_about_and_is_told_by_now_is_not_ruled(monkeypatch, tmp_path):
    """A ruling stands for ever: once nobody can tell again, its rows would come twice."""
    asked = Step(action=Action.ASK, reason="", work=WorkIdentity("kafka", "sink", "etl-eos-0-1"))
    made = replace(plan_of(asked), location=str(tmp_path))
    file = tmp_path / "plan.json"
    file.write_bytes(made.to_json())
    monkeypatch.setattr(
        "airflow_eos.recovery.plan_recovery", lambda *_, **__: replace(made, steps=())
    )
    result = answer(
        *("recover", "--plan", str(file), "--transaction", "etl-eos-0-1", "--assume", "aborted")
    )
    assert "none do: every outcome is told" in str(result.exception)
    assert not (tmp_path / "eos").exists()


# --- foreign recover ------------------------------------------------------------------------------


def planned(*steps: tuple[ForeignAction, str]) -> ForeignPlan:
    made = (ForeignStep(action, name, 1, 0, "") for action, name in steps)
    return ForeignPlan("/ck/chk-7", 7, ("etl",), tuple(made))


SHOWN = (ForeignAction.ABORT, "etl-0-8")


@pytest.mark.parametrize(
    ("then", "is_ended"),
    [
        ([SHOWN], True),
        ([SHOWN, (ForeignAction.LEAVE, "theirs")], True),
        ([(ForeignAction.COMMIT, "etl-0-8")], False),
        ([SHOWN, (ForeignAction.ABORT, "etl-0-9")], False),
        ([], False),
    ],
)
def test_a_job_that_goes_on_while_the_person_is_asked_loses_nothing(monkeypatch, then, is_ended):
    """Who reads that the job is stopped may stop it then: it completes another checkpoint first."""
    ended: list[Any] = []

    def recovered(*_: Any, **__: Any) -> dict[str, Any]:
        ended.append(1)
        return {}

    plans = in_turn([planned(SHOWN), planned(*then)])
    monkeypatch.setattr("airflow_eos.ops.flink.recover.plan_flink", plans)
    monkeypatch.setattr("airflow_eos.ops.flink.recover.recover_flink", recovered)
    result = answer("foreign", "recover", "/ck/chk-7", "--prefix", "etl")
    assert bool(ended) is is_ended
    assert (result.exception is None) is is_ended
    assert is_ended or "Nothing was done" in str(result.exception)


# --- hanging --------------------------------------------------------------------------------------


def hanging(start: int) -> HangingTransaction:
    return HangingTransaction("t", 0, start, 7, 0, 1, 0, committed=False)


def test_what_hangs_no_more_once_the_person_has_answered_is_not_ended(monkeypatch):
    """Its producer came back: the marker would abort what it writes now."""
    ended: list[int] = []
    looks = in_turn([(hanging(3), hanging(5)), (hanging(5), hanging(9))])
    monkeypatch.setattr("airflow_eos.kafka.transactions.hanging.find_hanging", looks)
    monkeypatch.setattr(
        "airflow_eos.kafka.transactions.hanging.end_hanging",
        lambda _, each, **__: ended.append(each.start),
    )
    result = answer("hanging", "t", "--end", "--older-than", "0")
    assert ended == [5]
    assert result.exit_code == 1, "another hangs that nobody was asked about"
