"""Builds the documentation as a site, and checks every link in it: `make docs`.

    build/docs/    the pages, links to source files turned into their paths (a site has no source)
    site/          what Zensical makes of them, and of the docstrings that docs/api.md names

With `--browser chromium` some pages are opened without a screen too, and must show their headings.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
PAGES, SITE = ROOT / "build" / "docs", ROOT / "site"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^( *```\w+) .*$", re.MULTILINE)
"""Begin of an example with words for the tests, with which Zensical takes it for text."""
SMOKE = {"index.html": "Strandline", "guide/tasks.html": "Tasks", "api.html": "App"}
"""Pages that a browser opens, and a word of each one's heading."""


class Links(HTMLParser):
    """Collects the targets of a page's links, and the names that others can point to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.names: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.targets += [value for name in ("href", "src") if (value := given.get(name))]
        self.names |= {value for name in ("id", "name") if (value := given.get(name))}


def main() -> int:
    """Build the site and check it; 1 if something is wrong with it."""
    parser = argparse.ArgumentParser(prog="docs/build.py", description=__doc__)
    parser.add_argument("--browser", metavar="PROGRAM", help="opens some pages without a screen")
    arguments = parser.parse_args()
    prepare()
    build()
    wrong = [*broken_links(), *(unseen(arguments.browser) if arguments.browser else [])]
    print("\n".join(wrong) or f"{len(list(SITE.rglob('*.html')))} pages, no broken link")
    return 1 if wrong else 0


def prepare() -> None:
    """Copy the pages, without links that leave docs/ and without words for the tests."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES, ignore=shutil.ignore_patterns("*.py"))
    for page in PAGES.rglob("*.md"):
        page.write_text(FENCE.sub(r"\1", LINK.sub(partial(kept, page=page), page.read_text())))


def kept(link: re.Match[str], page: Path) -> str:
    """Return a link as the site has it."""
    path = urlsplit(link[2]).path
    target = (page.parent / path).resolve()
    if "://" in link[2] or target.is_relative_to(PAGES):
        return link[0]
    if target.name == "README.md":
        return f"[{link[1]}]({'../' * (len(page.relative_to(PAGES).parts) - 1)}index.md)"
    return link[1]


def build() -> None:
    """Let Zensical make the site. A warning, as of a page that does not exist, is an error."""
    shutil.rmtree(SITE, ignore_errors=True)
    zensical = Path(sys.executable).with_name("zensical")
    subprocess.run(
        [zensical, "build", "--clean", "--strict", "-f", ROOT / "zensical.toml"], check=True
    )


def broken_links() -> list[str]:
    """Return which links of the site lead nowhere."""
    pages = {page: Links(page.read_text()) for page in SITE.rglob("*.html")}
    return [
        f"{page.relative_to(SITE)}: {target}"
        for page, links in pages.items()
        for target in sorted(set(links.targets))
        if page.name != "404.html" and not leads_somewhere(page, target, pages)
    ]


def leads_somewhere(page: Path, target: str, pages: dict[Path, Links]) -> bool:
    """Return True if a link of `page` has a target in the site, or leaves it."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return True
    file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if file.is_dir():
        file /= "index.html"
    if not file.exists():
        return False
    name = unquote(parts.fragment)
    return not name or file not in pages or name in pages[file].names or name == "__top"


def unseen(browser: str) -> list[str]:
    """Return which pages do not show their heading in a browser without a screen."""
    wrong = []
    for page, word in SMOKE.items():
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000")
        command = [browser, *options, "--dump-dom", (SITE / page).as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        heading = re.search(r"<h1[^>]*>(.*?)</h1>", done.stdout, re.DOTALL)
        if heading is None or word not in heading[1]:
            wrong.append(f"{page}: {browser} shows no heading with {word!r}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
