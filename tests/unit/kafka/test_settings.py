"""A client's settings, its keys, and its tokens: what is taken, and what is refused by name."""

import base64
import json
import pickle
import re
import ssl
import subprocess
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

from airflow_eos.errors import ConfigurationError, KafkaError, KafkaUnavailableError
from airflow_eos.kafka.client import settings as tls
from airflow_eos.kafka.client.settings import KafkaSettings, require_java_reads, token_provider
from airflow_eos.kafka.writer import producer_config
from airflow_eos.secret_names import spark_redaction_regex

SERVERS = {"bootstrap.servers": "one:9092,two:9092"}
SASL = {
    "security.protocol": "sasl_plaintext",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "ann",
    "sasl.password": 'to"p\\secret',
}
OIDC = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
    "sasl.oauthbearer.client.id": "etl",
    "sasl.oauthbearer.client.secret": "oidc-secret",
    "sasl.oauthbearer.scope": "kafka",
}
MODULES = "org.apache.kafka.common.security"


def settings(**config):
    return KafkaSettings.from_librdkafka({**SERVERS, **config.pop("config", {}), **config})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        ({"client.id": "etl"}, {"client_id": "etl"}),
        ({"socket.timeout.ms": "5000"}, {"request_timeout_ms": 5000}),
        ({"socket.connection.setup.timeout.ms": 900}, {"socket_connection_setup_timeout_ms": 900}),
        ({"reconnect.backoff.max.ms": 2000}, {"reconnect_backoff_max_ms": 2000}),
        ({"metadata.max.age.ms": 1000}, {"metadata_max_age_ms": 1000}),
        ({"group.id": "readers", "statistics.interval.ms": 5}, {}),
        (
            SASL,
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "SCRAM-SHA-512",
                "sasl_plain_username": "ann",
                "sasl_plain_password": 'to"p\\secret',
            },
        ),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.kerberos.service.name": "brokers"},
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "GSSAPI",
                "sasl_kerberos_service_name": "brokers",
            },
        ),
    ],
)
def test_translation_for_kafka_python(config, expected):
    plain = {"bootstrap_servers": ["one:9092", "two:9092"], "security_protocol": "PLAINTEXT"}
    assert settings(config=config).kafka_python() == plain | expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        (
            SASL,
            {
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "SCRAM-SHA-512",
                "kafka.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required "
                'username="ann" password="to\\"p\\\\secret";',
            },
        ),
        (
            {**SASL, "sasl.mechanism": "PLAIN", "sasl.password": "x"},
            {
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "PLAIN",
                "kafka.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required "
                'username="ann" password="x";',
            },
        ),
        (
            OIDC,
            {
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "OAUTHBEARER",
                "kafka.sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
                "kafka.sasl.login.callback.handler.class": (
                    f"{MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler"
                ),
                "kafka.sasl.jaas.config": f"{MODULES}.oauthbearer.OAuthBearerLoginModule required "
                'clientId="etl" clientSecret="oidc-secret" scope="kafka";',
            },
        ),
        (
            {"security.protocol": "SSL", "ssl.ca.location": "/ca.pem"},
            {
                "kafka.security.protocol": "SSL",
                "kafka.ssl.truststore.type": "PEM",
                "kafka.ssl.truststore.location": "/ca.pem",
            },
        ),
        (
            {
                "security.protocol": "SSL",
                "ssl.certificate.location": "/me.pem",
                "ssl.key.password": "x",
                "ssl.endpoint.identification.algorithm": "none",
            },
            {
                "kafka.security.protocol": "SSL",
                "kafka.ssl.keystore.type": "PEM",
                "kafka.ssl.keystore.location": "/me.pem",
                "kafka.ssl.key.password": "x",
                "kafka.ssl.endpoint.identification.algorithm": "",
            },
        ),
    ],
)
def test_translation_for_spark(config, expected):
    always = {
        "kafka.bootstrap.servers": "one:9092,two:9092",
        "kafka.allow.auto.create.topics": "false",
    }
    assert settings(config=config).spark_options() == always | expected


def test_a_key_apart_from_its_certificate_goes_inline_to_java(tmp_path):
    (tmp_path / "me.crt").write_text("chain")
    (tmp_path / "me.key").write_text("key")
    options = settings(
        config={
            "security.protocol": "SSL",
            "ssl.certificate.location": str(tmp_path / "me.crt"),
            "ssl.key.location": str(tmp_path / "me.key"),
        }
    ).spark_options()
    assert options["kafka.ssl.keystore.certificate.chain"] == "chain"
    assert options["kafka.ssl.keystore.key"] == "key"


@pytest.mark.parametrize(
    ("config", "verify_mode", "check_hostname"),
    [
        ({}, ssl.CERT_REQUIRED, True),
        ({"ssl.endpoint.identification.algorithm": "none"}, ssl.CERT_REQUIRED, False),
        ({"enable.ssl.certificate.verification": "false"}, ssl.CERT_NONE, False),
        ({"enable.ssl.certificate.verification": False}, ssl.CERT_NONE, False),
        ({"enable.ssl.certificate.verification": True}, ssl.CERT_REQUIRED, True),
    ],
)
def test_tls_verification(config, verify_mode, check_hostname):
    options = settings(config={"security.protocol": "ssl", **config}).kafka_python()
    assert options["ssl_context"].verify_mode is verify_mode
    assert options["ssl_context"].check_hostname is check_hostname


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            {"enable.ssl.certificate.verification": "false"},
            ["enable.ssl.certificate.verification=false"],
        ),
        (
            {"ssl.endpoint.identification.algorithm": "none"},
            ["ssl.endpoint.identification.algorithm=none"],
        ),
        ({"ssl.endpoint.identification.algorithm": "https"}, []),
        ({}, []),
    ],
)
@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL", "PLAINTEXT"])
def test_a_broker_that_anybody_can_pose_as_is_told_of_once(config, told, protocol):
    tls._tell.cache_clear()
    with capture_logs() as lines:
        for _ in range(3):
            settings(config={**SASL, "security.protocol": protocol, **config})
    assert [line["log_level"] for line in lines] == ["warning"] * len(lines)
    assert [line["setting"] for line in lines] == ([] if protocol == "PLAINTEXT" else told)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"bootstrap.servers": None}, "bootstrap.servers"),
        ({"bootstrap.servers": " , "}, "bootstrap.servers"),
        ({"security.protocol": "TLS"}, "SASL_SSL"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "MD5"}, "SCRAM-SHA-256"),
        ({**SASL, "sasl.password": ""}, "sasl.password"),
        ({**SASL, "sasl.username": None}, "sasl.username"),
    ],
)
def test_what_cannot_work_is_refused(config, said):
    with pytest.raises(ConfigurationError, match=said):
        settings(config=config)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"socket.timeout.ms": "soon"}, "milliseconds"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/no/such/ca.pem"}, "/no/such/ca.pem"),
        ({"security.protocol": "SSL", "ssl.key.pem": "-----"}, "ssl.key.location"),
        ({"security.protocol": "SSL", "ssl.keystore.location": "/k.p12"}, "librdkafka"),
        ({**OIDC, "sasl.oauthbearer.method": "default"}, "oidc"),
        ({**OIDC, "sasl.oauthbearer.client.secret": None}, "client.secret"),
        ({**OIDC, "sasl.oauthbearer.token.endpoint.url": "file:///etc/passwd"}, "http"),
    ],
)
def test_what_kafka_python_cannot_do_is_said_when_it_is_needed(config, said):
    with pytest.raises(ConfigurationError, match=said):
        settings(config=config).kafka_python()


def test_java_cannot_skip_verification():
    config = {"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"}
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location"):
        settings(config=config).spark_options()


JAVAS = (
    "kafka.ssl.keystore.key",
    "kafka.sasl.jaas.config",
    "kafka.ssl.key.password",
    "kafka.ssl.truststore.password",
)


def test_spark_hides_what_it_hides_by_default_and_every_secret_of_ours():
    for chosen in (None, "(?i)mine"):
        hidden = re.compile(spark_redaction_regex(chosen))
        assert all(hidden.search(name) for name in (*SECRETS, *JAVAS))
    assert re.search(spark_redaction_regex(), "spark.hadoop.fs.s3a.ACCESS.KEY")
    assert re.search(spark_redaction_regex("(?i)mine"), "spark.MINE")
    for name in ("spark.executorEnv.DB_PASSWORD", "spark.app.registryApiKey"):
        assert re.search(spark_redaction_regex("mine"), name)  # a regex of one's own knows no case


def test_every_secret_that_java_gets_is_hidden_by_spark(tmp_path):
    """By its name or by its value, as Spark redacts: no secret is in what is left to read."""
    for name in ("me.crt", "me.key"):
        (tmp_path / name).write_text(f"-----BEGIN {name}-----")
    files = {
        "ssl.certificate.location": str(tmp_path / "me.crt"),
        "ssl.key.location": str(tmp_path / "me.key"),
        "ssl.key.password": "hidden-2",
    }
    hidden = re.compile(spark_redaction_regex())
    for login in (
        SASL | {"sasl.password": "hidden-1"},
        OIDC | {"sasl.oauthbearer.client.secret": "hidden-3"},
    ):
        given = settings(config={**login, **files, "security.protocol": "SASL_SSL"})
        shown = {k: v for k, v in given.spark_options().items() if not hidden.search(k)}
        assert not any("hidden" in v or "me.key" in v for v in shown.values())


SECRETS = {
    "sasl.password": "S1",
    "ssl.key.password": "S2",
    "ssl.keystore.password": "S3",
    "sasl.oauthbearer.client.secret": "S4",
    "sasl.oauthbearer.config": "S5",
    "ssl.key.pem": "S6",
    "sasl.jaas.config": "S7",
    "sasl.oauthbearer.assertion.private.key.passphrase": "S8",
    "sasl.oauthbearer.assertion.private.key.pem": "S9",
    "ssl.keystore.key": "S10",
}


@pytest.mark.parametrize("shown", [repr, str, "{}".format, "{!r}".format], ids=range(4))
def test_secrets_are_not_shown(shown):
    text = shown(settings(config=SECRETS))
    assert not any(secret in text for secret in SECRETS.values())
    assert "one:9092" in text


def test_secrets_are_not_in_a_refusal():
    with pytest.raises(ConfigurationError) as refused:
        settings(config={**SASL, "sasl.username": ""})
    assert SASL["sasl.password"] not in str(refused.value)


def test_settings_travel_compare_and_hash_by_value():
    one = settings(config=SASL)
    assert pickle.loads(pickle.dumps(one)) == one
    assert hash(one) == hash(settings(config=SASL))
    assert one != settings()


def test_librdkafka_gets_everything_under_one_name():
    config = {"metadata.broker.list": "one:9092", "sasl.mechanism": "PLAIN", "linger.ms": 5}
    assert KafkaSettings.from_librdkafka(config).librdkafka() == {
        "bootstrap.servers": "one:9092",
        "sasl.mechanisms": "PLAIN",
        "linger.ms": 5,
        "allow.auto.create.topics": False,
    }


def test_servers_may_be_a_list():
    servers = KafkaSettings.from_librdkafka({"bootstrap.servers": ["a:1", "b:2"]})
    assert servers.bootstrap_servers == "a:1,b:2"


@pytest.mark.parametrize(
    "wrong",
    [
        {"retriez": 1},
        {"retries": "many"},
        {"ssl.ca.location": "/nowhere", "security.protocol": "SSL"},
    ],
    ids=["a typo", "no number", "a file that is not there"],
)
def test_what_librdkafka_does_not_take_is_refused_by_name_and_in_no_trace(wrong):
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": "localhost:1", **wrong})
    with pytest.raises(ConfigurationError, match=f"does not take.*{next(iter(wrong))}"):
        settings.librdkafka()


# --- Client credentials against a token endpoint on the loopback interface ------------------------


class Endpoint(BaseHTTPRequestHandler):
    asked: ClassVar[list[Any]] = []
    url: ClassVar[str] = ""
    moved_to: ClassVar[str] = ""
    status = 200
    lifetime: ClassVar[float] = 100
    padding = ""

    def do_POST(self):
        form = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self.asked.append((dict(urllib.parse.parse_qsl(form)), self.headers["Authorization"]))
        self.send_response(self.status)
        if self.moved_to:
            self.send_header("Location", self.moved_to)
        self.end_headers()
        self.wfile.write(
            json.dumps(
                {
                    "access_token": f"token-{len(self.asked)}",
                    "expires_in": self.lifetime,
                    "padding": self.padding,
                }
            ).encode()
        )

    do_GET = do_POST  # noqa: N815 - http.server's name: a redirected POST comes as a GET

    def log_message(self, *args):
        pass


def serving():
    class handler(Endpoint):  # noqa: N801 - its own list and url for each test
        asked: ClassVar[list[Any]] = []

    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    handler.url = f"http://127.0.0.1:{server.server_port}/token"
    yield handler
    server.shutdown()
    server.server_close()
    thread.join(120)


endpoint = pytest.fixture(serving, name="endpoint")
elsewhere = pytest.fixture(serving, name="elsewhere")


CLIENT = {
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "etl",
    "sasl.oauthbearer.client.secret": "hidden",
}


def provider(endpoint, **more):
    return token_provider(CLIENT | {"sasl.oauthbearer.token.endpoint.url": endpoint.url} | more)


def test_a_token_is_asked_for_once_while_it_lives(endpoint):
    tokens = provider(endpoint, **{"sasl.oauthbearer.scope": "kafka"})
    assert [tokens.token(), tokens.token()] == ["token-1", "token-1"]
    form, authorization = endpoint.asked[0]
    assert form == {"grant_type": "client_credentials", "scope": "kafka"}
    assert base64.b64decode(authorization.removeprefix("Basic ")).decode() == "etl:hidden"


def test_a_token_is_renewed_before_it_expires(endpoint):
    endpoint.lifetime = 0
    tokens = provider(endpoint)
    assert [tokens.token(), tokens.token()] == ["token-1", "token-2"]


def test_a_refusal_shows_no_secret(endpoint):
    endpoint.status = 401
    with pytest.raises(KafkaError, match="401") as refused:
        provider(endpoint).token()
    assert "hidden" not in str(refused.value)


def test_an_answer_without_an_end_is_no_token(endpoint):
    endpoint.padding = "x" * (1 << 20)
    with pytest.raises(KafkaUnavailableError, match="No token from"):
        provider(endpoint).token()


@pytest.mark.parametrize("lifetime", [float("inf"), float("nan")])
def test_a_token_for_ever_is_none(endpoint, lifetime):
    endpoint.lifetime = lifetime
    with pytest.raises(KafkaUnavailableError, match="No token from"):
        provider(endpoint).token()


@pytest.mark.parametrize(
    "url",
    [
        "https://etl:hidden@127.0.0.1/token",
        "http://etl:hidden@elsewhere.example/token",
        "ftp://etl:hidden@127.0.0.1/token",
        "https://etl:hidden@[127.0.0.1/token",
        "https://etl:12/hidden@127.0.0.1/token",
        "https://etl:hid/hidden@127.0.0.1/token",
        "https://127.0.0.1:hidden/token",
    ],
)
def test_a_login_in_the_endpoints_url_is_refused_and_never_shown(url):
    with pytest.raises(ConfigurationError) as refused:
        token_provider(CLIENT | {"sasl.oauthbearer.token.endpoint.url": url})
    assert "hidden" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_what_a_query_says_is_not_shown(endpoint):
    endpoint.status = 401
    endpoint.url += "?key=hidden"
    with pytest.raises(KafkaError, match="No token from") as refused:
        provider(endpoint).token()
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("status", "passes"), [(400, False), (401, False), (429, True), (503, True)]
)
def test_what_an_endpoint_answers_in_passing_is_asked_again(endpoint, status, passes):
    endpoint.status = status
    with pytest.raises(KafkaError, match=str(status)) as refused:
        provider(endpoint).token()
    assert isinstance(refused.value, KafkaUnavailableError) is passes


def test_extensions_are_passed_on(endpoint):
    tokens = provider(endpoint, **{"sasl.oauthbearer.extensions": "logicalCluster=lkc-1, pool=p"})
    assert tokens.extensions() == {"logicalCluster": "lkc-1", "pool": "p"}


def test_extensions_without_which_a_cluster_refuses_the_login_reach_sparks_client_too():
    """Confluent Cloud tells by them which cluster and which pool of identities is meant."""
    config = {**OIDC, "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-1"}
    jaas = settings(config=config).spark_options()["kafka.sasl.jaas.config"]
    assert jaas.endswith(
        ' scope="kafka" extension_logicalCluster="lkc-1" extension_identityPoolId="pool-1";'
    )


def test_the_callers_own_function_gives_the_token():
    tokens = token_provider(
        {
            "oauth_cb": lambda argument: (f"mine-{argument}", time.time() + 60),
            "sasl.oauthbearer.config": "scope",
        }
    )
    assert tokens.token() == "mine-scope"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_does_not_carry_the_client_secret_to_another_host(endpoint, elsewhere, status):
    endpoint.status = status
    endpoint.moved_to = elsewhere.url + "?code=hidden"
    with pytest.raises(
        KafkaError, match=f"{status}, a redirect to 127.0.0.1, which is not"
    ) as told:
        provider(endpoint).token()
    assert elsewhere.asked == []
    assert "hidden" not in str(told.value)
    assert not isinstance(told.value, KafkaUnavailableError), "asking again would not help"


UNENCRYPTED = "http://login.example/token"


def test_a_secret_is_not_sent_unencrypted(monkeypatch):
    monkeypatch.delenv("AIRFLOW_EOS_HTTP_TOKEN_HOSTS", raising=False)
    with pytest.raises(ConfigurationError, match=r"unencrypted to login\.example.*https") as told:
        token_provider(CLIENT | {"sasl.oauthbearer.token.endpoint.url": UNENCRYPTED})
    assert "hidden" not in str(told.value)
    assert "AIRFLOW_EOS_HTTP_TOKEN_HOSTS=login.example" in str(told.value)


def test_a_host_that_was_allowed_may_be_asked_without_tls(monkeypatch):
    monkeypatch.setenv("AIRFLOW_EOS_HTTP_TOKEN_HOSTS", "other.example,login.example")
    token_provider(CLIENT | {"sasl.oauthbearer.token.endpoint.url": UNENCRYPTED})


@pytest.mark.parametrize("host", ["127.0.0.1:80", "[::1]:80", "localhost"])
def test_this_machine_itself_may_be_asked_without_tls(host):
    token_provider(CLIENT | {"sasl.oauthbearer.token.endpoint.url": f"http://{host}/token"})


@pytest.mark.parametrize("host", ["127.0.0.1.example", "localhost.example", "localhost@example"])
def test_a_host_that_only_looks_like_this_machine_may_not(host):
    with pytest.raises(ConfigurationError, match="unencrypted"):
        token_provider(CLIENT | {"sasl.oauthbearer.token.endpoint.url": f"http://{host}/token"})


# --- A client's key in each form that openssl writes: what Java cannot read is refused by name ----


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


def test_a_connection_that_is_told_of_failures_alone_still_tells_where_rows_are():
    """Without the reports of success a transaction has no offsets, and no decision can name it."""
    made = producer_config(
        settings(**{"delivery.report.only.error": True}),
        transactional_id="etl-eos-0-0",
        timeout_ms=60_000,
        compression="lz4",
        batch_bytes=1_000_000,
        delivery_timeout_s=120.0,
    )
    assert made["delivery.report.only.error"] is False
