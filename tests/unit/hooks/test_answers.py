"""What Airflow's own server did not answer is asked again; what it answers counts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_eos.hooks.answers import aanswered, answered
from airflow_eos.hooks.kafka import KafkaSettingsHook
from airflow_eos.hooks.store import CheckpointStoreHook, ParticipantsHook
from tests.support.clocks import clock_of
from tests.support.watchdog import server_says

AWAY = server_says(None, "[Errno 111] Connection refused")
NO_VARIABLE = AirflowRuntimeError(ErrorResponse(error=ErrorType.VARIABLE_NOT_FOUND))


class Question:
    """Meets these errors, one after another, and is answered then."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.asked = list(errors), 0

    def __call__(self, *_: Any, **__: Any) -> str:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        return "yes"

    async def later(self) -> str:
        return self()


@pytest.fixture(autouse=True)
def slept(monkeypatch) -> list[float]:
    """The pauses between two tries; nobody waits for them."""
    pauses: list[float] = []

    async def asleep(pause_s: float) -> None:
        pauses.append(pause_s)

    clock_of(monkeypatch, "airflow_eos.hooks.answers", sleep=pauses.append)
    monkeypatch.setattr(asyncio, "sleep", asleep)
    return pauses


@pytest.fixture
def server(monkeypatch) -> SimpleNamespace:
    """What a task asks Airflow through: the probe of a server that may be away."""
    said = SimpleNamespace(away=0, probes=0)

    def send(_: Any) -> None:
        said.probes += 1
        said.away -= 1
        if said.away >= 0:
            raise AWAY

    async def asend(asked: Any) -> None:
        send(asked)

    comms = SimpleNamespace(send=send, asend=asend)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", comms, raising=False)
    return said


@pytest.mark.parametrize("error", [AWAY, server_says(503, "restarting")])
def test_an_outage_of_airflows_server_ends_no_look(slept, error):
    question = Question(*[error] * 6)
    assert answered(question, "dag") == "yes"
    assert slept == [1, 2, 4, 8, 8, 8], "and is not asked again at once"
    assert asyncio.run(aanswered(Question(error).later)) == "yes"


@pytest.mark.parametrize(
    "error",
    [
        server_says(404, "no such DAG"),
        server_says(409, "exists"),
        AirflowRuntimeError(ErrorResponse(error=ErrorType.DAGRUN_ALREADY_EXISTS)),
        ValueError("ours"),
    ],
)
def test_a_refusal_is_an_answer(slept, error):
    question = Question(error)
    with pytest.raises(type(error)):
        answered(question)
    assert (question.asked, slept) == (1, [])


def test_a_server_that_is_away_for_good_ends_the_task_at_last(monkeypatch, slept):
    now = iter(range(0, 10_000, 100))
    clock_of(
        monkeypatch, "airflow_eos.hooks.answers", sleep=slept.append, monotonic=lambda: next(now)
    )
    with pytest.raises(AirflowRuntimeError):
        answered(Question(*[AWAY] * 99))
    assert 3 < len(slept) < 9


@pytest.mark.parametrize("error", [AirflowNotFoundException("isn't defined"), NO_VARIABLE])
def test_what_airflow_could_not_be_asked_for_is_not_undefined(server, slept, error):
    """Its client says of a connection whose server is away that nobody has defined it."""
    server.away = 2
    assert answered(Question(error, error)) == "yes"
    assert slept == [1, 2]
    server.away = 2
    assert asyncio.run(aanswered(Question(error, error).later)) == "yes"


@pytest.mark.parametrize("error", [AirflowNotFoundException("isn't defined"), NO_VARIABLE])
def test_what_nobody_has_defined_is_told_at_once(server, slept, error):
    question = Question(*[error] * 9)
    with pytest.raises(type(error)):
        answered(question)
    assert (question.asked, slept) == (2, [0]), "once more, as the server may just have come back"


def test_without_a_task_nothing_is_probed(monkeypatch, slept):
    """The page in Airflow's own server, a command, a test."""
    monkeypatch.delattr(task_runner, "SUPERVISOR_COMMS", raising=False)
    with pytest.raises(AirflowNotFoundException):
        answered(Question(AirflowNotFoundException("isn't defined")))
    assert slept == []


@pytest.mark.parametrize(
    "ask",
    [
        lambda: KafkaSettingsHook("c").settings(),
        lambda: CheckpointStoreHook("c").options(),
        lambda: ParticipantsHook({"totals": "c"}).reach(),
    ],
)
def test_each_connection_is_asked_for_until_airflow_answers(server, monkeypatch, slept, ask):
    server.away = 3
    undefined = Question(*[AirflowNotFoundException("isn't defined")] * 9)
    monkeypatch.setattr(BaseHook, "get_connection", classmethod(undefined))
    with pytest.raises(AirflowNotFoundException):
        ask()
    assert slept == [1, 2, 4, 0]
