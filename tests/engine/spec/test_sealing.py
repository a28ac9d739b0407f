"""Secrets at rest: opened with the same keys only, and through a change of keys."""

from pathlib import Path

import pytest

from engine.spec.sealing import CannotOpen, Sealer, read_sealer, split_keys

OLD, NEW = "o" * 32, "n" * 32


def test_a_secret_comes_back_and_does_not_show() -> None:
    sealed = Sealer([OLD]).seal("whsec_abc")
    assert sealed.startswith("sealed:") and "abc" not in sealed
    assert Sealer([OLD]).open(sealed) == "whsec_abc"
    assert Sealer([OLD]).seal("whsec_abc") != sealed, "the same secret twice does not look the same"


def test_another_key_or_damage_is_an_error_and_no_empty_secret() -> None:
    sealed = Sealer([OLD]).seal("whsec_abc")
    for sealer, kept in ((Sealer([NEW]), sealed), (Sealer([]), sealed), (Sealer([OLD]), sealed[:-4] + "AAAA")):
        with pytest.raises(CannotOpen):
            sealer.open(kept)
    with pytest.raises(CannotOpen):
        Sealer([]).seal("whsec_abc")


def test_keys_change_without_a_break() -> None:
    sealed = Sealer([OLD]).seal("whsec_abc")
    both = Sealer([NEW, OLD])
    assert both.open(sealed) == "whsec_abc" and not both.is_current(sealed)
    renewed = both.seal(both.open(sealed))
    assert both.is_current(renewed) and Sealer([NEW]).open(renewed) == "whsec_abc"
    assert not both.is_current("whsec_abc") and both.open("whsec_abc") == "whsec_abc", "as older versions kept it"


def test_where_a_process_finds_its_keys(tmp_path: Path) -> None:
    (tmp_path / "secret_key").write_text(OLD + "\n")
    sealed = Sealer([OLD]).seal("x")
    assert read_sealer(tmp_path, {}).open(sealed) == "x"
    assert read_sealer(Path("/nowhere"), {"SECRET_KEY": OLD}).open(sealed) == "x"
    assert read_sealer(tmp_path, {"SECRET_KEY": NEW, "SECRET_KEY_FALLBACKS": OLD}).open(sealed) == "x"
    assert read_sealer(tmp_path, {"SECRET_KEY": NEW, "MARLAAS_FIELD_KEYS": f"{NEW}, {OLD}"}).open(sealed) == "x"
    with pytest.raises(CannotOpen, match="SECRET_KEY"):
        read_sealer(tmp_path, {"SECRET_KEY": NEW}).open(sealed)


def test_short_keys_are_refused() -> None:
    assert split_keys("") == []
    with pytest.raises(ValueError, match="at least 32 characters"):
        split_keys(f"{OLD},short")
