"""``report.html``: one page without script or outside resource, from the results of all parts there are."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from tests.benchmarks import charts
from tests.benchmarks.results import cell, load

STYLE = """
:root { color-scheme: light dark; --text: #1c2330; --soft: #5b6577; --edge: #d8dde6; --ground: #fff; --strip: #f4f6f9;
  --c0: #2563c9; --c1: #c77700; --c2: #15803d; --c3: #a21caf; --c4: #9aa3b2; --c5: #0e7490; --c6: #b91c1c;
  --c7: #6d28d9; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ef; --soft: #a3adbd; --edge: #38414f; --ground: #14181f;
  --strip: #1d232d; --c0: #6aa3ff; --c1: #f0a840; --c2: #4fc47a; --c3: #e07be8; --c4: #6b7585; --c5: #45bcd6;
  --c6: #f47b7b; --c7: #b198f5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 4rem; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { margin-top: 3rem; border-top: 1px solid var(--edge); padding-top: 1.5rem; }
h3 { margin: 1.8rem 0 .4rem; font-size: 1.05rem; }
p.note, .soft { color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--edge); text-align: right; white-space: nowrap; }
th { background: var(--strip); font-weight: 600; } th:first-child, td:first-child { text-align: left; }
svg { width: 100%; height: auto; } .tick { font-size: 11px; fill: var(--soft); }
.name { font-size: 12px; fill: var(--text); text-anchor: middle; }
.axis, .grid { stroke: var(--edge); } .line { fill: none; stroke-width: 2; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: .2rem 0; font-size: 13px; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; border-radius: 2px; }
""" + "".join(
    f".line.c{i} {{ stroke: var(--c{i}); }} .dot.c{i}, .fill.c{i} {{ fill: var(--c{i}); }} "
    f".legend .c{i} {{ background: var(--c{i}); }}\n"
    for i in range(8)
)


def write(folder: Path, letters: list[str]) -> Path:
    """Write the report of the parts present in ``folder``; returns its path."""
    parts = [content for letter in letters if (content := load(folder, letter))]
    links = " · ".join(f'<a href="#{p["letter"]}">{p["letter"]}. {escape(p["title"])}</a>' for p in parts)
    body = "".join(_part(part) for part in parts) or "<p>Nothing was measured yet.</p>"
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>MARLaaS benchmark</title><style>{STYLE}</style><h1>MARLaaS benchmark</h1><p>{links}</p>{body}</html>\n"
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.html"
    path.write_text(page)
    return path


def _part(part: dict[str, Any]) -> str:
    machine = part["machine"]
    where = (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory']}, accelerator: {machine['accelerator']}"
    )
    versions = ", ".join(f"{name} {value}" for name, value in list(machine.items())[4:])
    text = (
        f'<h2 id="{part["letter"]}">{part["letter"]}. {escape(part["title"])}</h2>'
        f'<p class="soft">{escape(where)}<br>{escape(versions)}<br><code>{escape(part["command"])}</code> '
        f"finished {part['finished']} after {part['seconds']:,.0f} s (size: {part['size']})</p>"
    )
    if part["size"] != "full":
        text += f"<p class='note'>Measured with size <b>{part['size']}</b>: coarser than a full run.</p>"
    text += "".join(_table(table) for table in part["tables"])
    for chart in part["charts"]:
        content = {key: value for key, value in chart.items() if key not in ("kind", "title")}
        drawn = charts.KINDS[chart["kind"]](**content)
        text += f"<h3>{escape(chart['title'])}</h3><figure class='scroll' style='margin:0'>{drawn}</figure>"
    notes = "".join(f"<li>{escape(note)}</li>" for note in part["notes"])
    return text + (f"<h3>Notes</h3><ul>{notes}</ul>" if notes else "")


def _table(table: dict[str, Any]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table["columns"])
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell(v))}</td>" for v in row) + "</tr>" for row in table["rows"])
    note = f'<p class="note">{escape(table["note"])}</p>' if table["note"] else ""
    return (
        f"<h3>{escape(table['title'])}</h3><div class='scroll'><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>{note}"
    )
