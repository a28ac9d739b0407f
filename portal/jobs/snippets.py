"""A new job as a command and as a program that start the same one over the API, with a token in the environment."""

from __future__ import annotations

import json
import pprint
from typing import Any

from pydantic import BaseModel

TOKEN_VARIABLE = "MARLAAS_TOKEN"


def request_body(
    *,
    name: str,
    base_model_id: str,
    dataset_version: Any,
    reward_version: Any,
    settings: dict[str, Any],
    start_from: Any,
    defaults: dict[str, BaseModel],
) -> dict[str, Any]:
    """The API's request for a job; settings at their defaults are left out.

    ``defaults`` maps a section to the spec's model as it is without any setting.
    """
    body = {
        "name": name,
        "base_model": base_model_id,
        "dataset_version": str(dataset_version) if dataset_version else None,
        "reward_version": str(reward_version),
        "settings": _without_defaults(settings, defaults),
        "start_from": str(start_from) if start_from else None,
    }
    return {key: value for key, value in body.items() if value not in (None, {})}


def _without_defaults(settings: dict[str, Any], defaults: dict[str, BaseModel]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for section, value in settings.items():
        if section not in defaults:
            if value:  # the seed
                kept[section] = value
            continue
        own = {
            setting: given
            for setting, given in value.items()
            if setting == "type" or given != getattr(defaults[section], setting, None)
        }
        if own and own != {"type": "single_turn"}:
            kept[section] = own
    return kept


def as_curl(body: dict[str, Any], url: str) -> str:
    """A POSIX shell command; the quoted here-document passes the JSON as it is."""
    return (
        f"curl -sS --fail-with-body {url} \\\n"
        f'  -H "Authorization: Bearer ${TOKEN_VARIABLE}" \\\n'
        "  -H 'Content-Type: application/json' \\\n"
        f"  -d @- <<'END'\n{json.dumps(body, indent=2)}\nEND\n"
    )


def as_python(body: dict[str, Any], url: str) -> str:
    """A program for Python 3 alone, without packages."""
    return (
        "import json\nimport os\nimport urllib.request\n\n"
        f"job = {pprint.pformat(body, sort_dicts=False, width=88)}\n\n"
        "request = urllib.request.Request(\n"
        f"    {url!r},\n"
        "    data=json.dumps(job).encode(),\n"
        "    headers={\n"
        f"        'Authorization': 'Bearer ' + os.environ['{TOKEN_VARIABLE}'],\n"
        "        'Content-Type': 'application/json',\n"
        "    },\n"
        ")\n"
        "with urllib.request.urlopen(request) as answer:\n"
        "    print(json.load(answer)['id'])\n"
    )
