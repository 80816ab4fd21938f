"""Output of a plan: a tree for a terminal, JSON for programs, Mermaid for a page."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from typing import Any

from cm4vllm.common.errors import CmError
from cm4vllm.common.files import working_folder
from cm4vllm.common.progress import page
from cm4vllm.common.units import size_text
from cm4vllm.engine.cache.cache_commands import age_text
from cm4vllm.engine.format.script_catalogue import protect
from cm4vllm.engine.plan.plan import plan
from cm4vllm.engine.plan.planned_task import Brought, Node, Status
from cm4vllm.engine.run.flags import flag
from cm4vllm.engine.run.request import Request
from cm4vllm.engine.run.session import Session

#: The style of a node in Mermaid.
_STYLES = {
    Status.CACHED: "fill:#e6f4ea,stroke:#34a853",
    Status.REUSED: "fill:#e6f4ea,stroke:#34a853",
    Status.MAKE: "fill:#fef7e0,stroke:#f9ab00",
    Status.RUN: "fill:#e8f0fe,stroke:#4285f4",
    Status.OPEN: "stroke-dasharray:4",
    Status.FAILS: "fill:#fce8e6,stroke:#d93025",
}


def as_tree(root: Node) -> str:
    """Return the tree with the statuses in a column of their own, and what is brought at the end.

    What was shown before is not unfolded again. A dependency without any of its own, of which nothing else is to be
    said, is not even named again: it is counted below the tree.
    """
    again: Counter[str] = Counter()
    rows = list(_rows(root, "", "", set(), again))
    room = max(shutil.get_terminal_size((120, 24)).columns - 50, 60)
    width = min(max(len(left) for left, right in rows if right), room)
    lines = [f"{left:<{width}}  {right}".rstrip() for left, right in rows]
    named = [f"{name} ({times}x)" for name, times in again.most_common()]
    return "\n".join([*lines, "", *([f"met again: {', '.join(named)}"] if named else []), *summary(root)])


def _rows(
    node: Node, first: str, rest: str, shown: set[tuple[Any, ...]], again: Counter[str]
) -> Iterator[tuple[str, str]]:
    """Yield the lines of a node and of those below it: the tree with the title, and the state beside it."""
    key = _key(node)
    repeated = bool(node.children) and key in shown
    shown.add(key)
    yield first + _title(node), _state(node) + (", as above" if repeated else "")
    children = [] if repeated else [child for child in node.children if not _is_left_out(child, shown, again)]
    below = rest + ("│  " if children else "   ")
    yield from ((below + detail, "") for detail in _details(node))
    for child in children:
        last = child is children[-1]
        yield from _rows(child, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "), shown, again)


def _is_left_out(node: Node, shown: set[tuple[Any, ...]], again: Counter[str]) -> bool:
    """Return True if nothing is lost without a node, and count it if so."""
    left_out = node.why == "deps" and not node.children and not _details(node) and _key(node) in shown
    if left_out:
        again[_name(node)] += 1
    return left_out


def _key(node: Node) -> tuple[Any, ...]:
    """Return the key by which two nodes look the same from here on."""
    return (
        node.script.path if node.script else node.tags,
        node.variations,
        node.status,
        node.asked,
        tuple((child.tags, child.status) for child in node.children),
    )


def _title(node: Node) -> str:
    is_plain = not node.name and node.why in ("deps", "asked for")
    return ("" if is_plain else f"{node.why} {node.name}".rstrip() + ": ") + _name(node)


def _name(node: Node) -> str:
    """Return the tags as asked, with the variations that were not asked for but are on in brackets."""
    asked = {tag.removeprefix("_") for tag in node.tags.split(",") if tag.startswith("_")}
    implied = [f"_{name}" for name in node.variations if name not in asked]
    version = f" {node.asked}" if node.asked else ""
    return node.tags + version + (f" ({','.join(implied)})" if implied else "")


def _state(node: Node) -> str:
    """Return in words what a run would do with a node."""
    if node.status is Status.CACHED and node.entry is not None:
        version = f"{node.version or node.entry.version}, " if node.version or node.entry.version else ""
        return f"cached ({version}{age_text(node.entry.made_at)} old)"
    if node.status is Status.OPEN:
        return "open"
    if node.status is Status.FAILS and node.error is not None:
        return f"FAILS: {node.error.what}"
    return node.status + (f" {node.version}" if node.version and node.version not in node.asked else "")


def _details(node: Node) -> list[str]:
    """Return the lines below a node's title: conditions, folder, what it brings, notes."""
    facts = node.open_facts if node.status is Status.OPEN else ()
    may = "may " if node.status is Status.OPEN else ""
    return [
        *([f"depends on {', '.join(facts)}"] if facts else []),
        *(condition for condition in node.only_if if condition.removeprefix("depends on ") not in facts),
        *([f"in {node.entry.folder}"] if node.entry is not None else []),
        *([f"because of _{node.added_by}"] if node.added_by else []),
        *(f"{may}{brought}" for brought in node.brings),
        *node.notes,
    ]


def summary(root: Node) -> list[str]:
    """Return the lines on the scripts to run, and on the things that they bring onto the machine."""
    certain = Counter(node.status for node, sure in root.walk() if sure)
    maybe = sum(1 for _, sure in root.walk() if not sure)
    counted = ", ".join(f"{certain[status]} {status}" for status in Status if certain[status])
    return [
        f"scripts: {counted}" + (f"; {maybe} more, depending on the run" if maybe else ""),
        *_brought_lines("brings", _all_brought(root, certain=True)),
        *_brought_lines("may bring", _all_brought(root, certain=False)),
        *_last_line(root),
    ]


def _last_line(root: Node) -> list[str]:
    """Return the line on all that is brought and the time, none where there is nothing to say of either."""
    sure, maybe = (_all_brought(root, certain=certain) for certain in (True, False))
    most, every = "up to " if maybe else "", [*sure, *maybe]
    fetched = [item.transfer_bytes for item in every if item.how != "make"]
    parts = [
        *([f"to download {most}{_sum_text(fetched)}"] if fetched else []),
        *([f"on disk {most}{_sum_text([item.disk_bytes for item in every])}"] if every else []),
        *([root.takes] if root.takes else []),
    ]
    return [f"in all: {'; '.join(parts)}"] if parts else []


def _sum_text(sizes: list[int]) -> str:
    """Return the sum of sizes in words, with the number of those that are not known (0)."""
    unknown = sizes.count(0)
    known = size_text(sum(sizes)) if unknown < len(sizes) else ""
    return " and ".join(filter(None, [known, f"{unknown} of unknown size" if unknown else ""]))


def _all_brought(root: Node, *, certain: bool) -> list[Brought]:
    """Return what the run surely brings, or with `certain=False` what it may bring besides."""
    sure = [
        brought
        for node, is_sure in root.walk()
        if is_sure and node.status is not Status.OPEN
        for brought in node.brings
    ]
    if certain:
        return list(dict.fromkeys(sure))
    return list(dict.fromkeys(brought for node, _ in root.walk() for brought in node.brings if brought not in sure))


def _brought_lines(label: str, brought: list[Brought]) -> list[str]:
    """Return a head line with the total size on disk, and a line for each thing that is brought."""
    if not brought:
        return []
    known = [item.disk_bytes for item in brought if item.disk_bytes]
    unknown = len(brought) - len(known)
    most = "up to " if label.startswith("may") else ""
    total = f"{most}{size_text(sum(known))} on disk" if known else ""
    rest = f"{unknown} of unknown size" if unknown else ""
    return [f"{label}: {'; '.join(filter(None, [total, rest]))}", *(f"  {item}" for item in brought)]


def as_json(root: Node) -> dict[str, Any]:
    """Return the plan as plain data."""
    return {
        "plan": _as_json(root, certain=True),
        "summary": {
            "scripts": {
                status.value: sum(1 for node, sure in root.walk() if sure and node.status is status)
                for status in Status
            },
            "uncertain": sum(1 for _, sure in root.walk() if not sure),
            "brings": [_brought_json(item) for item in _all_brought(root, certain=True)],
            "may_bring": [_brought_json(item) for item in _all_brought(root, certain=False)],
            "takes": root.takes or None,
        },
    }


def _brought_json(brought: Brought) -> dict[str, Any]:
    """Return a thing that is brought for `--out=json`; sizes in bytes, null where not measured."""
    return {
        "how": brought.how,
        "what": brought.what,
        "disk_bytes": brought.disk_bytes or None,
        "download_bytes": brought.transfer_bytes or None,
        "measured": brought.measured or None,
    }


def _as_json(node: Node, *, certain: bool) -> dict[str, Any]:
    """Return a node and those below it for `--out=json`; `certain` is False below a condition that is open."""
    certain = certain and not node.only_if
    script, entry = node.script, node.entry
    return {
        "tags": node.tags,
        "script": {"alias": script.alias, "uid": script.uid, "path": str(script.path), "repository": script.repo}
        if script
        else None,
        "variations": list(node.variations),
        "version_asked": node.asked or None,
        "version": node.version or (entry.version if entry else "") or None,
        "why": {
            "phase": node.why,
            "of": node.parent or None,
            "name": node.name or None,
            "data": node.data,
            "names": list(node.names),
            "env": dict(node.env),
            "variation": node.added_by or None,
            "only_if": list(node.only_if),
        },
        "certain": certain,
        "status": node.status.value,
        "depends_on": list(node.open_facts),
        "entry": str(entry.folder) if entry else None,
        "brings": [_brought_json(item) for item in node.brings],
        "notes": list(node.notes),
        "error": str(node.error) if node.error else None,
        "children": [_as_json(child, certain=certain and node.status is not Status.OPEN) for child in node.children],
    }


def as_mermaid(root: Node) -> str:
    """Return a Mermaid flowchart: an arrow for each dependency, dashed where a run decides."""
    lines = ["flowchart LR"]
    ids: dict[tuple[Any, ...], str] = {}
    edges: dict[str, None] = {}

    def visit(node: Node) -> str:
        """Add a node, those below it and the edges between them to the graph; return the node's id."""
        key = (node.script.path if node.script else node.tags, node.variations, node.asked)
        if key not in ids:
            ids[key] = f"n{len(ids)}"
            label = f"{_name(node)}<br/>{_state(node)}"
            lines.append(f'  {ids[key]}["{_escape(label)}"]:::{node.status.name.lower()}')
        for child in node.children:
            label = ", ".join(filter(None, [child.name or child.why.removeprefix("deps"), *child.only_if]))
            text = f'|"{_escape(label)}"|' if label else ""
            edges.setdefault(f"  {ids[key]} {'-.->' if child.only_if else '-->'}{text} {visit(child)}")
        return ids[key]

    visit(root)
    return "\n".join([*lines, *edges, *(f"  classDef {name.name.lower()} {style}" for name, style in _STYLES.items())])


def _escape(text: str) -> str:
    """Return a text for a Mermaid label: special characters as entities, line breaks kept."""
    return (
        text.replace("&", "#amp;")
        .replace('"', "#quot;")
        .replace("<br/>", "\0")
        .replace("<", "#lt;")
        .replace(">", "#gt;")
        .replace("\0", "<br/>")
    )


def print_plan(automation: Any, i: dict[str, Any]) -> dict[str, Any]:
    """Print the plan of a run as a tree, as Mermaid with --graph, as JSON with --out=json or -j.

    The result holds the plan as data. Its code is that of the first error that the run is certain to meet.
    """
    protect(automation.cmind)
    session = Session(automation, i)
    with session.vault.guarded_output():
        try:
            root = plan(session, Request.of(i, working_folder(), from_person=bool(i.get("cmd"))))
        except CmError as error:
            return {"return": error.exit_code, "error": session.explain(error)}
        data: dict[str, Any] = session.vault.cleaned(as_json(root))
        if flag(i, "j", "json"):
            page(json.dumps(data, indent=2))
        elif flag(i, "graph"):
            page(as_mermaid(root))
        elif not session.as_json:
            page(as_tree(root))
    if (failure := root.failure()) is not None:
        return {"return": failure.exit_code, "error": f"the run would fail\n{failure}", **data}
    return {"return": 0, **data}
