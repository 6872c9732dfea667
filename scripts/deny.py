"""Licences, bans and sources of every dependency, as deny.toml says.

`cargo deny` reads the same file. It takes longer to build than all of Palisade, no
package carries a version that knows today's licence names, and three of its checks
are all that is wanted: they are these.

    python3 scripts/deny.py          exit 1 and a line for every fault
    python3 -m doctest scripts/deny.py
"""
import json
import re
import subprocess
import sys
import tomllib

# What libraries and binary are built from; tests and benches ship nothing.
SHIPPED = {"normal", "build"}


def tokens(expression):
    """
    >>> tokens("(MIT OR Apache-2.0) AND Unicode-3.0")
    ['(', 'MIT', 'OR', 'Apache-2.0', ')', 'AND', 'Unicode-3.0']
    >>> tokens("MIT/Apache-2.0")
    ['MIT', 'OR', 'Apache-2.0']
    """
    return re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))


def licensed(expression, allowed):
    """True if the expression can be met with allowed licences only.

    >>> licensed("MIT OR GPL-3.0-only", {"MIT"})
    True
    >>> licensed("MIT AND GPL-3.0-only", {"MIT"})
    False
    >>> licensed("Apache-2.0 WITH LLVM-exception", {"Apache-2.0"})
    False
    >>> licensed("(MIT OR GPL-3.0-only) AND Unicode-3.0", {"MIT", "Unicode-3.0"})
    True
    >>> licensed("MIT OR", {"MIT"})
    False
    >>> licensed("", {"MIT"})
    False
    """
    left = tokens(expression)

    def term():
        name = left.pop(0)
        if name == "(":
            value = either()
            if left.pop(0) != ")":
                raise IndexError
            return value
        if left and left[0] == "WITH":
            left.pop(0)
            name += " WITH " + left.pop(0)
        return name in allowed

    def both():
        value = term()
        while left and left[0] == "AND":
            left.pop(0)
            value = term() and value
        return value

    def either():
        value = both()
        while left and left[0] == "OR":
            left.pop(0)
            value = both() or value
        return value

    try:
        return either() and not left
    except IndexError:
        return False


def wildcard(requirement):
    """
    >>> [wildcard(each) for each in ("*", "1.*", "^1.2", ">=0")]
    [True, False, False, False]
    """
    return requirement.strip() == "*"


def shipped(metadata):
    """Ids of the packages that are built into something shipped."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    seen, open_ids = set(), list(metadata["workspace_members"])
    while open_ids:
        package = open_ids.pop()
        if package in seen:
            continue
        seen.add(package)
        for dependency in nodes[package]["deps"]:
            kinds = {kind["kind"] or "normal" for kind in dependency["dep_kinds"]}
            if kinds & SHIPPED:
                open_ids.append(dependency["pkg"])
    return seen


def faults(metadata, rules):
    """What deny.toml does not allow, in words.

    >>> rules = {"licenses": {"allow": ["MIT"]}, "bans": {"deny": [{"crate": "bad"}]},
    ...          "sources": {"allow-registry": ["r"]}}
    >>> package = lambda name, license="MIT", source="registry+r", needs=(): {
    ...     "id": name, "name": name, "version": "1.0.0", "license": license,
    ...     "source": source, "dependencies": [{"name": "x", "req": req, "path": None} for req in needs]}
    >>> def tree(*packages, kind=None):
    ...     links = [{"pkg": p["id"], "dep_kinds": [{"kind": kind}]} for p in packages]
    ...     ours = package("ours", source=None)
    ...     nodes = [{"id": "ours", "deps": links}] + [{"id": p["id"], "deps": []} for p in packages]
    ...     return {"packages": [ours, *packages], "workspace_members": ["ours"], "resolve": {"nodes": nodes}}
    >>> list(faults(tree(package("good")), rules))
    []
    >>> list(faults(tree(package("odd", license="GPL-3.0-only")), rules))
    ['odd 1.0.0: licence `GPL-3.0-only` is not allowed']
    >>> list(faults(tree(package("bare", license=None)), rules))
    ['bare 1.0.0: licence `` is not allowed']
    >>> list(faults(tree(package("bad")), rules))
    ['bad 1.0.0: is banned']
    >>> list(faults(tree(package("bad"), kind="dev"), rules))
    []
    >>> list(faults(tree(package("far", source="git+elsewhere")), rules))
    ['far 1.0.0: source is not allowed']
    """
    allowed = set(rules["licenses"]["allow"])
    registries = {"registry+" + url for url in rules["sources"]["allow-registry"]}
    banned = {ban["crate"] for ban in rules["bans"].get("deny", [])}
    built = shipped(metadata)
    for package in metadata["packages"]:
        name = f"{package['name']} {package['version']}"
        ours = package["source"] is None
        if not licensed(package["license"] or "", allowed):
            yield f"{name}: licence `{package['license'] or ''}` is not allowed"
        if package["name"] in banned and package["id"] in built:
            yield f"{name}: is banned"
        if not ours and package["source"] not in registries:
            yield f"{name}: source is not allowed"
        if ours:
            for need in package["dependencies"]:
                if wildcard(need["req"]) and not need.get("path"):
                    yield f"{name}: `{need['name']}` needs a version"


def metadata():
    asked = ["cargo", "metadata", "--format-version", "1", "--all-features", "--locked"]
    host = next(
        line.split()[1]
        for line in subprocess.check_output(["rustc", "-vV"], text=True).splitlines()
        if line.startswith("host:")
    )
    return json.loads(subprocess.check_output([*asked, "--filter-platform", host]))


def main():
    with open("deny.toml", "rb") as file:
        rules = tomllib.load(file)
    found = list(faults(metadata(), rules))
    for fault in found:
        print(fault)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
