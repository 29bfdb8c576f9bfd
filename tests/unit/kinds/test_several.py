"""Several participants as one, and a kind of a user's own: each work goes to its own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType
from typing import Any

import pytest

from airflow_eos.core import participants
from airflow_eos.core.participants import connect
from airflow_eos.core.protocol.decision import Outcome, PreparedWork, WorkIdentity
from airflow_eos.core.protocol.participant import Member
from airflow_eos.core.protocol.participant_group import ParticipantGroup
from airflow_eos.errors import (
    CheckpointFormatError,
    ConfigurationError,
    DeliveryError,
    OwnershipError,
)


class Recording:
    """Says yes to everything, and remembers what it was asked."""

    def __init__(self, name: str, asked: list[tuple[str, str, Any]]) -> None:
        self.name = name
        self.members = (Member(name, "fake", {"at": name}),)
        self._asked = asked
        self.refuses: Exception | None = None
        self.meet: Callable[[], object] = lambda: None

    def _note(self, verb: str, what: Any = None) -> None:
        self.meet()
        self._asked.append((self.name, verb, what))
        if self.refuses is not None:
            raise self.refuses

    def check(self, works: Sequence[PreparedWork]) -> None:
        self._note("check", keys(works))

    def commit(self, works: Sequence[PreparedWork]) -> dict[WorkIdentity, Outcome]:
        self._note("commit", keys(works))
        return {work.identity: Outcome.COMMITTED for work in works}

    def outcome(self, works: Sequence[PreparedWork]) -> dict[WorkIdentity, Outcome]:
        self._note("outcome", keys(works))
        return {work.identity: Outcome.ABORTED for work in works}

    def abort(self, works: Sequence[WorkIdentity]) -> dict[WorkIdentity, bool]:
        self._note("abort", keys(works))
        return dict.fromkeys(works, True)

    abandon = abort

    def open(self, *, except_known: Sequence[WorkIdentity] = ()) -> tuple[Any, ...]:
        self._note("open", keys(except_known))
        return (f"open at {self.name}",)

    def claim(self, owner: Any) -> None:
        self._note("claim", owner)

    def ownership(self, asking: Any) -> tuple[Any, ...]:
        self._note("ownership", asking)
        return (f"ownership of {self.name}",)

    def require_settled(self, promise: Any, said: Any) -> None:
        self._note("require_settled", (promise, said))

    def note(self, decision: Any, owner: Any) -> None:
        self._note("note", (decision, owner))

    def close(self) -> None:
        self._note("close")


def keys(works: Sequence[Any]) -> list[str]:
    return [work.key for work in works]


def work(participant: str, key: str, timeout_ms: int | None = None) -> PreparedWork:
    return PreparedWork("fake", participant, key, 1, "0" * 32, 0, timeout_ms, {})


A, B, C = work("a", "a1"), work("b", "b1", 60_000), work("a", "a2")


@pytest.fixture
def asked() -> list[tuple[str, str, Any]]:
    return []


@pytest.fixture
def both(asked: list[tuple[str, str, Any]]) -> tuple[Recording, Recording]:
    return Recording("a", asked), Recording("b", asked)


@pytest.fixture
def group(both: Any) -> ParticipantGroup:
    return ParticipantGroup(both)


def test_each_work_goes_to_its_own_and_every_answer_comes_back(group, asked):
    assert group.outcome([A, B, C]) == dict.fromkeys(
        (A.identity, B.identity, C.identity), Outcome.ABORTED
    )
    assert group.abort([C.identity, B.identity]) == {C.identity: True, B.identity: True}
    group.check([B])
    assert sorted(asked) == [
        ("a", "abort", ["a2"]),
        ("a", "outcome", ["a1", "a2"]),
        ("b", "abort", ["b1"]),
        ("b", "check", ["b1"]),
        ("b", "outcome", ["b1"]),
    ]


@pytest.mark.parametrize(
    "ask",
    [
        lambda group: group.commit([A, B]),
        lambda group: group.abort([A.identity, B.identity]),
        lambda group: group.abandon([A.identity, B.identity]),
        lambda group: group.outcome([A, B]),
        lambda group: group.open(),
        lambda group: group.note("decision", "owner"),
    ],
    ids=["commit", "abort", "abandon", "outcome", "open", "note"],
)
def test_no_system_waits_for_another(group, both, asked, ask):
    """What one may end by itself must not wait for a server that is away."""
    both_asked = threading.Barrier(2, timeout=30)
    for each in both:
        each.meet = both_asked.wait
    ask(group)
    assert {name for name, _, _ in asked} == {"a", "b"}


def test_open_work_of_all_is_listed_and_each_is_told_of_its_own_only(group, asked):
    """A participant may read more out of a key than its text: another's would not parse."""
    assert group.open(except_known=[A.identity, B.identity]) == ("open at a", "open at b")
    assert sorted(asked) == [("a", "open", ["a1"]), ("b", "open", ["b1"])]


def test_work_of_nobody_is_refused_before_anything_is_done(group, asked):
    for verb in (group.commit, group.outcome, group.check):
        with pytest.raises(CheckpointFormatError, match="'c', and only 'a', 'b' can be asked"):
            verb([A, work("c", "c1")])
    assert asked == []


def test_any_of_them_refuses_a_foreign_or_older_checkpoint(group, both, asked):
    assert group.ownership("us") == ("ownership of a", "ownership of b")
    both[1].refuses = OwnershipError("an older copy")
    for ask in (group.claim, group.ownership):
        with pytest.raises(OwnershipError, match="an older copy"):
            ask("us")
    assert {name for name, _, _ in asked} == {"a", "b"}


def test_each_is_asked_whether_it_still_has_what_was_delivered(group, both, asked):
    group.require_settled("promise", "said")
    assert [(name, verb) for name, verb, _ in asked] == [
        ("a", "require_settled"),
        ("b", "require_settled"),
    ]
    both[1].refuses = OwnershipError("a backup was put back")
    with pytest.raises(OwnershipError, match="backup"):
        group.require_settled("promise", "said")


def test_each_remembers_what_is_relied_on(group, asked):
    """Where only one did, restoring an older copy beside a new table would go unnoticed."""
    group.note("decision", "owner")
    assert sorted((name, verb) for name, verb, _ in asked) == [("a", "note"), ("b", "note")]


def test_all_are_closed_whatever_one_of_them_raises(group, both, asked):
    both[1].refuses = OSError("gone")
    with pytest.raises(OSError, match="gone"):
        group.close()
    assert {name for name, _, _ in asked} == {"a", "b"}


def test_its_members_are_those_of_all(group):
    assert [member.name for member in group.members] == ["a", "b"]


def test_two_at_one_address_are_refused_since_they_share_a_witness(asked):
    """The second would read the first one's witness as its own: its rows would be lost."""
    one: Any = Recording("a", asked)
    other: Any = Recording("b", asked)
    other.members = (Member("b", "fake", {"at": "a"}),)
    with pytest.raises(ConfigurationError, match="'a' and 'b' are both"):
        ParticipantGroup((one, other))


@pytest.mark.parametrize("verb", ["commit", "abort", "abandon"])
def test_one_that_refuses_costs_the_others_nothing(group, both, asked, verb):
    """A table whose columns have changed must not cost Kafka its timeout."""
    both[1].refuses = DeliveryError("the columns have changed")
    works = [A, B] if verb == "commit" else [A.identity, B.identity]
    with pytest.raises(DeliveryError, match="columns have changed"):
        getattr(group, verb)(works)
    assert {name for name, _, _ in asked} == {"a", "b"}


def test_what_several_refuse_is_all_told(group, both):
    for each, reason in zip(both, ("no rights", "no columns"), strict=True):
        each.refuses = DeliveryError(reason)
    with pytest.raises(DeliveryError, match="no rights") as raised:
        group.commit([A, B])
    assert raised.value.__notes__ == ["And then DeliveryError: no columns"]


# --- A kind of a user's own, found by its entry point: nothing of ours names it -------------------


TAPES = Member("archive", "tapes", {"robot": "7"})


@pytest.fixture
def tapes(monkeypatch) -> list[Any]:
    """A module that some other package brings."""
    asked: list[Any] = []
    module = ModuleType("their_tapes")

    def connect_tapes(member: Member, how: object, *, store: object, timeout_s: float) -> Any:
        asked.append((member, how, store, timeout_s))
        return "their participant"

    module.connect = connect_tapes  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "their_tapes", module)
    point = EntryPoint("tapes", "their_tapes", "airflow_eos.participants")
    monkeypatch.setattr(participants, "entry_points", lambda **_: EntryPoints([point]))
    return asked


class Closing:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_it_is_reached_as_ours_are(tapes, monkeypatch):
    their: Any = Closing()
    monkeypatch.setattr(sys.modules["their_tapes"], "connect", lambda *_, **__: their)
    reached: Any = connect([TAPES], {"archive": "tape://7"})
    assert reached is their
    assert not their.closed


def test_it_is_told_how_by_its_name_or_by_its_kind(tapes, monkeypatch):
    module = sys.modules["their_tapes"]

    def answering(member: Member, how: object, **_: object) -> Closing:
        tapes.append(how)
        return Closing()

    monkeypatch.setattr(module, "connect", answering)
    connect([TAPES], {"tapes": "by kind"})
    connect([TAPES], {"tapes": "by kind", "archive": "by name"})
    connect([TAPES], {})
    assert tapes == ["by kind", "by name", None]


def test_those_that_were_reached_are_closed_where_a_later_one_cannot_be(tapes, monkeypatch):
    their: Any = Closing()
    monkeypatch.setattr(sys.modules["their_tapes"], "connect", lambda *_, **__: their)
    with pytest.raises(ConfigurationError, match="cluster"):
        connect([TAPES, Member("orders", "kafka", {"transactional_id_prefix": "etl"})], {})
    assert their.closed


def test_a_kind_that_nobody_brings_is_named_with_those_that_are_there(tapes):
    with pytest.raises(ConfigurationError, match=r"knows .*kafka.*tapes"):
        connect([Member("x", "drums", {})], {})
