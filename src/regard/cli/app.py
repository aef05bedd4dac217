"""The commands: what they take, in which order they work, and what they say."""

from __future__ import annotations

import csv
import json
import math
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.files import TEXT_FORMATS, Output, TableFormat, table_format
from regard.cli.mistakes import UserError, closest, listed, quoted

# Everything heavy is imported by the command that needs it: `regard --version` answers at once.
if TYPE_CHECKING:
    from rich.console import Console

_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]  # UsageError, of click or of the copy inside typer
_PICTURES = ("png", "svg", "pdf")
_PANELS = 16  # more small pictures than this in one are not looked at
_COLUMNS = 6  # features shown beside the weights; --json has them all

app = typer.Typer(pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]})

Data = Annotated[str, typer.Argument(metavar="DATA", help="CSV, TSV, Parquet or Arrow file; - for standard input.")]
ModelFile = Annotated[str, typer.Argument(metavar="MODEL", help='Model file, made by "regard fit".')]
Force = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
StreamFormat = Annotated[
    TableFormat | None, typer.Option("--format", help="Format of the standard streams.", show_default="csv")
]


def run(arguments: Sequence[str]) -> int:
    """Exit status of the command with these words after its name."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no reason to fail
    command = typer.main.get_command(app)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            status = command.main(list(arguments) or ["--help"], prog_name="regard", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except typer.Abort:  # Ctrl-C
        return 130
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 1
    except BrokenPipeError:  # `| head` has seen enough: nothing more to say, at exit neither
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UserError as mistake:
        return _refused(str(mistake))
    except _USAGE_ERROR as error:
        return _refused(_usage_sentence(error))
    except OSError as error:
        where = f": {quoted(error.filename)}" if error.filename else ""
        return _refused(f"{error.strerror or error}{where}.")
    except MemoryError:
        return _refused("there is not enough memory.")


def _refused(sentence: str) -> int:
    print(f"regard: {sentence}", file=sys.stderr)
    return 2


def _usage_sentence(error: Any) -> str:
    path = error.ctx.command_path if error.ctx is not None else "regard"
    said = " ".join(error.format_message().split()).replace(". Did you mean", "; did you mean").rstrip(".?")
    return f'{said[:1].lower()}{said[1:]}; see "{path} --help".'


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"regard: warning: {' '.join(str(message).split())}", file=sys.stderr)


@app.callback(invoke_without_command=True)
def regard(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Attention pooling of a data file: fit, predict, explain, plot."""
    if version:
        from regard import __version__

        print(f"regard {__version__}")
        raise typer.Exit


@app.command()
def fit(
    data: Data,
    target: Annotated[str, typer.Option(help="Column to predict.", metavar="Y")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="MODEL", help="Model file to write.")],
    features: Annotated[
        str | None, typer.Option(metavar="A,B", help="Columns to predict from; all other numeric ones if not given.")
    ] = None,
    kernel: Annotated[str, typer.Option(help="Name of the kernel.")] = "gaussian",
    bandwidth: Annotated[
        str, typer.Option(help="A number, one per feature (0.3,2), or a rule: loo, loo_shared, scott, silverman.")
    ] = "loo",
    weights: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column that counts rows: 2 is the row twice.")
    ] = None,
    stream_format: StreamFormat = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Fit a Nadaraya-Watson regression. The model file contains the training data."""
    from regard.scores import kernels

    if kernel not in kernels():
        raise UserError(f"there is no kernel {quoted(kernel)}; choose one of {listed(kernels(), 99)}.")
    _check_stream_format(stream_format, data)
    if output != "-" and Path(output).exists() and Path(data).exists() and Path(output).samefile(data):
        raise UserError(f"the model would replace its own data, {quoted(data)}: give -o another name.")
    out = Output.checked(output, force=force, text=False, silent=not as_json)

    from regard.cli.fitting import fit_model, parse_bandwidth
    from regard.cli.tables import read_table

    wanted = parse_bandwidth(bandwidth)
    table = read_table(data, stream_format)
    names = None if features is None else _names(features)
    model = fit_model(table, target=target, features=names, weights=weights, kernel=kernel, bandwidth=wanted)
    content = model.to_bytes()
    out.write(lambda file: file.write(content))

    unused = [name for name in table.frame.columns if name not in (*model.features, target, weights)]
    found = dict(zip(model.features, model.bandwidth.tolist(), strict=True))
    if as_json:
        _print_json(model=output, target=target, kernel=kernel, bandwidth=found, rows=len(model.y), unused=unused)
    elif output != "-":
        _print_table(["feature", "bandwidth"], [[name, f"{value:.6g}"] for name, value in found.items()])
        if unused:
            print(f"columns not used: {listed(map(quoted, unused), 20)}")
        print(f"wrote {output}; it contains the {len(model.y)} training rows")


@app.command()
def predict(
    model_file: ModelFile,
    data: Data,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="OUT", help="Table to write; - for standard output.")
    ],
    stream_format: StreamFormat = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Predict each row of a table: all its columns, and one more, named TARGET_predicted."""
    _check_stream_format(stream_format, data, output)
    kind = table_format(output, stream_format)
    out = Output.checked(output, force=force, text=kind in TEXT_FORMATS, silent=not as_json)

    from regard.cli.models import read_model
    from regard.cli.predicting import predict_table
    from regard.cli.tables import read_table, write_table

    found = predict_table(read_model(model_file), read_table(data, stream_format))
    out.write(lambda file: write_table(found, kind, file, stream=output == "-"))

    rows, column = found.frame.height, found.frame.columns[-1]
    if as_json:
        _print_json(output=output, column=column, rows=rows)
    elif output != "-":
        print(f"wrote {output}; its column {quoted(column)} has the predictions of {rows} row{'s' * (rows != 1)}")


@app.command()
def explain(
    model_file: ModelFile,
    data: Data,
    row: Annotated[int, typer.Option(min=0, help="Row of the data, counted from 0.")] = 0,
    top: Annotated[int, typer.Option(min=1, help="How many training rows to show.")] = 10,
    stream_format: StreamFormat = None,
    as_json: AsJson = False,
) -> None:
    """Show which training rows made the prediction of one row, and with which weights."""
    _check_stream_format(stream_format, data)

    from dataclasses import asdict

    from regard.cli.explaining import explain_row
    from regard.cli.models import read_model
    from regard.cli.tables import read_table

    model = read_model(model_file)
    found = explain_row(model, read_table(data, stream_format), row, top)
    if as_json:
        _print_json(target=model.target, kernel=model.kernel, **asdict(found))
        return
    shown = model.features[:_COLUMNS]
    at = ", ".join(f"{name} = {found.features[name]:.6g}" for name in shown)
    more = len(model.features) - len(shown)
    print(f"row {row}: {at}{f' and {more} features more' if more else ''}")
    print(f"{model.target}_predicted = {found.prediction:.6g}")
    _print_table(
        ["rank", "weight", "share so far", "training row", *shown, model.target],
        [
            [str(one.rank), f"{one.weight:.4f}", f"{one.share:.1%}", str(one.row)]
            + [f"{value:.6g}" for value in (*(one.features[name] for name in shown), one.target)]
            for one in found.neighbours
        ],
    )


@app.command()
def plot(
    model_file: ModelFile,
    output: Annotated[str, typer.Option("--output", "-o", metavar="PNG", help="Picture to write: .png, .svg or .pdf.")],
    features: Annotated[
        str | None, typer.Option(metavar="A,B", help=f"Features to draw; the first {_PANELS} if not given.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Draw the fit with its data, a panel per feature: the others are held at their median."""
    kind = "png" if output == "-" else Path(output).suffix.lower().removeprefix(".")
    if kind not in _PICTURES:
        raise UserError(f"the name {quoted(output)} does not tell a kind of picture: let it end in .png, .svg or .pdf.")
    out = Output.checked(output, force=force, text=False, silent=not as_json)

    from regard.cli.models import read_model
    from regard.cli.progress import progress
    from regard.plots import draw_curves, partial_curves

    model = read_model(model_file)
    names = list(model.features[:_PANELS]) if features is None else _names(features)
    for name in names:
        if name not in model.features:
            near = quoted(closest(name, model.features))
            raise UserError(f"{quoted(model_file)} has no feature {quoted(name)}; the closest is {near}.")
    with progress("drawing"):
        figure = draw_curves(partial_curves(model.fitted(), features=names), target=model.target)
        out.write(lambda file: figure.savefig(file, format=kind, dpi=150))

    if as_json:
        _print_json(output=output, features=names)
    elif output != "-":
        print(f"wrote {output}; it shows {quoted(model.target)} by {listed(map(quoted, names), len(names))}")


@app.command()
def demo(
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for the report.")
    ] = "regard-demo",
) -> None:
    """Tell the story on real data: a table of errors by method, and an HTML report."""
    from regard.cli.demo import demo as tell

    tell(Path(output), _console())


def _check_stream_format(stream_format: TableFormat | None, *names: str) -> None:
    if stream_format is not None and "-" not in names:
        raise UserError("--format is for the standard streams, named -: the format of a file is told by its name.")


def _names(text: str) -> list[str]:
    """Names with commas between them, in double quotes where a name has a comma of its own."""
    names = next(csv.reader([text], skipinitialspace=True), [])
    if not names:
        raise UserError("--features names no column.")
    return names


def _console() -> Console:
    from rich.console import Console

    width = None if sys.stdout.isatty() else 10_000  # what a file or a pipe gets is never cut to a width
    return Console(width=width, highlight=False, markup=False, emoji=False)


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=None)
    for name in header:
        grid.add_column(Text(name), justify="left" if name == "feature" else "right")
    for row in rows:
        grid.add_row(*map(Text, row))
    _console().print(grid)


def _print_json(**found: Any) -> None:
    print(json.dumps(_finite(found), allow_nan=False))


def _finite(value: Any) -> Any:
    """The value with null in place of what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
