"""Goes through the cases: compares the answers, times, measures memory, tells as it goes, and keeps what was found."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import machine, page
from benchmarks.cases import Case, picked
from benchmarks.data import Inputs, Pool, answer_of, cotangent_of, inputs_of, run
from benchmarks.memory import Processes, in_short
from benchmarks.peers import OURS, RUNNERS
from benchmarks.peers.ours import chosen
from benchmarks.timing import summary, timed

RESULTS = Path(__file__).parent / "results"
LEAST, MOST = 3, 40  # rounds
SLACK = 16_000_000  # bytes by which memory may vary without a cause: pages, threads' stacks
Result = dict[str, Any]


def measure(case: Case, *, seconds: float, most: int, processes: Processes | None) -> Result:
    """Ours and each peer on one case."""
    inputs, cotangent = inputs_of(case), cotangent_of(case)
    most = min(most, case.rounds or most)
    found, right = compared(case, inputs)
    result: Result = {"case": case.name, "title": case.title, "pairs": case.pairs, "engine": chosen(case, inputs)}
    if right:
        calls = {name: partial(run, pool, inputs, cotangent) for name, pool in right.items()}
        for name, taken in timed(calls, seconds, min(LEAST, most), most).items():
            found[name] |= {"status": "timed", "seconds": taken, **summary(taken)}
            found[name]["compile"] = max(found[name]["first"] - found[name]["median"], 0.0)
    if processes and not case.select:  # which would run for minutes again
        for name in right:
            found[name]["memory"] = processes.peak(case, name)
        if OURS.name in right:
            result["doubled"] = processes.peak(case.doubled(), OURS.name)
    return result | {"runners": found, "figures": figures(case, found, result.get("doubled"))}


def compared(case: Case, inputs: Inputs) -> tuple[dict[str, Result], dict[str, Pool]]:
    """What is known of each runner after its first call, and those whose answers are right."""
    answer = answer_of(case, inputs)
    found: dict[str, Result] = {}
    right: dict[str, Pool] = {}
    for name in (OURS.name, *case.peers):
        peer = RUNNERS[name]
        why = peer.cannot(case)
        if why is not None:
            found[name] = {"status": "cannot", "why": why}
            continue
        try:
            pool = peer.pool(case)
            start = time.perf_counter()
            answered = run(pool, inputs, answer.cotangent)
            first = time.perf_counter() - start
            errors = answer.errors(answered)
        except Exception as error:  # a peer that is not installed, or that fails: that is what there is to report
            if peer is OURS:
                raise
            found[name] = {"status": "cannot", "why": in_short(error)}
            continue
        found[name] = {"error": errors[0], "gradient_error": max(errors[1:], default=None), "first": first}
        if answer.right(errors):
            right[name] = pool
        else:
            over = max(error / limit for error, limit in zip(errors, answer.limits, strict=True))
            found[name] |= {"status": "wrong", "why": f"its error is {over:.3g} times what is allowed"}
    return found, right


def figures(case: Case, found: dict[str, Result], doubled: dict[str, int] | None) -> list[Result]:
    """What was to be reached, and whether it was: ratios of medians, and bytes."""
    ours, told = found[OURS.name], []
    for name in (name for name in found if name != OURS.name):
        timed = found[name].get("status") == ours.get("status") == "timed"
        share = RUNNERS[name].share(case) if hasattr(RUNNERS[name], "share") else 1.0
        ratio = found[name]["median"] / ours["median"] / share if timed else None
        of_minima = found[name]["minimum"] / ours["minimum"] / share if timed else None
        wanted = case.at_least.get(name)
        reached = None if wanted is None else ratio is not None and ratio >= wanted
        if reached and case.dtype == "bfloat16":  # at no larger error
            reached = ours["error"] <= found[name]["error"]
        told.append({"over": name, "ratio": ratio, "of_minima": of_minima, "at_least": wanted, "reached": reached})
    if case.most_seconds:
        took = ours.get("median")
        reached = took is not None and took <= case.most_seconds
        told.append({"seconds": took, "at_most_seconds": case.most_seconds, "reached": reached})
    if doubled:
        once, twice = ours["memory"].get("over"), doubled.get("over")
        if case.most_bytes:
            told.append(
                {"bytes": once, "at_most": case.most_bytes, "reached": once is not None and once <= case.most_bytes}
            )
        linear = once is not None and twice is not None and twice <= 2 * once + SLACK
        told.append({"bytes": once, "doubled": twice, "reached": linear})
    return told


def in_a_process(case: Case, arguments: argparse.Namespace) -> Result:
    """The same in a process with the environment of the case, or with what the caller had there."""
    given = {name: arguments.removed.get(name, value) for name, value in case.environment.items()}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [sys.executable, "-m", "benchmarks", "--child", case.name, f"--out={out}", *arguments.passed_on]
        subprocess.run(command, env={**os.environ, **given}, check=True)
        result: Result = json.loads(out.read_text(encoding="utf-8"))["results"][0]
    return result | {"title": replace(case, environment=given).title, "environment": given}


def main(argv: Sequence[str], removed: dict[str, str]) -> int:
    """Runs the cases that were picked; 1 if an answer of ours was wrong, 2 if there is no such case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of cases; all cases if there are none")
    parser.add_argument("--list", action="store_true", help="say which cases there are")
    parser.add_argument("--seconds", type=float, default=4.0, help="to time a case for, beside first calls (4)")
    parser.add_argument("--rounds", type=int, default=MOST, help=f"at most, for each ({MOST}); at least are {LEAST}")
    parser.add_argument("--engine", default="auto", help="which engine of ours (auto)")
    parser.add_argument("--tiny", action="store_true", help="with a few queries and keys: to try the bench itself")
    parser.add_argument("--no-memory", action="store_true", help="measure no memory")
    parser.add_argument("--out", type=Path, help="the JSON file; all cases go to headline.json, some to picked.json")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    try:
        cases = picked(arguments.names)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.list:
        print("\n".join(f"{case.name:24} {case.title}" for case in cases))
        return 0
    if arguments.child:
        cases = [case for case in cases if case.name == arguments.names[0]]
    arguments.removed = removed
    arguments.passed_on = [f"--seconds={arguments.seconds}", f"--rounds={arguments.rounds}", "--no-memory"]
    arguments.passed_on += [f"--engine={arguments.engine}", *["--tiny"] * arguments.tiny]
    complete = not arguments.names and not arguments.tiny
    out = arguments.out or RESULTS / ("headline.json" if complete else "picked.json")

    found: Result = {"machine": machine.record(removed), "seconds_a_case": arguments.seconds, "results": []}
    start = time.perf_counter()
    with nullcontext() if arguments.no_memory else Processes() as processes:
        for case in cases:
            case = replace(case.tiny() if arguments.tiny else case, engine=arguments.engine)
            if case.environment and not arguments.child:
                result = in_a_process(case, arguments)
            else:
                result = measure(case, seconds=arguments.seconds, most=arguments.rounds, processes=processes)
            found["results"].append(result)
            page.keep(found, out)
            if not arguments.child:
                print(page.plain(result), flush=True)
    if arguments.child:
        return 0
    missed = [r["case"] for r in found["results"] if any(f["reached"] is False for f in r["figures"])]
    wrong = [r["case"] for r in found["results"] if r["runners"][OURS.name]["status"] == "wrong"]
    print(f"{len(cases)} cases in {time.perf_counter() - start:.0f} s; wrote {out}.")
    print(f"Figures not reached in: {', '.join(missed) or 'none'}.")
    if wrong:
        print(f"WRONG ANSWERS of ours in: {', '.join(wrong)}.")
    if complete:
        page.write(found)
    return int(bool(wrong))
