"""What is measured: a table with one line for each case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

MB = 1_000_000


@dataclass(frozen=True)
class Case:
    """One pooling: its score, its sizes, who else runs it, and how many times as fast as they ours is to be."""

    name: str
    score: str
    queries: int
    keys: int
    dim: int  # of a query and a key
    values: int  # of a value
    peers: tuple[str, ...]
    at_least: Mapping[str, float] = field(default_factory=dict)  # times as fast as a peer
    dtype: str = "float32"
    lead: tuple[int, ...] = ()  # leading axes: batch or heads
    hidden: int = 0  # units of the additive score
    size: float = 1.0  # standard deviation of the additive score's projections
    backward: bool = False  # the gradients to all inputs as well
    library: str = "torch"  # whose arrays ours is given
    most_bytes: int | None = None  # of memory over inputs and outputs
    environment: Mapping[str, str] = field(default_factory=dict)  # of a process of its own that the case needs
    engine: str = "auto"  # of ours
    select: bool = False  # not to pool: to find the bandwidths of least leave-one-out error
    rounds: int | None = None  # at most, where one takes minutes
    spread: float | None = None  # bandwidths over which keys and queries lie evenly; None: they are standard normal
    rtol: float | None = None  # the error that is allowed
    most_seconds: float | None = None

    @property
    def title(self) -> str:
        """The case in a few words."""
        lead = "".join(f"{n} x " for n in self.lead)
        sizes = [f"d = {self.dim}", f"V = {self.values}"]
        if self.spread:
            sizes += [f"h = {1 / self.spread:g} of the range", f"rtol {self.rtol:g}"]
        if self.hidden:
            sizes = [f"H = {self.hidden}", f"V = {self.values}", *self._unusual()]
        way = "forward and backward" if self.backward else "forward"
        way = "bandwidths by leave-one-out" if self.select else way
        arrays = ["NumPy"] if self.library == "numpy" else []
        limits = [", ".join(f"{k}={v}" for k, v in self.environment.items())] if self.environment else []
        what = [f"{lead}{self.queries:,} x {self.keys:,}", *sizes, self.dtype, *arrays, way, *limits]
        return f"{self.score.replace('_', ' ')}, {', '.join(what)}"

    def _unusual(self) -> list[str]:
        return [] if self.size == 1.0 else [f"projections of size {self.size:g}"]

    @property
    def pairs(self) -> int:
        """How many scores there are."""
        n = self.queries * self.keys
        for m in self.lead:
            n *= m
        return n

    def tiny(self) -> Case:
        """The same with a few queries and keys."""
        few = {"queries": 13, "keys": 17, "lead": tuple(min(n, 2) for n in self.lead)}
        spread = self.spread and min(self.spread, 4.0)  # so that each query has a key
        return replace(self, **few, hidden=min(self.hidden, 8), spread=spread, most_bytes=None, most_seconds=None)

    def doubled(self) -> Case:
        """The same with twice the queries and twice the keys."""
        return replace(self, queries=2 * self.queries, keys=2 * self.keys)


POOLING = ("eager", "sdpa", "keops")
ADDITIVE = {"score": "additive", "queries": 512, "keys": 1024, "dim": 64, "values": 64, "hidden": 256}
DISTANCE = {"queries": 20_000, "keys": 20_000, "dim": 3, "values": 1}
HEADS = {"8x2048": (8, 2048, 64), "1x4096": (1, 4096, 64), "64x512": (64, 512, 64), "8x256": (8, 256, 64)}
HALF = {"8x2048": (8, 2048, 64), "1x4096": (1, 4096, 128), "64x512": (64, 512, 64)}
# what a process may have been given to limit NumPy's BLAS; it slows its matrix products down
BLAS_LIMITS = {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_L2_SIZE": "512"}


LINE = {
    "queries": 10_000_000,
    "keys": 10_000_000,
    "dim": 1,
    "values": 1,
    "peers": (),
    "dtype": "float64",
    "library": "numpy",
    "rtol": 1e-9,
}


def dot_product(name: str, shape: tuple[int, int, int], peers: Iterable[str], target: float, **more: object) -> Case:
    """A line for heads of as many queries as keys, held to SDPA."""
    heads, n, d = shape
    return Case(
        name, "dot_product", n, n, d, d, tuple(peers), {"sdpa": target} if target else {}, lead=(heads,), **more
    )


CASES: tuple[Case, ...] = (
    Case("additive", peers=("eager", "compile", "keras", "keops", "sdpa", "flex"), at_least={"eager": 100, "compile": 20}, **ADDITIVE),
    Case("additive-gradients", peers=("eager", "compile", "keras"), at_least={"eager": 40, "compile": 20}, backward=True, **ADDITIVE),
    Case("additive-small", peers=("eager", "compile"), size=1e-2, **ADDITIVE),
    Case("additive-30", peers=("eager", "compile"), size=30.0, **ADDITIVE),
    Case("additive-large", peers=("eager", "compile"), size=1e4, **ADDITIVE),
    Case("additive-memory", peers=("eager",), backward=True, most_bytes=256 * MB, **ADDITIVE | {"queries": 4096, "keys": 4096}),
    Case("gaussian-1d-float32", "gaussian", peers=POOLING, at_least={"keops": 30, "eager": 50, "sdpa": 5}, **DISTANCE | {"dim": 1}),
    Case("gaussian-3d-float32", "gaussian", peers=(*POOLING, "compile", "flex", "sklearn", "keras"), at_least={"keops": 30, "eager": 50, "sdpa": 5}, **DISTANCE),
    Case("gaussian-10d-float32", "gaussian", peers=POOLING, at_least={"keops": 20, "sdpa": 1.5}, **DISTANCE | {"dim": 10, "values": 16}),
    Case("gaussian-1d-float64", "gaussian", peers=POOLING, at_least={"keops": 12, "sdpa": 6}, dtype="float64", **DISTANCE | {"dim": 1}),
    Case("gaussian-3d-float64", "gaussian", peers=POOLING, at_least={"keops": 12, "sdpa": 6}, dtype="float64", **DISTANCE),
    Case("epanechnikov", "epanechnikov", peers=("keops",), at_least={"keops": 20}, **DISTANCE),
    Case("tricube", "tricube", peers=("keops",), at_least={"keops": 20}, **DISTANCE),
    Case("laplacian", "laplacian", peers=("keops",), at_least={"keops": 20}, **DISTANCE),
    Case("cauchy", "cauchy", peers=("keops",), at_least={"keops": 20}, **DISTANCE),
    Case("gaussian-gradients", "gaussian", 8000, 8000, 3, 16, POOLING, {"keops": 15}, backward=True),
    Case("regression", "gaussian", 2000, 2000, 1, 1, ("statsmodels", "sklearn", "eager", "keops"), dtype="float64", library="numpy"),
    Case("select-1000", "gaussian", 1000, 1000, 1, 1, ("statsmodels",), {"statsmodels": 100}, dtype="float64", library="numpy", select=True),
    Case("select-500", "gaussian", 500, 500, 3, 1, ("statsmodels",), {"statsmodels": 300}, dtype="float64", library="numpy", select=True, rounds=1),
    *(Case(f"line-gaussian-{h:g}", "gaussian", spread=1 / h, most_seconds=1.0, **LINE) for h in (1e-3, 1e-5, 1.0)),
    *(Case(f"line-epanechnikov-{h:g}", "epanechnikov", spread=4 / h, most_seconds=3.0, **LINE) for h in (1e-3, 1e-5, 1.0)),
    Case("plane-gaussian", "gaussian", 1_000_000, 1_000_000, 2, 1, ("brute",), {"brute": 50}, dtype="float64", library="numpy", spread=50.0, rtol=1e-6),
    Case("space-gaussian", "gaussian", 100_000, 1_000_000, 3, 1, ("brute",), {"brute": 10}, dtype="float64", library="numpy", spread=20.0, rtol=1e-6),
    *(
        dot_product(f"dot-{name}", shape, ("sdpa", "eager", *more), 1.0)
        for (name, shape), more in zip(HEADS.items(), (("compile", "flex", "keras"), (), (), ("keops",)), strict=True)
    ),
    *(dot_product(f"dot-{name}-gradients", shape, ("sdpa", "eager"), 1.0, backward=True) for name, shape in HEADS.items()),
    dot_product("dot-numpy", HEADS["8x2048"], ("sdpa",), 1.2, library="numpy"),
    dot_product("dot-numpy-limited", HEADS["8x2048"], ("sdpa",), 0, library="numpy", environment=BLAS_LIMITS),
    *(dot_product(f"dot-{name}-bfloat16", shape, ("sdpa", "eager"), 1.7, dtype="bfloat16") for name, shape in HALF.items()),
)  # fmt: skip


def picked(words: Iterable[str]) -> list[Case]:
    """The cases whose name has one of these words in it, in the order of the table; all of them for no word."""
    words = list(words)
    unknown = [word for word in words if not any(word in case.name for case in CASES)]
    if unknown:
        known = ", ".join(case.name for case in CASES)
        raise ValueError(f"no case has {' or '.join(map(repr, unknown))} in its name; the known ones are {known}.")
    return [case for case in CASES if not words or any(word in case.name for word in words)]
