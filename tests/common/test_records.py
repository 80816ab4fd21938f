"""A record's file names its schema, and the schema's number follows the fields.

`python tests/common/test_records.py` writes record_shapes.json anew: after a schema was raised, or a record added.
"""

import ast
import importlib
import json
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from cm4vllm.common.errors import CmError
from cm4vllm.common.records import OtherSchema, Record, read_record, write_record
from syntax import nodes_of

ROOT = Path(__file__).resolve().parents[2]
SHAPES = Path(__file__).with_name("record_shapes.json")
READERS = ("read_record", "_record", "_optional")


class Boat(Record, frozen=True, kw_only=True):
    SCHEMA: ClassVar[int] = 2

    name: str
    masts: dict[int, float] = {}


def test_a_record_is_read_back_as_it_was_written(tmp_path):
    boat = Boat(name="Iris", masts={1: 2.0, 2: 3.5})
    write_record(tmp_path / "boat.json", boat)
    assert json.loads((tmp_path / "boat.json").read_text())["schema"] == 2
    assert read_record(tmp_path / "boat.json", Boat) == boat


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ('{"schema": 1, "name": "Iris"}', OtherSchema, "its schema is 1, this version reads 2"),
        ('{"schema": 3, "name": "Iris", "sails": 3}', OtherSchema, "its schema is 3"),
        ('{"name": "Iris", "sails": 3}', OtherSchema, "it names no schema (older versions did not)"),
        ('{"title": "Iris"}', OtherSchema, "it names no schema"),
        ('{"schema": 2, "title": "Iris"}', CmError, "title"),
        ('{"schema": 2, "name": 3}', CmError, "name"),
        ('{"schema": 2, "na', CmError, "truncated"),
        ("[]", CmError, "object"),
    ],
)
def test_a_record_of_another_schema_is_refused_with_the_reason(tmp_path, text, error, words):
    (tmp_path / "boat.json").write_text(text)
    with pytest.raises(CmError) as caught:
        read_record(tmp_path / "boat.json", Boat)
    assert type(caught.value) is error
    assert words in caught.value.cause
    assert caught.value.remedy


def test_what_was_written_before_records_named_their_schema_is_read_where_it_fits(tmp_path):
    (tmp_path / "boat.json").write_text('{"name": "Iris"}')
    assert read_record(tmp_path / "boat.json", Boat) == Boat(name="Iris")


# --- the number follows the fields -----------------------------------------------------------------------------------


def records_of_files() -> dict[str, type[Record]]:
    """Return the classes that a module of the package reads from files, by their names."""
    records: dict[str, type[Record]] = {}
    for path in sorted((ROOT / "src" / "cm4vllm").rglob("*.py")):
        text = path.read_text()
        if not any(reader in text for reader in READERS):
            continue
        calls = [
            node
            for node in nodes_of(path)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in READERS
        ]
        names = [arg.id for call in calls for arg in call.args if isinstance(arg, ast.Name) and arg.id[0].isupper()]
        if names:
            module = importlib.import_module(".".join(path.relative_to(ROOT / "src").with_suffix("").parts))
            records |= {name: getattr(module, name) for name in names}
    return records


def shape(cls: type[Record]) -> dict[str, object]:
    """Return the fields of a class and of those in it: their types, and which are required; no descriptions."""
    _, parts = msgspec.json.schema_components([cls])
    return {
        name: {
            "required": sorted(part.get("required", [])),
            "fields": {field: plain(described) for field, described in part.get("properties", {}).items()},
            "values": part.get("enum", []),
        }
        for name, part in sorted(parts.items())
    }


def plain(schema: object) -> object:
    if isinstance(schema, dict):
        return {key: plain(value) for key, value in schema.items() if key not in ("description", "title", "default")}
    return [plain(part) for part in schema] if isinstance(schema, list) else schema


def faults(old: dict, new: dict) -> list[str]:
    """Return why files of the shape `old` cannot be read as `new`."""
    lines = []
    for name, part in old.items():
        now = new.get(name)
        if now is None:
            continue  # another class stands at its place, or a field is gone: that shows where it was used
        lines += [f"{name}.{field} is gone" for field in part["fields"] if field not in now["fields"]]
        lines += [
            f"{name}.{field} has another type"
            for field, described in part["fields"].items()
            if not reads(now["fields"].get(field, described), described)
        ]
        lines += [f"{name}.{field} has no default" for field in now["required"] if field not in part["required"]]
        lines += [f"{name} lacks {value!r}" for value in part["values"] if value not in now["values"]]
    return lines


def reads(now: object, before: object) -> bool:
    """Return True if a field reads what was written before: it has the same type, or that among others."""
    return now == before or (isinstance(now, dict) and before in now.get("anyOf", ()))


@pytest.mark.xdist_group("source")
def test_a_schema_is_raised_when_its_files_could_no_longer_be_read():
    stored = json.loads(SHAPES.read_text())
    for name, cls in records_of_files().items():
        assert name in stored, f"{name} is new: python {Path(__file__).relative_to(ROOT)}"
        assert stored[name]["schema"] == cls.SCHEMA, f"{name}: python {Path(__file__).relative_to(ROOT)}"
        assert faults(stored[name]["shape"], shape(cls)) == [], (
            f"files of {name} written before cannot be read any more: raise {name}.SCHEMA, then "
            f"python {Path(__file__).relative_to(ROOT)}"
        )


def test_the_comparison_of_shapes_sees_a_change():
    old = {"Boat": {"required": ["name"], "fields": {"name": {"type": "string"}}, "values": []}}
    assert faults(old, shape(Boat)) == []
    assert faults(shape(Boat), old) == ["Boat.masts is gone"]
    assert faults(old, {"Boat": {**old["Boat"], "required": ["masts", "name"]}}) == ["Boat.masts has no default"]
    assert faults(old, {"Boat": {**old["Boat"], "fields": {"name": {"type": "integer"}}}}) == [
        "Boat.name has another type"
    ]


if __name__ == "__main__":
    lines = [
        f"{json.dumps(name)}: {json.dumps({'schema': cls.SCHEMA, 'shape': shape(cls)})}"
        for name, cls in sorted(records_of_files().items())
    ]
    SHAPES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
