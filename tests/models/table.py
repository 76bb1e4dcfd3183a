"""Prints what each real model does on the execution provider: `make models`."""

from __future__ import annotations

from measure import measure
from rich.console import Console
from rich.table import Table
from zoo import MODELS


def main() -> None:
    table = Table(title="Real models on the execution provider, and on the CPU EP in the same run")
    for heading in (
        "model",
        "nodes on EP",
        "%",
        "subgraphs",
        "difference",
        "session ms (CPU)",
        "run ms (CPU)",
        "ratio",
    ):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for model in MODELS:
        found = measure(model)
        table.add_row(
            found.model,
            f"{found.nodes_on_ep}/{found.nodes}",
            f"{found.percentage:.1f}",
            str(found.subgraphs),
            f"{found.worst_difference:.1e}",
            f"{1000 * found.creation_seconds:.0f} ({1000 * found.cpu_creation_seconds:.0f})",
            f"{1000 * found.run_seconds:.1f} ({1000 * found.cpu_run_seconds:.1f})",
            f"{found.run_seconds / found.cpu_run_seconds:.1f}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
