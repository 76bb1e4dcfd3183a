"""What `opgraft doctor` checks: each part of an installation, with what is wrong and how to mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

FIRST_WITH_NAMES = (1, 25)
"""The first onnxruntime whose `providers=[...]` takes the name of a plugin execution provider."""


@dataclass(frozen=True)
class Check:
    """One part of the installation."""

    name: str
    good: bool
    detail: str


def checks() -> Iterator[Check]:
    """The checks, in the order in which one builds on another; none raises."""
    for name, check in _CHECKS.items():
        try:
            yield Check(name, True, check())
        except Exception as error:  # a broken installation can break anywhere
            yield Check(name, False, f"{error}" if str(error) else type(error).__name__)


def _onnxruntime() -> str:
    from opgraft.host.requirements import require_onnxruntime

    version = require_onnxruntime().__version__
    by_name = tuple(map(int, version.split(".")[:2])) >= FIRST_WITH_NAMES
    return f"version {version}" + (
        "" if by_name else ", which takes no plugin EP by name: use opgraft.session_options()"
    )


def _mlx() -> str:
    from opgraft.host.requirements import require_mlx

    require_mlx()
    from opgraft.host.devices import default_device, gpu_backend

    backend = gpu_backend()
    return f"default device {default_device()}, " + (f"GPU backend {backend}" if backend else "no GPU backend")


def _blas() -> str:
    from opgraft.blas import Blas, in_use

    if in_use in (Blas.NOT_INSTALLED, Blas.TOO_LATE):
        raise RuntimeError(in_use.value)
    return str(in_use.value)


def _library() -> str:
    from opgraft.host import library_path

    return library_path()


def _packs() -> str:
    from opgraft.registry import installed_packs
    from opgraft.reporting.packs import operators_text

    packs = installed_packs()
    broken = [pack for pack in packs if pack.error]
    if broken:
        raise RuntimeError("; ".join(f"{pack.name} ({pack.distribution}) is left out: {pack.error}" for pack in broken))
    return ", ".join(f"{pack.name} {pack.version} ({operators_text(pack)})" for pack in packs) or "none"


def _registry() -> str:
    from opgraft.registry import load_registry
    from opgraft.schemas import left_out

    registry = load_registry()
    out = [f"{operator} is left out: {each.reason}" for operator, each in left_out(registry).items()]
    if problems := [*registry.idle_rules(), *out]:
        raise RuntimeError("; ".join(problems))
    return registry.policy.source


def _execution_provider() -> str:
    import onnxruntime

    from opgraft.host import EP_NAME, register

    register()
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == EP_NAME]
    if not devices:
        raise RuntimeError("onnxruntime loaded the library and shows no device for it")
    names = [device.ep_metadata["mlx_device"] for device in devices]
    return f"{EP_NAME}, for {' and '.join(names)}"


_CHECKS: dict[str, Callable[[], str]] = {
    "onnxruntime": _onnxruntime,
    "MLX": _mlx,
    "BLAS of the CPU device": _blas,
    "library": _library,
    "op packs": _packs,
    "registry": _registry,
    "execution provider": _execution_provider,
}
