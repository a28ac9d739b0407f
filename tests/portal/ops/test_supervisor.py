"""The supervisor: starts in order, restarts what dies and names it, leaves nothing behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from portal.ops.supervisor import Child, StartFailed, Supervisor, describe_exit, last_lines

FOREVER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


@pytest.fixture
def said():
    return []


async def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_a_child_that_dies_is_named_with_its_last_words_and_started_again(tmp_path, said):
    child = Child(
        "worker", [sys.executable, "-c", "import time; print('my last words'); time.sleep(0.3); raise SystemExit(3)"]
    )
    supervisor = Supervisor([child], tmp_path, said.append)
    await supervisor.start()
    await until(lambda: supervisor.log_path("worker").read_text().count("--- started") >= 2)
    await supervisor.stop()
    assert "worker died (exit code 3); starting it again in 1 s" in said[0]
    assert "my last words" in said[0]
    assert str(tmp_path / "worker.log") in said[0]


async def test_the_pause_before_a_restart_grows(tmp_path, said):
    supervisor = Supervisor([Child("broken", [sys.executable, "-c", "raise SystemExit(1)"])], tmp_path, said.append)
    await supervisor.start()
    await until(lambda: len(said) >= 2)
    await supervisor.stop()
    assert "again in 1 s" in said[0]
    assert "again in 2 s" in said[1]


async def test_children_start_in_order_each_once_the_one_before_is_ready(tmp_path, said):
    flag = tmp_path / "flag"
    first = Child(
        "first",
        [
            sys.executable,
            "-c",
            f"import time, pathlib; time.sleep(0.3); pathlib.Path({str(flag)!r}).touch(); time.sleep(60)",
        ],
        ready=flag.exists,
    )
    second = Child(
        "second",
        [sys.executable, "-c", f"import os, time; print(os.path.exists({str(flag)!r}), flush=True); time.sleep(60)"],
    )
    supervisor = Supervisor([first, second], tmp_path / "log", said.append)
    await supervisor.start()
    await until(lambda: "True" in supervisor.log_path("second").read_text())
    await supervisor.stop()


async def test_a_child_that_never_gets_ready_fails_the_start_with_its_log(tmp_path, said):
    child = Child(
        "stuck", [sys.executable, "-c", "print('cannot reach the disk'); raise SystemExit(4)"], ready=lambda: False
    )
    supervisor = Supervisor([child], tmp_path, said.append)
    with pytest.raises(StartFailed, match=r"(?s)stuck ended with exit code 4.*cannot reach the disk"):
        await supervisor.start()
    await supervisor.stop()


async def test_stop_leaves_no_process_not_even_one_that_ignores_sigterm_or_fled_its_session(tmp_path, said):
    fled = tmp_path / "fled"
    script = (
        "import os, signal, subprocess, sys, time, pathlib\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        f"pathlib.Path({str(fled)!r}).write_text(str(p.pid))\n"
        "time.sleep(600)\n"
    )  # fmt: skip
    supervisor = Supervisor(
        [Child("quick", FOREVER), Child("stubborn", [sys.executable, "-c", script], ready=fled.exists)],
        tmp_path,
        said.append,
    )
    supervisor.stop_seconds = 0.5
    await supervisor.start()
    await until(lambda: fled.read_text() != "")
    pids = [process.pid for process in supervisor._running.values()] + [int(fled.read_text())]
    assert all(alive(pid) for pid in pids)
    await supervisor.stop()
    assert not any(alive(pid) for pid in pids)
    assert said == []


async def test_a_child_that_cannot_outlive_another_is_started_anew_with_it(tmp_path, said):
    supervisor = Supervisor(
        [Child("base", FOREVER, takes_down=("guest",)), Child("guest", FOREVER)], tmp_path, said.append
    )
    await supervisor.start()
    guest = supervisor._running["guest"].pid
    os.kill(supervisor._running["base"].pid, signal.SIGKILL)
    await until(lambda: supervisor._running["guest"].pid != guest and len(said) == 2)
    await supervisor.stop()
    assert said[0].startswith("base died (signal SIGKILL)")
    assert not alive(guest)


def test_children_die_with_a_killed_supervisor(tmp_path):
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from portal.ops.supervisor import Child, Supervisor\n"
        "async def main():\n"
        f"    s = Supervisor([Child('c', {FOREVER!r})], Path({str(tmp_path)!r}), print)\n"
        "    await s.start()\n"
        "    print(s._running['c'].pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as supervisor:
        pid = int(supervisor.stdout.readline())
        assert alive(pid)
        supervisor.kill()
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)


def test_exit_codes_and_signals_are_put_in_words():
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(-9) == "signal SIGKILL"


def test_the_last_lines_of_a_log(tmp_path):
    log = tmp_path / "log"
    assert last_lines(log) == ""
    log.write_text("".join(f"line {index}\n" for index in range(100)))
    assert last_lines(log, 2) == "    line 98\n    line 99"
