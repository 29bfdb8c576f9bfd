"""Where a checkpoint may live, what its store is told, and what is said where it may not."""

from __future__ import annotations

import ast
import os
import pickle
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import obstore
import pytest
from pyspark import cloudpickle
from structlog.testing import capture_logs

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.hdfs import HdfsFiles
from airflow_eos.core.checkpoint.locations import CLIENT_OPTIONS, CONFIGURATION_KEYS, printable
from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.ops.supervision.heartbeat_monitor import is_refusal
from airflow_eos.sinks import DeltaSink, FileSink
from tests.support.servers.hdfs import write_site


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}", "FILE://{}/", "{}//"])
def test_every_way_to_write_a_local_folder_is_the_same_folder(tmp_path, form):
    store = CheckpointStore.open(form.format(tmp_path / "query"))
    assert store.create("eos/x", b"1") is True
    assert (tmp_path / "query/eos/x").read_bytes() == b"1"
    assert store.location == str(tmp_path / "query")


def test_a_path_object_and_a_relative_path_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CheckpointStore.open(Path("query")).location == str(tmp_path / "query")


def test_nothing_is_unescaped_as_in_hadoop(tmp_path):
    """All of them: tests/integration/checkpoint/test_locations_as_hadoop.py."""
    CheckpointStore.open(f"file://{tmp_path}/a%20b").put("x", b"1")
    assert (tmp_path / "a%20b" / "x").exists()


@pytest.mark.parametrize("name", ["a%20b", "a b", "50%", "\u00e9", "e\u0301"])
def test_a_bucket_gets_the_name_that_hadoop_gives_it(name):
    store = CheckpointStore.open(f"s3a://bucket//x/{name}/")
    assert repr(store._backend) == f'S3Store(bucket="bucket", prefix="x/{name}")'
    assert store.location == f"s3a://bucket/x/{name}"


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("s3://bucket/some/folder", 'S3Store(bucket="bucket", prefix="some/folder")'),
        ("s3a://bucket/folder", 'S3Store(bucket="bucket", prefix="folder")'),
        ("gs://bucket/folder", 'GCSStore(bucket="bucket", prefix="folder")'),
        (
            "abfss://box@account.dfs.core.windows.net/folder",
            'AzureStore(container_name="box", account_name="account", prefix="folder")',
        ),
    ],
)
def test_object_stores_are_opened_without_contacting_them(location, expected):
    store = CheckpointStore.open(location)
    assert repr(store._backend) == expected
    assert store.location == location


def test_azure_takes_its_account_from_the_options():
    options = {"azure_storage_account_name": "account"}
    store = CheckpointStore.open("az://box/folder", storage_options=options)
    assert 'account_name="account"' in repr(store._backend)


@pytest.mark.parametrize(
    "location", ["webhdfs://name/x", "dbfs:/x", "http://host/x", "memory:///x"]
)
def test_a_store_without_create_if_absent_is_refused_with_what_is_possible(location):
    with pytest.raises(StoreError, match=r"Expected a store that can create.*s3://.*hdfs"):
        CheckpointStore.open(location)


def test_nobody_is_sent_to_a_mounted_hdfs_which_cannot_create_if_absent_either():
    with pytest.raises(StoreError, match="mounted HDFS has no hard links") as refused:
        CheckpointStore.open("dbfs:/mnt/hdfs/x")
    assert "mount it" not in str(refused.value)


@pytest.mark.parametrize("location", ["", "a\0b", "file://other-host/x"])
def test_what_is_no_location_is_refused(location):
    with pytest.raises(StoreError, match=r"Expected a path or URL"):
        CheckpointStore.open(location)


def test_no_secret_of_the_options_is_shown():
    with pytest.raises(StoreError) as refused:
        CheckpointStore.open("s3a://bucket/x", storage_options={"bogus": "hunter4"})
    assert "hunter" not in str(refused.value)
    assert "bogus" in str(refused.value)


@pytest.mark.parametrize(
    "location",
    [
        "s3a://KEY:hun/ter2@bucket/x",
        "s3a://KEY:/hunter2@bucket/x",
        "s3://KEY:hun@ter2@bucket",
        "gs://KEY:hun?ter2@bucket/x",
        "abfss://key:hun#ter2@account.dfs.core.windows.net/x",
        "hdfs://key:hun:ter2@node:8020/x",
        "http://KEY:hun/ter2@host/x",
        "file://KEY:hun/ter2@host/x",
        "//KEY:hun/ter2@bucket/x",
        "s3:/KEY:hun/ter2@bucket/x",
        "KEY:hun/ter2@bucket/x",
    ],
)
def test_a_secret_with_a_slash_is_neither_shown_nor_taken_for_bucket_and_path(location):
    with pytest.raises(StoreError, match=r"KEY|key") as refused:
        CheckpointStore.open(location)
    for said in (str(refused.value), printable(location)):
        assert "hun" not in said
        assert "ter2" not in said


@pytest.mark.parametrize(
    "location",
    [
        "hdfs://node:8020/user/me@REALM/at:1",
        "s3://bucket/day=1:2/me@here",
        "abfss://box@account.dfs.core.windows.net/at:1/me@here",
        "s3a://bucket/me@here",
        "/data:1/me@here/what?/#1",
    ],
)
def test_what_is_no_login_is_shown_as_it_is(location):
    store = CheckpointStore.open(location)
    assert printable(location) == store.location == location


def test_an_object_store_in_a_forked_child_is_refused_before_it_hangs(monkeypatch):
    CheckpointStore.open("s3://bucket/folder")
    monkeypatch.setattr("airflow_eos.core.checkpoint.locations.os.getpid", lambda: -1)
    with pytest.raises(StoreError, match="forked from one that had already used"):
        CheckpointStore.open("s3://bucket/folder")


# --- An ``hdfs://`` location: what is asked of it before any name node is -------------------------


SERVICE = {
    "dfs.nameservices": "ours",
    "dfs.ha.namenodes.ours": "one,two",
    "dfs.namenode.rpc-address.ours.one": "127.0.0.1:1",
    "dfs.namenode.rpc-address.ours.two": "127.0.0.1:2",
}


@pytest.mark.parametrize("location", ["{data}", "{data}/q", "{data}/_q/a", "{link}/q"])
def test_a_checkpoint_in_a_folder_of_data_is_refused_before_anything_is_written(tmp_path, location):
    """Its decisions end in .json, as rows may: some readers look into every folder."""
    data, link = tmp_path / "data", tmp_path / "link"
    data.mkdir()
    link.symlink_to(data)
    store = CheckpointStore.open(location.format(data=data, link=link))
    with pytest.raises(ConfigurationError, match="is in the folder of data") as refused:
        FileSink(str(data), format="json").bound(store)
    assert refused.value.remedies
    hidden = "/_q/" in location  # VACUUM passes over such names
    with (
        pytest.raises(StoreError, match="holds no Delta table")
        if hidden
        else pytest.raises(ConfigurationError, match="whose cleaner would remove")
    ):
        DeltaSink(str(data), application_id="etl").bound(store)
    assert list(data.iterdir()) == []


def test_a_checkpoint_beside_a_folder_of_data_is_outside_of_it(tmp_path):
    for at in ("data-checkpoint", "checkpoint"):
        FileSink(f"{tmp_path}/data").bound(CheckpointStore.open(tmp_path / at))
    with pytest.raises(ConfigurationError, match="is in the folder of data"):
        FileSink("s3://lake/out").bound(CheckpointStore.open("s3a://lake/out/_checkpoint"))
    FileSink("s3://lake/out").bound(CheckpointStore.open("s3a://lake/checkpoints/out"))


def test_a_name_node_is_not_contacted_when_its_checkpoint_is_opened():
    store = CheckpointStore.open("hdfs://127.0.0.1:1/user/etl/query/")
    assert store.location == "hdfs://127.0.0.1:1/user/etl/query"
    assert repr(store._backend) == "HdfsFiles(root='/user/etl/query')"


def test_it_travels_to_another_process_without_its_client():
    """As with a source, which Spark's planner gets in a process of its own."""
    store = CheckpointStore.open("hdfs://127.0.0.1:1/user/etl/query")
    there = pickle.loads(cloudpickle.dumps(store))
    assert (there.location, repr(there._backend)) == (store.location, repr(store._backend))
    assert isinstance(there._backend, HdfsFiles)
    assert there._backend._client() is not None


def test_a_missing_library_is_said_by_its_name_and_its_extra(monkeypatch):
    monkeypatch.setattr("airflow_eos.core.checkpoint.hdfs.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"hdfs-native.*airflow-provider-eos\[hdfs\]"):
        CheckpointStore.open("hdfs://name/x")


def test_a_name_service_that_no_setting_knows_is_refused_with_where_it_is_looked_for():
    with pytest.raises(StoreError, match=r"No NameNode hosts.*HADOOP_CONF_DIR.*rpc-address"):
        CheckpointStore.open("hdfs://ours/x")


def test_a_name_service_comes_from_the_options_or_from_a_folder_of_settings(tmp_path):
    CheckpointStore.open("hdfs://ours/x", storage_options=SERVICE)
    write_site(tmp_path / "conf/hdfs-site.xml", SERVICE)
    options = {"hadoop_conf_dir": str(tmp_path / "conf")}
    CheckpointStore.open("hdfs://ours/x", storage_options=options)


@pytest.mark.parametrize(
    ("location", "options", "said"),
    [
        ("hdfs://name:1/", {}, "names no folder"),
        ("hdfs://name:1", {}, "names no folder"),
        ("hdfs://name:1/x", {"kerberos_principle": "etl"}, "did you mean 'kerberos_principal'"),
        ("hdfs://name:1/x", {"aws_region": "here"}, "unknown storage options 'aws_region'"),
        ("hdfs://name:1/x", {"hadoop_conf_dir": "/not/there"}, "'/not/there' is no folder"),
        ("hdfs://name:1/x", {"timeout": "soon"}, "'soon': expected such as '60s'"),
    ],
)
def test_what_cannot_work_is_refused_with_what_could(location, options, said):
    with pytest.raises(StoreError, match=said):
        CheckpointStore.open(location, storage_options=options)


def test_no_option_of_kerberos_is_lost_on_its_way(monkeypatch, tmp_path):
    given: list[object] = []
    monkeypatch.setattr("hdfs_native.Client", lambda *args, **kwargs: given.extend([args, kwargs]))
    (tmp_path / "conf").mkdir()
    kerberos = {"kerberos_principal": "etl/host@REALM", "kerberos_keytab": "/etc/etl.keytab"}
    setting = {"hadoop.security.authentication": "kerberos"}
    options = {**kerberos, **setting, "hadoop_conf_dir": str(tmp_path / "conf")}
    CheckpointStore.open("hdfs://name:8020/x", storage_options=options)
    assert given == [("hdfs://name:8020", setting, str(tmp_path / "conf")), kerberos]


PROVIDER = "dfs.client.failover.proxy.provider.ours"
OBSERVERS = "org.apache.hadoop.hdfs.server.namenode.ha.ObserverReadProxyProvider"


@pytest.mark.parametrize("where", ["hdfs://ours/x", "option", "folder", "HADOOP_CONF_DIR"])
def test_a_name_service_is_never_read_through_observers_which_are_behind(
    monkeypatch, tmp_path, where
):
    given: list[dict[str, str]] = []
    monkeypatch.setattr(
        "hdfs_native.Client", lambda _, settings, *__, **___: given.append(settings)
    )
    options = SERVICE | {PROVIDER: OBSERVERS}
    if where == "option":
        options["fs.defaultFS"] = "hdfs://ours"
    else:
        write_site(tmp_path / "core-site.xml", {"a": "b", "fs.defaultFS": "hdfs://ours/"})
    if where == "folder":
        options["hadoop_conf_dir"] = str(tmp_path)
    if where == "HADOOP_CONF_DIR":
        monkeypatch.setenv(where, str(tmp_path))
    location = where if where.startswith("hdfs:") else "hdfs:///x"
    CheckpointStore.open(location, storage_options=options)
    assert given[0][PROVIDER].endswith(".ConfiguredFailoverProxyProvider")
    assert given[0]["dfs.ha.namenodes.ours"] == "one,two"


def test_settings_that_are_no_xml_are_an_error_that_names_the_file(tmp_path):
    (tmp_path / "core-site.xml").write_text("<configuration>")
    with pytest.raises(StoreError, match=r"core-site\.xml is no XML"):
        CheckpointStore.open("hdfs:///x", storage_options={"hadoop_conf_dir": str(tmp_path)})


def test_a_name_node_that_nobody_hears_is_never_read_as_absent():
    store = CheckpointStore.open("hdfs://127.0.0.1:1/x", storage_options={"timeout": "1s"})
    with pytest.raises(StoreError, match=r"reading eos/driver\.json failed"):
        store.get("eos/driver.json")


def test_a_name_node_that_stands_still_is_an_error_in_time():
    still = SimpleNamespace(read=lambda _: time.sleep(600))
    store = CheckpointStore(HdfsFiles(lambda: still, "/x", 0.1), "hdfs://still/x")
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"did not answer within 0\.1 s"):
        store.get("eos/driver.json")
    assert time.monotonic() - began < 120


def test_a_forked_child_gets_a_client_of_its_own():
    made: list[int] = []

    def connect() -> SimpleNamespace:
        made.append(os.getpid())
        return SimpleNamespace(delete=lambda _: True)

    files = HdfsFiles(connect, "/x", 5.0)
    files._of_process = -1  # as the child of a fork finds it
    files.delete("eos/drain.json")
    files.delete("eos/drain.json")
    assert len(made) == 2


class Read(bytes):
    """What HDFS's client gives of a file: it has a length, and is read."""

    def read(self) -> bytes:
        return self


class Renames:
    """A client of a name node: what is under which name, and in which order it was told."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.told: list[str] = []

    def create(self, path: str) -> Written:
        return Written(self, path)

    def rename(self, source: str, target: str, overwrite: bool) -> None:
        self.told.append("rename")
        if source not in self.files:  # as the name node looks: the source first
            raise FileNotFoundError(f"rename source {source} is not found.")
        if target in self.files and not overwrite:
            raise FileExistsError(f"rename destination {target} already exists")
        self.files[target] = self.files.pop(source)

    def mkdirs(self, path: str, *, create_parent: bool) -> None:
        assert create_parent, path

    def read(self, path: str) -> Read:
        if path not in self.files:
            raise FileNotFoundError(path)
        return Read(self.files[path])

    def delete(self, path: str) -> bool:
        return self.files.pop(path, None) is not None


class LosesReplies(Renames):
    """A rename is done, and sent again since its reply was lost."""

    def rename(self, source: str, target: str, overwrite: bool) -> None:
        super().rename(source, target, overwrite)
        raise FileNotFoundError(f"rename source {source} is not found.")


class Written:
    def __init__(self, client: Renames, path: str) -> None:
        self.client, self.path = client, path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.client.files[self.path] = data
        self.client.told.append("write")

    def hsync(self) -> None:
        self.client.told.append("sync")


def test_an_object_has_its_content_on_disks_before_it_has_its_name_and_one_name_once():
    client = Renames()
    store = CheckpointStore(HdfsFiles(lambda: client, "/x", 5.0), "hdfs://name/x")
    assert store.create("eos/decisions/7/1.json", b"first") is True
    assert client.told == ["write", "sync", "rename"]
    assert store.create("eos/decisions/7/1.json", b"second") is False
    assert client.files == {"/x/eos/decisions/7/1.json": b"first"}, "replaced, or staged and left"
    store.put("eos/decisions/7/1.json", b"third")
    assert client.files == {"/x/eos/decisions/7/1.json": b"third"}


def test_a_file_is_published_on_hdfs_once_and_replaces_nothing():
    client = Renames()
    files = HdfsFiles(lambda: client, "", 5.0)
    client.files = {"/beside/work/a": b"rows", "/out/taken.json": b"another's"}
    with pytest.raises(FileExistsError):
        files.publish("beside/work/a", "out/taken.json")
    files.publish("beside/work/a", "out/a.json")
    with pytest.raises(FileNotFoundError):
        files.publish("beside/work/a", "out/a.json")
    assert client.files == {"/out/a.json": b"rows", "/out/taken.json": b"another's"}


def test_a_rename_whose_reply_was_lost_is_found_to_have_been_ours():
    """The second one is answered: the staged file is not there. Nobody may read that as absent."""
    client = LosesReplies()
    store = CheckpointStore(HdfsFiles(lambda: client, "/x", 5.0), "hdfs://lost/x")
    assert store.create("eos/decisions/7/1.json", b"ours") is True
    assert client.files == {"/x/eos/decisions/7/1.json": b"ours"}
    with pytest.raises(StoreError, match="what was staged is gone"):
        store.put("eos/driver.json", b"beat")


# --- storage options ------------------------------------------------------------------------------
# Storage options reach the right place of obstore; none ends the process with a panic of Rust.


STUBS = Path(obstore.__file__).parent / "_store"
KEYS = {
    "aws_access_key_id": "key",
    "aws_secret_access_key": "hunter2",
    "aws_region": "eu-central-1",
}


class NothingThere(BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"<Error><Code>NoSuchKey</Code></Error>"
        self.send_response(404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def endpoint():
    """Answers over plain HTTP that no object is there."""
    server = HTTPServer(("127.0.0.1", 0), NothingThere)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(120)


class Empty(BaseHTTPRequestHandler):
    """A store where nothing is."""

    def do_HEAD(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("told", [None, "false", "true"])
def test_the_environment_may_allow_a_store_without_tls_as_deltalake_has_it(monkeypatch, told):
    """One environment for a table's log and its files: obstore alone did not look there."""
    if told is not None:
        monkeypatch.setenv("AWS_ALLOW_HTTP", told)
    with HTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = {"aws_endpoint": f"http://127.0.0.1:{server.server_port}"}
        store = CheckpointStore.open("s3://lake/t", storage_options=KEYS | there)
        if told == "true":
            assert store.head("a") is None
        else:
            with pytest.raises(StoreError, match="builder error"):
                store.head("a")
        server.shutdown()


@pytest.mark.parametrize("name", ["allow_http", "aws_allow_http", "AWS_ALLOW_HTTP"])
def test_plain_http_to_an_endpoint_of_ones_own_is_allowed_under_every_name(endpoint, name):
    options = {**KEYS, "aws_endpoint": endpoint, name: "true", "timeout": "20s"}
    assert CheckpointStore.open("s3://bucket/x", storage_options=options).get("offsets/0") is None


@pytest.mark.parametrize("option", sorted(CLIENT_OPTIONS))
@pytest.mark.parametrize(
    ("location", "prefix"), [("s3a://b/x", "aws_"), ("gs://b/x", "google_"), ("az://b/x", "azure_")]
)
def test_no_client_option_ends_in_a_panic_whatever_its_value(location, prefix, option):
    account = {"account_name": "a"} if prefix == "azure_" else {}
    for name in (option, prefix + option):
        said = ""
        try:
            CheckpointStore.open(location, storage_options={**account, name: "no such value"})
        except StoreError as refused:
            said = str(refused)
        assert "panicked" not in said
        assert "unknown" not in said


def test_a_panic_while_opening_is_a_store_error(monkeypatch):
    """What is a client option is a list: should it lag behind obstore, the panic is still seen."""
    monkeypatch.setattr("airflow_eos.core.checkpoint.locations.CLIENT_OPTIONS", frozenset())
    with pytest.raises(StoreError, match=r"obstore panicked.*the options given: timeout"):
        CheckpointStore.open("s3://b/x", storage_options={"timeout": "1s"})


REQUESTS = [
    ("reading", lambda store: store.get("x")),
    ("looking at", lambda store: store.head("x")),
    ("listing", lambda store: store.list("x")),
    ("creating", lambda store: store.create("x", b"1")),
    ("writing", lambda store: store.put("x", b"1")),
    ("deleting", lambda store: store.delete(["x"])),
]


class Denied(BaseHTTPRequestHandler):
    """Refuses every request, as S3 does once a session's token has expired: 400, or else 403."""

    status, code = 0, "ExpiredToken"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        said = f'<?xml version="1.0"?>\n<Error><Code>{self.code}</Code></Error>'.encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("status", [400, 401, 403])
@pytest.mark.parametrize(("doing", "ask"), [each for each in REQUESTS if each[0] != "looking at"])
def test_keys_that_have_expired_are_a_refusal_to_whoever_watches(status, doing, ask):
    """A watcher lists terms first: it took a refusal for no answer, and kept the old keys."""
    found = refused(ask, status=status)
    assert doing in str(found)
    assert is_refusal(found)
    assert "(ExpiredToken)" in str(found), "Amazon says it in a second line"


def refused(ask, **said):
    handler = type("Refusing", (Denied,), said)
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = {"aws_endpoint": f"http://127.0.0.1:{server.server_port}", "allow_http": "true"}
        store = CheckpointStore.open("s3://lake/t", storage_options=KEYS | there)
        with pytest.raises(StoreError) as found:
            ask(store)
        server.shutdown()
    return found.value


@pytest.mark.parametrize(("doing", "ask"), [each for each in REQUESTS if each[0] != "looking at"])
def test_a_clock_that_is_wrong_is_not_said_to_be_the_keys(doing, ask):
    found = refused(ask, status=403, code="RequestTimeTooSkewed")
    assert doing in str(found)
    assert "set this machine's clock" in str(found).lower()
    assert "credentials" not in str(found)


@pytest.mark.parametrize(("doing", "ask"), REQUESTS)
def test_a_panic_in_a_request_is_a_store_error(monkeypatch, doing, ask):
    """Rust panics where it signs a request to an endpoint that is no URL."""
    monkeypatch.setattr("airflow_eos.core.checkpoint.store._PAUSES_S", (0.0, 0.0))
    store = CheckpointStore.open(
        "s3://bucket/x", storage_options={**KEYS, "aws_endpoint": "nonsense"}
    )
    with pytest.raises(StoreError, match=f"{doing}.*obstore panicked"):
        ask(store)


@pytest.mark.parametrize(
    ("location", "given", "said"),
    [
        ("s3://b/x", "aws_regoin", "'aws_regoin' .did you mean 'region'"),
        ("s3://b/x", "acces_key_id", "'acces_key_id' .did you mean 'access_key_id'"),
        ("s3://b/x", "time_out", "'time_out' .did you mean 'timeout'"),
        ("gs://b/x", "google_service_acount", "did you mean 'service_account'"),
        ("abfss://b@a.dfs.core.windows.net/x", "azure_tenant_ident", "mean 'tenant_id'"),
        ("az://b/x", "azure_account_name", "did you mean 'account_name'"),
        ("s3://b/x", "zzz", r"options 'zzz'\. Expected"),
    ],
)
def test_an_unknown_option_is_refused_by_name_with_the_nearest_one(location, given, said):
    with pytest.raises(StoreError, match=said) as refused:
        CheckpointStore.open(location, storage_options={given: "hunter2"})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("name", ["skip_signature", "timeout", "allow_http", "checksum_algorithm"])
def test_a_secret_under_a_wrong_name_is_not_shown(name):
    with pytest.raises(StoreError, match=f"the options given: {name}") as refused:
        CheckpointStore.open("s3://b/x", storage_options={name: "hunter2"})
    assert "hunter2" not in str(refused.value)


def test_every_unknown_option_is_named_and_no_known_one():
    given = {**KEYS, "bogus": "1", "timeout": "2s", "aws_nonsense": "2"}
    with pytest.raises(StoreError) as refused:
        CheckpointStore.open("s3://b/x", storage_options=given)
    assert "'bogus', 'aws_nonsense'." in str(refused.value)
    assert "region" not in str(refused.value)


def test_an_option_given_twice_is_refused():
    with pytest.raises(StoreError, match="timeout is given twice"):
        CheckpointStore.open("s3://b/x", storage_options={"timeout": "1s", "aws_timeout": "2s"})


def test_a_store_whose_certificate_is_not_verified_is_said_so():
    with capture_logs() as said:
        CheckpointStore.open("s3://b/x", storage_options={"aws_allow_invalid_certificates": "true"})
    assert [(line["log_level"], line["setting"]) for line in said] == [
        ("warning", "allow_invalid_certificates")
    ]
    with capture_logs() as silent:
        CheckpointStore.open(
            "s3://b/x", storage_options={"allow_invalid_certificates": "false", "timeout": "1s"}
        )
    assert silent == []


def test_the_lists_of_options_are_those_of_this_obstore():
    # default_headers is a dict: it cannot be given as text.
    assert stub("_client", "ClientConfig") - {"default_headers"} <= CLIENT_OPTIONS
    assert {prefix: set(keys.split()) for prefix, keys in CONFIGURATION_KEYS.items()} == {
        "aws_": stub("_aws", "S3Config"),
        "google_": stub("_gcs", "GCSConfig"),
        "azure_": stub("_azure", "AzureConfig"),
    }


def stub(file, name):
    tree = ast.parse((STUBS / f"{file}.pyi").read_text())
    [found] = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    return {s.target.id for s in found.body if isinstance(s, ast.AnnAssign)}
