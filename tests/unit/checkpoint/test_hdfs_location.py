"""An ``hdfs://`` location: what is asked of it before any name node is."""

from __future__ import annotations

import os
import pickle
import time
from types import SimpleNamespace
from typing import Self

import pytest
from pyspark import cloudpickle

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.checkpoint.hdfs import HdfsFiles
from airflow_eos.errors import ConfigurationError, StoreError
from tests.support.servers.hdfs import write_site

SERVICE = {
    "dfs.nameservices": "ours",
    "dfs.ha.namenodes.ours": "one,two",
    "dfs.namenode.rpc-address.ours.one": "127.0.0.1:1",
    "dfs.namenode.rpc-address.ours.two": "127.0.0.1:2",
}


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
    monkeypatch.setattr("airflow_eos.checkpoint.hdfs.find_spec", lambda _: None)
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
        if target in self.files and not overwrite:
            raise FileExistsError(f"rename destination {target} already exists")
        self.files[target] = self.files.pop(source)

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


def test_a_rename_whose_reply_was_lost_is_found_to_have_been_ours():
    """The second one is answered: the staged file is not there. Nobody may read that as absent."""
    client = LosesReplies()
    store = CheckpointStore(HdfsFiles(lambda: client, "/x", 5.0), "hdfs://lost/x")
    assert store.create("eos/decisions/7/1.json", b"ours") is True
    assert client.files == {"/x/eos/decisions/7/1.json": b"ours"}
    with pytest.raises(StoreError, match="what was staged is gone"):
        store.put("eos/driver.json", b"beat")
