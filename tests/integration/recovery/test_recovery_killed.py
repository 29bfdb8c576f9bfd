"""The command line in its own process: killed anywhere, run twice, run by two at once."""

from __future__ import annotations

import json
import time

import pytest

from airflow_eos.kafka.transactions.identity import transactional_id_of


def a_mixture(dead):
    """Promised: one lost, one committed, three open. Never promised: two open."""
    named = [dead.write(task, [f"promised-{task}"]) for task in range(5)]
    dead.decided(*named)
    dead.end(named[0], commit=False)
    dead.end(named[1], commit=True)
    dead.write(8, ["never-8"])
    dead.write(9, ["never-9"])


def assert_recovered(dead):
    assert dead.still_open() == []
    assert dead.visible() == [f"promised-{task}" for task in range(1, 5)]
    process = dead.cli("plan", dead.store.location, "--json")
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 3
    assert [(step["action"], step["rows"]) for step in json.loads(out)["steps"]] == [("replay", 1)]


@pytest.mark.parametrize(
    "place",
    [
        "recovery-acted-first",
        *(
            pytest.param(place, marks=pytest.mark.proof)
            for place in ("recovery-listed", "recovery-sealed", "settled-some")
        ),
    ],
)
def test_killed_at(dead, place):
    a_mixture(dead)

    killed = dead.cli("recover", dead.store.location, failpoint=place)
    killed.communicate(timeout=300)
    assert killed.returncode == -9

    again = dead.cli("recover", dead.store.location)
    _, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    assert_recovered(dead)


@pytest.mark.proof
def test_two_at_once(dead):
    a_mixture(dead)

    both = [dead.cli("recover", dead.store.location, "--json") for _ in range(2)]
    outs = [process.communicate(timeout=300) for process in both]

    assert [process.returncode for process in both] == [0, 0], outs
    assert_recovered(dead)


@pytest.mark.proof
def test_plan_to_a_file_then_recover_from_it(dead, tmp_path):
    a_mixture(dead)
    file = tmp_path / "plan.json"

    plan = dead.cli("plan", dead.store.location, "--out", str(file))
    table, _ = plan.communicate(timeout=300)
    assert plan.returncode == 3
    for word in ("COMMIT", "ABORT", "REPLAY", transactional_id_of(dead.prefix, 2, 0)):
        assert word in table

    done = dead.cli("recover", "--plan", str(file), "--json")
    out, errors = done.communicate(timeout=300)
    assert done.returncode == 0, errors
    assert [each["result"] for each in json.loads(out)["results"]] == [
        *["done"] * 5,
        "waits for the app",
    ]
    assert_recovered(dead)


@pytest.mark.proof
def test_dry_run_changes_nothing(dead):
    a_mixture(dead)
    before = dead.still_open()

    process = dead.cli("recover", dead.store.location, "--dry-run")
    process.communicate(timeout=300)

    assert process.returncode == 0
    assert dead.still_open() == before
    assert len(dead.log.of_batch(5)) == 1


@pytest.mark.proof
def test_a_ruling_from_the_command_line(dead):
    promised = dead.write(0, ["a"])
    dead.decided(promised)
    dead.end(promised, commit=True)
    later = dead.write(7, ["z"], prefix="other-app")
    dead.end(later, commit=True)
    dead.forget_rows_below(later.witness.first)

    asked = dead.cli("plan", dead.store.location)
    out, _ = asked.communicate(timeout=300)
    assert asked.returncode == 4
    assert "ASK" in out

    wrong = dead.cli(
        "recover", dead.store.location, "--assume", "committed", "--transaction", "no-such-id"
    )
    _, errors = wrong.communicate(timeout=300)
    assert wrong.returncode == 2
    assert promised.transactional_id in errors

    ruled = dead.cli(
        "recover",
        dead.store.location,
        "--assume",
        "committed",
        "--transaction",
        promised.transactional_id,
    )
    _, errors = ruled.communicate(timeout=300)
    assert ruled.returncode == 0, errors
    clean = dead.cli("plan", dead.store.location)
    clean.communicate(timeout=300)
    assert clean.returncode == 0


@pytest.mark.proof
def test_status_shows_progress_and_what_is_open(dead):
    a_mixture(dead)

    process = dead.cli("status", dead.store.location, "--json")
    out, errors = process.communicate(timeout=300)

    assert process.returncode == 0, errors
    facts = json.loads(out)
    assert facts["progress"]["batch_in_flight"] == 5
    assert len(facts["open_work"]) == 5
    assert all(each["time_left_ms"] > 0 for each in facts["open_work"])


@pytest.mark.proof
def test_an_unreachable_broker_is_said_quickly(dead):
    started = time.monotonic()

    process = dead.cli("plan", dead.store.location, "--timeout", "2", kafka="127.0.0.1:1")
    _, errors = process.communicate(timeout=300)

    assert process.returncode == 2
    assert "127.0.0.1:1" in errors
    assert "Traceback" not in errors
    assert time.monotonic() - started < 200
