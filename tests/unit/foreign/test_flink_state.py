"""What Flink's checkpoint promises: its own bytes are read, and bytes that may be anything refused.

``serialized`` was written by the serializers of Flink 2.2.1 and flink-connector-kafka 5.0.0-2.2,
the other folders by whole jobs; see ``tests/recorded/flink/README.md``.
"""

from __future__ import annotations

import json
import random
import struct
from contextlib import suppress

import pytest

from airflow_eos.errors import CheckpointFormatError
from airflow_eos.foreign.flink import COMMITTER, read_checkpoint, read_metadata
from airflow_eos.kafka.transactions.identity import TransactionIdentity
from tests.support.flink_bytes import PROMISED, RECORDED, SERIALIZED

METADATA = (SERIALIZED / "_metadata").read_bytes()
BESIDE = (SERIALIZED / "state-file").read_bytes()
NAMES = ["_metadata", "_metadata-4", "_metadata-5", "_savepoint"]
JOBS = sorted(file.parent for file in RECORDED.glob("*/recording.json"))


def read(data: bytes, beside: bytes = BESIDE):
    def file(name: str) -> bytes:
        assert name.isprintable()
        assert not {"/", "\\"} & set(name)
        return beside

    return read_checkpoint(data, file)


@pytest.mark.parametrize("name", NAMES)
def test_each_version_of_the_metadata_and_a_savepoint_say_what_is_promised(name):
    found = read((SERIALIZED / name).read_bytes())
    assert (found.number, found.promised, found.prefixes) == (7, PROMISED, ("etl",))


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_of_a_killed_job_the_transactions_that_it_left_prepared_are_promised(job):
    told = json.loads((job / "recording.json").read_text())
    found = read((job / "_metadata").read_bytes())
    assert (found.number, found.prefixes) == (told["checkpoint"], (told["prefix"],))
    assert [list(struct_of(each)) for each in found.promised] == told["commits"]


def struct_of(identity: TransactionIdentity) -> tuple[str, int, int]:
    return identity.transactional_id, identity.producer_id, identity.producer_epoch


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_ends_too_early_anywhere_is_refused(name):
    whole = (SERIALIZED / name).read_bytes()
    for length in range(len(whole)):
        with pytest.raises(CheckpointFormatError):
            read(whole[:length])


def test_a_file_beside_that_ends_too_early_is_refused():
    [offset] = [s.offsets for s in read_metadata(METADATA)[1] if s.name == COMMITTER and s.file]
    for length in range(len(BESIDE)):
        with pytest.raises(CheckpointFormatError):
            read(METADATA, BESIDE[:length])
    assert offset[0] < len(BESIDE)


def test_bytes_after_the_end_are_refused():
    with pytest.raises(CheckpointFormatError, match="1 bytes more"):
        read(METADATA + b"\0")


@pytest.mark.parametrize("huge", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0"])
def test_no_length_is_believed_that_does_not_fit(huge):
    for place in range(len(METADATA) - 4):
        # never another error, and never memory for what is not there
        with suppress(CheckpointFormatError):
            read(METADATA[:place] + huge + METADATA[place + 4 :])


def test_a_promise_is_never_overlooked_whichever_byte_is_wrong():
    """A transaction that is not seen to be promised would be aborted: rows are lost."""
    rng = random.Random(7)
    for _ in range(3000):
        place = rng.randrange(len(METADATA))
        bad = bytearray(METADATA)
        bad[place] = rng.randrange(256)
        try:
            found = read(bytes(bad))
        except CheckpointFormatError:
            continue
        assert len(found.promised) == 2, place


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b"\x49\x60\x67\x2d\0\0\0\6", b"\x49\x60\x67\x2d\0\0\0\7", "version 7"),
        (b"\x49\x60\x67\x2d", b"PK\3\4", "expected 0x4960672d"),
        (b"\xb9\x1f\x25\x2c", b"\xb9\x1f\x25\x2d", "expected 0xb91f252c"),
        (struct.pack(">hq", 5, 4000), struct.pack(">hq", -1, 4000), "expected Kafka's"),
        (b"\x06\x00\x0astate-file", b"\x06\x00\x0a../../file", "a name in the checkpoint's"),
        (b"streaming_committer_raw_states", b"streaming_committer_raw_statez", "by no committer"),
    ],
)
def test_what_is_not_known_is_refused_with_what_was_found(old, new, said):
    assert old in METADATA
    with pytest.raises(CheckpointFormatError, match="Nothing was done") as refused:
        read(METADATA.replace(old, new))
    assert said in str(refused.value)


def test_a_request_that_flink_has_ended_is_no_promise_and_not_known():
    raw = struct.pack(">hqH", 5, 4000, 7) + b"etl-0-7" + struct.pack(">ii", 0, 0)
    assert raw in METADATA
    with pytest.raises(CheckpointFormatError, match="a request in state 3"):
        read(METADATA.replace(raw, raw[:-4] + struct.pack(">i", 3)))
