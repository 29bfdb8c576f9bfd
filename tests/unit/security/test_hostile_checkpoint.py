"""What a checkpoint says is data: it cannot leave the folder, run, crash or dress up a terminal."""

from __future__ import annotations

import json
import pickle
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from airflow_eos.cli.app import app, main
from airflow_eos.cli.options import require_confirmed
from airflow_eos.cli.recovery import _require_silent
from airflow_eos.core.checkpoint import (
    CheckpointStore,
    DecisionLog,
    read_pipeline,
    read_state,
    write_heartbeat,
)
from airflow_eos.core.checkpoint.drain import DrainRequest, standing_request
from airflow_eos.core.checkpoint.heartbeat import Heartbeat, read_heartbeat
from airflow_eos.core.protocol.decision import Outcome, WorkIdentity, encode
from airflow_eos.core.protocol.participant import Member, Owner, Ownership
from airflow_eos.errors import (
    CheckpointError,
    ConfigurationError,
    EosError,
    PipelineAliveError,
    Remedy,
    StoreError,
)
from airflow_eos.kafka.transactions.identity import belongs_to_prefix
from airflow_eos.kinds.files.storage import StagedFolder
from airflow_eos.ops.plan_tables import plan_view
from airflow_eos.ops.tables import as_text
from airflow_eos.recovery import Action, Plan, Step, resolve
from tests.support.beats import heartbeat

TOUCHED = "touched-by-hostile-content"
GOOD: dict[str, Any] = {
    "format_version": 1,
    "batch_id": 0,
    "attempt": 1,
    "verdict": "commit",
    "works": [
        {
            "kind": "kafka",
            "participant": "sink",
            "key": "etl-0-0-7-0",
            "rows": 5,
            "fingerprint": "0" * 32,
            "opened_at_ms": 0,
            "timeout_ms": 60_000,
            "detail": {"written": [{"topic": "out", "partition": 0, "first": 5, "last": 9}]},
        }
    ],
    "offsets": "v1\n{}\n{}",
    "reason": "",
    "term": 1,
    "decided_by": "driver",
    "decided_at_ms": 0,
    "nonce": "0" * 32,
}


class Bomb:
    """Unpickled, it leaves a file behind."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    (folder / "eos" / "decisions" / "0").mkdir(parents=True)
    return folder


def decide(checkpoint: Path, content: bytes) -> None:
    (checkpoint / "eos" / "decisions" / "0" / "1.json").write_bytes(content)


def read(checkpoint: Path) -> Any:
    return DecisionLog(CheckpointStore.open(checkpoint)).of_batch(0)


def test_the_decision_that_the_hostile_ones_are_made_from_is_a_good_one(checkpoint: Path) -> None:
    decide(checkpoint, json.dumps(GOOD).encode())
    assert read(checkpoint)[0].works[0].rows == 5


def test_a_pickle_is_refused_and_not_run(checkpoint: Path) -> None:
    file = checkpoint / TOUCHED
    bomb = pickle.dumps(Bomb(file))
    decide(checkpoint, bomb)
    (checkpoint / "eos" / "pipeline.json").write_bytes(bomb)
    (checkpoint / "eos" / "driver.json").write_bytes(bomb)
    (checkpoint / "metadata").write_bytes(bomb)
    store = CheckpointStore.open(checkpoint)
    actions: list[Callable[[], object]] = [
        lambda: read(checkpoint),
        lambda: read_pipeline(store),
        lambda: read_heartbeat(store),
        lambda: read_state(store),
    ]
    for action in actions:
        with pytest.raises(CheckpointError):
            action()
    assert not file.exists()
    pickle.loads(bomb)
    assert file.exists(), "the bomb does work"


def changed(**fields: Any) -> bytes:
    return json.dumps(GOOD | fields).encode()


def first(**fields: Any) -> bytes:
    return changed(works=[GOOD["works"][0] | fields])


HOSTILE = {
    "nested deep": b"[" * 100_000,
    "nested deep and closed": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "a number of a million digits": b'{"format_version": ' + b"9" * 1_000_000 + b"}",
    "a batch beyond 64 bits": changed(batch_id=2**70),
    "rows beyond 64 bits": first(rows=2**80),
    "a key that is a path": first(key="../../etl-0-0-7-0"),
    "a detail that is no object": first(detail=[1]),
    "rows as infinity": json.dumps(GOOD).replace('"rows": 5', '"rows": Infinity').encode(),
    "rows as 1e999": json.dumps(GOOD).replace('"rows": 5', '"rows": 1e999').encode(),
    "code for a number": first(rows="__import__('os').system('true')"),
    "a class to build": changed(verdict={"__class__": "os.system", "args": ["true"]}),
    "an unknown field": changed(__reduce__=["os.system"]),
    "a version that is true": changed(format_version=True),
    "a lone surrogate": json.dumps(GOOD).replace("driver", "\\ud800").encode(),
    "not UTF-8": json.dumps(GOOD).encode().replace(b"driver", b"\xff\xfe"),
    "the attempt of another place": changed(attempt=2),
    "one piece of work twice": changed(works=GOOD["works"] * 2),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_decisions_are_refused_in_a_short_message(checkpoint: Path, content: bytes) -> None:
    decide(checkpoint, content)
    started = time.monotonic()
    with pytest.raises(CheckpointError) as refused:
        read(checkpoint)
    assert time.monotonic() - started < 60
    assert len(str(refused.value)) < 2000 + len(str(checkpoint)), "content is not poured into logs"


@pytest.mark.parametrize("log", ["metadata", "offsets/0", "commits/0"])
@pytest.mark.parametrize(
    "content",
    [
        b"v1\n" + b"[" * 100_000,
        b"v1\n" + b'{"a":' * 100_000,
        b"v1\n{}\n" + b'{"a":' * 100_000,
        b"v" + b"9" * 10_000 + b"\n{}",
        b"v1\n{}\n-\n\x1b[2J",
        b"\x80\x04\x95",
    ],
    ids=["deep list", "deep object", "deep offset", "huge version", "escapes", "pickle"],
)
def test_hostile_spark_logs_are_refused(checkpoint: Path, log: str, content: bytes) -> None:
    good = {
        "metadata": b'{"id":"00000000-0000-0000-0000-000000000000"}',
        "offsets/0": b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n{"t":{"0":1}}',
        "commits/0": b'v1\n{"nextBatchWatermarkMs":0}',
    }
    for name, data in (good | {log: content}).items():
        file = checkpoint / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
    with pytest.raises(CheckpointError) as refused:
        whatever_may_be_there(CheckpointStore.open(checkpoint))
    assert len(str(refused.value)) < 2000


def whatever_may_be_there(store: CheckpointStore) -> None:
    """What is not looked at, or belongs to a source that we do not know, may hold anything."""
    state = read_state(store)
    assert state.latest_offsets == 0
    raise CheckpointError("passed over")


@pytest.mark.parametrize(
    "content", [b"", b"[" * 100_000, b"null", b'{"steps": 1}', pickle.dumps(GOOD)]
)
def test_a_hostile_plan_file_is_refused(content: bytes) -> None:
    with pytest.raises(ConfigurationError):
        Plan.from_json(content)


def test_a_symlink_in_place_of_a_decision_is_read_as_the_data_it_points_to(
    checkpoint: Path, tmp_path: Path
) -> None:
    """It can show nothing: what is no decision is refused without its content."""
    secret = tmp_path / "secret"
    secret.write_text("TOP-SECRET-CONTENT")
    (checkpoint / "eos" / "decisions" / "0" / "1.json").symlink_to(secret)
    with pytest.raises(CheckpointError) as refused:
        read(checkpoint)
    assert "TOP-SECRET" not in str(refused.value)


def test_a_link_in_the_place_of_a_folder_has_nothing_deleted_behind_it(
    checkpoint: Path, tmp_path: Path
) -> None:
    """What is pruned, or aborted, would be another team's files, by the login of the driver."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "1.json").write_text("precious")
    (checkpoint / "eos" / "decisions" / "7").symlink_to(theirs)
    with pytest.raises(StoreError, match="is not known"):
        CheckpointStore.open(checkpoint).delete_folder("eos/decisions/7")
    work = tmp_path / "_eos.data" / "orders" / "work"
    work.mkdir(parents=True)
    (work / "0-0-a").symlink_to(theirs)
    (work / "1-0-b").symlink_to(theirs / "1.json")
    place = StagedFolder(tmp_path / "data")
    assert place.listed("_eos/orders/work") == {}
    assert place.below("_eos/orders/work/0-0-a") == []
    assert list(theirs.iterdir()) == [theirs / "1.json"]


HEARTBEAT: dict[str, Any] = json.loads(encode(heartbeat()))
DRAIN: dict[str, Any] = json.loads(
    encode(DrainRequest(requested_by="ops", reason="x", requested_at_ms=0))
)
ESCAPE = "\x1b[2J\x1b]0;owned\x07\r\n[2026-01-01] INFO - all is well\u202e"


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        json.dumps(HEARTBEAT | {"reason": "x" * 1_000_000}).encode(),
        json.dumps(HEARTBEAT | {"pid": "1"}).encode(),
        json.dumps(HEARTBEAT | {"phase": "hacked"}).encode(),
        json.dumps(HEARTBEAT | {"started_by": {"dag_id": "d"}}).encode(),
        json.dumps(HEARTBEAT | {"cmd": "rm -rf /"}).encode(),
        json.dumps(HEARTBEAT | {"pid": -1}).encode(),
        json.dumps(HEARTBEAT | {"pid": 2**40}).encode(),
        json.dumps(HEARTBEAT | {"interval_ms": -1}).encode(),
        json.dumps(HEARTBEAT | {"interval_ms": 10**18}).encode(),
        json.dumps(HEARTBEAT | {"trigger_ms": 10**18}).encode(),
        json.dumps(HEARTBEAT | {"beat_at_ms": 2**63 - 1}).encode(),
    ],
    ids=[
        *("deep list", "deep object", "huge", "pid as text", "phase", "starter", "field"),
        *(
            "pid of a group",
            "pid of nobody",
            "dead at once",
            "never dead",
            "never stalled",
            "moment",
        ),
    ],
)
def test_a_hostile_heartbeat_is_refused_in_a_short_message(
    checkpoint: Path, content: bytes
) -> None:
    (checkpoint / "eos" / "driver.json").write_bytes(content)
    with pytest.raises(CheckpointError) as refused:
        read_heartbeat(CheckpointStore.open(checkpoint))
    assert len(str(refused.value)) < 2000 + len(str(checkpoint))
    [remedy] = refused.value.remedies
    assert "remove" in remedy.change
    assert not remedy.costs, "a beat is evidence, and the next start writes it anew"


def test_words_of_a_heartbeat_and_of_a_drain_are_one_line_without_escapes(checkpoint: Path) -> None:
    """They stand in the logs of tasks, on terminals, and on the page."""
    words = dict.fromkeys((*Heartbeat.words, *DrainRequest.words), ESCAPE)
    starter = {"dag_id": ESCAPE, "task_id": "t", "run_id": ESCAPE, "map_index": -1}
    starter["submission"] = "s"
    beat = HEARTBEAT | {k: v for k, v in words.items() if k in HEARTBEAT} | {"started_by": starter}
    (checkpoint / "eos" / "driver.json").write_text(json.dumps(beat))
    asked = DRAIN | {k: v for k, v in words.items() if k in DRAIN}
    (checkpoint / "eos" / "drain.json").write_text(json.dumps(asked))
    store = CheckpointStore.open(checkpoint)
    found, drain = read_heartbeat(store), standing_request(store)
    assert found is not None
    assert drain is not None
    said = [getattr(found, name) for name in Heartbeat.words]
    said += [getattr(drain, name) for name in DrainRequest.words]
    for each in (*said, str(found.started_by)):
        assert "all is well" in each, "shown, not obeyed"
        assert each.isprintable()


# --- Words of a checkpoint as paths, patterns and terminal output: they stay words ----------------


OUTSIDE = [
    "../x",
    "eos/../../x",
    "/etc/x",
    "eos//x",
    "eos/./x",
    "..",
    "",
    "eos\\..\\x",
    "eos/\0x",
    "a\nb",
]


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("verb", ["get", "head", "put", "create", "delete", "list", "sync"])
def test_no_path_leaves_the_checkpoint(checkpoint: Path, path: str, verb: str) -> None:
    store = CheckpointStore.open(checkpoint)
    before = sorted(checkpoint.parent.rglob("*"))
    verbs: dict[str, Callable[[], object]] = {
        "get": lambda: store.get(path),
        "head": lambda: store.head(path),
        "put": lambda: store.put(path, b"x"),
        "create": lambda: store.create(path, b"x"),
        "delete": lambda: store.delete([path]),
        "list": lambda: store.list(path),
        "sync": lambda: store.make_durable(path),
    }
    with pytest.raises(StoreError, match="not a path inside a checkpoint"):
        verbs[verb]()
    assert sorted(checkpoint.parent.rglob("*")) == before


@pytest.mark.parametrize("name", ["../../../x", "etl/../../x", "/etc/x", "..", "a\nb", "é" * 10])
def test_an_id_from_a_plan_cannot_name_a_ruling_outside(checkpoint: Path, name: str) -> None:
    before = sorted(checkpoint.parent.rglob("*"))
    with pytest.raises(EosError):
        resolve(
            CheckpointStore.open(checkpoint), WorkIdentity("kafka", "sink", name), Outcome.COMMITTED
        )
    assert sorted(checkpoint.parent.rglob("*")) == before


def test_an_error_on_the_command_line_obeys_no_terminal_escape(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkpoint / "offsets").mkdir()
    (checkpoint / "offsets" / "0").write_text(f"v1{ESCAPES}")
    monkeypatch.setattr("sys.argv", ["airflow-eos", "status", f"{checkpoint}/\x1b[2J"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "\x1b" not in capsys.readouterr().err


def test_a_drained_folder_is_shown_as_text_whatever_its_name(tmp_path: Path) -> None:
    """A name may have what means a colour to one library, and a command to a terminal."""
    folder = tmp_path / f"a[/b][red]{chr(27)}[2J"
    write_heartbeat(CheckpointStore.open(folder), heartbeat("stopped"))
    result = CliRunner().invoke(app, ["drain", str(folder), "--wait", "0"])
    assert result.exit_code == 0, result.exception
    assert f"Drained: {tmp_path}/a[/b][red]\\x1b[2J\n" == result.stdout


def test_what_somebody_else_calls_his_checkpoint_is_no_command_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write to the topic of prefixes may claim one by any name."""
    hostile = f"{tmp_path}/x; rm -rf ~ {chr(27)}[2J"
    monkeypatch.setattr(
        "airflow_eos.core.checkpoint.liveness.signs_of_life", lambda _: ("it beats",)
    )
    give_up = Remedy(("airflow-eos disown p --yes",))
    claimed = Ownership("prefix 'p'", Owner("id", hostile), (), give_up, give_up, give_up)
    with pytest.raises(PipelineAliveError) as refused:
        _require_silent(claimed, None, moved=False, force=False)
    [remedy] = refused.value.remedies
    assert shlex.split(remedy.commands[0])[:3] == ["airflow-eos", "drain", hostile]


@pytest.mark.parametrize("answer", ["n\n", ""], ids=["no", "nobody"])
def test_a_program_that_has_not_confirmed_is_told_so_in_json(answer: str) -> None:
    asking = typer.Typer()
    asking.command()(lambda: require_confirmed("For good?", as_json=True))
    result = CliRunner().invoke(asking, input=answer)
    assert result.exit_code == 1
    assert json.loads(result.stdout.splitlines()[-1]) == {"confirmed": False}


def test_ids_with_regular_expressions_in_them_own_nothing_else() -> None:
    assert not belongs_to_prefix("etl-0-0", ".*")
    assert not belongs_to_prefix("etlX0-0-0", "etl.0")
    assert not belongs_to_prefix("etl-0-0\n", "etl")
    assert not belongs_to_prefix("etl-²-٣", "etl"), "digits that int() does not read, or reads"


ESCAPES = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31m [bold red]rm -rf[/bold red] [link=file:///etc]x[/link]\r\n"
)


def plan_with(text: str) -> Plan:
    return Plan(
        made_at_ms=0,
        location=f"/checkpoint{text}",
        participants=(Member(f"sink{text}", f"kafka{text}", {"cluster_id": text}, text),),
        batch_id=1,
        in_flight=1,
        seal=None,
        steps=(
            Step(
                action=Action.ASK,
                reason=f"because {text}",
                work=WorkIdentity("kafka", "sink", f"etl{text}-0-0-1-1"),
                rows=5,
            ),
        ),
        alive=(f"driver {text}",),
        listed=(),
    )


def test_a_plan_shows_markup_as_text_and_obeys_no_terminal_escape() -> None:
    shown = as_text(plan_view(plan_with(ESCAPES)))
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\r" not in shown
    shown = as_text(plan_view(plan_with(ESCAPES)), width=2000)
    places = shown.count("[bold red]rm -rf[/bold red]")
    assert places == 6, "shown, not obeyed: location, participant (2), key, reason, sign of life"
