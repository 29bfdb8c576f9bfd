"""The planner against the protocol's recovery table, row by row, and as people read it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from airflow_eos.cli.audit import audit_view
from airflow_eos.core.checkpoint.rulings import Acceptance
from airflow_eos.core.protocol.participant import Member
from airflow_eos.core.recovery.plan import FORMAT_VERSION, Action, Plan, Seal, make_plan
from airflow_eos.errors import ConfigurationError
from airflow_eos.kinds.consumer_group.participant import work_of
from airflow_eos.ops.audit.audit import AuditReport, Offender, _text
from airflow_eos.ops.plan_tables import plan_view
from airflow_eos.ops.tables import as_text, duration, time_left
from tests.unit.core.recovery.facts_of import (
    NONCE,
    NOW,
    PREFIX,
    checkpoint,
    commit,
    facts,
    heartbeat,
    pipeline,
    prepared,
    sealed,
    still_open,
    what_became,
)

A, B, C = prepared(0, content="a"), prepared(1, content="b"), prepared(2, content="c")
A_AGAIN = prepared(0, content="a", epoch=3)
B_AGAIN = prepared(1, content="b", epoch=3)
A_FIRST_HALF = prepared(0, content="d", rows=60, epoch=4)
A_SECOND_HALF = prepared(1, content="e", rows=40, epoch=4)

COMMIT, ABORT, REPLAY, ASK, ORPHAN = Action
NOBODYS = Member("nobodys", "kafka", {"transactional_id_prefix": "other"})


def actions(plan: Plan) -> list[tuple[Action, str | int | None]]:
    return [
        (step.action, step.work.key.rsplit("-", 2)[0] if step.work else step.batch_id)
        for step in plan.steps
    ]


# What is found, what is done about it, and the seal before that where there is one.
TABLE: dict[str, tuple[Any, ...]] = {
    "open and named by a COMMIT decision": (
        facts(listed=(still_open(A),), decisions=(commit(A),)), [(COMMIT, f"{PREFIX}-0-0")],
    ),
    "open and not named": (facts(listed=(still_open(A),)), [(ABORT, f"{PREFIX}-0-0")], Seal(5, 1)),
    "decided COMMIT, outcome COMMITTED": (
        facts(decisions=(commit(A),), outcomes=what_became(committed=[A])), [],
    ),
    "decided COMMIT, outcome ABORTED": (
        facts(decisions=(commit(A),), outcomes=what_became(aborted=[A])), [(REPLAY, 5)],
    ),
    "decided COMMIT, outcome ABORTED, delivered by a later decision": (
        facts(
            decisions=(commit(A), commit(A_AGAIN, attempt=2)),
            outcomes=what_became(aborted=[A], committed=[A_AGAIN]),
        ), [],
    ),
    "decided COMMIT, outcome UNKNOWN": (
        facts(decisions=(commit(A),), outcomes=what_became(unknown=[A])), [(ASK, f"{PREFIX}-0-0")],
    ),
    "decided COMMIT, open, and ruled, in a topic that was made again": (
        facts(
            decisions=(commit(A),), listed=(still_open(A),), outcomes=what_became(aborted=[A]),
            lost_targets={A.identity: "topic 'out' is another one now"},
        ), [(REPLAY, 5)],
    ),
    "decided COMMIT, open, in a topic that was made again": (
        facts(
            decisions=(commit(A),), listed=(still_open(A),), outcomes=what_became(unknown=[A]),
            lost_targets={A.identity: "topic 'out' is another one now"},
        ), [(ASK, f"{PREFIX}-0-0")],
    ),
    "open, but the checkpoint knows no pipeline": (
        facts(listed=(still_open(A),), pipeline=None), [(ORPHAN, f"{PREFIX}-0-0")],
    ),
    "open, but the checkpoint belongs to another prefix": (
        facts(listed=(still_open(A),), asked=(NOBODYS,)), [(ORPHAN, f"{PREFIX}-0-0")],
    ),
    "open, but there is no checkpoint at all": (
        facts(listed=(still_open(A),), pipeline=None, checkpoint=None, listed_batch=None),
        [(ORPHAN, f"{PREFIX}-0-0")],
    ),
    "nothing listed, nothing sealed": (facts(), []),
    "only named ones are open: nothing is sealed": (
        facts(listed=(still_open(A), still_open(B)), decisions=(commit(A, B),)),
        [(COMMIT, f"{PREFIX}-0-0"), (COMMIT, f"{PREFIX}-1-0")],
    ),
    "in flight with attempts that were sealed before": (
        facts(listed=(still_open(A),), decisions=(sealed(1), sealed(2))),
        [(ABORT, f"{PREFIX}-0-0")], Seal(5, 3),
    ),
    "promised after a sealed attempt": (
        facts(listed=(still_open(A),), decisions=(sealed(1), commit(A, attempt=2))),
        [(COMMIT, f"{PREFIX}-0-0")],
    ),
    "a replay in preparation while the promise is lost": (
        facts(
            listed=(still_open(A_AGAIN),), decisions=(commit(A, B),),
            outcomes=what_became(aborted=[A], committed=[B]),
        ), [(ABORT, f"{PREFIX}-0-0"), (REPLAY, 5)], Seal(5, 2),
    ),
    "the id of a promised one was taken again: other epoch": (
        facts(
            listed=(still_open(A, key=f"{PREFIX}-0-0-7-1"),), decisions=(commit(A),),
            outcomes=what_became(aborted=[A]),
        ), [(ABORT, f"{PREFIX}-0-0"), (REPLAY, 5)], Seal(5, 2),
    ),
    "a later decision is open: it will deliver what the first one lost": (
        facts(
            listed=(still_open(A_AGAIN),), decisions=(commit(A), commit(A_AGAIN, attempt=2)),
            outcomes=what_became(aborted=[A]),
        ), [(COMMIT, f"{PREFIX}-0-0")],
    ),
    "a later decision is lost as well": (
        facts(
            decisions=(commit(A, B), commit(A_AGAIN, attempt=2)),
            outcomes=what_became(aborted=[A, A_AGAIN], committed=[B]),
        ), [(REPLAY, 5)],
    ),
    "a later decision is unknown: asked, not replayed": (
        facts(
            decisions=(commit(A), commit(A_AGAIN, attempt=2)),
            outcomes=what_became(aborted=[A], unknown=[A_AGAIN]),
        ), [(ASK, f"{PREFIX}-0-0")],
    ),
    "delivered in other pieces after the parallelism changed": (
        facts(
            decisions=(commit(A, B), commit(A_FIRST_HALF, A_SECOND_HALF, attempt=2)),
            outcomes=what_became(aborted=[A], committed=[B, A_FIRST_HALF, A_SECOND_HALF]),
        ), [],
    ),
    "half of it delivered in other pieces": (
        facts(
            decisions=(commit(A, B), commit(A_FIRST_HALF, A_SECOND_HALF, attempt=2)),
            outcomes=what_became(aborted=[A, A_SECOND_HALF], committed=[B, A_FIRST_HALF]),
        ), [(REPLAY, 5)],
    ),
    "decided after the listing: committed by its name in the decision": (
        facts(decisions=(commit(A),), outcomes=what_became(undecided=[A])),
        [(COMMIT, f"{PREFIX}-0-0")],
    ),
    "an outcome that nobody has read is asked, never guessed": (
        facts(decisions=(commit(A),)), [(ASK, f"{PREFIX}-0-0")],
    ),
    "open in part, and nothing tells what became of it: asked, or --assume would refuse it": (
        facts(
            listed=(still_open(A), still_open(B)), decisions=(commit(A, B),),
            outcomes=what_became(unknown=[A], undecided=[B]),
        ), [(COMMIT, f"{PREFIX}-1-0"), (ASK, f"{PREFIX}-0-0")],
    ),
    "open in part, and a person has ruled: what is left of it is ended": (
        facts(listed=(still_open(A),), decisions=(commit(A),), outcomes=what_became(aborted=[A])),
        [(COMMIT, f"{PREFIX}-0-0")],
    ),
    "the newest batch is complete and a straggler is open": (
        facts(listed=(still_open(C),), checkpoint=checkpoint(5, 5), decisions=(commit(A, B),)),
        [(ABORT, f"{PREFIX}-2-0")],
    ),
    "the newest batch is complete, a named one open all the same": (
        facts(listed=(still_open(A),), checkpoint=checkpoint(5, 5), decisions=(commit(A),)),
        [(COMMIT, f"{PREFIX}-0-0")],
    ),
    "the newest batch is complete and past retention: nobody is asked": (
        facts(checkpoint=checkpoint(5, 5), decisions=(commit(A),)), [],
    ),
    "the batch moved on since the listing: the running attempt is not sealed": (
        facts(listed=(still_open(A),), checkpoint=checkpoint(9, 8), listed_batch=5),
        [(ABORT, f"{PREFIX}-0-0")],
    ),
    "before the first batch": (
        facts(listed=(still_open(A),), checkpoint=checkpoint(None, None), listed_batch=None),
        [(ABORT, f"{PREFIX}-0-0")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", TABLE)
def test_table_of_the_protocol(what):
    found, steps, *seal = TABLE[what]
    plan = make_plan(found)

    assert actions(plan) == steps
    assert [plan.seal] == (seal or [None])


def test_commit_step_tells_rows_attempt_age_and_time_left():
    plan = make_plan(facts(listed=(still_open(A),), decisions=(sealed(1), commit(A, attempt=2))))

    (step,) = plan.steps
    assert (step.rows, step.batch_id, step.attempt) == (100, 5, 2)
    assert (step.age_ms, step.time_left_ms) == (40_000, 20_000)


def test_abort_step_tells_age_and_time_left_and_claims_no_rows():
    (step,) = make_plan(facts(listed=(still_open(A),))).steps

    assert (step.age_ms, step.time_left_ms, step.rows) == (40_000, 20_000, None)


def test_replay_step_tells_batch_transactions_and_rows():
    plan = make_plan(
        facts(decisions=(commit(A, B, C),), outcomes=what_became(aborted=[A, C], committed=[B]))
    )

    (step,) = plan.steps
    assert (step.batch_id, step.works, step.rows) == (5, 2, 200)


def test_equal_contents_are_counted_not_merged():
    twin = prepared(1, content="a")
    plan = make_plan(
        facts(decisions=(commit(A, twin),), outcomes=what_became(aborted=[A], committed=[twin]))
    )

    (step,) = plan.steps
    assert (step.works, step.rows) == (1, 100)


def test_replay_of_a_piece_counts_only_the_rows_that_are_missing():
    plan = make_plan(
        facts(
            decisions=(commit(A, B), commit(A_FIRST_HALF, A_SECOND_HALF, attempt=2)),
            outcomes=what_became(aborted=[A, A_SECOND_HALF], committed=[B, A_FIRST_HALF]),
        )
    )

    (step,) = plan.steps
    assert step.rows == 40


def test_nothing_that_a_decision_names_is_ever_aborted():
    """Rule 5, over every world of the table."""
    for found, *_ in TABLE.values():
        named = {each.identity for decision in found.decisions for each in decision.works}
        if found.pipeline == pipeline() and found.asked != (NOBODYS,):
            assert not [
                step
                for step in make_plan(found).steps
                if step.action is ABORT and step.work in named
            ]


def test_signs_of_life():
    assert make_plan(facts(alive=("it beats",))).alive == ("it beats",)


def test_the_heartbeat_of_another_pipeline_is_no_evidence():
    plan = make_plan(facts(asked=(NOBODYS,), heartbeat=heartbeat(), alive=("it beats",)))

    assert plan.alive == ()


def test_plan_survives_json():
    for found, *_ in TABLE.values():
        plan = make_plan(found)
        assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"format_version": 1}', b"\xff\xfe"], ids=repr
)
def test_what_is_no_plan_is_refused(data):
    with pytest.raises(ConfigurationError, match="not a recovery plan"):
        Plan.from_json(data)


def test_a_plan_of_another_version_is_refused():
    version = f'"format_version": {FORMAT_VERSION}'.encode()
    data = make_plan(facts()).to_json().replace(version, b'"format_version": 2')

    with pytest.raises(ConfigurationError, match="version 2"):
        Plan.from_json(data)


def accepted(*given_up):
    return Acceptance(
        batch_id=5,
        promise=NONCE,
        rows=100,
        missing={"sink": 100},
        given_up=tuple(each.identity for each in given_up),
        ruled_by="ann",
        ruled_at_ms=NOW,
        nonce="1" * 32,
    )


def test_nothing_is_replayed_or_asked_of_a_batch_that_was_accepted_as_it_is():
    world = {"decisions": (commit(A, B),), "outcomes": what_became(aborted=[A], unknown=[B])}
    assert {step.action for step in make_plan(facts(**world)).steps} == {REPLAY, ASK}
    assert make_plan(facts(**world, accepted=accepted())).steps == ()


@pytest.mark.parametrize("in_flight", [True, False])
def test_what_a_person_gave_up_is_aborted_and_the_rest_of_the_promise_committed(in_flight):
    """Its system refuses it for ever: committing it first would hold the pipeline up for ever."""
    plan = make_plan(
        facts(
            decisions=(commit(A, B),),
            listed=(still_open(A), still_open(B)),
            accepted=accepted(A),
            checkpoint=checkpoint(5, 4 if in_flight else 5),
        )
    )
    assert actions(plan) == [(ABORT, f"{PREFIX}-0-0"), (COMMIT, f"{PREFIX}-1-0")]
    assert "given up by ann" in plan.steps[0].reason


def test_what_a_person_gave_up_is_aborted_where_it_is_not_listed_but_open_by_its_outcome():
    plan = make_plan(
        facts(decisions=(commit(A),), outcomes=what_became(undecided=[A]), accepted=accepted(A))
    )
    assert actions(plan) == [(ABORT, f"{PREFIX}-0-0")]


SAYS = work_of("consumer_group", "p" * 32, 5, 1, {"in": {0: 9}}, NOW)


def test_who_says_how_far_it_is_follows_rows_that_are_there_or_will_be():
    for world in (
        {"outcomes": what_became(committed=[A], undecided=[SAYS])},
        {"listed": (still_open(A),), "outcomes": what_became(undecided=[SAYS])},
    ):
        plan = make_plan(facts(decisions=(commit(A, SAYS),), **world))
        assert plan.steps[-1].action is COMMIT
        assert plan.steps[-1].work == SAYS.identity
        assert "follows" in plan.steps[-1].reason


@pytest.mark.parametrize("lost", ["aborted", "unknown"])
def test_who_says_how_far_it_is_waits_where_rows_are_lost(lost):
    outcomes = {"committed": [B], lost: [A], "undecided": [SAYS]}
    plan = make_plan(facts(decisions=(commit(A, B, SAYS),), outcomes=what_became(**outcomes)))
    assert [step.action for step in plan.steps] == [REPLAY if lost == "aborted" else ASK]


def test_what_is_said_needs_no_step():
    said = what_became(committed=[A, SAYS])
    assert make_plan(facts(decisions=(commit(A, SAYS),), outcomes=said)).steps == ()


def test_that_nobody_can_read_the_heartbeat_is_not_that_nobody_runs():
    said = "eos/driver.json is damaged: whether a driver runs is not known"
    assert make_plan(facts(unheard=said)).alive == (said,)


# --- What people read: complete at 100 columns ----------------------------------------------------


def test_plan_as_a_table_at_100_columns():
    a, b, c, d = (prepared(task, content=str(task)) for task in range(4))
    plan = make_plan(
        facts(
            listed=(still_open(a), still_open(d)),
            decisions=(commit(a, b, c),),
            outcomes=what_became(aborted=[b], unknown=[c]),
            alive=("driver app-1 gave a heartbeat while it was looked at",),
        )
    )

    text = as_text(plan_view(plan))

    assert max(len(line) for line in text.splitlines()) <= 100
    words = " ".join(text.split())
    for word in ("COMMIT", "ABORT", "REPLAY", "ASK", "40.0 s", "20.0 s", "orders-etl-0-0", "ALIVE"):
        assert word in words
    assert "cluster_id" not in words, (
        "status says where it delivers to; an id tells a person nothing"
    )


def test_nothing_to_do_is_said():
    assert "Nothing to do" in as_text(plan_view(make_plan(facts())))


def test_a_dead_app_whose_batch_is_in_flight_is_to_be_started_though_nothing_is_open():
    ends = "when the app is started again"
    plan = msgspec.structs.replace(make_plan(facts()), in_flight=7)
    assert f"Batch 7 ends {ends}" in as_text(plan_view(plan))
    assert ends not in as_text(plan_view(msgspec.structs.replace(plan, in_flight=None)))
    alive = msgspec.structs.replace(plan, alive=("driver app-1 gave a heartbeat",))
    assert ends not in as_text(plan_view(alive))


def test_what_comes_from_a_topic_is_neither_markup_nor_a_terminal_command():
    row = Offender("lost", "in", 0, 1, "[red]k[/red]", _text(b"\x1b[31mid"))
    report = AuditReport(
        input_topics=("in",),
        output_topics=("out",),
        rows_in=1,
        rows_out={"out": 0},
        lost=1,
        duplicated=0,
        reordered=0,
        unexpected=0,
        visible_undecided=None,
        open_rows=0,
        open_partitions=(),
        unidentified=0,
        matched=1,
        unjudged=(),
        offenders=(row,),
        seconds=0.1,
    )

    text = as_text(audit_view(report))

    assert "[red]k[/red]" in text
    assert "\x1b" not in text
    assert "VIOLATED" in text


def test_a_transaction_past_its_timeout_is_due():
    assert [time_left(each) for each in (None, -1, 0, 1_000)] == ["", "due", "due", "1.0 s"]


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, ""),
        (-5, "0.0 s"),
        (4_200, "4.2 s"),
        (200_000, "3 min 20 s"),
        (7_500_000, "2 h 5 min"),
        (273_600_000, "3 d 4 h"),
    ],
)
def test_duration(milliseconds, text):
    assert duration(milliseconds) == text


def test_who_is_asked_of_work_is_told_that_its_topic_was_made_again():
    asked = facts(
        decisions=(commit(A),),
        listed=(still_open(A),),
        outcomes=what_became(unknown=[A]),
        lost_targets={A.identity: "topic 'out' is another one now"},
    )
    [step] = make_plan(asked).steps
    assert "topic 'out' is another one now" in step.reason
