"""Every benchmark beside what it is compared with, in processes of their own: `make bench`. Writes RESULTS.md.

A GPU's table needs a GPU; the encoder is left out without one. Rows of BEFORE are from the commit named there, by the
same scripts on the same machine.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from math import exp, log
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"

Row = dict[str, Any]

BEFORE = ("2994465", {
    "silero-vad": 6.1, "ocr-detect": 14.2, "ocr-recognize": 15.9, "ocr-classify": 15.8, "magika": 16.7, "nudenet": 20.3,
})  # fmt: skip
"""Run on the EP ÷ on the CPU EP, before any of what these benchmarks are about."""


def rows_of(script: str, *arguments: str) -> list[Row]:
    """What a script told; one that fails is told on stderr, and has no rows."""
    command = [sys.executable, str(HERE / script), *arguments]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{script} {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-2000:]}", file=sys.stderr)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def table(title: str, heads: list[str], rows: list[list[str]]) -> str:
    lines = [f"## {title}", "", "| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])


def mean(ratios: list[float]) -> float:
    """The geometric mean."""
    return exp(sum(map(log, ratios)) / len(ratios))


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f}" if seconds < 0.01 else f"{1000 * seconds:.1f}"


def models(placement: str, title: str) -> str:
    rows = rows_of("models.py", placement)
    ratios = [row["ep"] / row["cpu"] for row in rows]
    lines = [
        [row["model"], milliseconds(row["ep"]), milliseconds(row["cpu"]), f"{ratio:.2f}", f"{row['difference']:.0e}"]
        for row, ratio in zip(rows, ratios, strict=True)
    ]
    commit, before = BEFORE
    if placement == "all":
        lines.insert(0, [f"all six, before ({commit})", "", "", f"{mean(list(before.values())):.2f}", ""])
    lines.append(["geometric mean", "", "", f"{mean(ratios):.2f}", ""])
    text = table(title, ["model", "EP, ms", "CPU EP, ms", "ratio", "difference"], lines)
    if placement != "all":
        return text
    sessions = [
        [
            row["model"],
            milliseconds(row["ep_session"]),
            milliseconds(row["cpu_session"]),
            f"{row['ep_session'] / row['cpu_session']:.2f}",
        ]
        for row in rows
    ]
    return text + "\n" + table("Making a session", ["model", "EP, ms", "CPU EP, ms", "ratio"], sessions)


def mlp() -> str:
    (row,) = rows_of("mlp.py")
    line = [f"{1e6 * row[side]:.0f}" for side in ("ep", "mlx", "cpu")]
    title = "A small model: `session.run`, and the same function compiled by MLX"
    heads = ["model", "EP, µs", "MLX, µs", "CPU EP, µs", "EP ÷ MLX"]
    return table(title, heads, [[row["model"], *line, f"{row['ep'] / row['mlx']:.2f}"]])


def scale() -> str:
    rows = [row for nodes in ("10000", "100000") for row in rows_of("scale.py", nodes)]
    lines = [[row["model"], f"{row['ep']:.1f}", f"{row['cpu']:.1f}", f"{row['peak'] / 2**20:.0f}"] for row in rows]
    return table("Making a session of a large model", ["model", "EP, s", "CPU EP, s", "peak, MB"], lines)


def memory() -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "heavy.onnx"))
        rows_of("memory.py", "write", path)
        peaks = {side: rows_of("memory.py", side, path)[0][side] for side in ("ep", "cpu")}
    line = [f"{peaks[side] / 2**20:.0f}" for side in ("ep", "cpu")]
    heads = ["model", "EP, MB", "CPU EP, MB", "ratio"]
    return table(
        "The most memory of the process", heads, [["200 MB of weights", *line, f"{peaks['ep'] / peaks['cpu']:.2f}"]]
    )


def encoder() -> str:
    import mlx.core as mx

    if mx.default_device() != mx.Device(mx.gpu):
        return ""
    rows = rows_of("encoder.py")
    lines = [
        [
            row["model"],
            *(milliseconds(row[side]) if side in row else "" for side in ("ep", "mlx", "torch")),
            f"{row['ep'] / row['mlx']:.2f}",
        ]
        for row in rows
    ]
    return table("Encoder, float16", ["model", "EP, ms", "MLX, ms", "PyTorch, ms", "EP ÷ MLX"], lines)


def decoder() -> str:
    rows = rows_of("decoder.py")
    lines = [
        [
            row["model"].removeprefix("decoder, "),
            row["caches"],
            *(f"{1 / row[side]:.0f}" for side in ("ep", "mlx", "cpu")),
            f"{row['ep'] / row['mlx']:.2f}",
            f"{row['ep'] / row['cpu']:.2f}",
            *(f"{row[name]:.0e}" for name in ("difference", "mlx_difference")),
            f"{row['chosen']:.0%}",
        ]
        for row in rows
    ]
    ratios = ["EP ÷ MLX", "EP ÷ CPU EP"]
    heads = ["model", "caches", "EP, tokens/s", "MLX", "CPU EP", *ratios, "difference", "MLX's", "same tokens"]
    return table("Decoders, token by token; ratios are of seconds", heads, lines)


def main() -> None:
    packages = ", ".join(f"{name} {version(name)}" for name in ("onnxruntime", "mlx", "numpy"))
    head = f"""# Results

{time.strftime("%Y-%m-%d")}, {platform.machine()} with {os.cpu_count()} processors, {platform.system()}, Python
{platform.python_version()}; {packages}. Medians, turn by turn with what they are compared to. By `make bench`.
"""
    parts = [
        mlp(),
        models("all", "Six real models: a run, everything on the EP"),
        models("fastest", "The same with `placement=fastest`"),
        scale(),
        memory(),
        decoder(),
        encoder(),
    ]
    RESULTS.write_text("\n".join([head, *filter(None, parts)]))
    print(RESULTS.read_text())


if __name__ == "__main__":
    main()
