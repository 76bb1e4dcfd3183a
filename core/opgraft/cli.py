"""The command line. Exit status: 0 done, 1 a model, an input or an installation that cannot be used, 2 bad usage."""

from __future__ import annotations

import errno
import json
import os
import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from rich.text import Text

from opgraft import __version__
from opgraft.console import console, forget_standard_output
from opgraft.errors import ModelError, OpgraftError, OptionError
from opgraft.host import library_path
from opgraft.host.requirements import require_mlx, require_onnxruntime
from opgraft.text import perhaps_meant, printable

if TYPE_CHECKING:
    from opgraft.registry import Registry

NAMED_SIZE_HELP = "Size of a symbolic dimension, as in batch=2; * stands for all others. More bytes are known then."
SIZE_HELP = "Size of a dimension, as in batch=2 or images:3=320 (input:axis); * stands for all others. Default: 1."


class _Group(click.Group):
    """Turns opgraft's own errors into one line, and exit status 2 for bad usage, 1 for any other; and so where what it
    says cannot be written."""

    def invoke(self, context: click.Context) -> Any:
        if sys.stdout is None:
            self._fail(context, "standard output is closed; > /dev/null leaves its text out")
        try:
            found = super().invoke(context)
            sys.stdout.flush()
            return found
        except OpgraftError as error:
            self._fail(context, str(error), 2 if isinstance(error, OptionError) else 1)
        except OSError as error:
            if error.errno in (None, errno.EPIPE) or error.filename is not None:
                raise
            forget_standard_output()
            self._fail(context, f"standard output cannot be written ({error.strerror})")

    def _fail(self, context: click.Context, message: str, status: int = 1) -> NoReturn:
        click.echo(f"opgraft: {printable(message)}", err=True)
        context.exit(status)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands, each with the whole first sentence of its help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(limit=1000)) for name, each in self.commands.items()])


class _Command(click.Command):
    """A command that needs the whole installation, and says at once what of it is missing."""

    def invoke(self, context: click.Context) -> Any:
        require_onnxruntime()
        require_mlx()
        return super().invoke(context)


class ModelPath(click.ParamType):  # type: ignore[type-arg]
    """A model file's path, or that of a folder."""

    name = "model"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Path:
        if not value:
            self.fail("the path is empty", parameter, context)
        try:
            os.fsencode(value).decode()
        except UnicodeDecodeError:
            self.fail(f"{value!a}: onnxruntime takes no path but in UTF-8; rename the file", parameter, context)
        return Path(value)


class Dimension(click.ParamType):  # type: ignore[type-arg]
    """NAME=SIZE."""

    name = "name=size"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> tuple[str, int]:
        name, equals, size = str(value).rpartition("=")
        if not equals or not size.isdigit():
            self.fail(f"{value!r} is not NAME=SIZE, as in batch=2", parameter, context)
        return name, int(size)


class ProviderOption(click.ParamType):  # type: ignore[type-arg]
    """NAME=VALUE."""

    name = "name=value"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> tuple[str, str]:
        name, equals, text = str(value).partition("=")
        if not equals:
            self.fail(f"{value!r} is not NAME=VALUE, as in device=cpu", parameter, context)
        return name, text


registry_option = click.option("--registry", type=click.Path(), help="The registry.yaml to use.")

pack_option = click.option(
    "--pack", "packs", multiple=True, help="An op pack to turn on that does nothing unasked; may be repeated."
)

provider_option = click.option(
    "--option", "-o", "options", type=ProviderOption(), multiple=True, help="A provider option, as in device=cpu."
)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="opgraft")
def main() -> None:
    """Run ONNX models on MLX through ONNX Runtime, and see which of their operators are claimed."""


@main.command(cls=_Command)
@provider_option
def demo(options: tuple[tuple[str, str], ...]) -> None:
    """Run a packaged object detector on the EP and on the CPU EP, compare, and show its coverage."""
    from opgraft.run_command import SLOW_ON_THE_CPU, Request, compare_and_show

    with as_file(files("opgraft") / "demo" / "detector.onnx") as model:
        out = console()
        out.print(Text("A small object detector as PyTorch exports it, with random weights:"))
        out.print(Text(str(model)), soft_wrap=True)
        request = Request(model, dict(options), {"batch": 1, "height": 160, "width": 160})
        if compare_and_show(request, out).device == "cpu":
            out.print(Text(SLOW_ON_THE_CPU))


@main.command(cls=_Command)
@click.argument("model", type=ModelPath())
@click.option("--inputs", "-i", type=click.Path(path_type=Path), help="An .npz file with an array for each input.")
@click.option(
    "--size",
    "-s",
    "sizes",
    type=Dimension(),
    multiple=True,
    help=SIZE_HELP,
)
@click.option("--output", type=click.Path(path_type=Path), help="Write the outputs to this .npz file.")
@click.option("--runs", type=click.IntRange(1), default=5, show_default=True, help="How often to run, for the time.")
@click.option("--compare/--no-compare", default=True, show_default=True, help="Compare with the CPU EP.")
@pack_option
@registry_option
@provider_option
def run(
    model: Path,
    inputs: Path | None,
    sizes: tuple[tuple[str, int], ...],
    output: Path | None,
    runs: int,
    compare: bool,
    packs: tuple[str, ...],
    registry: str | None,
    options: tuple[tuple[str, str], ...],
) -> None:
    """Run MODEL on the EP, with random inputs unless --inputs gives them, and compare with the CPU EP."""
    from opgraft.run_command import Request, compare_and_show

    _refuse_both(inputs, sizes)
    asked = _with_registry(options, registry)
    _turn_on(packs, asked.get("registry"))
    compare_and_show(Request(model, asked, _sizes(sizes), inputs, output, runs, compare), console())


@main.command(cls=_Command)
@click.argument("models", nargs=-1, required=True, type=ModelPath(), metavar="MODEL...")
@click.option("--compare", "comparing", is_flag=True, help="Compare two models, or one with two --registry.")
@click.option("--registry", "registries", multiple=True, type=click.Path(), help="The registry.yaml to use.")
@click.option("--size", "-s", "sizes", type=Dimension(), multiple=True, help=NAMED_SIZE_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown, to paste into an issue.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write one self-contained page here.")
@click.option("--fail-under", type=click.FloatRange(0, 100), help="Exit with status 1 below this percentage of nodes.")
@provider_option
def report(
    models: tuple[Path, ...],
    comparing: bool,
    registries: tuple[str, ...],
    sizes: tuple[tuple[str, int], ...],
    as_json: bool,
    as_markdown: bool,
    html: Path | None,
    fail_under: float | None,
    options: tuple[tuple[str, str], ...],
) -> None:
    """Show what of MODEL is claimed, what is declined and why, and what claiming more would change.

    MODEL is an .onnx file, a .json file that --json gave, or a folder of models.
    """
    from opgraft.report_command import Request, run

    views = tuple(name for name, asked in (("json", as_json), ("markdown", as_markdown)) if asked)
    run(Request(models, comparing, registries, _sizes(sizes), dict(options), views, html, fail_under), console())


@main.command(cls=_Command)
@click.argument("model", type=ModelPath())
@click.option("--inputs", "-i", type=click.Path(path_type=Path), help="An .npz file with an array for each input.")
@click.option("--size", "-s", "sizes", type=Dimension(), multiple=True, help=SIZE_HELP)
@click.option("--runs", type=click.IntRange(1), default=20, show_default=True, help="How many runs of each count.")
@click.option("--warm-up", type=click.IntRange(0), default=3, show_default=True, help="How many come before them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@registry_option
@provider_option
def bench(
    model: Path,
    inputs: Path | None,
    sizes: tuple[tuple[str, int], ...],
    runs: int,
    warm_up: int,
    as_json: bool,
    registry: str | None,
    options: tuple[tuple[str, str], ...],
) -> None:
    """Time MODEL on the EP against the CPU EP, and see where the slower one spends its time."""
    from opgraft.benchmark import benchmark
    from opgraft.graph.onnx_source import load_model
    from opgraft.reporting.terminal_bench import benchmark_document, render_benchmark
    from opgraft.run_command import sample_of

    _refuse_both(inputs, sizes)
    given, asked = _sizes(sizes), _with_registry(options, registry)
    load_model(model)
    found = benchmark(
        model,
        lambda session: sample_of(session, inputs, given),
        asked,
        runs=runs,
        warm_ups=warm_up,
    )
    if as_json:
        click.echo(json.dumps(benchmark_document(found), indent=1))
    else:
        console().print(render_benchmark(found))


@main.command(cls=_Command)
@click.argument("model", type=ModelPath())
@click.option(
    "--output", "-o", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The file to write."
)
@click.option("--size", "-s", "sizes", type=Dimension(), multiple=True, help=SIZE_HELP)
@click.option("--inputs", "-i", type=click.Path(path_type=Path), help="An .npz file with an array for each input.")
@registry_option
@click.option("--option", "options", type=ProviderOption(), multiple=True, help="A provider option, as in device=cpu.")
def tune(
    model: Path,
    output: Path,
    sizes: tuple[tuple[str, int], ...],
    inputs: Path | None,
    registry: str | None,
    options: tuple[tuple[str, str], ...],
) -> None:
    """Try which parts of MODEL are faster on the EP, and write a profile for the provider option of that name."""
    from opgraft.tune_command import Request
    from opgraft.tune_command import tune as run_tune

    _refuse_both(inputs, sizes)
    run_tune(Request(model, output, _sizes(sizes), inputs, _with_registry(options, registry)), console())


@main.command(cls=_Command)
@registry_option
def packs(registry: str | None) -> None:
    """List the installed op packs in the order in which they are asked."""
    from opgraft.registry import installed_packs, load_registry
    from opgraft.reporting.packs import summaries_of_packs
    from opgraft.reporting.terminal import render_packs
    from opgraft.schemas import left_out

    chosen = load_registry(registry)
    out = console()
    out.print(render_packs(summaries_of_packs(chosen, installed_packs())))
    for each in left_out(chosen).values():
        packs_of_it = ", ".join(each.packs)
        out.print(Text(printable(f"left out: {each.operator}, which {packs_of_it} would define: {each.reason}")))
    out.print(Text(f"registry: {chosen.policy.source}"))


@main.command(cls=_Command)
@click.argument("operator", required=False)
@click.option("--pack", help="Only the operators of this pack.")
@registry_option
def ops(operator: str | None, pack: str | None, registry: str | None) -> None:
    """List the operators that have handlers; with OPERATOR, all about its handlers, in the order they are asked."""
    from opgraft.registry import load_registry
    from opgraft.registry.packs import full_operator
    from opgraft.reporting.packs import summaries_of_handlers
    from opgraft.reporting.terminal import render_handlers, render_operators

    chosen = load_registry(registry)
    names = [each.name for each in chosen.packs]
    if pack is not None and pack not in names:
        hint = printable(perhaps_meant(pack, names))
        raise click.UsageError(f"no pack {pack!r}{hint}; the packs are {', '.join(map(printable, names))}")
    if operator is None:
        handlers = [each for name in chosen.operators for each in summaries_of_handlers(chosen, name, pack)]
        console().print(render_operators(handlers))
        return
    name = full_operator(operator)
    found = summaries_of_handlers(chosen, name, pack)
    if not found:
        raise ModelError(_nobody(name, pack, chosen))
    console().print(render_handlers(found))


def _turn_on(names: tuple[str, ...], registry: str | None) -> None:
    """Tell packs that they are asked for by name. They look when they are loaded, and so before anything loads them.

    Raises:
        UsageError: there is no such pack.
        ModelError: the registry file keeps it out, or it cannot be loaded.
    """
    from opgraft.registry import PACKS_VARIABLE, installed_packs, load_registry
    from opgraft.reporting.packs import is_off
    from opgraft.run_command import GUARD, HOW_TO_GET_THE_GUARD

    if not names:
        return
    asked = [*filter(None, os.environ.get(PACKS_VARIABLE, "").split(",")), *names]
    os.environ[PACKS_VARIABLE] = ",".join(dict.fromkeys(asked))
    policy = load_registry(registry).policy
    found = {pack.name: pack for pack in installed_packs()}
    for name in names:
        if name not in found:
            hint = printable(perhaps_meant(name, found))
            off = ", ".join(printable(pack.name) for pack in found.values() if is_off(pack))
            known = f"those to turn on are {off}" if off else "every installed pack is on already"
            cure = f"; {HOW_TO_GET_THE_GUARD}" if name == GUARD else ""
            raise click.UsageError(f"no pack {name!r}{hint}; {known}{cure}")
        if found[name].distribution == "opgraft":
            click.echo(f"opgraft: --pack {name} changes nothing: the pack is on already", err=True)
        problem = found[name].error or policy.denial("", name)
        if problem:
            raise ModelError(f"the pack {name} cannot be used: {problem}")


def _nobody(operator: str, pack: str | None, registry: Registry) -> str:
    """Why there is no handler of an operator to show, and what to do about it."""
    from opgraft.registry.names import close_operators

    others = ", ".join(dict.fromkeys(each.pack for each in registry.candidates(operator)))
    if others:
        return f"the pack {pack} has no handler for {operator}; {others} has"
    reasons = "; ".join(str(reason) for reason in registry.nobody(operator))
    if registry.known_to(operator):
        return reasons
    close = " or ".join(close_operators(operator, registry.operators))
    command = f"opgraft new-pack my-pack --op {shlex.quote(operator)}"
    return f"{reasons}{f' (did you mean {close}?)' if close else ''}; to write one: {command}"


def _sizes(given: tuple[tuple[str, int], ...]) -> dict[str, int]:
    """Sizes by dimension.

    Raises:
        UsageError: a dimension has two of them.
    """
    names = [name for name, _ in given]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise click.UsageError(f"-s gives {twice!r} more than one size; leave out all but one")
    return dict(given)


def _with_registry(options: tuple[tuple[str, str], ...], registry: str | None) -> dict[str, str]:
    """Provider options, with the registry file in them that an option of its own names.

    Raises:
        UsageError: they name one already.
    """
    found = dict(options)
    if registry is None:
        return found
    if "registry" in found:
        raise click.UsageError("--registry and -o registry= say the same; give one of them")
    return {**found, "registry": registry}


def _refuse_both(inputs: Path | None, sizes: tuple[tuple[str, int], ...]) -> None:
    if inputs is not None and sizes:
        raise click.UsageError("--size is for random inputs, and --inputs gives others; leave out one of them")


@main.command("new-pack", cls=_Command)
@click.argument("name")
@click.option("--op", "operators", multiple=True, required=True, help="An operator, as in acme::Mish; may be repeated.")
@click.option("--into", type=click.Path(path_type=Path), default=Path("."), help="The folder to write NAME/ in.")
def new_pack(name: str, operators: tuple[str, ...], into: Path) -> None:
    """Write an op pack NAME that can be installed, with a handler for each --op and a test that passes."""
    from opgraft.scaffold import draft_pack, write_pack

    folder = into / name
    out = console()
    pack = draft_pack(name, operators)
    for path in write_pack(pack, folder):
        out.print(Text(printable(str(path))))
    for warning in pack.warnings:
        click.echo(f"Warning: {printable(warning)}", err=True)
    out.print(Text(printable(f'Next: cd {folder} && pip install -e ".[test]" && pytest')))


@main.command("library-path")
def library_path_command() -> None:
    """Print the path of the shared library, for tools that load an execution provider from a file."""
    click.echo(library_path())


@main.command()
def doctor() -> None:
    """Check this installation, and say how to mend what is wrong."""
    from opgraft.doctor import checks

    out = console()
    failed = False
    for check in checks():
        failed |= not check.good
        out.print(Text(f"{'ok  ' if check.good else 'FAIL'} {check.name}: {printable(check.detail)}"))
    out.print(Text(f"     Python {platform.python_version()} on {platform.platform()}"))
    for name in ("onnxruntime", "mlx", "numpy", "pluggy", "onnx"):
        out.print(Text(f"     {name} {_version(name)}"))
    if failed:
        sys.exit(1)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "is not installed"


if __name__ == "__main__":
    main()
