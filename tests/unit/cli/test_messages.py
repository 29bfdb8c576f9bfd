"""What the command line says where somebody mistypes, forgets, or lacks something."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from obstore.exceptions import GenericError
from rich.console import Group
from structlog.testing import capture_logs
from typer.testing import CliRunner

from airflow_eos.cli import app as cli
from airflow_eos.cli.doctor import _show
from airflow_eos.cli.options import kafka_settings
from airflow_eos.cli.upgrade import _starter
from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.locations import is_temporary, lacking_keys
from airflow_eos.core.delivery.spark_session import warn_where_it_is_lost
from airflow_eos.errors import ConfigurationError, EosError, KafkaUnavailableError, Remedy
from airflow_eos.ops.doctor import Line, failed, folder
from airflow_eos.ops.tables import WIDTH, plain, show, table


def refused(*arguments: str) -> str:
    """The message of a command that ends with an error of ours."""
    found = CliRunner().invoke(cli.app, list(arguments))
    assert isinstance(found.exception, EosError), found.output
    return str(found.exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("new", "orders", "--kind", "widows"), "--kind='widows'.*did you mean 'windows'?"),
        (("doctor", "/c", "--guarantee", "exact_once"), "--guarantee=.*mean 'exactly_once'?"),
        (("recover", "/c", "--assume", "commited"), "--assume=.*did you mean 'committed'?"),
        (("recover", "/c", "--allow", "comit"), "--allow comit.*Did you mean 'commit'?"),
        (("drain", "/c", "--wait", "2 minuets"), "--wait=.*no unit 'minuets'.*mean 'minutes'?"),
        (("drain", "/c", "--wait", "soon"), r"--wait=.*\(milliseconds, seconds, minutes, hours"),
        (("plan", "/nowhere/c"), r"/nowhere/c names no pipeline.*--prefix"),
    ],
)
def test_what_is_mistyped_is_named_with_what_was_meant(arguments, said):
    assert re.search(said.replace("?", r"\?"), refused(*arguments)), refused(*arguments)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [(("new", "orders", "--knd", "map"), "--kind"), (("plna", "/c"), "'plan'")],
)
def test_an_unknown_option_or_command_is_named_with_the_nearest(arguments, meant):
    found = CliRunner().invoke(cli.app, list(arguments))
    assert found.exit_code == 2
    assert meant in found.output


def test_a_pass_is_one_line_and_a_failure_a_block_in_which_no_word_is_broken(capsys, monkeypatch):
    """Also in a terminal that is narrower than a command which somebody is to copy."""
    long = "kafka-acls --add --allow-principal User:etl --operation Write --topic a.very.long.name"
    lines = [
        Line("topic orders", "fail", "2 partitions; no right to write", "Write on it", long),
        Line("Java", "ok", "17"),
        Line("Spark's own logs", "ok", "a sentence of many words " * 9, "harmless", "nothing"),
        Line("driver", "warn", "it beats", "none: a start supersedes it", "drain it first"),
        failed("broker", KafkaUnavailableError("no answer", Remedy(change="bring it back"))),
    ]
    _show(lines)
    piped = capsys.readouterr().out.splitlines()
    assert piped[0] == "ok    Java: 17"
    assert piped[1].startswith("ok    Spark's own logs: a sentence")
    assert piped[2:6] == [
        "warn  driver",
        "      found    it beats",
        "      expected none: a start supersedes it",
        "      next     drain it first",
    ]
    assert f"      next     {long}" in piped
    assert piped[-4:-1] == [
        "fail  broker",
        "      found    no answer",
        "      next     Bring it back.",
    ]
    assert piped[-1] == "2 of 5 checks failed: a start would be refused, or fail."

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    _show(lines)
    narrow = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert narrow.split() == " ".join(piped).split()
    assert max(map(len, narrow.splitlines())) <= 40


def test_a_checkpoint_on_a_temporary_folder_is_warned_of_by_doctor_and_start(tmp_path):
    assert folder(str(tmp_path), begun=False).verdict == "warn"
    assert folder("/srv/checkpoints/orders", begun=True).verdict == "ok"
    with capture_logs() as said:
        warn_where_it_is_lost(CheckpointStore.open(tmp_path))
        warn_where_it_is_lost(CheckpointStore.open("/srv/checkpoints/orders"))
    assert [(each["log_level"], each["checkpoint"]) for each in said] == [
        ("warning", str(tmp_path))
    ]


def test_a_start_that_goes_on_in_a_temporary_folder_is_told_to_move_it_not_to_begin_elsewhere(
    tmp_path,
):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1\n")
    with capture_logs() as said:
        warn_where_it_is_lost(CheckpointStore.open(tmp_path))
    assert [each["hint"] for each in said] == [folder(str(tmp_path), begun=True).next]


def test_a_link_to_a_temporary_folder_is_one_and_a_bucket_is_none(tmp_path):
    assert is_temporary("/dev/shm/q")
    assert is_temporary(str(tmp_path))
    assert not is_temporary("s3a://tmp/q")
    assert not is_temporary("/tmpfiles/q")


@pytest.mark.parametrize(
    ("location", "asked", "keys"),
    [
        ("s3a://b/q", "http://169.254.169.254/latest/api/token", "AWS_ACCESS_KEY_ID"),
        ("gs://b/q", "http://metadata.google.internal/computeMetadata", "GOOGLE_APPLICATION_CREDE"),
        ("abfss://c@a.dfs.core.windows.net/q", "http://169.254.169.254/metadata", "AZURE_STORAGE"),
    ],
)
def test_a_bucket_without_keys_says_which_keys_it_wants(location, asked, keys):
    """The machine itself is asked for its keys only where nobody has given others."""
    found = lacking_keys(location, GenericError(f"Error performing PUT {asked} in 3 ms"))
    assert found is not None
    assert keys in str(found)
    assert lacking_keys(location, GenericError("https://b.s3.amazonaws.com/q: 403")) is None


def test_the_error_of_a_bucket_without_keys_does_not_end_in_a_machines_address():
    error = CheckpointStore.open("s3://b/q")._failed(
        "reading", "eos/pipeline.json", GenericError("PUT http://169.254.169.254/latest: 403")
    )
    assert "no keys were found" in str(error)
    assert "169.254" not in str(error)


@pytest.mark.parametrize("made", [(), ("notes/readme.txt",)], ids=["nothing", "something else"])
def test_a_place_without_a_checkpoint_is_no_new_pipeline_on_the_page(tmp_path, monkeypatch, made):
    pytest.importorskip("uvicorn")
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)  # else it runs until Ctrl-C
    for path in made:
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text("x")
    assert "holds no checkpoint" in refused("ui", str(tmp_path), "--port", "0")


def test_no_java_is_one_sentence(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "airflow_eos", "try"],
        env={
            **{name: value for name, value in os.environ.items() if name != "JAVA_HOME"},
            "PATH": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert re.fullmatch(r"airflow-eos: found no java on PATH; .*Java 17: .*\n", done.stderr)
    assert not list(Path(tmp_path).iterdir())


def test_a_broker_that_is_away_writes_no_line_of_librdkafka(tmp_path):
    """The library logs to the terminal by itself, and what it logs says nobody what to do."""
    program = """
import contextlib
from confluent_kafka import Consumer, KafkaException
from airflow_eos.cli.options import kafka_settings

settings = kafka_settings("127.0.0.1:1", None)
with contextlib.suppress(KafkaException):
    Consumer({**settings.librdkafka(), "group.id": "g"}).list_topics(timeout=1)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout + done.stderr == ""


def test_who_wants_to_see_what_librdkafka_logs_says_so_in_his_file(tmp_path):
    (tmp_path / "kafka.json").write_text('{"bootstrap.servers": "h:1", "log_level": 7}')
    settings = kafka_settings(None, tmp_path / "kafka.json")
    assert settings.librdkafka()["log_level"] == 7
    assert "log_level" not in str(kafka_settings("h:1", None).spark_options())


def test_an_app_is_rehearsed_by_a_program_of_the_path_or_of_this_python_or_by_its_place():
    assert _starter(f"{sys.executable} -B") == [sys.executable, "-B"]
    with pytest.raises(ConfigurationError, match="no program 'no-such-submit' here"):
        _starter("no-such-submit --master local")
    for command in ("", "spark-submit --name 'x"):
        with pytest.raises(ConfigurationError, match="is no command"):
            _starter(command)


@pytest.mark.parametrize(
    "options",
    [
        "--deploy-mode cluster",
        "--deploy-mode=cluster",
        "--conf spark.submit.deployMode=cluster",
        "--master yarn --conf 'spark.submit.deployMode = cluster'",
    ],
)
def test_a_rehearsal_in_the_cluster_would_start_for_good_and_is_refused(options):
    """A driver there has another environment: it would take the term, and deliver."""
    with pytest.raises(ConfigurationError, match="would take the pipeline over"):
        _starter(f"spark-submit {options}")


def test_a_rehearsal_runs_here_whatever_the_defaults_of_spark_say():
    _, *options = _starter("spark-submit --master yarn")
    assert options == ["--master", "yarn", "--deploy-mode", "client"]


def test_in_a_pipe_a_command_to_run_is_in_one_line_and_a_table_keeps_its_width(capsys, monkeypatch):
    """It is looked for and pasted: a break within a path makes it another command."""
    monkeypatch.delenv("COLUMNS", raising=False)
    command = f"airflow-eos recover /{'a/long/folder/' * 12}checkpoint"
    steps = table("action", "why")
    steps.add_row("COMMIT", "promised " * 30)
    show(Group(plain(f"What to do: Run `{command}`."), steps))
    said, *rows = capsys.readouterr().out.splitlines()
    assert command in said
    assert len(rows) >= 3
    assert all(len(row) <= WIDTH for row in rows)
