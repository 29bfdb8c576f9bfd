"""A client's key in each form that openssl writes: what Java cannot read is refused by name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from airflow_eos.errors import ConfigurationError
from airflow_eos.kafka.client import settings as tls
from airflow_eos.kafka.client.settings import require_java_reads

FORMS = {
    "pkcs8": "openssl pkcs8 -topk8 -nocrypt -in made -out key",
    "pkcs1": "openssl rsa -traditional -in made -out key",
    "pkcs1-encrypted": "openssl rsa -traditional -aes256 -passout pass:secret -in made -out key",
    "pbes1": "openssl pkcs8 -topk8 -passout pass:secret -v1 PBE-SHA1-3DES -in made -out key",
    "pbes2": "openssl pkcs8 -topk8 -passout pass:secret -in made -out key",
    "der": "openssl pkey -outform DER -in made -out key",
    "ec": "openssl ecparam -name prime256v1 -genkey -noout -out key",
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Form → folder with the file ``key`` in that form, and its certificate."""
    made = tmp_path_factory.mktemp("keys")
    run("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=x -keyout made -out pem", made)
    found = {}
    for form, command in FORMS.items():
        found[form] = made / form
        found[form].mkdir()
        for name in ("made", "pem"):
            (found[form] / name).write_bytes((made / name).read_bytes())
        run(command, found[form])
    return found


def run(command: str, folder: Path) -> None:
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)


def config(folder: Path, **more: str) -> dict[str, str]:
    return {
        "ssl.certificate.location": str(folder / "pem"),
        "ssl.key.location": str(folder / "key"),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ("pkcs1", "BEGIN RSA PRIVATE KEY"),
        ("pkcs1-encrypted", "BEGIN RSA PRIVATE KEY"),
        ("ec", "BEGIN EC PRIVATE KEY"),
        ("der", r"binary form \(DER\)"),
        ("pbes2", "encrypted with PBES2, which Java 17"),
    ],
)
def test_what_java_cannot_read_is_refused_with_the_command_that_converts_it(keys, form, says):
    """As Java 17 of Kafka's 4.3 client was seen to; librdkafka and Python read most of them."""
    folder = keys[form]
    with pytest.raises(ConfigurationError, match=says) as refused:
        require_java_reads(config(folder, ssl_key_password="secret"), java=17)
    (remedy,) = refused.value.remedies
    (command,) = remedy.commands
    if form in {"pkcs1", "der", "ec"}:  # the others ask for their password
        run(command, folder)
        mended = config(folder) | dict(remedy.settings)
        require_java_reads(mended, java=17)


@pytest.mark.parametrize(("form", "java"), [("pkcs8", 17), ("pbes1", 17), ("pbes2", 21)])
def test_what_java_reads_is_let_in(keys, form, java):
    require_java_reads(config(keys[form], ssl_key_password="secret"), java=java)
    require_java_reads(config(keys["pbes2"], ssl_key_password="secret"))  # its version is not known
    require_java_reads({})
    require_java_reads({"ssl.certificate.location": "/not/here.pem"})


def test_a_key_that_is_encrypted_needs_its_password(keys):
    with pytest.raises(ConfigurationError, match=r"no ssl\.key\.password is given"):
        require_java_reads(config(keys["pbes1"]), java=17)


@pytest.mark.parametrize("password", [{}, {"ssl_key_password": "wrong"}], ids=["none", "wrong"])
def test_a_key_without_its_password_is_refused_and_nobody_is_asked_on_a_terminal(keys, password):
    with pytest.raises(ConfigurationError, match=r"ssl\.key\.password"):
        tls.context(config(keys["pbes2"], **password))


def test_a_binary_key_is_refused_with_the_command_that_converts_it(keys):
    with pytest.raises(ConfigurationError) as refused:
        tls.context(config(keys["der"]))
    assert "-inform DER" in refused.value.remedies[0].commands[0]


def test_a_key_of_another_certificate_is_refused(keys):
    with pytest.raises(ConfigurationError, match="cannot be used"):
        tls.context(config(keys["ec"]))
