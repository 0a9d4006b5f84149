"""Takes pictures of the documentation site in Chromium: `python docs/screenshots.py SITE FOLDER`.

SITE is what `make docs` built. Each page is opened from disk, 1400 and 500 pixels wide, without a
network. FOLDER gets one PNG for each page and width. If FOLDER has `report.html`, it is a page of
`stackc report` whose picture becomes `report.png`, as in the README:

    stackc dump demos/transformer.py:llama_block --target avx2 --steps -o r1
    stackc report r1 -o FOLDER/report.html
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PAGES = ("index.html", "tutorials/dump.html", "reference/passes.html", "search.html?q=fusion")
WIDTHS = (1400, 500)
HEIGHT = 1400
REPORT = "choice=value%3Ah_1&a=stage-canonical&b=diff-fused"  # a value that both views mark
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
    *("--virtual-time-budget=4000", "--host-resolver-rules=MAP * ~NOTFOUND"),
)


def picture(browser: str, url: str, path: Path, width: int, height: int) -> None:
    """Writes the picture of a page, and prints its path."""
    with tempfile.TemporaryDirectory() as profile:
        flags = (f"--user-data-dir={profile}", f"--window-size={width},{height}")
        command = [browser, *FLAGS, *flags, f"--screenshot={path}", url]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    print(path)


def main() -> int:
    """Takes the pictures; returns 1 with a message if that is impossible."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 1
    site, folder = map(Path, sys.argv[1:])
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None or not (site / "index.html").is_file():
        print(f"needs Chromium, and a site in {site} (`make docs`)", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    for page in PAGES:
        for width in WIDTHS:
            path = folder / f"{Path(page.partition('?')[0]).stem}-{width}.png"
            picture(browser, f"{site.resolve().as_uri()}/{page}", path, width, HEIGHT)
    report = folder / "report.html"
    if report.is_file():
        url = f"{report.resolve().as_uri()}#{REPORT}"
        picture(browser, url, folder / "report.png", 1400, 1240)
    return 0


if __name__ == "__main__":
    sys.exit(main())
