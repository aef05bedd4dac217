"""A report: one HTML file with its words, tables and pictures inside, which asks nothing of any network."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Words:
    """A paragraph; its text is HTML."""

    text: str

    def __str__(self) -> str:
        return f"<p>{self.text}</p>"


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure of matplotlib, with what it says to who cannot see it, and a caption for who can."""

    figure: Figure
    alt: str
    caption: str

    def __str__(self) -> str:
        file = io.BytesIO()
        self.figure.savefig(file, format="png", dpi=144)
        png = base64.b64encode(file.getvalue()).decode("ascii")
        image = f'<img alt="{html.escape(self.alt)}" src="data:image/png;base64,{png}">'
        return f"<figure>{image}<figcaption>{html.escape(self.caption)}</figcaption></figure>"


@dataclass(frozen=True)
class Grid:
    """A table; its first `names` columns are names, all others numbers."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int = 1

    def __str__(self) -> str:
        head = "".join(self._cell("th", at, name) for at, name in enumerate(self.header))
        body = "".join(
            "<tr>" + "".join(self._cell("td", at, text) for at, text in enumerate(row)) + "</tr>" for row in self.rows
        )
        return (
            f'<div class="wide"><table><caption>{html.escape(self.caption)}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def _cell(self, tag: str, at: int, text: str) -> str:
        kind = ' scope="col"' if tag == "th" else ""
        if at >= self.names:
            kind += ' class="number"'
            text = text if tag == "th" else text.replace("-", "\N{MINUS SIGN}")
        return f"<{tag}{kind}>{html.escape(text)}</{tag}>"


Part = Words | Picture | Grid


@dataclass(frozen=True)
class Section:
    """A heading, and what stands under it."""

    title: str
    parts: Sequence[Part]

    def __str__(self) -> str:
        return f"<section><h2>{html.escape(self.title)}</h2>{''.join(map(str, self.parts))}</section>"


STYLE = """
:root { color-scheme: light }
body { margin: 0; background: #fff; color: #222; font: 1.0625rem/1.6 Charter, Georgia, serif }
main { max-width: 46rem; margin: 0 auto; padding: 3rem 1.25rem 4rem }
h1, h2, table, figcaption, footer { font-family: system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif }
h1 { font-size: 2.1rem; line-height: 1.15; letter-spacing: -.015em; margin: 0 0 1.25rem }
h2 { font-size: 1.35rem; line-height: 1.25; margin: 3.25rem 0 .75rem }
p { margin: 0 0 1rem; hyphens: auto }
figure { margin: 1.75rem 0 }
img { display: block; width: 100%; height: auto }
figcaption, caption { color: #595959; font-size: .875rem; line-height: 1.45; text-align: left }
figcaption { margin-top: .5rem }
caption { padding-bottom: .5rem }
.wide { overflow-x: auto; margin: 1.75rem 0 }
table { border-collapse: collapse; width: 100%; font-size: .9375rem; line-height: 1.4 }
th, td { padding: .35rem .75rem .35rem 0; text-align: left; border-bottom: 1px solid #e4e4df }
th { border-bottom: 1.5px solid #222; font-weight: 600 }
.number { padding-right: 0; padding-left: .75rem; text-align: right; font-variant-numeric: tabular-nums }
footer { margin-top: 4rem; padding-top: 1rem; border-top: 1px solid #e4e4df; color: #595959; font-size: .875rem }
"""


def page(title: str, lead: Sequence[Words], sections: Sequence[Section], footer: str) -> str:
    """The HTML of a report; `footer` is HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n<body><main><h1>{html.escape(title)}</h1>"
        f"{''.join(map(str, lead))}\n"
        + "\n".join(map(str, sections))
        + f"\n<footer>{footer}</footer></main></body></html>\n"
    )
