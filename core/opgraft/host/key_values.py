"""OrtKeyValuePairs, and the provider options that a session's entries hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from opgraft.host import EP_NAME
from opgraft.host._ep import ffi, lib
from opgraft.host.status import check

_OPTION_PREFIX: Final = f"ep.{EP_NAME.lower()}."


def config_entries(getter: Callable[[Any, Any], Any], of: Any) -> dict[str, str]:
    """A session's configuration entries.

    Args:
        getter: the function of ONNX Runtime that gives them for `of`.
    """
    pairs = ffi.new("OrtKeyValuePairs **")
    check(getter(of, pairs))
    try:
        return _key_values(pairs[0])
    finally:
        lib.ort_ReleaseKeyValuePairs(pairs[0])


def provider_options(entries: dict[str, str]) -> dict[str, str]:
    """The options among a session's entries: ONNX Runtime puts them there, under this provider's prefix."""
    return {key.removeprefix(_OPTION_PREFIX): value for key, value in entries.items() if key.startswith(_OPTION_PREFIX)}


def _key_values(pairs: Any) -> dict[str, str]:
    keys = ffi.new("const char *const **")
    values = ffi.new("const char *const **")
    count = ffi.new("size_t *")
    lib.ort_GetKeyValuePairs(pairs, keys, values, count)
    return {
        ffi.string(keys[0][index]).decode(): ffi.string(values[0][index]).decode("utf-8", "surrogateescape")
        for index in range(count[0])
    }
