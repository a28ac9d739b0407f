"""The sandbox as an operator sees it: the command, the report file, the line at the start."""

import asyncio
import io
import json
import sys

import psutil
import pytest
from django.core.management import CommandError, call_command

from portal.ops import running, sandbox
from portal.ops.supervisor import StartFailed


def fake_self_test(tmp_path, level: str) -> list[str]:
    """A program in the place of the engine's self-test: leaves a report, prints, and ends as that does."""
    script = tmp_path / "self_test.py"
    script.write_text(
        "import json, os, pathlib, sys\n"
        f"report = json.dumps({{'level': {level!r}, 'attacks': [], 'unusable': {{}}, 'tested_at': ''}})\n"
        "pathlib.Path(os.environ['MARLAAS_VAR'], 'sandbox.json').write_text(report)\n"
        f"print(report if '--json' in sys.argv else 'Sandbox level: {level}')\n"
        f"sys.exit({int(level == 'none')})\n"
    )
    return [sys.executable, str(script)]


@pytest.mark.parametrize("level", ["bubblewrap", "landlock", "none"])
async def test_the_start_says_what_the_self_test_found(tmp_path, settings, monkeypatch, level):
    settings.MARLAAS_VAR = tmp_path
    monkeypatch.setattr(sandbox, "SELF_TEST", fake_self_test(tmp_path, level))
    said: list[str] = []
    assert sandbox.level() == "unknown"
    await sandbox.run_self_test(said.append)
    assert sandbox.level() == level
    assert len(said) == 1 and (level in said[0] if level != "none" else "refused" in said[0])


async def test_a_self_test_that_is_not_done_ends_with_the_installation(tmp_path, settings, monkeypatch):
    settings.MARLAAS_VAR = tmp_path
    started = tmp_path / "started"
    program = f"import os, pathlib, time; pathlib.Path({str(started)!r}).write_text(str(os.getpid())); time.sleep(600)"
    monkeypatch.setattr(sandbox, "SELF_TEST", [sys.executable, "-c", program])

    class Supervisor:
        async def start(self) -> None:
            for _ in range(600):
                if started.exists() and started.read_text():
                    raise StartFailed("a process does not start")
                await asyncio.sleep(0.05)

    async def demonstrate(address: str) -> int:
        raise AssertionError

    with pytest.raises(StartFailed):
        await running._run(Supervisor(), "127.0.0.1", 8000, lambda line: None, demonstrate)
    assert not psutil.pid_exists(int(started.read_text()))


def test_the_command_prints_the_table_and_fails_without_a_sandbox(tmp_path, settings, monkeypatch):
    from portal.ops.management.commands import sandbox as command

    settings.MARLAAS_VAR = tmp_path
    monkeypatch.setattr(command, "SELF_TEST", fake_self_test(tmp_path, "landlock"))
    out = io.StringIO()
    call_command("sandbox", stdout=out)
    assert "Sandbox level: landlock" in out.getvalue()
    out = io.StringIO()
    call_command("sandbox", "--json", stdout=out)
    assert json.loads(out.getvalue())["level"] == "landlock"
    monkeypatch.setattr(command, "SELF_TEST", fake_self_test(tmp_path, "none"))
    with pytest.raises(CommandError, match="refused"):
        call_command("sandbox", stdout=io.StringIO())


def test_the_real_self_test_leaves_a_report_the_portal_reads(tmp_path, settings):
    settings.MARLAAS_VAR = tmp_path
    out = io.StringIO()
    try:
        call_command("sandbox", stdout=out)
    except CommandError:  # a machine without a sandbox says so as well
        assert sandbox.level() == "none"
    report = sandbox.read_report()
    assert report is not None
    assert f"Sandbox level: {report['level']}" in out.getvalue()
    assert report["level"] == "none" or all(attack["stopped"] for attack in report["attacks"])
    assert f"{len(report['attacks'])} of {len(report['attacks'])} attacks stopped" in out.getvalue()
