"""What lies in static/vendor is what its manifest says, and nothing else; every icon a page names is in the sprite."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from django.conf import settings

from portal.pages.templatetags.ui import STATUS_ICONS
from portal.rewards.graders import KINDS

ROOT = Path(settings.BASE_DIR)
FOLDERS = [ROOT / "static" / "vendor", ROOT / "tests" / "browser" / "vendor"]


@pytest.mark.parametrize("folder", FOLDERS, ids=["static", "tests"])
def test_vendored_files_match_their_manifest(folder: Path) -> None:
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    listed = {name: digest for package in manifest["packages"] for name, digest in package["files"].items()}
    found = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "MANIFEST.json"
    }
    assert found == listed


@pytest.mark.parametrize("folder", FOLDERS, ids=["static", "tests"])
def test_every_package_names_version_licence_and_ships_its_text(folder: Path) -> None:
    for package in json.loads((folder / "MANIFEST.json").read_text())["packages"]:
        assert package["version"] and package["licence"]
        assert any(name.endswith("LICENSE") for name in package["files"])


def test_no_source_map_is_named() -> None:
    """A name without its file would stop ``collectstatic``."""
    assert not [path for path in FOLDERS[0].rglob("*.*s") if "sourceMappingURL" in path.read_text()]


def test_every_icon_a_page_names_is_in_the_sprite() -> None:
    sprite = (FOLDERS[0] / "lucide" / "icons.svg").read_text()
    known = set(re.findall(r'<symbol id="([^"]+)"', sprite))
    named = {kind.icon for kind in KINDS.values()} | set(STATUS_ICONS.values())
    for template in (ROOT / "templates").rglob("*.html"):
        named |= set(re.findall(r'{% icon "([^"]+)"', template.read_text()))
    for script in (ROOT / "static" / "js").glob("*.js"):
        named |= set(re.findall(r'icon\("([^"]+)"\)', script.read_text()))
    assert named - known == set()


def test_no_page_carries_inline_script_or_style() -> None:
    """The content security policy would refuse it; it does not govern data."""
    inline = re.compile(
        r'<style|\sstyle="|\son[a-z]+="|javascript:|<script(?![^>]*(?:\bsrc=|\btype="application/json"))'
    )
    assert not [str(path) for path in (ROOT / "templates").rglob("*.html") if inline.search(path.read_text())]
