"""What `opgraft report` does: for one model, two side by side or a folder of them, in the view that was asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from opgraft.errors import InstallationError, ModelError, OptionError, RegistryError, text_of
from opgraft.files import write_whole
from opgraft.reporting import Report
from opgraft.reporting.compare import Comparison, compare
from opgraft.reporting.document import document_of, from_json, plain
from opgraft.reporting.html import report_as_html
from opgraft.reporting.markdown import comparison_as_markdown, matrix_as_markdown, report_as_markdown
from opgraft.reporting.matrix import Entry, Matrix, matrix_of
from opgraft.reporting.terminal_many import render_comparison, render_matrix
from opgraft.reporting.terminal_report import render_report
from opgraft.sessions import survey
from opgraft.text import printable

MODEL_SUFFIX, REPORT_SUFFIX = ".onnx", ".json"


@dataclass(frozen=True)
class Request:
    """What the command line asks for.

    Attributes:
        paths: a model, a report that was saved as JSON, or a folder; two of the first kinds to compare.
        comparing: True to compare.
        registries: one for all, or one for each of two.
        sizes: numbers for symbolic dimensions.
        options: provider options.
        views: those asked for on standard output, "json" or "markdown"; none: tables, unless `html` is given.
        html: the file to write the page into.
        fail_under: the percentage of nodes below which the command fails.
    """

    paths: tuple[Path, ...]
    comparing: bool
    registries: tuple[str, ...]
    sizes: Mapping[str, int]
    options: Mapping[str, str]
    views: tuple[str, ...]
    html: Path | None
    fail_under: float | None


def run(request: Request, console: Console) -> None:
    """Make the reports and show them.

    Raises:
        click.UsageError: what is asked for does not go together.
        ModelError: a model or a report cannot be read, ONNX Runtime cannot load a model (what its file says is shown
            before), or too few nodes are on the execution provider.
        OptionError, RegistryError: an option or a registry file cannot be used.
    """
    _refuse(len(request.views) > 1, "--json and --markdown both print to standard output; give one of them")
    if request.comparing:
        _refuse(request.html is not None, "--html shows one model; use --json or --markdown with --compare")
        _refuse(request.fail_under is not None, "--fail-under judges one model or a folder; leave out --compare")
        reports = _both(request)
        _show(compare(*reports), request, console)
        for report in reports:
            _require_loaded(report)
        return
    _refuse(len(request.paths) != 1, "one model or folder, or --compare and two of them")
    _refuse(len(request.registries) > 1, "one --registry, or --compare and two of them")
    (path,) = request.paths
    options = _with_registry(request, 0)
    if path.is_dir():
        _refuse(request.html is not None, "--html shows one model; use --json or --markdown for a folder")
        matrix = matrix_of(list(_entries(path, options, request.sizes)))
        _show(matrix, request, console)
        _judge_matrix(matrix, request.fail_under)
        return
    report = _report(path, options, request.sizes)
    if request.html is not None:
        _write(request.html, report_as_html(report))
        click.echo(printable(f"report written to {request.html}"), err=bool(request.views))
    if request.views or request.html is None:
        _show(report, request, console)
    _judge(report, request.fail_under)


_VIEWS: dict[type, dict[str, Callable[[Any], Any]]] = {
    Report: {"terminal": render_report, "markdown": report_as_markdown, "json": document_of},
    Comparison: {
        "terminal": render_comparison,
        "markdown": comparison_as_markdown,
        "json": lambda found: {"format": "opgraft-comparison", "version": 1, **plain(found)},
    },
    Matrix: {
        "terminal": render_matrix,
        "markdown": matrix_as_markdown,
        "json": lambda found: {"format": "opgraft-matrix", "version": 1, **plain(found)},
    },
}


def _show(what: Report | Comparison | Matrix, request: Request, console: Console) -> None:
    (view,) = request.views or ("terminal",)
    made: RenderableType | str | dict[str, Any] = _VIEWS[type(what)][view](what)
    if isinstance(made, dict):
        click.echo(json.dumps(made, indent=1))
    elif isinstance(made, str):
        click.echo(made, nl=False)
    else:
        console.print(made)


def _both(request: Request) -> list[Report]:
    """The reports to compare."""
    paths, registries = request.paths, request.registries
    _refuse(len(registries) > 2, "--compare takes at most two --registry")
    if len(paths) == 1:
        _refuse(len(registries) != 2, "--compare takes two models, or one with two --registry")
        paths = (paths[0], paths[0])
    _refuse(len(paths) != 2, "--compare takes two models, or one with two --registry")
    _refuse(any(path.is_dir() for path in paths), "--compare takes models or saved reports, not folders")
    return [_report(path, _with_registry(request, side), request.sizes) for side, path in enumerate(paths)]


def _with_registry(request: Request, side: int) -> dict[str, str]:
    options = dict(request.options)
    if request.registries:
        _refuse("registry" in options, "--registry and -o registry= say the same; give one of them")
        options["registry"] = request.registries[min(side, len(request.registries) - 1)]
    return options


def _report(path: Path, options: Mapping[str, str], sizes: Mapping[str, int]) -> Report:
    if path.suffix.lower() != REPORT_SUFFIX:
        return survey(path, options, sizes)
    if sizes or options:
        raise OptionError(f"{path}: a saved report is shown as it is; options and sizes are for models")
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    return from_json(text, str(path))


def _entries(folder: Path, options: Mapping[str, str], sizes: Mapping[str, int]) -> Iterator[Entry]:
    """An entry for each model below a folder, with a progress bar on standard error meanwhile."""
    models = sorted(path for path in folder.rglob(f"*{MODEL_SUFFIX}") if path.is_file())
    if not models:
        raise ModelError(f"{folder}: there is no {MODEL_SUFFIX} file in it, nor in the folders below")
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    out = Console(stderr=True)
    progress = Progress(*columns, console=out, transient=True, disable=not out.is_terminal)
    with progress if out.is_terminal else nullcontext():  # rich before 14 ends a disabled one with an empty line
        task = progress.add_task("", total=len(models))
        for path in models:
            name = str(path.relative_to(folder))
            progress.update(task, description=printable(name[-50:]))
            yield _entry(name, path, options, sizes)
            progress.advance(task)


def _entry(name: str, path: Path, options: Mapping[str, str], sizes: Mapping[str, int]) -> Entry:
    try:
        return Entry.of(name, survey(path, options, sizes, all_sizes_needed=False))
    except (InstallationError, OptionError, RegistryError):
        raise  # the same for every model
    except ModelError as error:
        return Entry.failed(name, str(error))
    except Exception as error:  # whatever is wrong with one model, the others have their turn
        return Entry.failed(name, text_of(error))


def _judge(report: Report, fail_under: float | None) -> None:
    _require_loaded(report)
    if fail_under is not None and report.percentage < fail_under:
        raise ModelError(f"{report.percentage:.1f}% of the nodes are on the EP, under {fail_under}%")


def _require_loaded(report: Report) -> None:
    if report.coverage.note:
        raise ModelError(f"onnxruntime cannot load {report.coverage.model}, so none of it would run")


def _judge_matrix(matrix: Matrix, fail_under: float | None) -> None:
    if fail_under is None:
        return
    bad = [line.model for line in matrix.models if line.problem or line.note or line.percentage < fail_under]
    if bad:
        raise ModelError(f"{len(bad)} of {len(matrix.models)} models are under {fail_under}%: {', '.join(bad[:5])}")


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text.encode("utf-8", "backslashreplace").decode())
    except OSError as error:
        raise ModelError(f"{path}: cannot be written ({error.strerror})") from error


def _refuse(wrong: bool, message: str) -> None:
    if wrong:
        raise click.UsageError(message)
