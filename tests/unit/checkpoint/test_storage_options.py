"""Storage options reach the right place of obstore; none ends the process with a panic of Rust."""

from __future__ import annotations

import ast
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import obstore
import pytest
from structlog.testing import capture_logs

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.checkpoint.locations import CLIENT_OPTIONS, CONFIGURATION_KEYS
from airflow_eos.errors import StoreError

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
    monkeypatch.setattr("airflow_eos.checkpoint.locations.CLIENT_OPTIONS", frozenset())
    with pytest.raises(StoreError, match=r"obstore panicked.*the options given: timeout"):
        CheckpointStore.open("s3://b/x", storage_options={"timeout": "1s"})


@pytest.mark.parametrize(
    ("doing", "ask"),
    [
        ("reading", lambda store: store.get("x")),
        ("looking at", lambda store: store.head("x")),
        ("listing", lambda store: store.list("x")),
        ("creating", lambda store: store.create("x", b"1")),
        ("writing", lambda store: store.put("x", b"1")),
        ("deleting", lambda store: store.delete(["x"])),
    ],
)
def test_a_panic_in_a_request_is_a_store_error(monkeypatch, doing, ask):
    """Rust panics where it signs a request to an endpoint that is no URL."""
    monkeypatch.setattr("airflow_eos.checkpoint.store._PAUSES_S", (0.0, 0.0))
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
