"""A private PostgreSQL server on this machine, for tests and examples; gone with its starter."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from airflow_eos.errors import LocalEnvironmentError
from airflow_eos.local.layout import HOST, free_ports

_GUARD = Path(__file__).parent / "guard.py"
_DEBIAN = Path("/usr/lib/postgresql")
_READY_SECONDS = 60.0
_POLL = 0.05


class EmbeddedPostgres:
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

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

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
        self._guard = subprocess.Popen(
            [sys.executable, "-I", str(_GUARD), str(os.getpid()), str(self.folder), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._log.open("ab"),
            start_new_session=True,
        )
        self._wait_until_ready()

    def stop(self, *, how: signal.Signals = signal.SIGINT) -> None:
        """End it and keep its data for ``start``: SIGINT cleanly, SIGQUIT as a crash would."""
        if self._guard is None:
            return
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            os.kill(self._pid(), how)
        try:
            self._guard.wait(_READY_SECONDS)
        except subprocess.TimeoutExpired:
            raise LocalEnvironmentError(
                f"PostgreSQL has not ended after {_READY_SECONDS:.0f} s:\n{self._tail()}"
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

    def _wait_until_ready(self) -> None:
        assert self._guard is not None  # noqa: S101 - just started
        deadline = time.monotonic() + _READY_SECONDS
        while not self._ready():
            if self._guard.poll() is not None or time.monotonic() > deadline:
                raise LocalEnvironmentError(f"PostgreSQL did not come up:\n{self._tail()}")
            time.sleep(_POLL)

    def _ready(self) -> bool:
        """The last line of ``postmaster.pid``; pg_ctl waits for the same."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self._data / "postmaster.pid").read_text(encoding="ascii").splitlines()
            return len(lines) > 7 and lines[7].strip() == "ready"
        return False

    def _tail(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return self._log.read_text(encoding="utf-8", errors="replace")[-2000:]
        return "(no log)"


def binary(program: str) -> Path:
    """A program of PostgreSQL's server: the newest of Debian's, or that of PATH.

    Raises:
        LocalEnvironmentError: there is none.
    """
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
