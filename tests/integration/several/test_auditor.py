"""The control of the auditor: books that are wrong for a moment, and one that cannot look."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.auditor import Auditor
from tests.support.servers.postgres import EmbeddedPostgres

POSTING = "INSERT INTO books VALUES ('a', 5), ('b', -5)"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres() as server:
        yield server


@pytest.fixture
def books(server: EmbeddedPostgres) -> Iterator[Any]:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS books")
        connection.execute("CREATE TABLE books (account text, amount bigint)")
        connection.execute(POSTING)
        yield connection


@pytest.fixture
def auditor(server: EmbeddedPostgres, books: Any) -> Auditor:
    looking = Auditor(server.dsn, "books")
    looking.start()
    looking.look_on(3)
    return looking


def test_books_that_balance_are_not_told(auditor: Auditor, books: Any) -> None:
    books.execute(POSTING)
    auditor.look_on(3)
    auditor.end()
    assert auditor.unbalanced == []
    assert auditor.rows_seen == {2, 4}


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ("DELETE FROM books WHERE account = 'b'", (5, 1)),  # one side is lost
        ("INSERT INTO books VALUES ('a', 5)", (5, 3)),  # one side came twice
        ("INSERT INTO books VALUES ('c', 0)", (0, 3)),  # that adds up, and is no pair
    ],
)
def test_a_moment_in_which_they_do_not_is_told(
    auditor: Auditor, books: Any, wrong: str, found: tuple[int, int]
) -> None:
    books.execute(wrong)
    auditor.look_on(3)
    books.execute("DELETE FROM books")  # and all is well again
    auditor.look_on(3)
    auditor.end()
    assert set(auditor.unbalanced) == {found}


def test_one_that_cannot_look_is_no_auditor(auditor: Auditor, books: Any) -> None:
    books.execute("DROP TABLE books")
    with pytest.raises(psycopg.errors.UndefinedTable):
        auditor.look_on(1_000_000)
    with pytest.raises(psycopg.errors.UndefinedTable):
        auditor.end()
