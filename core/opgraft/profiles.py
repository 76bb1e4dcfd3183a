"""Profiles: what trying the clusters of a model gave, in a file by which later sessions decide without trying."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

from opgraft.errors import ModelError, OptionError
from opgraft.files import write_whole
from opgraft.text import printable

FORMAT: Final = 1
MOST_BYTES: Final = 1 << 24
"""What is larger than this is no profile: a hundred thousand clusters fit in."""

_OUTPUTS_SHOWN: Final = 3


@dataclass(frozen=True)
class Trial:
    """What trying one cluster gave.

    Attributes:
        key: tells the cluster from every other, in every session of the same model.
        nodes: how many nodes it has.
        outputs: the names of its first outputs, for people.
        claimed: whether it is claimed.
        ep, cpu: seconds of a run here and on the CPU EP; None where there was none.
        problem: what decided in place of its times: it could not be tried, or the model is no faster with it.
        assumed: the sizes that nobody gave, where it was tried with any, as in "batch=1".
    """

    key: str
    nodes: int
    outputs: tuple[str, ...]
    claimed: bool
    ep: float | None = None
    cpu: float | None = None
    problem: str | None = None
    assumed: str = ""

    @property
    def reason(self) -> str:
        """Why it is, or is not, claimed."""
        if self.problem is not None:
            return self.problem
        if self.ep is None or self.cpu is None:
            return "its profile says so"
        word = "faster" if self.claimed else "slower" if self.ep > self.cpu else "not clearly faster"
        text = f"{word} here than on the CPU EP: {milliseconds(self.ep)} against {milliseconds(self.cpu)}"
        return f"{text}, tried with {self.assumed}" if self.assumed else text


def milliseconds(seconds: float) -> str:
    """A time as people read it, as in "4.1 ms"."""
    number = 1000 * seconds
    return f"{number:.0f} ms" if number >= 10 else f"{number:.2g} ms"


@dataclass(frozen=True)
class Profile:
    """The trials of a model's clusters on one device.

    Attributes:
        model: the model's name, for people.
        device: "cpu" or "gpu".
        sizes: of dimensions that the model leaves open, at which the clusters were tried.
        trials: by key.
    """

    model: str
    device: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    trials: Mapping[str, Trial] = field(default_factory=dict)

    @classmethod
    def of(cls, model: str, device: str, sizes: Mapping[str, int], trials: Iterable[Trial]) -> Profile:
        return cls(model, device, dict(sizes), {trial.key: trial for trial in trials})


def save_profile(profile: Profile, path: str | Path) -> None:
    """Write a profile. Whoever reads the file meanwhile finds the old one or the new one, never half of one.

    Raises:
        ModelError: the file cannot be written.
    """
    document = {
        "format": FORMAT,
        "model": printable(profile.model),
        "device": profile.device,
        "sizes": {name: int(size) for name, size in profile.sizes.items()},
        "clusters": [_entry(trial) for trial in profile.trials.values()],
    }
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)
    try:
        write_whole(Path(path).expanduser(), text, mode=0o644)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written ({error.strerror or error})") from error


def _entry(trial: Trial) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "key": trial.key,
        "nodes": trial.nodes,
        "outputs": [printable(name) for name in trial.outputs[:_OUTPUTS_SHOWN]],
        "claimed": trial.claimed,
    }
    if trial.ep is not None:
        entry["ep_ms"] = float(f"{1000 * trial.ep:.4g}")
    if trial.cpu is not None:
        entry["cpu_ms"] = float(f"{1000 * trial.cpu:.4g}")
    if trial.problem is not None:
        entry["problem"] = printable(trial.problem)
    return entry


def load_profile(path: str | Path) -> Profile:
    """Read a profile.

    Raises:
        OptionError: the file is missing, or is no profile that this opgraft can use; with the cure.
    """
    source = printable(str(path))
    try:
        with open(Path(path).expanduser(), "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: characters that no path has; the last: no home
        problem = getattr(error, "strerror", None) or error
        raise OptionError(f"profile {source}: cannot be read ({problem}); `opgraft tune` writes one") from error
    if len(content) > MOST_BYTES:
        _refuse(source, f"it is larger than a profile may be, {MOST_BYTES} bytes")
    try:
        document = yaml.load(content.decode(), Loader=_LOADER)
    except (yaml.YAMLError, *_OF_TAGS) as error:
        raise OptionError(f"profile {source}: this is no YAML ({' '.join(str(error).split())})") from error
    return _Reader(source).profile(document)


_OF_TAGS: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What PyYAML raises of texts that are not what their tags say, such as !!timestamp."""

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The fast one where PyYAML has it; both make plain values only."""


def require_device(profile: Profile, path: str | Path, device: str) -> None:
    """Refuse a profile of another device.

    Raises:
        OptionError: it is.
    """
    if profile.device != device:
        raise OptionError(
            f"profile {printable(str(path))} was measured on the {profile.device}, and this session runs on the "
            f"{device}: run `opgraft tune --option device={device}`, or choose device={profile.device}"
        )


def _refuse(source: str, problem: str) -> NoReturn:
    raise OptionError(f"profile {source}: {problem}; `opgraft tune` writes it anew")


_FIELDS: Final[Mapping[str, tuple[tuple[type, ...], bool]]] = {
    "key": ((str,), True),
    "nodes": ((int,), True),
    "outputs": ((list,), True),
    "claimed": ((bool,), True),
    "ep_ms": ((int, float), False),
    "cpu_ms": ((int, float), False),
    "problem": ((str,), False),
}
"""What an entry holds: the types of each field, and whether it must be there."""


class _Reader:
    """Makes a profile of what a file holds, and refuses what no profile can hold."""

    def __init__(self, source: str) -> None:
        self.source = source

    def profile(self, document: Any) -> Profile:
        if not isinstance(document, dict) or "format" not in document:
            _refuse(self.source, "this is no profile")
        if document["format"] != FORMAT:
            _refuse(self.source, f"its format is {document['format']!r}, and this opgraft reads format {FORMAT}")
        unknown = sorted(map(str, document.keys() - {"format", "model", "device", "sizes", "clusters"}))
        if unknown:
            _refuse(self.source, f"it has an unknown part {unknown[0]!r}")
        device = document.get("device")
        if device not in ("cpu", "gpu"):
            _refuse(self.source, f"its device is {device!r}, and not cpu or gpu")
        sizes = document.get("sizes", {})
        if not isinstance(sizes, dict) or not all(
            isinstance(name, str) and type(size) is int and size >= 0 for name, size in sizes.items()
        ):
            _refuse(self.source, "its sizes are not names with whole numbers")
        clusters = document.get("clusters", [])
        if not isinstance(clusters, list):
            _refuse(self.source, "its clusters are no list")
        trials = [self._trial(number, entry) for number, entry in enumerate(clusters, 1)]
        return Profile.of(str(document.get("model", "")), device, sizes, trials)

    def _trial(self, number: int, entry: Any) -> Trial:
        which = f"cluster {number}"
        if not isinstance(entry, dict):
            _refuse(self.source, f"{which} is no mapping")
        for name in entry:
            if name not in _FIELDS:
                _refuse(self.source, f"{which} has an unknown part {name!r}")
        for name, (types, required) in _FIELDS.items():
            if name not in entry:
                if required:
                    _refuse(self.source, f"{which} has no {name!r}")
            elif type(entry[name]) not in types:
                _refuse(self.source, f"{name!r} of {which} is {entry[name]!r}")
        return Trial(
            key=entry["key"],
            nodes=entry["nodes"],
            outputs=tuple(map(str, entry["outputs"])),
            claimed=entry["claimed"],
            ep=_seconds(entry.get("ep_ms")),
            cpu=_seconds(entry.get("cpu_ms")),
            problem=entry.get("problem"),
        )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
