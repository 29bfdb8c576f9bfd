"""The local broker before it runs: its Java, its jars and their lock, its folders, its client."""

import fcntl
import hashlib
import socket
import xml.etree.ElementTree as ET
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from airflow_eos.errors import LocalEnvironmentError
from airflow_eos.local import broker as client
from airflow_eos.local import daemon, jars, rows
from airflow_eos.local import jars as java
from airflow_eos.local.broker import (
    DIFFERENCES,
    HOST,
    differences,
    free_ports,
    lay_out,
    new_cluster_id,
    own_properties,
    server_properties,
)
from airflow_eos.local.jars import LOCKS, Bundle, Jar, locked_versions, nearest_patch, read_bundle
from tests.support.clocks import clock_of
from tests.support.servers import jars as servers
from tests.support.servers.jars import hadoop_jars


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "25-ea" 2025-09-16', 25),
        ("Error: could not find libjava.so", None),
    ],
)
def test_the_major_version_is_read_from_what_java_says(text, version):
    assert java.parse_java_version(text) == version


@pytest.fixture
def fresh_lookup():
    java.java_program.cache_clear()
    yield
    java.java_program.cache_clear()


def test_a_missing_java_is_named_with_what_to_do(monkeypatch, tmp_path, fresh_lookup):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalEnvironmentError, match=r"found no java in JAVA_HOME.*install"):
        java.java_program()


def test_an_old_java_is_refused_with_its_version(monkeypatch, tmp_path, fresh_lookup):
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalEnvironmentError, match=r"is version 11;.*Java 17 or later"):
        java.java_program()


# --- jars -----------------------------------------------------------------------------------------


CONTENT = b"a jar"
JAR = Jar("org.example", "thing", "1.0", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
BUNDLE = Bundle("example", (JAR,))


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("AIRFLOW_EOS_CACHE", str(tmp_path))
    return tmp_path / "jars"


@pytest.fixture
def ivy(monkeypatch):
    """An Ivy that brings ``content``, exits with ``status`` and counts its runs."""

    class Ivy:
        content, status, runs = CONTENT, 0, 0

        def __call__(self, _bundle, _module, target, _log):
            self.runs += 1
            if self.status == 0:
                target.mkdir()
                (target / JAR.file_name).write_bytes(self.content)
            return self.status

    fake = Ivy()
    monkeypatch.setattr(jars, "_run_ivy", fake)
    return fake


def test_jars_are_fetched_once(cache, ivy):
    (path,) = jars.ensure(BUNDLE)
    assert path.read_bytes() == CONTENT
    assert jars.ensure(BUNDLE) == (path,)
    assert ivy.runs == 1


def test_a_jar_that_was_cut_short_in_the_cache_is_fetched_again(cache, ivy):
    (path,) = jars.ensure(BUNDLE)
    path.write_bytes(CONTENT[:2])
    jars.ensure(BUNDLE)
    assert path.read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(cache, ivy):
    ivy.content = b"A jar"
    with pytest.raises(LocalEnvironmentError, match="expected " + JAR.sha256):
        jars.ensure(BUNDLE)
    assert [path.name for path in cache.iterdir()] == [".lock"]


def test_without_a_network_the_error_says_what_to_do(cache, ivy):
    ivy.status = 1
    with pytest.raises(LocalEnvironmentError, match="AIRFLOW_EOS_CACHE"):
        jars.ensure(BUNDLE)
    assert ivy.runs == 2


@pytest.mark.parametrize("version", ["3.5.1", "4.4.0", "5.0.0"])
def test_a_minor_version_without_a_list_is_refused_with_those_that_have_one(monkeypatch, version):
    monkeypatch.setattr(jars, "pyspark_version", lambda: version)
    said = rf"pyspark {version} is installed.*4\.2\.0.*--packages.*:{version}"
    with pytest.raises(LocalEnvironmentError, match=said):
        jars.spark_jars()


@pytest.mark.parametrize("installed", ["4.2.0", "4.2.7", "4.1.99"])
@pytest.mark.parametrize("what", ["spark", "avro"])
def test_a_patch_newer_than_our_lists_takes_the_newest_of_its_minor_and_says_so(
    monkeypatch, installed, what
):
    """``pip install`` finds a patch on the day it is out."""
    monkeypatch.setattr(jars, "pyspark_version", lambda: installed)
    monkeypatch.setattr(jars, "ensure", lambda bundle: (Path(bundle.name),))
    with capture_logs() as said:
        (name,) = jars.avro_jars() if what == "avro" else jars.spark_jars()
    minor = installed.rpartition(".")[0]
    newest = [version for version in locked_versions(what) if version.startswith(minor)][-1]
    assert str(name) == f"{what}-{newest}"
    told = [(line["log_level"], line["pyspark"], line["connector"]) for line in said]
    assert told == ([] if installed == newest else [("warning", installed, newest)])


def test_the_servers_of_another_hadoop_than_pyspark_s_are_refused_by_name(monkeypatch):
    monkeypatch.setattr(jars, "hadoop_version", lambda: "9.9.9")
    with pytest.raises(LocalEnvironmentError, match=r"brings Hadoop 9\.9\.9; .* for 3\.5\.0"):
        hadoop_jars()
    with pytest.raises(LocalEnvironmentError, match=r"hadoop-aws are listed for 3\.4\.2, 3\.5\.0"):
        jars.s3a_jars()


# --- lockfile -------------------------------------------------------------------------------------


LISTS = sorted((path.stem, path.parent) for at in (LOCKS, servers.LOCKS) for path in at.iterdir())


@pytest.mark.parametrize(("name", "locks"), LISTS, ids=[name for name, _ in LISTS])
def test_every_list_holds_whole_checksums_and_each_jar_once(name, locks):
    jars = read_bundle(name, locks).jars
    assert all(len(jar.sha256) == 64 and jar.size > 0 for jar in jars)
    assert len({jar.file_name for jar in jars}) == len(jars)


@pytest.mark.parametrize("version", locked_versions("spark"))
def test_the_connector_of_the_version_comes_with_its_three_companions(version):
    connector, *companions = read_bundle(f"spark-{version}").jars
    its = "4.2.0" if version == "4.3.0" else version  # its own could not be fetched yet
    assert (connector.module, connector.revision) == ("spark-sql-kafka-0-10_2.13", its)
    assert {jar.module for jar in companions} == {
        "spark-token-provider-kafka-0-10_2.13",
        "kafka-clients",
        "commons-pool2",
    }


@pytest.mark.parametrize(
    ("installed", "chosen"),
    [
        ("4.2.0", "4.2.0"),
        ("4.2.1", "4.2.0"),
        ("4.1.11", "4.1.10"),
        ("4.1.5", "4.1.2"),
        ("4.0.1", "4.0.2"),
        ("4.2.0.dev1", "4.2.0"),
        ("4.3.0", None),
        ("5.2.0", None),
    ],
)
def test_a_patch_without_a_list_takes_the_nearest_of_its_minor_before_it_if_there_is_one(
    installed, chosen
):
    assert nearest_patch(installed, ["4.0.2", "4.1.2", "4.1.10", "4.2.0"]) == chosen


def test_versions_are_those_that_have_a_list():
    assert "4.2.0" in locked_versions("spark")
    assert locked_versions("kafka") == ["4.4.0"]


def test_ivy_is_asked_for_each_jar_without_its_dependencies():
    bundle = read_bundle("spark-4.2.0")
    wanted = ET.fromstring(bundle.ivy_module()).findall("dependencies/dependency")
    assert [d.get("name") for d in wanted] == [jar.module for jar in bundle.jars]
    assert {d.get("transitive") for d in wanted} == {"false"}


def test_a_jar_that_is_not_its_module_s_main_one_is_asked_for_by_its_classifier():
    maven = "{http://ant.apache.org/ivy/maven}classifier"
    for name, locks, classifier in (
        ("s3proxy-4.1.0", servers.LOCKS, "jar-with-dependencies"),
        ("spark-4.2.0", LOCKS, None),
    ):
        (artifact, *_) = ET.fromstring(read_bundle(name, locks).ivy_module()).iter("artifact")
        assert artifact.get(maven) == classifier


def test_an_archive_that_is_no_jar_is_asked_for_and_kept_under_its_own_extension():
    bundle = read_bundle("apicurio-registry-2.6.13", servers.LOCKS)
    (artifact,) = ET.fromstring(bundle.ivy_module()).iter("artifact")
    assert (artifact.get("ext"), artifact.get("type")) == ("tar.gz", "tar.gz")
    assert [jar.file_name for jar in bundle.jars] == ["apicurio-registry-app-2.6.13.Final.tar.gz"]


def test_another_checksum_means_another_folder():
    bundle = read_bundle("spark-4.2.0")
    first, *others = bundle.jars
    changed = Bundle(bundle.name, (replace(first, sha256="0" * 64), *others))
    assert changed.folder_name != bundle.folder_name


# --- layout ---------------------------------------------------------------------------------------


def properties(count, listeners=None, extra=None, which=0):
    nodes = lay_out(count, Path("data"), Path("logs"), list(listeners or {}))
    text = server_properties(nodes[which], nodes, listeners or {}, extra or {})
    return dict(line.split("=", 1) for line in text.splitlines()), nodes


def test_ports_in_use_are_not_given():
    with socket.socket() as taken:
        port = free_ports(1)[0]
        taken.bind((HOST, port))
        taken.listen()
        assert port not in free_ports(50)


def test_one_node_keeps_one_copy_and_listens_on_loopback_only():
    found, _ = properties(1)
    assert found["transaction.state.log.replication.factor"] == "1"
    assert found["transaction.state.log.min.isr"] == "1"
    assert all(f"://{HOST}:" in item for item in found["listeners"].split(","))


def test_three_nodes_vote_and_keep_three_copies():
    found, nodes = properties(3, which=2)
    assert found["node.id"] == "3"
    assert len(found["controller.quorum.voters"].split(",")) == 3
    assert "transaction.state.log.replication.factor" not in found  # Kafka's default is 3
    assert found["default.replication.factor"] == "3"
    assert found["min.insync.replicas"] == "2"
    assert len({port for node in nodes for port in node.ports.values()}) == 6


def test_a_further_listener_is_advertised_with_its_protocol():
    found, nodes = properties(1, {"SASL": "SASL_PLAINTEXT"})
    assert f"SASL://{HOST}:{nodes[0].ports['SASL']}" in found["advertised.listeners"]
    assert "SASL:SASL_PLAINTEXT" in found["listener.security.protocol.map"]
    assert "CONTROLLER" not in found["advertised.listeners"]


@pytest.mark.parametrize("key", ["min.insync.replicas", "transaction.max.timeout.ms"])
def test_the_callers_properties_win(key):
    found, _ = properties(1, extra={key: "7"})
    assert found[key] == "7"


def test_a_cluster_id_is_22_characters_and_no_option():
    found = [new_cluster_id() for _ in range(200)]
    assert all(len(item) == 22 and item[0] != "-" for item in found)


def test_the_docs_list_each_setting_that_is_not_kafkas_default():
    page = (Path(__file__).parents[3] / "docs" / "testing.md").read_text()
    for each in DIFFERENCES:
        row = f"| `{each.name}` | {each.default} | {each.value(1)} | {each.value(3)} | {each.why} |"
        assert row in page
    assert page.count("\n| `") - page.count("\n| `kafka_broker`") - 1 == len(DIFFERENCES)


def test_what_is_told_to_a_broker_is_in_the_table_or_is_itself():
    found, nodes = properties(3)
    assert found == own_properties(nodes[0], nodes, {}) | differences(3)


# --- What a cluster that does not answer looks like to who asked for a topic ----------------------


class Silent:
    """An ``AdminClient`` whose broker never answers."""

    def create_topics(self, topics, **_):
        return {topic.topic: Future() for topic in topics}


def test_a_broker_that_does_not_answer_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr(client, "_admin", lambda _: Silent())
    monkeypatch.setattr(client, "_SECONDS", 0.01)

    with pytest.raises(LocalEnvironmentError, match=r"topic t: h:1 gave no answer.*try again"):
        client.create_topic("h:1", "t", 1, {})


# --- A broker in the background -------------------------------------------------------------------


UP = '{"pid":1,"bootstrap_servers":"127.0.0.1:9092","log_folder":"logs","started_at":0.0}'


class ComesUpError(Exception):
    """A broker is about to start, and has no address yet."""


def test_a_broker_that_comes_up_is_not_taken_for_one_that_a_power_cut_ended(monkeypatch, tmp_path):
    """Its address would be an old one, and its process anybody's: `broker stop` would end that."""
    told = []

    class Starting:
        def __enter__(self):
            told.append(daemon.status())
            raise ComesUpError

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(daemon, "_folder", lambda: tmp_path)
    monkeypatch.setattr(daemon, "EmbeddedKafka", lambda **_: Starting())
    (tmp_path / "broker.json").write_text(UP)
    with pytest.raises(ComesUpError):
        daemon.serve()
    assert told == [None]


def test_a_broker_that_comes_up_is_stopped_and_not_called_none(monkeypatch, tmp_path):
    """`broker stop --remove` took its data from below it, and it came up all the same."""
    monkeypatch.setattr(daemon, "_folder", lambda: tmp_path)
    ended = []
    with (tmp_path / "broker.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def ends(pid, _signal):
            ended.append(pid)
            fcntl.flock(lock, fcntl.LOCK_UN)

        up = tmp_path / "broker.json"
        clock_of(monkeypatch, "airflow_eos.local.daemon", sleep=lambda _: up.write_text(UP))
        monkeypatch.setattr("os.kill", ends)
        assert daemon.stop()
        assert not daemon.stop()
    assert ended == [1]


# --- Rows of a person -----------------------------------------------------------------------------


class Choosy:
    """A ``Producer`` and its broker, which take rows that have a key and are short."""

    def __init__(self, _settings):
        pass

    def produce(self, _topic, *, key, value, on_delivery):
        if len(value) > 10:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        on_delivery(None if key else KafkaError(KafkaError.INVALID_RECORD), None)

    def flush(self, _seconds):
        return 0


@pytest.mark.parametrize("bad", [(None, "no key"), ("a", "much too long")])
def test_a_row_that_the_broker_refuses_is_not_counted_as_written(monkeypatch, bad):
    """A compacted topic takes no row without a key, and none takes a row of any length."""
    monkeypatch.setattr(rows, "Producer", Choosy)
    monkeypatch.setattr(rows, "_partitions", lambda *_: [0])
    assert rows.write_rows("h:1", "t", [("a", "1"), ("b", "2")]) == 2
    with pytest.raises(LocalEnvironmentError, match="1 of 3 rows are not in t, the others are"):
        rows.write_rows("h:1", "t", [("a", "1"), bad, ("b", "2")])


class Told:
    """What a partition tells: a row, or an error in its place."""

    def __init__(self, partition, error=None):
        self.partition, self.key, self.value = (lambda: partition), (lambda: b"k"), (lambda: b"v")
        self.error = lambda: error and KafkaError(error)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "authorization failed"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "Unknown topic or partition"),
    ],
)
def test_an_error_of_a_partition_is_not_its_end(monkeypatch, error, said):
    end = KafkaError._PARTITION_EOF
    told = [Told(0), Told(0, end), Told(1, error), Told(1), Told(1, end)]
    consumer = SimpleNamespace(
        poll=lambda _seconds: told.pop(0), assign=lambda _places: None, close=lambda: None
    )
    monkeypatch.setattr(rows, "Consumer", lambda _settings: consumer)
    monkeypatch.setattr(rows, "_partitions", lambda *_: [0, 1])
    with pytest.raises(LocalEnvironmentError, match=f"t cannot be read to its end: .*{said}"):
        list(rows.read_rows("h:1", "t"))
    told[:] = [Told(0), Told(0, end), Told(1), Told(1, end)]
    assert list(rows.read_rows("h:1", "t")) == [("k", "v")] * 2
