"""The wheel and the sdist as they are released, and an environment that has the wheel alone."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python(*arguments: str | Path, cwd: Path = ROOT) -> None:
    """Run a module of this environment; it must succeed."""
    run(Path(sys.executable), "-m", *map(str, arguments), cwd=cwd)


def run(program: Path, *arguments: str, cwd: Path, timeout: float = 120) -> str:
    """What a program prints that knows nothing of this clone; it must succeed."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [program, *arguments],
        cwd=cwd,
        env={**kept, "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_sdist(into: Path) -> Path:
    """Build it of this clone."""
    python("hatchling", "build", "-t", "sdist", "-d", into)
    return next(into.iterdir())


def build_wheel(sdist: Path, into: Path) -> Path:
    """Build it of the sdist, which so is whole."""
    source, dist = into / "source", into / "dist"
    with tarfile.open(sdist) as whole:
        whole.extractall(source, filter="data")
    [project] = source.iterdir()
    python("hatchling", "build", "-t", "wheel", "-d", dist, cwd=project)
    return next(dist.iterdir())


def install(wheel: Path, into: Path) -> Path:
    """``bin`` of an environment with the wheel; what the wheel depends on is lent by this one.

    No file of this clone can be imported there: a path in a ``.pth`` is not looked through for
    further ``.pth`` files, as that of an editable installation.
    """
    home = into / "env"
    python("uv", "venv", "--quiet", "--python", sys.executable, home)
    offline = ("--quiet", "--offline", "--no-deps", "--python", home)
    python("uv", "pip", "install", *offline, wheel)
    [packages] = (home / "lib").glob("python*/site-packages")
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return home / "bin"
