"""``python -m engine prepare``: get the bundled base model ready under var/models."""

from __future__ import annotations

import sys

from engine.config import EngineConfig
from engine.models import BaseModelError, bundled_default, prepare


def main(arguments: list[str]) -> int:
    if arguments != ["prepare"]:
        print("usage: python -m engine prepare", file=sys.stderr)
        return 2
    try:
        print(f"base model ready: {prepare(bundled_default(), EngineConfig().models)}")
    except BaseModelError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
