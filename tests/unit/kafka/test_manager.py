"""What arrives on a connection reaches the library's parser, in large pieces, to its last byte."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.net.transport import KafkaTCPTransport
from kafka.protocol.parser import KafkaProtocol

from airflow_eos.kafka.client.connection import RECEIVED_BYTES, in_large_pieces, last_words_kept


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def frames(parser: Any, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The answers that the library cuts out of what it is given."""
    found: list[bytes] = []

    def keep(frame: Any) -> None:
        frame.seek(0)
        found.append(bytes(frame.read()))

    monkeypatch.setattr(parser, "_process_response", keep)
    return found


def test_answers_of_every_size_are_what_was_sent(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffer is used again at once: whoever kept a part of it would find other bytes there."""
    ours, theirs = ends
    chance = random.Random(7)
    sent = [chance.randbytes(size) for size in (0, 1, 4, 4096, 3 * RECEIVED_BYTES + 5, 7)]
    stream = b"".join(struct.pack(">i", len(each)) + each for each in sent)
    parser = KafkaProtocol(client_id="c")
    found = frames(parser, monkeypatch)
    receive, at = in_large_pieces(ours), 0
    while at < len(stream):
        piece = stream[at : at + chance.choice([1, 3, 1000, 60_000])]
        theirs.sendall(piece)
        at += len(piece)
        while data := receive()[0]:
            parser.receive_bytes(data)
    assert found == sent


def test_nothing_yet_is_no_end_and_the_last_words_come_before_it(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    receive = in_large_pieces(ours)
    assert receive() == (b"", None)
    theirs.sendall(b"wrong password")
    theirs.close()
    data, error = receive()
    assert (bytes(data), error) == (b"wrong password", None)
    data, error = receive()
    assert not data
    assert "socket disconnected" in str(error)


def test_a_connection_that_was_reset_says_so() -> None:
    def recv_into(_buffer: Any) -> int:
        raise ConnectionResetError("reset by peer")

    data, error = in_large_pieces(SimpleNamespace(recv_into=recv_into))()
    assert not data
    assert "reset by peer" in str(error)


def test_last_words_of_a_connection_with_tls_come_before_its_end() -> None:
    gone = OSError("gone")
    said = [(b"wrong password", gone), (b"", gone)]
    receive = last_words_kept(lambda: said.pop(0))
    assert receive() == (b"wrong password", None)
    assert receive() == (b"", gone)


def test_the_library_still_has_the_private_parts_that_are_replaced(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    transport = KafkaTCPTransport(None, ours)
    theirs.sendall(b"x" * 10_000)
    assert transport._sock is ours
    assert transport._sock_recv() == (b"x" * 10_000, None)
