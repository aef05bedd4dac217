"""`regard demo`: its numbers, and a report that needs nothing but itself."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from sklearn.datasets import load_diabetes

from regard.cli import main
from regard.datasets import motorcycle


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """What the demo printed, and its report."""
    folder = tmp_path_factory.mktemp("demo") / "new" / "folder"
    code = "import sys; from regard.cli import main; code = main(sys.argv[1:]); assert 'torch' not in sys.modules; "
    code += "sys.exit(code)"
    done = subprocess.run(
        [sys.executable, "-c", code, "demo", "-o", str(folder)], capture_output=True, text=True, check=True, cwd="/"
    )
    assert done.stderr == ""
    assert str(folder / "index.html") in done.stdout.replace("\n", "")
    return done.stdout, (folder / "index.html").read_text(encoding="utf-8")


def error(printed: str, data: str, method: str, column: int = 2) -> str:
    row = next(line for line in printed.splitlines() if data in line and method + " " in line)
    return [cell.strip() for cell in row.strip("│┃ ").split("│")][column]


def test_the_table_has_the_published_minimum_and_the_plain_formulas(told):
    printed, _ = told
    times, accel = motorcycle()
    n = len(accel)
    others = (accel.sum() - accel) / (n - 1)
    assert error(printed, "motorcycle", "average pooling") == f"{np.sqrt(np.mean((others - accel) ** 2)):.2f} g"
    published = np.sqrt(595.93634)  # reference values: the least leave-one-out error of these data
    assert error(printed, "motorcycle", "learned w") == f"{published:.2f} g"
    h = times.std(ddof=1) * (3 * n / 4) ** -0.2
    w = np.exp(-((times[:, None] - times) ** 2) / (2 * h**2)) * (1 - np.eye(n))
    silverman = np.sqrt(np.mean((w @ accel / w.sum(1) - accel) ** 2))
    assert error(printed, "motorcycle", "Silverman's width") == f"{silverman:.2f} g"
    target = load_diabetes().target
    others = (target.sum() - target) / (len(target) - 1)
    assert error(printed, "diabetes", "average pooling") == f"{np.sqrt(np.mean((others - target) ** 2)):.2f} points"


def test_a_learned_query_helps_on_all_data(told):
    printed, _ = told
    number = lambda *row: float(re.match(r"[\d.]+", error(printed, *row))[0])  # noqa: E731
    for data in ("motorcycle", "diabetes"):
        errors = [
            number(data, m) for m in ("average pooling", "Silverman's width", "learned w", "learned w per feature")
        ]
        assert errors == sorted(errors, reverse=True)
    for method in ("learned w", "additive attention", "dot-product attention"):
        assert number("digits", method, 3) < 10 < number("digits", "average pooling", 3)


def test_the_report_holds_all_that_it_shows(told):
    printed, page = told
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "http" not in re.sub(r"base64,[^\"]*", "", page)
    pictures = re.findall(r'<img alt="([^"]+)" src="data:image/png;base64,([^"]+)"', page)
    assert len(pictures) == page.count("<img") == 5
    for alt, png in pictures:
        assert alt
        assert base64.b64decode(png, validate=True).startswith(b"\x89PNG")
    for line in printed.splitlines():
        if line.startswith("│"):
            for cell in line.strip("│ ").split("│"):
                assert cell.strip().replace("'", "&#x27;") in page


@pytest.mark.parametrize("blocked", ["folder", "page"])
def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys, monkeypatch, blocked):
    monkeypatch.setattr("regard.cli.demo._motorcycle", lambda story: None)
    monkeypatch.setattr("regard.cli.demo._diabetes", lambda story: None)
    monkeypatch.setattr("regard.cli.demo._digits", lambda story: None)
    monkeypatch.setattr("regard.cli.app._console", lambda: Console(quiet=True))
    if blocked == "folder":
        (tmp_path / "file").write_text("")
        output, message = tmp_path / "file" / "report", "cannot be made: "
    else:
        (tmp_path / "index.html").mkdir()
        output, message = tmp_path, "cannot be written: "
    assert main(["demo", "-o", str(output)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
