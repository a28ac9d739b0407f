"""Structured logs: one JSON object a line, with the ids."""

import json
import logging
import logging.config
import os
import subprocess
import sys

import pytest
from django.conf import settings as django_settings

from engine.logs import JobFilter, job_id, json_formatter
from portal.audit.context import Origin, OriginFilter, origin_of_request


@pytest.fixture
def lines(caplog):
    """What the portal logs from here on, as its JSON lines."""
    described = django_settings.LOGGING["formatters"]["json"]
    formatter = logging.config.DictConfigurator({"version": 1}).configure_formatter(dict(described))
    caplog.handler.setFormatter(formatter)
    caplog.handler.addFilter(OriginFilter())
    caplog.set_level(logging.INFO)
    return lambda: [json.loads(line) for line in caplog.text.splitlines() if line.startswith("{")]


def test_a_request_is_one_line_with_its_ids(lines, browser, ours):
    browser.get(f"/jobs/{ours.job.pk}/", headers={"X-Request-ID": "request-0001"})
    (line,) = [line for line in lines() if line["logger"] == "portal.requests"]
    assert line["request_id"] == "request-0001"
    assert (line["tenant_id"], line["job_id"]) == (str(ours.tenant.pk), str(ours.job.pk))
    assert (line["method"], line["status"], line["route"]) == ("GET", 200, "/jobs/<uuid:job_id>/")
    assert line["level"] == "INFO" and line["seconds"] >= 0 and line["time"]


def test_what_is_itself_a_permission_is_not_logged(lines, browser):
    browser.get("/invitations/of-nobody-else/")
    (line,) = [line for line in lines() if line["logger"] == "portal.requests"]
    assert "of-nobody-else" not in json.dumps(line)


def test_probes_are_not_logged(lines, browser):
    browser.get("/healthz")
    assert lines() == []


def test_outside_requests_there_are_no_ids(lines):
    logging.getLogger("portal.jobs").warning("late")
    with origin_of_request(Origin(job_id="j1")):
        logging.getLogger("portal.jobs").warning("now")
    logging.getLogger("portal.jobs").warning("about", extra={"job_id": "j2"})
    assert [(line["job_id"], line["request_id"]) for line in lines()] == [("-", "-"), ("j1", "-"), ("j2", "-")]


def test_the_engines_lines_name_the_job():
    record = logging.LogRecord("engine.job", logging.INFO, "", 0, "step %d", (3,), None)
    token = job_id.set("j1")
    JobFilter().filter(record)
    job_id.reset(token)
    line = json.loads(json_formatter().format(record))
    assert (line["message"], line["logger"], line["level"], line["job_id"]) == ("step 3", "engine.job", "INFO", "j1")


def test_the_setting_switches_the_form(tmp_path):
    code = "import django; django.setup(); import logging; logging.getLogger('x').warning('hello')"
    env = {
        **os.environ, "LOG_FORMAT": "json", "MARLAAS_VAR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "portal.settings",
        "DATABASE_URL": "sqlite://:memory:",
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["message"] == "hello"


def test_failed_requests_keep_their_id(lines, browser):
    browser.get("/no-such-page/", headers={"X-Request-ID": "request-0002"})
    (line,) = [line for line in lines() if line["logger"] == "django.request"]
    assert line["request_id"] == "request-0002" and "request" not in line


def test_what_messages_hold_is_not_logged(lines):
    logging.getLogger("celery.worker").warning("lost", extra={"data": {"args": "[a tenant's rows]"}})
    (line,) = lines()
    assert "data" not in line
    record = logging.LogRecord("celery", logging.INFO, "", 0, "lost", (), None)
    record.data = {"args": "[a tenant's rows]"}
    JobFilter().filter(record)
    assert "data" not in json.loads(json_formatter().format(record))
