"""What a peer is."""

from __future__ import annotations

from typing import Protocol

from benchmarks.cases import Case
from benchmarks.data import Pool


class Peer(Protocol):
    """A library that can run cases. It is imported in ``pool``, so that its absence is a reason and no error."""

    name: str
    title: str  # as readers know it
    how: str  # what is run, in a sentence
    compiles: bool  # anew for other sizes

    def cannot(self, case: Case) -> str | None:
        """Why it cannot run the case, in a sentence; None if it can."""

    def pool(self, case: Case) -> Pool:
        """A function from the inputs, which are torch tensors, to the pooled values; torch differentiates it."""
