"""The options of `vllm serve` that vanished between releases, by the syntax of the releases' source packages.

    python docs/tools/vanished_options.py [--sources=FOLDER] > src/cm4vllm/records/vllm/vanished.yaml

reads the source packages in FOLDER, or else downloads those of all releases from 0.5.0 to 0.9 and of the newest of each
later minor one from the package index that pip uses (about 1 GB). No code of a package is run: a name that is computed
is known only where it comes from a loop over literals or over the fields of a class; others are listed on the error
stream. Not seen are options that plugins or platforms add, those of a later release between two that are read, and
values that an option does not take any more.
"""

import argparse
import ast
import hashlib
import re
import ssl
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urljoin

import msgspec
from packaging.version import Version

from cm4vllm.common.http_requests import HttpClient
from cm4vllm.common.programs.environments import pip_settings

#: The release of the oldest published submissions with vLLM (v4.1), and the first of which only the newest is read.
FIRST, NEWEST_ALONE = Version("0.5.0"), Version("0.10")
_INDEX = "https://pypi.org/simple"
_TIMEOUT_S, _MOST_BYTES = 600, 1 << 28
_SOURCE = re.compile(r"vllm-(?P<version>[0-9.]+(\.post\d+)?)\.tar\.gz", re.ASCII)
#: The modules that add options to the parser of the server, and those whose classes have fields that become options.
_PARSERS = re.compile(r"vllm/(engine/arg_utils|entrypoints/((openai|launchers|common)/cli_args|cli/serve))\.py")
_CONFIGS = re.compile(r"vllm/config(/.*)?\.py")
_COMMENT = """\
# Options of `vllm serve` that a release between {first} and {last} had and {last} has not: the first and the last
# release that had them and the first one without them, of those that were read, and whether a value follows. Written
# by `python docs/tools/vanished_options.py`. What to say now, if anything, stands in renamed.yaml.
"""


class _File(msgspec.Struct):
    """A file of a package on the page of an index (packaging.python.org, Simple repository API)."""

    filename: str
    url: str
    hashes: dict[str, str]


class _Page(msgspec.Struct):
    """The page of a package."""

    files: list[_File]


@dataclass
class Source:
    """Syntax of one release: the classes with their bases and annotated fields, and the parsers' modules."""

    fields: dict[str, dict[str, str]] = field(default_factory=dict)
    bases: dict[str, list[str]] = field(default_factory=dict)
    parsers: list[ast.Module] = field(default_factory=list)

    def fields_of(self, name: str) -> dict[str, str]:
        """Return the annotations of a class's fields by their names, those of its bases first."""
        inherited = (self.fields_of(base) for base in self.bases.get(name, ()))
        return {key: kind for known in inherited for key, kind in known.items()} | self.fields.get(name, {})


def read_source(package: Path) -> Source:
    """Return the syntax of a release from its source package."""
    source = Source()
    with tarfile.open(package) as archive:
        for member in archive:
            path = member.name.partition("/")[2]
            wanted = member.isfile() and (_PARSERS.fullmatch(path) or _CONFIGS.fullmatch(path))
            data = archive.extractfile(member) if wanted else None
            if data is not None:
                add_module(source, path, ast.parse(data.read()))
    return source


def add_module(source: Source, path: str, tree: ast.Module) -> None:
    """Add the classes of a module, and the module where it adds options."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            source.bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
            source.fields[node.name] = {
                part.target.id: ast.unparse(part.annotation)
                for part in node.body
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
            }
    if _PARSERS.fullmatch(path):
        source.parsers.append(tree)


def options_of(source: Source) -> dict[str, str]:
    """Return the options of a release by their names: `always`, `never` or `optional`, whether a value follows."""
    options: dict[str, str] = {}
    for tree in source.parsers:
        for scope in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            for call in (node for node in ast.walk(scope) if isinstance(node, ast.Call)):
                if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
                    options |= _of_call(source, tree, scope, call)
    return options


def _of_call(source: Source, tree: ast.Module, scope: ast.FunctionDef, call: ast.Call) -> dict[str, str]:
    """Return the options that one call adds."""
    written = [word.value for word in call.args if isinstance(word, ast.Constant)]
    names = [word.replace("_", "-") for word in written if isinstance(word, str) and word.startswith("-")]
    if names:
        return _spelled(names, _value(source, scope, call))
    if len(written) == len(call.args):  # a positional argument
        return {}
    return dict(_of_loop(source, tree, scope, call))


def _of_loop(source: Source, tree: ast.Module, scope: ast.FunctionDef, call: ast.Call) -> Iterator[tuple[str, str]]:
    """Yield the options of a call in a loop: over literals, or over the fields of a class."""
    loop = next((loop for loop in ast.walk(scope) if isinstance(loop, ast.For) and call in ast.walk(loop)), None)
    if loop is None:
        print(f"not resolved: {ast.unparse(call)}", file=sys.stderr)
    elif isinstance(loop.iter, (ast.List, ast.Tuple)):
        for row in loop.iter.elts:
            first = row.elts[0] if isinstance(row, ast.Tuple) else row
            yield str(ast.literal_eval(first)), _value(source, scope, call)
    else:
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        owner = next(node.name for node in classes if scope in node.body)
        users = [node.name for node in classes if owner in source.bases[node.name]]  # the loop is over their fields
        for key, kind in (field for user in users or [owner] for field in source.fields_of(user).items()):
            yield from _spelled([f"--{key.replace('_', '-')}"], _of_annotation(kind)).items()


def _spelled(names: list[str], value: str) -> dict[str, str]:
    """Return the spellings of one option, with --no-NAME where it is a switch with both."""
    off = [f"--no-{name[2:]}" for name in names if name.startswith("--")] if value == "switch" else []
    return dict.fromkeys([*names, *off], "never" if value == "switch" else value)


def _value(source: Source, scope: ast.FunctionDef, call: ast.Call) -> str:
    """Return whether a value follows the option that a call adds; `switch` where it also has --no-NAME."""
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if "BooleanOptionalAction" in given.get("action", ""):
        return "switch"
    if "store_" in given.get("action", ""):
        return "never"
    if given.get("nargs") in ("'?'", '"?"'):
        return "optional"
    if (origin := _origin(scope, given.get(None, ""))) is not None:
        return _of_annotation(source.fields_of(origin[0]).get(origin[1], ""))
    return "always"


def _origin(scope: ast.FunctionDef, text: str) -> tuple[str, str] | None:
    """Return class and field of keywords of the form `**NAME_kwargs["field"]`, which get_kwargs(CLASS) made."""
    assigned = {
        ast.unparse(node.targets[0]): ast.unparse(node.value)
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign)
    }
    text = assigned.get(text, text)
    part = re.search(r"(?P<name>\w+)\[['\"](?P<field>\w+)['\"]\]", text)
    made = re.search(r"get_kwargs\((?P<owner>\w+)\)", assigned.get(part["name"], "")) if part else None
    return (made["owner"], part["field"]) if part and made else None


def _of_annotation(kind: str) -> str:
    """Return what get_kwargs makes of a field's annotation, as _value does."""
    if not re.search(r"\bbool\b", kind):
        return "always"
    return "optional" if re.search(r"\bstr\b", kind) else "switch"


def source_packages(folder: Path) -> dict[Version, Path]:
    """Return the source packages in a folder, by release, oldest first."""
    named = {match["version"]: path for path in folder.iterdir() if (match := _SOURCE.fullmatch(path.name))}
    return {Version(version): named[version] for version in sorted(named, key=Version)}


def download(folder: Path) -> None:
    """Download the source packages of the releases that are read, checked by SHA-256."""
    index = pip_settings()[0].get("PIP_INDEX_URL", _INDEX).rstrip("/")
    with HttpClient(tls=ssl.create_default_context(), proxies=True) as client:
        page = msgspec.json.decode(_get(client, f"{index}/vllm/"), type=_Page)
        named = {match["version"]: file for file in page.files if (match := _SOURCE.fullmatch(file.filename))}
        files = {Version(version): named[version] for version in sorted(named, key=Version)}
        newest = {version.release[:2]: version for version in files}
        for version in (version for version in files if version >= FIRST):
            if version < NEWEST_ALONE or version in newest.values():
                data = _get(client, urljoin(f"{index}/vllm/", files[version].url))
                if hashlib.sha256(data).hexdigest() != files[version].hashes["sha256"]:
                    raise SystemExit(f"{files[version].filename} is not what the index says")
                (folder / files[version].filename).write_bytes(data)


def _get(client: HttpClient, url: str) -> bytes:
    """Return a page or a file of the index. Raises SystemExit where it answers neither."""
    accepted = {"Accept": "application/vnd.pypi.simple.v1+json, */*;q=0.1"}
    answer = client.answer("GET", url, headers=accepted, total_s=_TIMEOUT_S, most_bytes=_MOST_BYTES)
    if answer.status != HTTPStatus.OK:
        raise SystemExit(f"{url}: HTTP {answer.status}")
    return answer.body


def vanished(releases: Mapping[Version, Mapping[str, str]]) -> Iterator[str]:
    """Yield a line for each option that the newest release has not, in the order of the releases without them."""
    last = list(releases)[-1]
    lines = []
    for name in {name for options in releases.values() for name in options} - set(releases[last]):
        having = [version for version, options in releases.items() if name in options]
        gone = next(version for version in releases if version > having[-1])
        value = releases[having[-1]][name]
        lines.append((gone, name, f"{name}: {{since: {having[0]}, last: {having[-1]}, gone: {gone}, value: {value}}}"))
    yield _COMMENT.format(first=next(iter(releases)), last=last).rstrip()
    yield from (line for *_, line in sorted(lines))


def main(folder: Path) -> None:
    """Print the options that vanished between the releases in a folder."""
    releases = {version: options_of(read_source(path)) for version, path in source_packages(folder).items()}
    for version, options in releases.items():
        print(f"vLLM {version}: {len(options)} options", file=sys.stderr)
    print(*vanished(releases), sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, help="a folder of source packages")
    if (given := parser.parse_args().sources) is not None:
        main(given)
    else:
        with tempfile.TemporaryDirectory() as name:
            download(Path(name))
            main(Path(name))
