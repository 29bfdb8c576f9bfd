from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from airflow_eos.errors import LocalEnvironmentError
from airflow_eos.local import jars
from airflow_eos.local.jars import Bundle, Jar, locked_versions
from tests.support.servers.jars import hadoop_jars

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


@pytest.mark.parametrize("version", ["3.5.1", "4.3.0", "5.0.0"])
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
    with pytest.raises(LocalEnvironmentError, match=r"hadoop-aws are listed for 3\.5\.0"):
        jars.s3a_jars()
