"""``python -m engine prepare`` gets the bundled base model ready under var/models; ``python -m engine tiny FOLDER``
writes a tiny random model there, for tests and soaks."""

from __future__ import annotations

import sys
from pathlib import Path

from engine.config import EngineConfig
from engine.models import BaseModelError, bundled_default, prepare


def main(arguments: list[str]) -> int:
    match arguments:
        case ["prepare"]:
            try:
                print(f"base model ready: {prepare(bundled_default(), EngineConfig().models)}")
            except BaseModelError as error:
                print(error, file=sys.stderr)
                return 1
        case ["tiny", folder]:
            from engine.tiny import make_tiny_model

            print(f"tiny model ready: {make_tiny_model(Path(folder))}")
        case _:
            print("usage: python -m engine prepare\n       python -m engine tiny FOLDER", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
