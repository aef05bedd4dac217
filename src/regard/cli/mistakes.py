"""A user's mistake, and how it is told: one sentence, on one line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class UserError(Exception):
    """What the user can put right; `regard` prints its text on standard error and ends with status 2."""


def quoted(name: object) -> str:
    """The name in double quotes, on one line: whatever a file or column is called, it cannot break the sentence.

    >>> quoted("two\\nlines")
    '"two\\\\nlines"'
    """
    return json.dumps(str(name), ensure_ascii=False)


def shortened(text: str, limit: int = 60) -> str:
    """The text, cut after `limit` characters.

    >>> shortened("a long story", limit=6)
    'a long...'
    """
    return text if len(text) <= limit else text[:limit] + "..."


def one_sentence(text: object) -> str:
    """The sentences of the text in one, on one line.

    >>> one_sentence("This is no number.\\nUse one.")
    'This is no number; use one.'
    """
    return re.sub(r"\. ([A-Z])", lambda start: f"; {start[1].lower()}", " ".join(str(text).split()))


def listed(items: Iterable[object], limit: int = 5, last: str = "and") -> str:
    """The items as words of a sentence, the first few of them.

    >>> listed([3, 5, 8]), listed(range(20), limit=3)
    ('3, 5 and 8', '0, 1, 2 and 17 more')
    """
    words = [str(item) for item in items]
    if len(words) > limit:
        return f"{', '.join(words[:limit])} and {len(words) - limit} more"
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def closest(name: str, names: Sequence[str]) -> str:
    """The one of `names` that looks most like `name`, capitals aside.

    >>> closest("heigth", ["Width", "Height"])
    'Height'
    """
    folded = {other.casefold(): other for other in reversed(names)}
    return folded[get_close_matches(name.casefold(), folded, n=1, cutoff=0)[0]]
