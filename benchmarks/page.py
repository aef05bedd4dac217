"""What was found, in words: plain on the terminal, and as `docs/benchmarks.md`, which is made from the JSON file.

python -m benchmarks.page
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.cases import MB
from benchmarks.peers import RUNNERS

ROOT = Path(__file__).parents[1]
HEADLINE = ROOT / "benchmarks" / "results" / "headline.json"
PAGE = ROOT / "docs" / "benchmarks.md"
Result = dict[str, Any]


def keep(found: Result, path: Path) -> None:
    """Writes the JSON file, a case at a time on lines of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def seconds(x: float | None) -> str:
    """A time in a unit that suits it."""
    if x is None:
        return "–"
    return f"{x:.3g} s" if x >= 1 else f"{1e3 * x:.3g} ms" if x >= 1e-3 else f"{1e6 * x:.3g} µs"


def small(x: float | None) -> str:
    return "–" if x is None else f"{x:.1e}"


def megabytes(x: float | None) -> str:
    if x is None:
        return "–"
    return f"{x / MB:,.0f} MB" if x >= 10 * MB else f"{x / MB:.1f} MB"


HEADER = ("", "minimum", "median", "maximum", "rounds", "compiled in", "memory", "error", "of gradients", "ours is")


def rows(result: Result) -> list[tuple[str, ...]]:
    """One line for each runner that was timed or found wrong."""
    ratios = {f["over"]: f["ratio"] for f in result["figures"] if "over" in f}
    lines = []
    for name, r in result["runners"].items():
        if r["status"] == "cannot":
            continue
        timed = r["status"] == "timed"
        times = [seconds(r[k]) if timed else "wrong" for k in ("minimum", "median", "maximum")]
        extra = [str(r["rounds"]), seconds(r["compile"])] if timed else ["–", "–"]
        memory = megabytes(r.get("memory", {}).get("over"))
        ratio = f"{ratios[name]:.3g} x" if ratios.get(name) else ""
        lines.append(
            (RUNNERS[name].title, *times, *extra, memory, small(r["error"]), small(r["gradient_error"]), ratio)
        )
    return lines


def reasons(result: Result) -> list[str]:
    """Why some were not timed, or their memory not measured."""
    told = {"cannot": "not run", "wrong": "wrong"}
    lines = []
    for name, r in result["runners"].items():
        if r["status"] != "timed":
            lines.append(f"{RUNNERS[name].title}: {told[r['status']]}, {r['why']}.")
        elif "why" in r.get("memory", {}):
            lines.append(f"{RUNNERS[name].title}: memory not measured, {r['memory']['why']}.")
    return lines


def sentence(figure: Result) -> str | None:
    """A figure that was to be reached, and whether it was."""
    if figure["reached"] is None:
        return None
    end = "reached" if figure["reached"] else "NOT reached"
    if "over" in figure:
        ratio = f"{figure['ratio']:.3g} x" if figure["ratio"] else "no time"
        return f"{ratio} {RUNNERS[figure['over']].title}, at least {figure['at_least']:g} x: {end}"
    if "at_most" in figure:
        return f"{megabytes(figure['bytes'])} over inputs and outputs, at most {megabytes(figure['at_most'])}: {end}"
    if "at_most_seconds" in figure:
        took = f"{figure['seconds']:.3g} s" if figure["seconds"] else "no time"
        return f"{took}, at most {figure['at_most_seconds']:g} s: {end}"
    change = f"{megabytes(figure['bytes'])} to {megabytes(figure['doubled'])}"
    return f"memory with twice the queries and keys, {change}: {'linear' if figure['reached'] else 'NOT linear'}"


def plain(result: Result) -> str:
    """A case on the terminal."""
    table = [HEADER, *rows(result)]
    widths = [max(len(row[i]) for row in table) for i in range(len(HEADER))]
    lines = [
        "  ".join(x.rjust(w) if i else x.ljust(w) for i, (x, w) in enumerate(zip(row, widths, strict=True)))
        for row in table
    ]
    said = [s for f in result["figures"] if (s := sentence(f))]
    title = f"{result['case']}: {result['title']} (engine {result['engine']})"
    return "\n  ".join([title, *(line.rstrip() for line in lines), *said, *reasons(result)]) + "\n"


def table(header: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    """A table in Markdown, numbers to the right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, tuple(rule), *lines))


def markdown(found: Result) -> str:
    """The whole page."""
    m = found["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in m["versions"].items())
    caches = ", ".join(f"{name} {size}" for name, size in m["caches"].items())
    environment = ", ".join(f"`{name}={value}`" for name, value in m["environment"].items()) or "nothing"
    used = {name for result in found["results"] for name in result["runners"]}
    figures = [
        (result["case"], sentence(figure) or "")
        for result in found["results"]
        for figure in result["figures"]
        if figure["reached"] is not None and "doubled" not in figure
    ]
    parts = [
        "# Benchmarks",
        "Made by `make bench` from `benchmarks/results/headline.json`; not to be edited.",
        "Ours and each peer run in the same process, by turns (ours, peer, peer, ours, ...), after their answers were "
        "compared with a float64 answer, in float64 with one in long double, for 64 of the queries: one whose error is "
        "over ten times that of eager PyTorch is wrong and gets no time. The last column says how many times as fast "
        "ours is, by medians. What is compiled in the first call, from empty caches, is apart; a case may find "
        "compiled what an earlier one needed. Memory is the peak over inputs and outputs, in a process of its own. "
        "Errors are max |out - exact| / max |value|, of gradients max |gradient - exact| / max |exact|.",
        f"{m['cpu']}, {m['cores']} cores, {m['threads']} threads, {m['memory'] / 1e9:.0f} GB of memory; {caches}; "
        f"vector extensions {', '.join(m['vectors'])}. {m['system']}, Python {m['python']}, {versions}. Commit "
        f"`{m['commit'][:12]}`{' and changes to it' if m['changed'] else ''}, {m['date'][:10]}. Set in the "
        f"environment: {environment}. `OPENBLAS_CORETYPE` and `OPENBLAS_L2_SIZE` are unset but where a case says "
        "otherwise.",
        "## Figures to reach",
        table(("case", "figure"), figures).replace("---:", "---"),
        "## What is run",
        "\n".join(f"- {peer.title}: {peer.how}" for name, peer in RUNNERS.items() if name in used),
        "## Cases",
    ]
    for result in found["results"]:
        parts += [f"### {result['case']}", f"{result['title']}. Engine: {result['engine']}."]
        parts.append(table(HEADER, rows(result)))
        notes = [s for f in result["figures"] if "doubled" in f and (s := sentence(f))]
        notes = [f"{s[0].upper()}{s[1:]}." for s in notes] + reasons(result)
        if notes:
            parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def write(found: Result) -> None:
    """Writes the page."""
    PAGE.write_text(markdown(found), encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    write(json.loads(HEADLINE.read_text(encoding="utf-8")))
