"""What to say of a run that failed: whether the CPU execution provider can do it, and what sizes were made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opgraft.comparison import RunError, run_timed
from opgraft.errors import ModelError
from opgraft.graph import Array
from opgraft.sessions import Model, open_cpu_session


def explained(error: RunError, model: Model, feeds: Mapping[str, Array], assumed: Sequence[str]) -> ModelError:
    """A failed run on the execution provider, with what the CPU's says of the same inputs.

    Args:
        error: the failure.
        model: the model.
        feeds: the inputs.
        assumed: the dimensions whose sizes were nowhere given.
    """
    try:
        run_timed(open_cpu_session(model), feeds, 0, "on the CPU EP")
    except RunError as other:
        here, there = (_without_advice(each.words) for each in (error, other))
        both = here if here == there else f"{here}; on the CPU EP: {there}"
        said = f"the run fails on the CPU EP too, so look at the inputs and the model: {both}"
        return ModelError(said + about_sizes(assumed))
    return ModelError(f"{error} (the CPU EP runs it){about_sizes(assumed)}")


def about_sizes(assumed: Sequence[str]) -> str:
    """The end of an error where sizes were made up, which may be what is wrong; empty where none were."""
    if not assumed:
        return ""
    return f"; sizes taken as 1: {', '.join(assumed)}; give them, as in -s {assumed[-1]}=320"


def _without_advice(words: str) -> str:
    """What went wrong, in opgraft's own words where it is opgraft's, without what to do if a handler were at fault."""
    return words.rpartition("opgraft: ")[2].partition(". Its inputs: ")[0].rstrip(".")
