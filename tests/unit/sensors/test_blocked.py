"""BlockedTopicSensor: fires for what it finds, here or in the triggerer, and waits otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_eos.sensors import BlockedTopicSensor
from airflow_eos.supervision import progress as watch
from airflow_eos.triggers.polling import BlockedTopicTrigger

HELD = {
    "topic": "orders",
    "partition": 0,
    "stable": 3,
    "owner": "Flink",
    "transactional_id": "job-0-1",
    "age_ms": 900_001,
}


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Any:
    asked: list[tuple[tuple[str, ...], int]] = []

    def find(*answers: list[dict[str, Any]]) -> list[Any]:
        left = list(answers)

        def look(self: watch.BlockedWatch, _kafka: object) -> list[dict[str, Any]]:
            asked.append((self.topics, self.max_age_ms))
            return left.pop(0)

        monkeypatch.setattr(watch.BlockedWatch, "look", look)
        return asked

    return find


def test_it_waits_while_nothing_is_held_up_and_fires_with_what_is(looks: Any) -> None:
    asked = looks([], [HELD])
    task = BlockedTopicSensor(task_id="blocked", topics="orders", max_age="15 minutes")
    assert not task.poke({}).is_done
    found = task.poke({})
    assert (found.is_done, found.xcom_value) == (True, [HELD])
    assert asked == [(("orders",), 900_000)] * 2


def test_the_triggerer_goes_on_looking_with_the_same_arguments(looks: Any) -> None:
    looks([], [], [HELD])
    task = BlockedTopicSensor(
        task_id="blocked", topics=["orders"], deferrable=True, poke_interval=0.01
    )
    with pytest.raises(TaskDeferred) as handed_over:
        task.execute({})
    path, arguments = handed_over.value.trigger.serialize()
    assert path.endswith("BlockedTopicTrigger")
    trigger = BlockedTopicTrigger(**arguments)

    async def looked() -> Any:
        settings: Any = None
        assert await trigger.look(settings, {}, {}) is None
        return await trigger.look(settings, {}, {})

    answer = asyncio.run(looked())
    assert task.resume_execution("execute_complete", {"event": answer}, {}) == [HELD]


def test_a_log_shows_no_line_and_no_command_of_another_programs_name(
    looks: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    looks([HELD | {"transactional_id": "x\nERROR all is lost\x1b[2J"}])
    BlockedTopicSensor(task_id="blocked", topics="orders").poke({})
    assert "x ERROR all is lost\\x1b[2J" in capsys.readouterr().out
