"""Pictures of the HTML reports of the real models, for docs/report.md: `make pictures`.

Each is a screenshot of few colours, and no larger than `MOST_BYTES`. Chromium must be there: apt-get install chromium,
or CHROMIUM=/its/path.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT: Final = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "models")]

from zoo import MODELS  # noqa: E402

from opgraft.reporting.html import report_as_html  # noqa: E402
from opgraft.sessions import survey  # noqa: E402

FOLDER: Final = ROOT / "docs" / "images"
SIZE: Final = {"width": 1200, "height": 1050}
COLOURS: Final = 128
MOST_BYTES: Final = 200_000


def take(page: Any, path: Path) -> int:
    """A picture of what a page shows; its size in bytes.

    Raises:
        ValueError: it is larger than `MOST_BYTES`.
    """
    shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    shot.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{path.name} has {size:,} bytes, more than {MOST_BYTES:,}")
    return size


def main() -> int:
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("there is no Chromium: apt-get install chromium, or set CHROMIUM", file=sys.stderr)
        return 1
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        for model in MODELS:
            found = survey(model.path())
            report = replace(found, setting=replace(found.setting, registry="registry.yaml"))  # wherever that is
            file = Path(folder) / f"{model.name}.html"
            file.write_text(report_as_html(report), "utf-8", errors="backslashreplace")
            page.goto(file.as_uri())
            page.wait_for_selector("#table tbody tr")
            page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            picture = FOLDER / f"{model.name}.png"
            print(f"{picture.relative_to(ROOT)}: {take(page, picture):,} bytes")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
