"""Compiles a C file of this project for the CPU it runs on and loads it."""

from __future__ import annotations

import ctypes
import logging
import subprocess
import tempfile
from functools import cache
from pathlib import Path

logger = logging.getLogger(__name__)

COMPILE_SECONDS = 60


@cache
def load_library(source: Path, *flags: str) -> ctypes.CDLL | None:
    """The library made of a file, with OpenMP; None, with a word in the log, where it cannot be made or loaded here.

    It takes a third of a second, once a process. ``flags``: further ones of the compiler.
    """
    import torch  # noqa: F401  # its OpenMP runtime has to be the one the library finds

    with tempfile.TemporaryDirectory(prefix="marlaas-native-") as folder:
        compiled, library = Path(folder) / f"{source.stem}.o", Path(folder) / f"{source.stem}.so"
        try:
            _run("cc", "-O3", "-march=native", "-fopenmp", "-fPIC", *flags, "-c", "-o", str(compiled), str(source))
            # By itself: linked with -ffast-math, a library makes the whole process flush small numbers to zero.
            _run("cc", "-shared", "-fopenmp", "-o", str(library), str(compiled), "-lm")
            return ctypes.CDLL(str(library))
        except subprocess.CalledProcessError as error:
            logger.warning("%s does not compile here; PyTorch serves instead: %s", source.name, error.stderr[-500:])
        except (OSError, subprocess.TimeoutExpired) as error:
            logger.warning("%s cannot be compiled here; PyTorch serves instead: %s", source.name, error)
    return None


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_SECONDS)
