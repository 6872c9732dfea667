"""Shows that every test that docs/acceptance.md names ran and passed.

Usage: acceptance.py docs/acceptance.md LOG, where LOG is what `cargo test` printed.
"""

import re
import sys

RUNNING = re.compile(r"^\s+Running (?:unittests )?(\S+) \(\S*/([^/]+)-[0-9a-f]+\)")
PASSED = re.compile(r"^test (\S+) \.\.\. ok$")


def passed(log):
    """Names of the tests that passed: crate, file of tests if it is one, path."""
    names, crate, file = set(), None, None
    for line in log:
        if running := RUNNING.match(line):
            path, binary = running.groups()
            if path == "src/lib.rs":
                crate, file = binary.replace("_", "-"), None
            else:
                file = binary
        elif test := PASSED.match(line):
            names.add("::".join(part for part in (crate, file, test[1]) if part))
    return names


def named(page):
    return re.findall(r"`([\w-]+(?:::\w+)+)`", page)


def main(page, log):
    with open(page, encoding="utf-8") as text:
        wanted = sorted(set(named(text.read())))
    with open(log, encoding="utf-8", errors="replace") as text:
        found = passed(text)
    missing = [name for name in wanted if name not in found]
    for name in missing:
        print(f"not passed: {name}")
    print(f"{len(wanted) - len(missing)} of {len(wanted)} tests named in {page} passed")
    return 1 if missing or not wanted else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
