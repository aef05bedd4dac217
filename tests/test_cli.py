"""The command: what it writes, what it says, and what it says to a user's mistake."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors import safe_open
from safetensors.numpy import save

import regard as rg
from regard.cli import main
from regard.cli.progress import progress
from regard.scores import kernels

ROWS = 13
RNG = np.random.default_rng(7)
X = np.column_stack([np.linspace(0, 3, ROWS), RNG.normal(size=ROWS)])
Y = np.sin(X[:, 0]) + X[:, 1] / 8


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder to work in, with `data.csv`: two features, a text, a target."""
    monkeypatch.chdir(tmp_path)
    frame().write_csv("data.csv")
    return tmp_path


def frame() -> pl.DataFrame:
    return pl.DataFrame({"a": X[:, 0], "b": X[:, 1], "name": [f"n{i}" for i in range(ROWS)], "y": Y})


@pytest.fixture
def command(capsysbinary, monkeypatch):
    """Run the command here; its status and what went to both streams."""

    def run(*arguments: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = main(arguments)
        out, err = capsysbinary.readouterr()
        return status, out, err.decode()

    return run


@pytest.fixture
def model(command):
    """`model.rg`, fitted to `data.csv` with known bandwidths."""
    assert command("fit", "data.csv", "--target", "y", "--bandwidth", "0.5,2", "-o", "model.rg")[0] == 0
    return "model.rg"


def estimator(bandwidth=(0.5, 2.0)) -> rg.NadarayaWatsonRegressor:
    return rg.NadarayaWatsonRegressor("gaussian", list(bandwidth)).fit(X, Y)


def elsewhere(*words: str, **options):
    """Python with these words, in a process of its own that finds the same regard."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment["PYTHONPATH"] = str(Path(rg.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, *words], env=environment, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    )


def output_of(*words: str, stdin: bytes = b"") -> tuple[int, str, str]:
    with elsewhere(*words, stdin=subprocess.PIPE) as process:
        out, err = process.communicate(stdin)
        return process.returncode, out.decode(), err.decode()


# --- what it does


def test_fit_says_what_it_found_and_what_it_left_out(command):
    status, out, err = command("fit", "data.csv", "--target", "y", "--bandwidth", "0.5,2", "-o", "model.rg")
    assert (status, err) == (0, "")
    lines = [line.split() for line in out.decode().splitlines()]
    assert lines[:3] == [["feature", "bandwidth"], ["a", "0.5"], ["b", "2"]]
    assert out.decode().splitlines()[3:] == [
        'columns not used: "name"',
        f"wrote model.rg; it contains the {ROWS} training rows",
    ]


@pytest.mark.parametrize("bandwidth", ["loo", "loo_shared", "scott", "silverman", "0.7", "0.7,inf"])
@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_fit_finds_what_the_estimator_finds(command, bandwidth, kernel):
    arguments = ["--target", "y", "--kernel", kernel, "--bandwidth", bandwidth, "-o", "m", "--json"]
    status, out, err = command("fit", "data.csv", *arguments)
    assert (status, err) == (0, "")
    given = {"0.7": 0.7, "0.7,inf": [0.7, np.inf]}.get(bandwidth, bandwidth)
    wanted = rg.NadarayaWatsonRegressor(kernel, given, random_state=0).fit(X, Y).bandwidth_.tolist()
    assert json.loads(out) == {
        "model": "m",
        "target": "y",
        "kernel": kernel,
        "bandwidth": {name: h if np.isfinite(h) else None for name, h in zip("ab", wanted, strict=True)},
        "rows": ROWS,
        "unused": ["name"],
    }


def test_features_are_taken_in_the_order_named(command):
    status, out, _ = command(
        "fit", "data.csv", "--target", "y", "--features", "b, a", "--bandwidth", "2,0.5", "-o", "m", "--json"
    )
    assert status == 0
    assert json.loads(out)["bandwidth"] == {"b": 2.0, "a": 0.5}
    assert command("predict", "m", "data.csv", "-o", "out.csv")[0] == 0
    # one ulp or so: the two features enter the squared distance in the other order
    np.testing.assert_allclose(
        pl.read_csv("out.csv")["y_predicted"].to_numpy(), estimator().predict(X), rtol=1e-14, atol=1e-15
    )


def test_a_name_with_a_comma_goes_in_quotes(command):
    frame().rename({"a": "a,1"}).write_csv("comma.csv")
    out = command("fit", "comma.csv", "--target", "y", "--features", '"a,1",b', "--bandwidth", "1", "-o", "m", "--json")
    assert json.loads(out[1])["bandwidth"] == {"a,1": 1.0, "b": 1.0}


def test_a_weight_of_two_is_the_row_twice(command):
    counts = [2 if i == 4 else 1 for i in range(ROWS)]
    frame().with_columns(pl.Series("count", counts)).write_csv("counted.csv")
    frame()[[*range(ROWS), 4]].write_csv("twice.csv")
    fit = ["--target", "y", "--bandwidth", "0.5", "-o"]
    assert command("fit", "counted.csv", "--weights", "count", *fit, "counted.rg")[0] == 0
    assert command("fit", "twice.csv", *fit, "twice.rg")[0] == 0
    found = []
    for name in ("counted", "twice"):
        assert command("predict", f"{name}.rg", "data.csv", "-o", f"{name}.out.csv")[0] == 0
        found.append(pl.read_csv(f"{name}.out.csv")["y_predicted"].to_numpy())
    assert np.abs(found[0] - estimator([0.5, 0.5]).predict(X)).max() > 1e-4  # the weight does something
    np.testing.assert_allclose(found[0], found[1], rtol=1e-14, atol=1e-15)  # sums of 13 and of 14 terms


def write_in(kind: str, table: pl.DataFrame, file: str | io.BytesIO) -> None:
    if kind in ("csv", "tsv"):
        table.write_csv(file, separator="," if kind == "csv" else "\t")
    elif kind == "parquet":
        table.write_parquet(file)
    else:
        table.write_ipc(file)


def read_from(kind: str, source: str | io.BytesIO) -> pl.DataFrame:
    if kind in ("csv", "tsv"):
        return pl.read_csv(source, separator="," if kind == "csv" else "\t")
    if kind == "parquet":
        return pl.read_parquet(source)
    return pl.read_ipc(source) if isinstance(source, str) else pl.read_ipc_stream(source)


@pytest.mark.parametrize("out_kind", ["csv", "tsv", "parquet", "arrow"])
@pytest.mark.parametrize("in_kind", ["csv", "tsv", "parquet", "arrow"])
def test_predict_adds_a_column_in_every_format(command, model, in_kind, out_kind):
    write_in(in_kind, frame(), f"in.{in_kind}")
    status, out, err = command("predict", model, f"in.{in_kind}", "-o", f"out.{out_kind}")
    assert (status, err) == (0, "")
    assert out.decode() == f'wrote out.{out_kind}; its column "y_predicted" has the predictions of {ROWS} rows\n'
    found = read_from(out_kind, f"out.{out_kind}")
    assert found.equals(frame().with_columns(y_predicted=pl.Series(estimator().predict(X))))  # every bit of it


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "arrow"])
def test_streams_go_in_and_out(command, model, kind):
    given = io.BytesIO()
    write_in(kind, frame(), given)
    chosen = [] if kind == "csv" else ["--format", kind]
    status, out, err = command("predict", model, "-", "-o", "-", *chosen, stdin=given.getvalue())
    assert (status, err) == (0, "")
    found = read_from(kind, io.BytesIO(out))
    assert found.equals(frame().with_columns(y_predicted=pl.Series(estimator().predict(X))))
    if kind == "arrow":  # and what came out, a stream and not a file, goes in again
        assert command("explain", model, "-", "--format", "arrow", stdin=out)[0] == 0


def test_a_model_can_go_to_standard_output(command, model, folder):
    status, out, err = command("fit", "data.csv", "--target", "y", "--bandwidth", "0.5,2", "-o", "-")
    assert (status, err) == (0, "")
    assert out == (folder / model).read_bytes()


def test_predict_needs_no_target_and_says_what_it_did_to_machines(command, model):
    frame().select("b", "a").write_csv("new.csv")
    status, out, _ = command("predict", model, "new.csv", "-o", "out.csv", "--json")
    assert status == 0
    assert json.loads(out) == {"output": "out.csv", "column": "y_predicted", "rows": ROWS}
    assert pl.read_csv("out.csv").columns == ["b", "a", "y_predicted"]


def test_many_rows_are_predicted_in_parts(command, model):
    many = pl.DataFrame({"a": np.tile(X[:, 0], 211), "b": np.tile(X[:, 1], 211)})
    many.write_parquet("many.parquet")
    assert command("predict", model, "many.parquet", "-o", "out.parquet")[0] == 0
    found = pl.read_parquet("out.parquet")["y_predicted"].to_numpy().reshape(211, ROWS)
    # a row's sum may be taken in another order in another part
    np.testing.assert_allclose(found, np.tile(estimator().predict(X), (211, 1)), rtol=1e-13, atol=1e-14)


def test_text_columns_come_out_as_they_came_in(command, model, folder):
    (folder / "odd.csv").write_bytes(
        b'\xef\xbb\xbfid,a,b,"two\nlines",day\r\n007,1.50,0.25,"x, y",2024-01-05\r\n010,2,1e-1,"he said ""no""",\r\n'
    )
    assert command("predict", model, "odd.csv", "-o", "out.csv")[0] == 0
    first, second = estimator().predict([[1.5, 0.25], [2.0, 0.1]]).tolist()
    assert (folder / "out.csv").read_bytes().decode() == (
        f'id,a,b,"two\nlines",day,y_predicted\n007,1.50,0.25,"x, y",2024-01-05,{first!r}\n'
        f'010,2,1e-1,"he said ""no""",,{second!r}\n'
    )
    assert command("predict", model, "odd.csv", "-o", "out.parquet")[0] == 0
    assert pl.read_parquet("out.parquet").rows() == [
        ("007", 1.5, 0.25, "x, y", "2024-01-05", first),
        ("010", 2.0, 0.1, 'he said "no"', None, second),
    ]


def test_columns_of_a_text_get_their_types_in_a_typed_file(command, model, folder):
    (folder / "t.csv").write_text("a,b,whole,truth,gap,code,mixed\n1,2,-3,true,NA,007,1\n2,3,4,False,0.5,12,x\n")
    assert command("predict", model, "t.csv", "-o", "out.arrow")[0] == 0
    found = pl.read_ipc("out.arrow").drop("y_predicted")
    assert found.rows() == [(1, 2, -3, True, None, "007", "1"), (2, 3, 4, False, 0.5, "12", "x")]
    assert found.dtypes == [pl.Int64, pl.Int64, pl.Int64, pl.Boolean, pl.Float64, pl.String, pl.String]


def test_whole_numbers_and_truth_values_are_numbers(command, folder):
    (folder / "t.csv").write_text("n,truth,empty,y\n1,TRUE,,0\n2,false,,1\n5,True,,0.5\n")
    status, out, _ = command("fit", "t.csv", "--target", "y", "--bandwidth", "1", "-o", "m", "--json")
    assert status == 0
    assert list(json.loads(out)["bandwidth"]) == ["n", "truth"]
    pl.DataFrame({"n": [1, 2, 5], "truth": [True, False, True], "y": [0.0, 1.0, 0.5]}).write_parquet("t.parquet")
    assert command("fit", "t.parquet", "--target", "y", "--bandwidth", "1", "-o", "p")[0] == 0
    assert Path("m").read_bytes() == Path("p").read_bytes()


def test_lines_that_are_blank_are_no_rows(command, model, folder):
    (folder / "blank.csv").write_bytes(b"\r\na,b\r\n1,2\r\n\r\n2,3\r\n\r\n")
    assert command("predict", model, "blank.csv", "-o", "out.csv")[0] == 0
    assert pl.read_csv("out.csv").select("a", "b").rows() == [(1, 2), (2, 3)]


def test_spaces_around_a_number_and_line_ends_of_an_old_mac(command, model, folder):
    (folder / "odd.csv").write_bytes(b"a,b\r 1,\t2 \r2 , 3\r")
    assert command("predict", model, "odd.csv", "-o", "out.parquet")[0] == 0
    assert pl.read_parquet("out.parquet").select("a", "b").rows() == [(1, 2), (2, 3)]


def test_arrow_files_have_the_text_columns_that_every_library_reads(command, model):
    assert command("predict", model, "data.csv", "-o", "out.arrow")[0] == 0
    pyarrow = pytest.importorskip("pyarrow", reason="another reader of Arrow files")
    with pyarrow.ipc.open_file("out.arrow") as file:
        assert file.schema.field("name").type == pyarrow.large_string()  # not the newer string_view


def test_quotes_within_a_field_are_a_part_of_it(command, model, folder):
    (folder / "pipes.csv").write_text('size,a,b\n5" pipe,1,2\n6" pipe,2,3\n')
    assert command("predict", model, "pipes.csv", "-o", "out.csv")[0] == 0
    assert pl.read_csv("out.csv")["size"].to_list() == ['5" pipe', '6" pipe']


@pytest.mark.parametrize("value", [5e-324, 1.7976931348623157e308, 0.1, 1 / 3, -1e22, 123456789.12345679])
def test_numbers_survive_the_way_through_a_text(command, value):
    frame().with_columns(y=pl.lit(value)).write_csv("one.csv")
    assert command("fit", "one.csv", "--target", "y", "--bandwidth", "inf", "--features", "a", "-o", "m")[0] == 0
    with safe_open("m", framework="numpy") as file:
        assert (file.get_tensor("y") == value).all()
    assert command("predict", "m", "data.csv", "-o", "p.csv")[0] == 0
    assert command("predict", "m", "data.csv", "-o", "p.parquet")[0] == 0
    assert pl.read_csv("p.csv")["y_predicted"].equals(pl.read_parquet("p.parquet")["y_predicted"])


def test_explain_shows_the_rows_behind_a_prediction(command, model):
    status, out, err = command("explain", model, "data.csv", "--row", "3", "--top", "5", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    weights, rows = (part[0] for part in estimator().attention(X[3:4], n=5))
    assert found["row"] == 3
    assert found["features"] == {"a": X[3, 0], "b": X[3, 1]}
    assert found["prediction"] == estimator().predict(X[3:4])[0]
    neighbours = found["neighbours"]
    assert [one["rank"] for one in neighbours] == [1, 2, 3, 4, 5]
    assert [one["weight"] for one in neighbours] == weights.tolist()
    assert [one["row"] for one in neighbours] == rows.tolist()
    assert [one["share"] for one in neighbours] == np.cumsum(weights).tolist()
    assert [one["target"] for one in neighbours] == Y[rows].tolist()
    assert [one["features"]["b"] for one in neighbours] == X[rows, 1].tolist()


def test_explain_prints_a_table(command, model):
    status, out, _ = command("explain", model, "data.csv", "--row", "3", "--top", "2")
    assert status == 0
    lines = out.decode().splitlines()
    assert lines[0] == f"row 3: a = {X[3, 0]:.6g}, b = {X[3, 1]:.6g}"
    assert lines[1] == f"y_predicted = {estimator().predict(X[3:4])[0]:.6g}"
    assert lines[2].split() == ["rank", "weight", "share", "so", "far", "training", "row", "a", "b", "y"]
    weights, rows = (part[0] for part in estimator().attention(X[3:4], n=2))
    for line, rank in zip(lines[3:], (0, 1), strict=True):
        at = rows[rank]
        shown = [f"{value:.6g}" for value in (*X[at], Y[at])]
        share = f"{weights[: rank + 1].sum():.1%}"
        assert line.split() == [str(rank + 1), f"{weights[rank]:.4f}", share, str(at), *shown]


def test_explain_looks_at_one_row_only(command, model, folder):
    (folder / "gap.csv").write_text("a,b\nnothing,\n1,2\n")
    assert command("explain", model, "gap.csv", "--row", "1")[0] == 0


def test_explain_shows_as_many_rows_as_there_are(command, model):
    _, out, _ = command("explain", model, "data.csv", "--top", "99", "--json")
    found = json.loads(out)["neighbours"]
    assert sorted(one["row"] for one in found) == list(range(ROWS))
    assert found[-1]["share"] == pytest.approx(1, abs=1e-14)


def test_explain_shows_only_rows_within_the_reach_of_the_kernel(command, folder):
    fit = ["--target", "y", "--features", "a", "--kernel", "epanechnikov", "--bandwidth", "0.3", "-o", "m"]
    assert command("fit", "data.csv", *fit)[0] == 0
    (folder / "new.csv").write_text("a\n1.4\n99\n")  # between rows 5 and 6, a quarter apart; beyond them all
    found = json.loads(command("explain", "m", "new.csv", "--json")[1])["neighbours"]
    assert sorted(one["row"] for one in found) == [5, 6]
    (far,) = json.loads(command("explain", "m", "new.csv", "--row", "1", "--json")[1])["neighbours"]
    assert (far["row"], far["weight"]) == (12, 1.0)  # the nearest, as the estimator says


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_plot_draws(command, model, folder, kind, start):
    status, out, err = command("plot", model, "-o", f"fit.{kind}")
    assert (status, err) == (0, "")
    assert out.decode() == f'wrote fit.{kind}; it shows "y" by "a" and "b"\n'
    assert (folder / f"fit.{kind}").read_bytes().startswith(start)


def test_plot_takes_some_features_and_standard_output(command, model):
    status, out, err = command("plot", model, "--features", "b", "-o", "fit.png", "--json")
    assert (status, json.loads(out), err) == (0, {"output": "fit.png", "features": ["b"]}, "")
    assert command("plot", model, "-o", "-")[1].startswith(b"\x89PNG")


def test_the_whole_story_in_processes_of_its_own(folder):
    regard = ("-m", "regard.cli")
    assert output_of(*regard, "fit", "data.csv", "--target", "y", "-o", "m")[0] == 0
    status, out, _ = output_of(*regard, "predict", "m", "-", "-o", "-", stdin=(folder / "data.csv").read_bytes())
    assert (status, len(out.splitlines())) == (0, ROWS + 1)
    wrong = output_of(*regard, "predict", "m", "dat.csv", "-o", "-")
    assert wrong == (2, "", 'regard: there is no file "dat.csv".\n')


@pytest.mark.parametrize("unbuffered", [[], ["-u"]], ids=["buffered", "unbuffered"])
def test_all_is_written_to_a_slow_reader_and_leaving_early_is_no_traceback(folder, model, unbuffered):
    rows = 20011  # more than any pipe holds
    pl.DataFrame({"a": np.ones(rows), "b": np.ones(rows)}).write_csv("many.csv")
    words = (*unbuffered, "-m", "regard.cli", "predict", model, "many.csv", "-o", "-")
    assert output_of(*words)[1].count("\n") == rows + 1
    with elsewhere(*words) as process:
        assert process.stdout.readline() == b"a,b,y_predicted\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1


def test_the_version_comes_without_what_it_does_not_need(folder):
    code = (
        "import sys, regard.cli; status = regard.cli.main(['--version']);"
        "print(status, sorted({'polars', 'matplotlib', 'safetensors', 'sklearn', 'torch'} & set(sys.modules)))"
    )
    assert output_of("-c", code) == (0, f"regard {rg.__version__}\n0 []\n", "")


@pytest.mark.parametrize("missing", ["typer", "polars", "safetensors", "matplotlib"])
def test_without_the_extra_one_sentence_says_what_to_install(folder, model, missing):
    code = f"import sys; sys.modules[{missing!r}] = None; import regard.cli; sys.exit(regard.cli.main())"
    sentence = f'regard: the command needs {missing}, which is missing: pip install "regard[cli]".\n'
    assert output_of("-c", code, "plot", model, "-o", "x.png") == (2, "", sentence)


def test_no_words_show_the_help(command):
    status, out, err = command()
    assert (status, err) == (0, "")
    assert all(name in out.decode() for name in ("fit", "predict", "explain", "plot", "demo"))


# --- files appear whole or not at all


@pytest.mark.parametrize(
    ("failure", "status", "sentence"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 2, "regard: No space left on device.\n"),
        (MemoryError(), 2, "regard: there is not enough memory.\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=["disk full", "memory", "Ctrl-C"],
)
def test_a_file_that_cannot_be_finished_leaves_what_was_there(
    command, model, folder, monkeypatch, failure, status, sentence
):
    (folder / "out.csv").write_text("before")
    before = sorted(os.listdir())

    def fail(descriptor: int) -> None:
        raise failure

    monkeypatch.setattr(os, "fsync", fail)
    assert command("predict", model, "data.csv", "-o", "out.csv", "--force") == (status, b"", sentence)
    assert (folder / "out.csv").read_text() == "before"
    assert command("predict", model, "data.csv", "-o", "new.csv")[0] == status
    assert sorted(os.listdir()) == before


def test_ctrl_c_ends_quietly(command, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(rg.NadarayaWatsonRegressor, "fit", interrupted)
    before = sorted(os.listdir())
    assert command("fit", "data.csv", "--target", "y", "-o", "m") == (130, b"", "")
    assert sorted(os.listdir()) == before


def test_force_replaces_the_file_behind_a_link_and_keeps_its_permissions(command, model, folder):
    (folder / "real.csv").write_text("before")
    (folder / "real.csv").chmod(0o640)
    (folder / "link.csv").symlink_to("real.csv")
    assert command("predict", model, "data.csv", "-o", "link.csv", "--force")[0] == 0
    assert (folder / "link.csv").is_symlink()
    assert pl.read_csv("real.csv").columns[-1] == "y_predicted"
    assert (folder / "real.csv").stat().st_mode & 0o777 == 0o640


def test_a_device_is_written_to_and_stays(command, folder):
    assert command("fit", "data.csv", "--target", "y", "-o", os.devnull)[0] == 0
    assert not Path(os.devnull).is_file()


def test_the_table_can_take_the_place_of_its_own_data(command, model):
    assert command("predict", model, "data.csv", "-o", "data.csv", "--force")[0] == 0
    assert pl.read_csv("data.csv").columns == ["a", "b", "name", "y", "y_predicted"]


# --- progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_after_a_while(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress("working", total=3) as done:
        done(1)
    assert sys.stderr.getvalue() == ""  # over before its second was
    with progress("working", total=3, delay=0) as done:
        done(1)
        until = time.monotonic() + 10
        while "working" not in sys.stderr.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
    assert "working" in sys.stderr.getvalue()


def test_progress_is_shown_on_a_terminal_only(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress("working", delay=0) as done:
        done(1)
        time.sleep(0.05)
    assert sys.stderr.getvalue() == ""


# --- a user's mistake: one sentence, status 2, nothing written

FIT = ("fit", "data.csv", "--target", "y", "-o", "m")
KERNELS = kernels()
FEW = "a,y\n1,2\n2,3\n3,5\n"

MISTAKES = {
    "no file": (("fit", "dat.csv", *FIT[2:]), {}, 'there is no file "dat.csv".'),
    "folder": (("fit", "sub.csv", *FIT[2:]), {"sub.csv/x": ""}, '"sub.csv" is a folder: give a file.'),
    "ending": (
        ("fit", "data.xlsx", *FIT[2:]),
        {},
        'the name "data.xlsx" does not tell its format: let it end in .csv, .tsv, .parquet or .arrow.',
    ),
    "stream format of a file": (
        (*FIT, "--format", "tsv"),
        {},
        "--format is for the standard streams, named -: the format of a file is told by its name.",
    ),
    "no target": (
        ("fit", "data.csv", "--target", "Naem", "-o", "m"),
        {},
        '"data.csv" has no column "Naem" for a target; the closest is "name".',
    ),
    "no feature": (
        (*FIT, "--features", "a,bb"),
        {},
        '"data.csv" has no column "bb" for a feature; the closest is "b".',
    ),
    "no weights": (
        (*FIT, "--weights", "weight"),
        {},
        '"data.csv" has no column "weight" for a weight column; the closest is "name".',
    ),
    "features of nothing": ((*FIT, "--features", ""), {}, "--features names no column."),
    "column twice": (
        (*FIT, "--features", "a,y"),
        {},
        'the column "y" is named twice among --features, --target and --weights.',
    ),
    "text target": (
        ("fit", "data.csv", "--target", "name", "-o", "m"),
        {},
        'the target "name" of "data.csv" is not numeric: row 0 has "n0"; choose another with --target, '
        "or code it in numbers.",
    ),
    "text feature": (
        ("fit", "t.csv", "--target", "y", "--features", "a", "-o", "m"),
        {"t.csv": "a,y\n1,2\nNA,2\nthree,2\n"},
        'the feature "a" of "t.csv" is not numeric: row 2 has "three"; choose another with --features, '
        "or code it in numbers.",
    ),
    "dates": (
        ("fit", "t.csv", "--target", "y", "--features", "day", "-o", "m"),
        {"t.csv": "day,y\n2024-01-05,2\n"},
        'the feature "day" of "t.csv" holds times, not numbers: row 0 has "2024-01-05"; count them first, '
        "in days since a start, say.",
    ),
    "only texts": (
        ("fit", "t.csv", "--target", "y", "-o", "m"),
        {"t.csv": "a,y\nx,2\n"},
        '"t.csv" has no column of numbers from which to predict the target "y".',
    ),
    "missing values": (
        ("fit", "t.csv", "--target", "y", "-o", "m"),
        {"t.csv": "a,b,y\n1,2,3\n,2,3\n1,2,nan\n1,2,3\nNA,2,3\n"},
        '"t.csv" has missing values in "a" and "y", in rows 1, 2 and 4 (counted from 0): fill them in, '
        "or remove the rows.",
    ),
    "many missing values": (
        ("fit", "t.csv", "--target", "y", "-o", "m"),
        {"t.csv": "a,y\n1,2\n" + "1,\n" * 7},
        '"t.csv" has missing values in "y", in rows 1, 2, 3, 4, 5 and 2 more (counted from 0): fill them in, '
        "or remove the rows.",
    ),
    "infinite value": (
        ("fit", "t.csv", "--target", "y", "-o", "m"),
        {"t.csv": "a,y\n1,2\n-inf,2\n1,3\n"},
        '"t.csv" has infinite values in "a", in row 1 (counted from 0): fill them in, or remove the rows.',
    ),
    "negative weight": (
        ("fit", "t.csv", "--target", "y", "--weights", "w", "-o", "m"),
        {"t.csv": "a,y,w\n1,2,1\n2,3,-1\n"},
        'the weight column "w" of "t.csv" is negative in row 1 (counted from 0).',
    ),
    "no weight": (
        ("fit", "t.csv", "--target", "y", "--weights", "w", "-o", "m"),
        {"t.csv": "a,y,w\n1,2,0\n2,3,0\n"},
        'the weight column "w" of "t.csv" is 0 in every row.',
    ),
    "no rows": (("fit", "t.csv", *FIT[2:]), {"t.csv": "a,y\n"}, '"t.csv" has no rows.'),
    "no bytes": (
        ("fit", "t.csv", *FIT[2:]),
        {"t.csv": ""},
        '"t.csv" is empty: its first line must name the columns.',
    ),
    "short line": (
        ("fit", "t.csv", *FIT[2:]),
        {"t.csv": 'a,y\n1,2\n"3\n3",4\n5\n6,7\n'},
        '"t.csv" is ragged: line 5 has 1 field, and the first line names 2 columns.',
    ),
    "long line": (
        ("fit", "t.csv", *FIT[2:]),
        {"t.csv": "a,y\n1,2\n\n3,4,5\n"},
        '"t.csv" is ragged: line 4 has 3 fields, and the first line names 2 columns.',
    ),
    "columns of one name": (
        ("fit", "t.csv", *FIT[2:]),
        {"t.csv": "a,y,a\n1,2,3\n"},
        '"t.csv" has two columns named "a": give each column a name of its own.',
    ),
    "not UTF-8": (
        ("fit", "t.csv", *FIT[2:]),
        {"t.csv": b"a,y\n1,\xe9\n"},
        '"t.csv" is not UTF-8 text: save it as UTF-8.',
    ),
    "UTF-16": (
        ("fit", "t.csv", *FIT[2:]),
        {"t.csv": "a,y\n1,2\n".encode("utf-16")},
        '"t.csv" is not UTF-8 text: save it as UTF-8.',
    ),
    "open quote": (
        ("fit", "t.csv", *FIT[2:]),
        {"t.csv": 'a,y\n1,2\n"3,4\n5,6\n'},
        '"t.csv" cannot be read at line 3: unexpected end of data.',
    ),
    "bandwidth 0": ((*FIT, "--bandwidth", "0"), {}, "--bandwidth must be above 0; got 0."),
    "bandwidth negative": ((*FIT, "--bandwidth", "1,-2"), {}, "--bandwidth must be above 0; got 1,-2."),
    "bandwidth NaN": ((*FIT, "--bandwidth", "nan"), {}, "--bandwidth must be above 0; got nan."),
    "bandwidth text": (
        (*FIT, "--bandwidth", "wide"),
        {},
        '--bandwidth "wide" is neither a number nor one of loo, loo_shared, scott and silverman.',
    ),
    "bandwidth count": (
        (*FIT, "--bandwidth", "1,2,3"),
        {},
        '--bandwidth has 3 numbers, and there are 2 features, "a" and "b": give one number, or one for each.',
    ),
    "bandwidth count of one": (
        (*FIT, "--features", "a", "--bandwidth", "1,2"),
        {},
        '--bandwidth has 2 numbers, and there is 1 feature, "a": give one number, or one for each.',
    ),
    "kernel": (
        (*FIT, "--kernel", "gausian"),
        {},
        f'there is no kernel "gausian"; choose one of {", ".join(KERNELS[:-1])} and {KERNELS[-1]}.',
    ),
    "model exists": (
        ("fit", "data.csv", "--target", "y", "-o", "m"),
        {"m": "mine"},
        '"m" exists: give -o another name, or replace it with --force.',
    ),
    "model in no folder": (
        ("fit", "data.csv", "--target", "y", "-o", "models/m"),
        {},
        'there is no folder "models" to write "m" into: create it first.',
    ),
    "model is a folder": (
        ("fit", "data.csv", "--target", "y", "-o", "sub"),
        {"sub/x": ""},
        '"sub" is a folder: give -o a file.',
    ),
    "model over its data": (
        ("fit", "data.csv", "--target", "y", "-o", "data.csv", "--force"),
        {},
        'the model would replace its own data, "data.csv": give -o another name.',
    ),
    "two things to one stream": (
        ("fit", "data.csv", "--target", "y", "-o", "-", "--json"),
        {},
        "--json and the output cannot both go to standard output: give -o a file.",
    ),
    "predict: no column": (
        ("predict", "model.rg", "t.csv", "-o", "out.csv"),
        {"t.csv": "A,c\n1,2\n"},
        '"t.csv" has no column "a" for a feature; the closest is "A".',
    ),
    "predict: text": (
        ("predict", "model.rg", "t.csv", "-o", "out.csv"),
        {"t.csv": "a,b\n1,two\n"},
        'the feature "b" of "t.csv" is not numeric: row 0 has "two"; the model needs numbers.',
    ),
    "predict: missing values": (
        ("predict", "model.rg", "t.csv", "-o", "out.csv"),
        {"t.csv": "a,b\n1,2\n1,\n"},
        '"t.csv" has missing values in "b", in row 1 (counted from 0): fill them in, or remove the rows.',
    ),
    "predict: predicted already": (
        ("predict", "model.rg", "t.csv", "-o", "out.csv"),
        {"t.csv": "a,b,y_predicted\n1,2,3\n"},
        '"t.csv" has a column "y_predicted" already: rename it, or leave it out.',
    ),
    "predict: ending": (
        ("predict", "model.rg", "data.csv", "-o", "out.xls"),
        {},
        'the name "out.xls" does not tell its format: let it end in .csv, .tsv, .parquet or .arrow.',
    ),
    "predict: exists": (
        ("predict", "model.rg", "data.csv", "-o", "data.csv"),
        {},
        '"data.csv" exists: give -o another name, or replace it with --force.',
    ),
    "predict: no model": (("predict", "mod.rg", "data.csv", "-o", "out.csv"), {}, 'there is no file "mod.rg".'),
    "predict: not a model": (
        ("predict", "data.csv", "data.csv", "-o", "out.csv"),
        {},
        '"data.csv" is no model, or only a part of one: make one with "regard fit".',
    ),
    "explain: no such row": (
        ("explain", "model.rg", "data.csv", "--row", "13"),
        {},
        '"data.csv" has no row 13; its rows are 0 to 12.',
    ),
    "explain: no such row of one": (
        ("explain", "model.rg", "t.csv", "--row", "1"),
        {"t.csv": "a,b\n1,2\n"},
        '"t.csv" has no row 1; its only row is 0.',
    ),
    "explain: missing value": (
        ("explain", "model.rg", "t.csv", "--row", "2"),
        {"t.csv": "a,b\n1,2\n1,2\n1,\n"},
        '"t.csv" has missing values in "b", in row 2 (counted from 0): fill them in, or remove the rows.',
    ),
    "explain: text": (
        ("explain", "model.rg", "t.csv", "--row", "2"),
        {"t.csv": "a,b\n1,2\n1,2\n1,two\n"},
        'the feature "b" of "t.csv" is not numeric: row 2 has "two"; the model needs numbers.',
    ),
    "plot: ending": (
        ("plot", "model.rg", "-o", "fit.jpg"),
        {},
        'the name "fit.jpg" does not tell a kind of picture: let it end in .png, .svg or .pdf.',
    ),
    "plot: no feature": (
        ("plot", "model.rg", "--features", "aa", "-o", "fit.png"),
        {},
        '"model.rg" has no feature "aa"; the closest is "a".',
    ),
}


@pytest.mark.parametrize(
    ("arguments", "start", "where"),
    [
        (("fits",), "no such command 'fits'", "regard"),
        (("fit",), "missing argument 'DATA'", "regard fit"),
        (("fit", "data.csv", "-o", "m"), "missing option '--target'", "regard fit"),
        (("fit", "data.csv", "--targt", "y"), "no such option: --targt", "regard fit"),
        ((*FIT, "extra"), "got unexpected extra argument", "regard fit"),
        (
            ("predict", "model.rg", "-", "-o", "-", "--format", "xls"),
            "invalid value for '--format': ",
            "regard predict",
        ),
        (("explain", "model.rg", "data.csv", "--row", "-1"), "invalid value for '--row': ", "regard explain"),
        (("explain", "model.rg", "data.csv", "--row", "x"), "invalid value for '--row': ", "regard explain"),
        (("explain", "model.rg", "data.csv", "--top", "0"), "invalid value for '--top': ", "regard explain"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ",
)
def test_words_that_are_no_command_are_told_in_one_sentence(command, model, arguments, start, where):
    status, out, err = command(*arguments)
    assert (status, out) == (2, b"")
    assert err.startswith(f"regard: {start}")
    assert err.endswith(f'; see "{where} --help".\n')
    assert err.count("\n") == 1


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_told_in_one_sentence(command, model, folder, case):
    arguments, files, sentence = MISTAKES[case]
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert command(*arguments) == (2, b"", f"regard: {sentence}\n")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("given", [b"", FEW.encode(), b"ARROW1\0\0" + bytes(31)], ids=["empty", "text", "cut"])
@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_what_is_not_of_its_format_is_told_so(command, folder, given, kind):
    (folder / f"t.{kind}").write_bytes(given)
    status, out, err = command("fit", f"t.{kind}", *FIT[2:])
    assert (status, out) == (2, b"")
    assert err.startswith(f'regard: "t.{kind}" cannot be read as {kind.title()}: ')
    assert err.count("\n") == 1


def test_the_dates_and_gaps_of_a_typed_file(command):
    days = pl.Series("day", ["2024-01-05", None]).str.to_date()
    pl.DataFrame([days, pl.Series("y", [1.0, 2.0]), pl.Series("list", [[1], [2]])]).write_parquet("t.parquet")
    assert command("fit", "t.parquet", *FIT[2:], "--features", "day")[2] == (
        'regard: the feature "day" of "t.parquet" holds times, not numbers: row 0 has "2024-01-05"; count them first, '
        "in days since a start, say.\n"
    )
    pl.DataFrame({"a": [1.0, None, float("nan")], "y": [1, 2, 3]}).write_parquet("u.parquet")
    assert command("fit", "u.parquet", *FIT[2:])[2] == (
        'regard: "u.parquet" has missing values in "a", in rows 1 and 2 (counted from 0): fill them in, '
        "or remove the rows.\n"
    )


def test_a_table_of_lists_is_no_csv(command, model, folder):
    pl.DataFrame({"a": [1.0], "b": [2.0], "list": [[1, 2]]}).write_parquet("t.parquet")
    status, out, err = command("predict", model, "t.parquet", "-o", "out.csv")
    assert (status, out) == (2, b"")
    assert err == 'regard: "t.parquet" cannot be written as CSV: CSV format does not support nested data.\n'
    assert not (folder / "out.csv").exists()


def test_bytes_are_not_written_on_a_terminal(command, model, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert command("plot", model, "-o", "-") == (
        2,
        b"",
        "regard: the output is not text to be shown on a terminal: give -o a file, or redirect it.\n",
    )


def test_what_the_estimator_refuses_is_a_sentence_too(command, monkeypatch):
    def refuse(self, *arguments, **options):
        raise ValueError("no bandwidth\n is admissible. Give one.")

    monkeypatch.setattr(rg.NadarayaWatsonRegressor, "fit", refuse)
    said = "regard: this model cannot be fitted: no bandwidth is admissible; give one.\n"
    assert command(*FIT) == (2, b"", said)


# --- model files


def parts(name: str) -> tuple[dict, dict]:
    with safe_open(name, framework="numpy") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  not a mapping
        return tensors, json.loads(file.metadata()["regard-model"])


def test_a_model_file_says_what_it_is(model):
    tensors, described = parts(model)
    assert described == {
        "version": 1,
        "regard": rg.__version__,
        "estimator": "NadarayaWatsonRegressor",
        "kernel": "gaussian",
        "features": ["a", "b"],
        "target": "y",
        "dtype": "float64",
    }
    assert {key: (tensor.tolist(), tensor.dtype) for key, tensor in tensors.items()} == {
        "X": (X.tolist(), np.float64),
        "y": (Y.tolist(), np.float64),
        "bandwidth": ([0.5, 2.0], np.float64),
    }


FOREIGN = '"bad.rg" is a safetensors file, but not a model of regard: make one with "regard fit".'
NEWER = (
    '"bad.rg" has format regard-model version 2, written by regard 9.8.7, and regard '
    f"{rg.__version__} reads up to version 1: upgrade regard."
)
INCOMPLETE = '"bad.rg" is a damaged model: its description is not complete.'
METADATA = {
    "none": (None, FOREIGN),
    "of another format": ({"other-model": "{}"}, FOREIGN),
    "of a newer version": ({"regard-model": '{"version": 2, "regard": "9.8.7"}'}, NEWER),
    "no JSON": ({"regard-model": "{"}, INCOMPLETE),
    "deep JSON": ({"regard-model": "[" * 100_000}, INCOMPLETE),
    "a list": ({"regard-model": "[]"}, INCOMPLETE),
    "no version": ({"regard-model": "{}"}, INCOMPLETE),
}


@pytest.mark.parametrize("case", METADATA)
def test_a_model_of_an_unknown_format_is_refused_by_its_name(command, model, folder, case):
    metadata, sentence = METADATA[case]
    (folder / "bad.rg").write_bytes(save(parts(model)[0], metadata=metadata))
    assert command("predict", "bad.rg", "data.csv", "-o", "out.csv") == (2, b"", f"regard: {sentence}\n")


DAMAGES = {
    "version 0": (lambda t, d: d.update(version=0), "its format version is not a number from 1 up."),
    "version of text": (lambda t, d: d.update(version="1"), "its format version is not a number from 1 up."),
    "no target": (lambda t, d: d.pop("target"), "its description is not complete"),
    "target": (lambda t, d: d.update(target=1), "its target is not a text"),
    "kernel": (lambda t, d: d.update(kernel="os.system"), 'its kernel is "os.system", and the known ones are'),
    "estimator": (lambda t, d: d.update(estimator="Pipeline"), 'its estimator is "Pipeline", and the known ones'),
    "dtype": (lambda t, d: d.update(dtype="int8"), 'its dtype is "int8", and the known ones are float64'),
    "features": (lambda t, d: d.update(features=[]), "its features are not a list of names"),
    "feature": (lambda t, d: d.update(features=["a", 2]), "its feature is not a text"),
    "one feature twice": (lambda t, d: d.update(features=["a", "a"]), "two of its features have one name"),
    "more features": (
        lambda t, d: d.update(features=["a", "b", "c"]),
        'it has no float64 tensor "bandwidth" of shape (3,)',
    ),
    "no X": (lambda t, d: t.pop("X"), f'it has no float64 tensor "X" of shape ({ROWS}, 2)'),
    "float32": (lambda t, d: t.update(X=t["X"].astype("f4")), f'it has no float64 tensor "X" of shape ({ROWS}, 2)'),
    "turned": (lambda t, d: t.update(X=t["X"].T.copy()), f'it has no float64 tensor "X" of shape ({ROWS}, 2)'),
    "no rows": (lambda t, d: t.update(y=t["y"][:0], X=t["X"][:0]), "it has no training data"),
    "NaN": (lambda t, d: t["y"].__setitem__(3, np.nan), 'its tensor "y" has values that are not finite'),
    "inf": (lambda t, d: t["X"].__setitem__(3, np.inf), 'its tensor "X" has values that are not finite'),
    "bandwidth": (lambda t, d: t["bandwidth"].__setitem__(1, 0), "its bandwidth is not positive"),
    "bandwidth NaN": (lambda t, d: t["bandwidth"].fill(np.nan), 'its tensor "bandwidth" has values that are not'),
    "weights": (lambda t, d: t.update(sample_weight=-(t["y"] ** 2)), "its sample weights are not zero and more"),
    "weight count": (lambda t, d: t.update(sample_weight=np.ones(3)), 'it has no float64 tensor "sample_weight" of'),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_model_file_is_not_believed_unchecked(command, model, folder, case):
    damage, sentence = DAMAGES[case]
    tensors, described = parts(model)
    damage(tensors, described)
    (folder / "bad.rg").write_bytes(save(tensors, metadata={"regard-model": json.dumps(described)}))
    for arguments in (("predict", "bad.rg", "data.csv", "-o", "out.csv"), ("plot", "bad.rg", "-o", "x.png")):
        status, out, err = command(*arguments)
        assert (status, out) == (2, b"")
        assert err.startswith(f'regard: "bad.rg" is a damaged model: {sentence}')
        assert err.endswith(".\n")
        assert err.count("\n") == 1


def test_a_model_that_was_cut_is_refused_at_any_length(command, model, folder):
    whole = (folder / model).read_bytes()
    for length in range(0, len(whole), 31):
        (folder / "cut.rg").write_bytes(whole[:length])
        status, out, err = command("plot", "cut.rg", "-o", "x.png")
        assert (status, out) == (2, b"")
        assert err == 'regard: "cut.rg" is no model, or only a part of one: make one with "regard fit".\n'


def test_no_byte_of_a_model_that_is_wrong_makes_a_traceback(command, model, folder):
    whole = (folder / model).read_bytes()
    for at in range(0, len(whole), 7):
        (folder / "bad.rg").write_bytes(whole[:at] + bytes([whole[at] ^ 0x15]) + whole[at + 1 :])
        status, _, err = command("explain", "bad.rg", "data.csv")
        assert (status, err) == (0, "") or (status == 2 and err.startswith("regard: ") and err.count("\n") == 1)
