"""`opgraft tune`: tries the clusters of a model at a user's sizes, and saves what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from opgraft.errors import ModelError
from opgraft.failures import about_sizes
from opgraft.fastest import tried_on
from opgraft.graph.onnx_source import load_model
from opgraft.profiles import Profile, Trial, milliseconds, save_profile
from opgraft.reporting.wording import counted, taken_as_1
from opgraft.run_command import sample_of
from opgraft.samples import sizes_of
from opgraft.sessions import decided_session, open_session, signature
from opgraft.text import printable


@dataclass(frozen=True)
class Request:
    """What the command line asks for.

    Attributes:
        model: the model.
        output: where to write the profile.
        sizes: of dimensions, for random inputs.
        inputs: the .npz file to take inputs from, in place of random ones.
        options: provider options.
    """

    model: Path
    output: Path
    sizes: Mapping[str, int] = field(default_factory=dict)
    inputs: Path | None = None
    options: Mapping[str, str] = field(default_factory=dict)


def tune(request: Request, console: Console) -> Profile:
    """Try, save, and show.

    Raises:
        ModelError: the model, or the inputs, cannot be used, or the profile cannot be written.
        OptionError: a size or an option is wrong.
    """
    load_model(request.model)
    opened = open_session(request.model, {**request.options, "placement": "all", "profile": ""})
    values = signature(opened.session)
    sample = sample_of(opened.session, request.inputs, request.sizes)
    feeds = sample.inputs
    if sample.assumed:
        console.print(Text(printable(taken_as_1(sample.assumed))))
    device = opened.coverage.device
    try:
        opened.session.run(None, dict(feeds))
    except Exception as error:
        said = " ".join(str(error).split())
        raise ModelError(f"the model does not run on these inputs: {said}{about_sizes(sample.assumed)}") from error
    del opened
    with tried_on(feeds):
        seen = decided_session(request.model, {**request.options, "placement": "fastest", "profile": ""})
    trials = [trial for decisions in seen for trial in decisions.trials]
    profile = Profile.of(request.model.name, device, sizes_of(values, feeds), trials)
    save_profile(profile, request.output)
    console.print(_table(profile))
    claimed = sum(trial.claimed for trial in profile.trials.values())
    console.print(Text(f"{claimed} of {counted(len(profile.trials), 'cluster')} claimed, on the {device}"))
    console.print(Text(printable(f"profile written to {request.output}")))
    return profile


def _table(profile: Profile) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, justify in (("cluster", "left"), ("nodes", "right"), ("here", "right"), ("CPU EP", "right")):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    table.add_column("claimed", overflow="fold")
    for trial in profile.trials.values():
        what = Text(printable(", ".join(trial.outputs)))
        table.add_row(what, str(trial.nodes), _time(trial.ep), _time(trial.cpu), _verdict(trial))
    return table


def _time(seconds: float | None) -> str:
    return "" if seconds is None else milliseconds(seconds)


def _verdict(trial: Trial) -> Text:
    word = "yes" if trial.claimed else "no"
    return Text(word if trial.problem is None else printable(f"{word}: {trial.problem}"))
