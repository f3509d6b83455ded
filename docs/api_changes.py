"""Lists what has changed in the public API so that programs break: `make api AGAINST=v0.1.0`.

Public is what `strandline` and `strandline.changelog` export, and the public members of that.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import griffe

PACKAGES = ("strandline", "strandline.changelog")


def main() -> int:
    """Print the changes; 1 if there are any."""
    parser = argparse.ArgumentParser(prog="docs/api_changes.py", description=__doc__)
    parser.add_argument("against", metavar="COMMIT", help="what programs are written for")
    arguments = parser.parse_args()
    before = griffe.load_git("strandline", ref=arguments.against, repo=".")
    now = griffe.load("strandline", search_paths=["."])
    assert isinstance(before, griffe.Module)
    assert isinstance(now, griffe.Module)
    public = {*exported(before), *exported(now)}
    changes = [
        change.explain(griffe.ExplanationStyle.ONE_LINE)
        for change in griffe.find_breaking_changes(before, now)
        if any(f"{change.obj.canonical_path}.".startswith(f"{path}.") for path in public)
    ]
    print("\n".join(changes) or "nothing in the public API breaks programs")
    return 1 if changes else 0


def exported(package: griffe.Module) -> Iterator[str]:
    """Yield the paths under which what is exported is defined, and is exported."""
    for name in PACKAGES:
        module = package[name.partition(".")[2]] if "." in name else package
        for exported_name in module.exports or ():
            yield f"{name}.{exported_name}"
            member = module.members.get(str(exported_name))
            if isinstance(member, griffe.Alias):
                yield member.target_path


if __name__ == "__main__":
    sys.exit(main())
