"""The scratch PostgreSQL the tests can run on."""

from __future__ import annotations

from pathlib import Path

import environ
import psycopg
import pytest

from tests import postgres

INSTALLED = postgres.find_program("initdb") and postgres.find_program("postgres")


def test_without_one_nothing_is_tested_and_that_is_said(monkeypatch, capsys):
    monkeypatch.setattr(postgres, "find_program", lambda name: None)
    assert postgres.main([]) == 0
    assert postgres.NOT_INSTALLED in capsys.readouterr().out


@pytest.mark.skipif(not INSTALLED, reason=postgres.NOT_INSTALLED)
def test_it_answers_on_its_socket_alone_and_leaves_nothing():
    with postgres.scratch_server(INSTALLED and postgres.find_program("initdb"), INSTALLED) as url:
        settings = environ.Env.db_url_config(url)
        folder = Path(settings["HOST"])
        with psycopg.connect(host=settings["HOST"], user=settings["USER"], dbname=settings["NAME"]) as connection:
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
    assert not folder.exists()
