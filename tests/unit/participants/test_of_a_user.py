"""A kind of a user's own, found by its entry point: nothing of ours names it."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType
from typing import Any

import pytest

from airflow_eos import participants
from airflow_eos.errors import ConfigurationError
from airflow_eos.participants import connect
from airflow_eos.protocol.participant import Member

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
