"""Who owns a prefix, and which copy of a checkpoint is the newest, by the topic's records."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_eos.checkpoint import Decision, Verdict
from airflow_eos.errors import OwnershipError
from airflow_eos.kafka.transactions.ownership import ownership
from airflow_eos.protocol.participant import Note, Owner, same_place
from tests.support.owners import owner_at

Record = tuple[bytes, bytes | None]


def claimed(location: str | None, nonce: str = "n1", prefix: str = "etl") -> Record:
    key = msgspec.json.encode({"prefix": prefix, "claim": nonce})
    return key, None if location is None else msgspec.json.encode(owner_at(location))


def noted(batch: int, attempt: int = 1, *, driver: str = "d1", decision: str = "x") -> Record:
    key = msgspec.json.encode({"prefix": "etl", "note": driver})
    value = Note(batch, attempt, decision, owner_at("/a").pipeline)
    return key, msgspec.json.encode(value)


def decided(batch: int, nonce: str) -> Decision:
    return Decision(
        batch_id=batch,
        attempt=1,
        verdict=Verdict.COMMIT,
        offsets="v1",
        decided_by="driver",
        decided_at_ms=0,
        nonce=nonce,
    )


def require(
    records: list[Record],
    *,
    location: str = "/a",
    newest: int | None,
    settled: int | None = None,
    **nonces: str,
):
    found = ownership(records, "etl")
    decisions = {int(batch[1:]): (decided(int(batch[1:]), n),) for batch, n in nonces.items()}
    found.require(
        owner_at(location), newest_planned=newest, newest_settled=settled, decisions=decisions
    )


def test_the_earliest_claim_owns_the_prefix():
    records = [claimed("/a", "n1"), claimed("/b", "n2")]
    assert ownership(records, "etl").owner == owner_at("/a")


def test_another_prefix_owns_nothing_here():
    assert ownership([claimed("/a", prefix="etl-eu")], "etl").owner is None


def test_a_prefix_that_was_given_up_belongs_to_who_comes_next():
    records = [claimed("/a", "n1"), noted(7), claimed(None, "n1"), claimed("/b", "n2")]
    assert ownership(records, "etl").owner == owner_at("/b")


def test_a_sleeper_that_notes_an_old_batch_takes_nothing_back():
    records = [noted(250, driver="d2"), noted(101, driver="d1")]
    assert ownership(records, "etl").newest(owner_at("/a").pipeline).batch == 250


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3)), max_size=20), st.data())
def test_compaction_changes_neither_owner_nor_newest_note(
    notes: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Compaction keeps the last record of a key, at its own offset; a driver's notes only grow."""
    records: list[Record] = [claimed("/a", "n1"), claimed("/b", "n2")]
    for driver, group in itertools.groupby(sorted(notes), key=lambda note: note[0] % 3):
        records += [noted(b, a, driver=f"d{driver}") for b, a in sorted(group)]
    cut = data.draw(st.integers(0, len(records)))
    last = {key: n for n, (key, _) in enumerate(records[:cut])}
    compacted = [records[n] for n in sorted(last.values())] + records[cut:]
    one, other = ownership(records, "etl"), ownership(compacted, "etl")
    assert (one.owner, one.newest()) == (other.owner, other.newest())


def test_a_prefix_of_another_checkpoint_is_refused_whatever_topic_it_writes_to():
    with pytest.raises(OwnershipError, match=r"belongs to the checkpoint /a.*disown etl"):
        require([claimed("/a")], location="/b", newest=None)


def test_a_copy_that_lags_by_just_the_batch_in_flight_is_refused():
    """It has planned batch 7, as the newest one has; and knows no decision of it."""
    with pytest.raises(OwnershipError, match="does not hold the decision of batch 7"):
        require([claimed("/a"), noted(7, decision="a" * 32)], newest=7)


def test_a_copy_that_has_decided_the_batch_otherwise_is_refused():
    with pytest.raises(OwnershipError, match="older copy"):
        require([claimed("/a"), noted(7, decision="a" * 32)], newest=7, b7="b" * 32)


def test_a_copy_in_which_a_driver_that_was_alive_has_decided_since_is_refused():
    """Found by the chaos suite, history 6000016: it was put back in place under the driver."""
    with pytest.raises(OwnershipError, match="newest batch 1"):
        require([claimed("/a"), noted(4, decision="a" * 32)], newest=1, b4="a" * 32)


@pytest.mark.parametrize(
    ("newest", "nonces"), [(7, {"b7": "a" * 32}), (8, {"b7": "a" * 32}), (300, {})]
)
def test_the_newest_copy_is_let_in(newest: int, nonces: dict[str, Any]) -> None:
    require([claimed("/a"), noted(7, decision="a" * 32)], newest=newest, **nonces)


def test_a_lost_checkpoint_is_refused():
    with pytest.raises(OwnershipError, match="it was lost"):
        require([claimed("/a"), noted(0, decision="a" * 32)], newest=None)


def of_batch(batch: int, place: str) -> Record:
    """The note of another pipeline, under the same prefix."""
    note = Note(batch, 1, "z" * 32, owner_at(place).pipeline)
    return msgspec.json.encode({"prefix": "etl", "note": f"d-{place}"}), msgspec.json.encode(note)


def test_an_older_checkpoint_with_higher_numbers_is_another_pipeline():
    """It was put back after its prefix was given to a new one at the same place."""
    former = Owner("former", "/a")
    found = ownership([claimed("/a"), noted(0)], "etl")
    with pytest.raises(OwnershipError, match=r"another pipeline.*was at this place"):
        found.require(former, newest_planned=7, decisions={})


@pytest.mark.parametrize(
    ("note", "settled"), [(noted(3, decision="b" * 32), 7), (noted(7, decision="b" * 32), 7)]
)
def test_a_copy_whose_other_copy_has_gone_on_since_is_refused(note: Record, settled: int) -> None:
    """The name was given up for the other copy, so its lower note is all that is remembered."""
    with pytest.raises(OwnershipError, match="another copy of this checkpoint has gone on"):
        require([claimed("/a"), note], newest=8, settled=settled, b7="a" * 32)


@pytest.mark.parametrize("note", [7, 8])
def test_a_copy_that_has_noted_all_that_it_has_settled_is_let_in(note: int) -> None:
    """Batch 8 may be noted and not be over; and its decision is that of the checkpoint."""
    records = [claimed("/a"), noted(note, decision="a" * 32)]
    require(records, newest=9 if note == 8 else 8, settled=7, **{f"b{note}": "a" * 32})


def test_a_sleeper_of_a_pipeline_that_was_given_up_writes_no_number_for_the_next():
    records = [claimed("/a"), noted(3, decision="a" * 32), of_batch(400, "/former")]
    require(records, newest=3, b3="a" * 32)
    assert ownership(records, "etl").newest().batch == 3


def test_two_copies_of_one_checkpoint_never_both_deliver():
    """They have one id: which of them is where the claim says goes on, the other is refused."""
    found = ownership([claimed("/a"), noted(3)], "etl", "h:1")
    copy = Owner(owner_at("/a").pipeline, "/copy")
    with pytest.raises(OwnershipError, match=r"is a copy.*disown etl -b h:1 --moved --yes"):
        found.require(copy, newest_planned=9, decisions={})
    found.require(owner_at("/a"), newest_planned=9, decisions={})


NEIGHBOURS = [
    b'{"prefix":"other","note":"n1","epoch":3}',
    b'{"prefix":"etl-eu","claim":"c"}',
    b'{"prefix":7}',
    b'{"name":"etl"}',
    b"etl",
    b"",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"prefix":"' + b"x" * 1_000_000 + b'"}',
    b'["etl"]',
    b"null",
]


@pytest.mark.parametrize("key", NEIGHBOURS, ids=lambda key: repr(key[:30]))
@pytest.mark.parametrize("value", [b"{}", b"", b"\xff", None])
def test_records_of_neighbours_and_of_nobody_are_passed_over(key: bytes, value: bytes | None):
    own = [claimed("/a"), noted(7)]
    for records in ([(key, value), *own], [*own, (key, value)]):
        assert ownership(records, "etl") == ownership(own, "etl")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b'{"prefix":"etl","claim":"c","epoch":3}', b"{}"),
        (b'{"prefix":"etl"}', b"{}"),
        (b'{"prefix":"etl","lease":"c"}', b"{}"),
        (b'{"prefix":"etl","note":"d9"}', b'{"batch":1}'),
        (b'{"prefix":"etl","note":"d9"}', b"\xff"),
        (b'{"prefix":"etl","claim":"c"}', b'{"location":"/a"}'),
    ],
)
def test_what_is_not_understood_of_the_own_prefix_is_said_and_can_be_removed(
    key: bytes, value: bytes
) -> None:
    records = [claimed("/a"), noted(7, decision="a" * 32), (key, value)]
    with pytest.raises(OwnershipError, match=r"cannot be understood.*airflow-eos disown etl"):
        require(records, newest=7, b7="a" * 32)
    assert key in ownership(records, "etl").keys
    require([*records, (key, None)], newest=7, b7="a" * 32)


def test_a_later_release_may_say_more_of_a_claim_or_a_note() -> None:
    key, value = noted(7, decision="a" * 32)
    assert value is not None
    grown = value.removesuffix(b"}") + b',"cluster":"c"}'
    require([claimed("/a"), (key, grown)], newest=7, b7="a" * 32)


@pytest.mark.parametrize(
    ("one", "other"),
    [("s3a://b/c", "s3://b/c"), ("abfss://x@y/z", "abfs://x@y/z"), ("/a/b", "/a/b")],
)
def test_one_place_by_two_schemes(one: str, other: str) -> None:
    assert same_place(one) == same_place(other)
