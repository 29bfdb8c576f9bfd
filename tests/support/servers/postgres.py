"""A private PostgreSQL server on this machine, for tests and examples; gone with its starter.

It is Debian's, or the one in the folder ``EOS_TESTS_POSTGRES``; ``python -m
tests.support.servers.postgres FOLDER`` unpacks a newer one there, for ``make postgres``.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from airflow_eos.errors import LocalEnvironmentError
from airflow_eos.local.broker import HOST, free_ports
from airflow_eos.local.process import Embedded, guarded, tail
from tests.support.servers.jars import server_jars
from tests.support.servers.process import wait_until_ready

TOLD = os.environ.get("EOS_TESTS_POSTGRES")
_BUNDLE = "postgres-17.6"
_DEBIAN = Path("/usr/lib/postgresql")
_STOP_SECONDS = 60.0


class EmbeddedPostgres(Embedded):
    """One server on the loopback interface with a password of its own; a context manager.

    Args:
        max_prepared_transactions: PostgreSQL's own default is 0, which switches them off.
        fsync: whether it survives a power cut; it survives being killed either way.
        settings: further entries of ``postgresql.conf``, which win over ours.

    Attributes:
        port: where it listens.
        folder: data and log; removed at the end.

    Raises:
        LocalEnvironmentError: from ``start``: no binaries, or a server that does not come up.
    """

    def __init__(
        self,
        *,
        max_prepared_transactions: int = 32,
        fsync: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = {
            "max_prepared_transactions": str(max_prepared_transactions),
            "fsync": "on" if fsync else "off",
            "listen_addresses": HOST,
            "unix_socket_directories": "",
            "shared_buffers": "16MB",
            "max_connections": "50",
            **(settings or {}),
        }
        self._password = secrets.token_urlsafe(16)
        self._guard: subprocess.Popen[bytes] | None = None
        self.folder = Path()
        self.port = 0

    @property
    def dsn(self) -> str:
        """How its superuser reaches it, with the password."""
        return self.dsn_of("postgres")

    def dsn_of(self, database: str, *, port: int | None = None) -> str:
        """The same for another database, or by another port (a proxy's)."""
        return (
            f"host={HOST} port={port or self.port} dbname={database} user=postgres "
            f"password={self._password}"
        )

    def start(self) -> None:
        """Start it, the first time or again after ``stop``; returns when it answers.

        Raises:
            LocalEnvironmentError: no binaries, or it does not come up.
        """
        if not self.port:
            self._lay_out()
        command = self._as_user("postgres", "-D", str(self._data))
        self._guard = guarded(command, folder=self.folder, log=self._log)
        wait_until_ready(self._guard, self._ready, called="postgres", log=self._log)

    def stop(self, *, how: signal.Signals = signal.SIGINT) -> None:
        """End it and keep its data for ``start``: SIGINT cleanly, SIGQUIT as a crash would."""
        if self._guard is None:
            return
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            os.kill(self._pid(), how)
        try:
            self._guard.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise LocalEnvironmentError(
                f"PostgreSQL has not ended after {_STOP_SECONDS:.0f} s:\n{tail(self._log)}"
            ) from None
        self._guard = None

    def close(self) -> None:
        """End it at once and remove its data; closing twice is harmless."""
        if self.port:
            with contextlib.suppress(LocalEnvironmentError):
                self.stop(how=signal.SIGQUIT)
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _lay_out(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="eos-pg-"))
        self.folder = folder
        secret = folder / "secret"
        secret.touch(mode=0o600)
        secret.write_text(self._password, encoding="utf-8")
        if os.getuid() == 0:
            for path in (folder, secret):
                shutil.chown(path, _unprivileged())
        how = ("-A", "scram-sha-256", "--encoding=UTF8", "--no-locale", "--no-sync")
        command = self._as_user(
            "initdb", "-D", str(self._data), "-U", "postgres", f"--pwfile={secret}", *how
        )
        try:
            made = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if made.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            raise LocalEnvironmentError(f"PostgreSQL's initdb failed:\n{made.stderr[-2000:]}")
        (self.port,) = free_ports(1)
        lines = {**self._settings, "port": str(self.port)}
        with (self._data / "postgresql.conf").open("a", encoding="utf-8") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in lines.items())

    def _as_user(self, program: str, *arguments: str) -> list[str]:
        """The command; as somebody without rights where we are root, which PostgreSQL refuses."""
        command = [str(binary(program)), *arguments]
        if os.getuid() != 0:
            return command
        user = _unprivileged()
        return ["setpriv", f"--reuid={user}", f"--regid={_group(user)}", "--clear-groups", *command]

    def _pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text(encoding="ascii").split()[0])

    def _ready(self) -> bool:
        """The last line of ``postmaster.pid``; pg_ctl waits for the same."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self._data / "postmaster.pid").read_text(encoding="ascii").splitlines()
            return len(lines) > 7 and lines[7].strip() == "ready"
        return False


def binary(program: str) -> Path:
    """A program of PostgreSQL's server: as told, or the newest of Debian's, or that of PATH.

    Raises:
        LocalEnvironmentError: there is none.
    """
    if TOLD:
        return Path(TOLD) / "bin" / program
    newest_first = sorted(
        _DEBIAN.glob(f"*/bin/{program}"), key=lambda path: int(path.parts[-3]), reverse=True
    )
    found = newest_first[0] if newest_first else shutil.which(program)
    if found is None:
        raise LocalEnvironmentError(
            f"found no {program} in {_DEBIAN} or on PATH: install PostgreSQL's server (Debian: "
            "apt-get install postgresql; or run scripts/servers), then try again."
        )
    return Path(found)


def _unprivileged() -> str:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise LocalEnvironmentError(
        "PostgreSQL refuses to run as root, and there is no user 'postgres' or 'nobody' to run it "
        "as: run this as another user."
    )


def _group(user: str) -> int:
    return pwd.getpwnam(user).pw_gid


def unpack(folder: Path) -> None:
    """PostgreSQL's server, as it is fetched with checksums; nothing where it is there already."""
    if (folder / "bin" / "postgres").exists():
        return
    (jar,) = server_jars(_BUNDLE)
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    with (
        zipfile.ZipFile(jar) as archive,
        archive.open("postgres-linux-x86_64.txz") as packed,
        tarfile.open(fileobj=packed, mode="r:xz") as files,
    ):
        files.extractall(part, filter="data")
    part.rename(folder)  # in one step: who is interrupted before it begins again


if __name__ == "__main__":
    unpack(Path(sys.argv[1]))
