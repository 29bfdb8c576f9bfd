from __future__ import annotations

import pytest

from airflow_eos.errors import ConfigurationError
from airflow_eos.ops.audit.compare import parse


class Message:
    """What librdkafka's message offers, as far as an expression looks."""

    def __init__(self, value=None, key=None, headers=None):
        self.value = lambda: value
        self.key = lambda: key
        self.headers = lambda: headers


@pytest.mark.parametrize(
    ("expression", "message", "found"),
    [
        ("key", Message(key=b"k"), b"k"),
        ("key", Message(), None),
        ("value", Message(b"v"), b"v"),
        ("value.id", Message(b'{"id": "a7", "x": [1]}'), b"a7"),
        ("value.id", Message(b'{"id": 7}'), b"7"),
        ("value.id", Message(b'{"id": "7"}'), b"7"),
        ("value.id", Message(b'{"id": "\\u00e9"}'), "é".encode()),
        ("value.id", Message(b'{"id": null}'), None),
        ("value.id", Message(b'{"other": 1}'), None),
        ("value.id", Message(b'{"id": '), None),
        ("value.id", Message(b"[1]"), None),
        ("value.id", Message(b"\xff\xfe"), None),
        pytest.param("value.id", Message(b'{"x": ' + b"[" * 100_000), None, id="no end of lists"),
        pytest.param("value.id", Message(b'{"id": ' + b"[" * 100_000), None, id="an id of lists"),
        ("value.id", Message(b'{"id": true}'), b"true"),
        ("value.a.b-c", Message(b'{"a": {"b-c": 1}}'), b"1"),
        ("value.a.b", Message(b'{"a": 1}'), None),
        ("value.a.b", Message(b'{"a": null}'), None),
        ("key.id", Message(key=b'{"id": 1}'), b"1"),
        ("headers.x", Message(headers=[("x", b"1"), ("x", b"2"), ("y", b"3")]), b"2"),
        ("headers.x", Message(), None),
    ],
)
def test_what_an_expression_finds(expression, message, found):
    assert parse(expression)(message) == found


@pytest.mark.parametrize("expression", ["", "id", "value.", "value..a", "headers", "$.id", "key."])
def test_what_is_no_expression_is_refused(expression):
    with pytest.raises(ConfigurationError, match="names no part"):
        parse(expression)
