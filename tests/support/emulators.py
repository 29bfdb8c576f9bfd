"""An emulator of Azure's store, from its package registry, in a pinned version.

Google's has none that helps: fake-gcs-server (1.52.2) has no XML API, by which obstore writes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from email.utils import formatdate
from pathlib import Path

import pytest

from airflow_eos.local.broker import HOST, free_ports
from airflow_eos.local.jars import cache_folder
from tests.support.servers.process import EmbeddedProcess

AZURITE = "3.34.0"
_ACCOUNT = "devstoreaccount1"
# Azurite's only account, which its documentation prints; it opens nothing but an emulator.
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_BUCKET = "bucket"
_READY_SECONDS = 120.0


class Azurite(EmbeddedProcess):
    """Azure's blobs, with one container."""

    url = f"az://{_BUCKET}"

    @property
    def storage_options(self) -> dict[str, str]:
        return {
            "azure_storage_account_name": _ACCOUNT,
            "azure_storage_account_key": _KEY,
            "azure_endpoint": f"http://{HOST}:{self.port}/{_ACCOUNT}",
            "allow_http": "true",
        }

    def start(self) -> None:
        installed = cache_folder() / f"azurite-{AZURITE}"
        program = installed / "node_modules" / ".bin" / "azurite-blob"
        if not program.exists():
            _install(installed)
        self._folder = Path(tempfile.mkdtemp(prefix="airflow-eos-azurite-"))
        (self.port,) = free_ports(1)
        where = ["--blobHost", HOST, "--blobPort", str(self.port), "--location", str(self._folder)]
        plain = ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        command = [str(program), *where, *plain]
        self._run(command, self._folder, self._has_container, _READY_SECONDS)

    def _has_container(self) -> bool:
        """By Azure's SharedKey, since no client at hand makes containers."""
        path = f"/{_ACCOUNT}/{_BUCKET}"
        told = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        headers = "".join(f"{name}:{value}\n" for name, value in sorted(told.items()))
        signed = f"PUT{chr(10) * 12}{headers}/{_ACCOUNT}{path}\nrestype:container"
        mac = hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()
        told["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(mac).decode()}"
        return _answers(f"http://{HOST}:{self.port}{path}?restype=container", told)


def _install(folder: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, which would fetch the emulator")
    ran = subprocess.run(
        ["npm", "install", "--silent", "--prefix", str(folder), f"azurite@{AZURITE}"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _answers(url: str, headers: dict[str, str]) -> bool:
    asked = urllib.request.Request(url, method="PUT", headers=headers)
    try:
        urllib.request.urlopen(asked, timeout=60).close()
    except urllib.error.HTTPError as error:
        if error.code == 409:
            return True
        raise AssertionError(f"{error.code}: {error.read()!r}") from error
    except OSError:
        return False
    return True
