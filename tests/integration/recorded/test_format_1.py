"""What the version before left behind is read, planned, recovered and resumed by this one.

A pipeline is upgraded between two runs of its app, and the run before may have died. Its checkpoint
and its broker's data were recorded then; see ``tests/recorded/format_1``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from airflow_eos.cli.app import app
from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog, Verdict, read_state
from airflow_eos.core.protocol.decision import DEFAULT_PARTICIPANT
from airflow_eos.errors import OwnershipError
from airflow_eos.recovery import Action, Report, Result, Seal, execute_recovery, plan_recovery
from tests.support.pipeline import wait_until
from tests.support.recorded import ROWS_A_BATCH, RecordedPipeline, moved_on_purpose, opened

RECORDED = Path(__file__).parents[2] / "recorded" / "format_1"
MORE_ROWS = 200


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RecordedPipeline]]:
    with opened(RECORDED, tmp_path_factory.mktemp("recorded")) as pipelines:
        yield pipelines


def kafka(pipeline: RecordedPipeline) -> dict[str, object]:
    return {"bootstrap.servers": pipeline.bootstrap}


def verdicts(pipeline: RecordedPipeline, batch: int) -> list[Verdict]:
    decisions = DecisionLog(CheckpointStore.open(pipeline.checkpoint))
    return [decision.verdict for decision in decisions.of_batch(batch)]


def require_read_as_recorded(pipeline: RecordedPipeline) -> None:
    """Spark's progress, the command that shows it, what readers have and what is open."""
    killed = pipeline.killed
    state = read_state(CheckpointStore.open(pipeline.checkpoint))
    assert (state.in_flight, state.latest_commit) == (killed.batch, killed.batch - 1)
    shown = CliRunner().invoke(app, ["status", pipeline.checkpoint, "--json"])
    assert shown.exit_code == 0, shown.output
    [member] = json.loads(shown.stdout)["pipeline"]["participants"]
    assert (member["name"], member["kind"]) == (DEFAULT_PARTICIPANT, "kafka")
    assert member["address"] == {
        "cluster_id": pipeline.broker.cluster_id,
        "transactional_id_prefix": pipeline.name,
    }
    assert len(pipeline.visible()) == killed.visible_rows
    assert len(pipeline.open_transactions()) == killed.open_transactions


def recover(pipeline: RecordedPipeline) -> Report:
    # Forced: by a clock that is behind the recording's, its last heartbeat has just been.
    return execute_recovery(
        plan_recovery(pipeline.checkpoint, kafka(pipeline)), kafka(pipeline), force=True
    )


def move(pipeline: RecordedPipeline) -> None:
    """It lies elsewhere than where it was recorded: refused until a person says that it moved."""
    still_open = pipeline.open_transactions()
    with pytest.raises(OwnershipError, match=r"is a copy .* or to where it was moved"):
        recover(pipeline)
    assert pipeline.open_transactions() == still_open
    moved_on_purpose(pipeline)


def require_resumed_exactly_once(pipeline: RecordedPipeline) -> None:
    pipeline.feed(MORE_ROWS)
    pipeline.run()
    pipeline.assert_exactly_once()
    pipeline.assert_ordered()
    assert pipeline.open_transactions() == ()
    assert plan_recovery(pipeline.checkpoint, kafka(pipeline)).steps == ()


@pytest.mark.proof
def test_killed_between_two_commits_of_a_decided_batch(
    recorded: dict[str, RecordedPipeline],
) -> None:
    pipeline = recorded["killed-settling"]
    batch = pipeline.killed.batch
    require_read_as_recorded(pipeline)
    promises = [verdicts(pipeline, number).count(Verdict.COMMIT) for number in range(batch + 1)]
    assert promises == [1] * (batch + 1)

    move(pipeline)
    plan = plan_recovery(pipeline.checkpoint, kafka(pipeline))
    report = recover(pipeline)

    # Two are open. The third was committed: the log tells it where its rows lie before theirs.
    told = pipeline.killed.visible_rows > ROWS_A_BATCH * batch
    steps = 2 if told else 3
    assert [step.action for step in plan.steps] == [Action.COMMIT] * steps
    assert {step.batch_id for step in plan.steps} == {batch}
    assert plan.seal is None
    assert [each.result for each in report.results] == [Result.DONE] * steps
    promised_rows = ROWS_A_BATCH * (batch + 1)
    wait_until(
        lambda: len(pipeline.visible()) == promised_rows,
        what="readers have the batch before the app is back",
    )
    require_resumed_exactly_once(pipeline)


@pytest.mark.proof
def test_killed_with_a_batch_prepared_and_undecided(recorded: dict[str, RecordedPipeline]) -> None:
    pipeline = recorded["killed-undecided"]
    batch = pipeline.killed.batch
    require_read_as_recorded(pipeline)
    assert verdicts(pipeline, batch) == []

    move(pipeline)
    plan = plan_recovery(pipeline.checkpoint, kafka(pipeline))
    report = recover(pipeline)

    assert [step.action for step in plan.steps] == [Action.ABORT] * 3
    assert report.sealed == plan.seal == Seal(batch, 1)
    assert [each.result for each in report.results] == [Result.DONE] * 3
    assert verdicts(pipeline, batch) == [Verdict.ABORT]
    assert len(pipeline.visible()) == pipeline.killed.visible_rows
    require_resumed_exactly_once(pipeline)
