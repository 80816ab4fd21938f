import json
import shutil

import pytest

KEPT = "def preprocess(i): __import__('pathlib').Path('made').write_text('x'); return {'return': 0}\n"


def symptoms(home, **env):
    home.cli("find", "script", **env)
    done = home.cli("doctor", "script", "--out=json", **env)
    lines = json.loads(done.stdout)["symptoms"]
    return done.returncode, {symptom["subject"]: symptom for symptom in lines if symptom["level"] != "ok"}, lines


def test_a_sound_home_is_told_so(home):
    home.script("one", {"cache": True}, customize=KEPT)
    home.run("one")
    code, bad, lines = symptoms(home)
    assert code == 0
    assert bad.keys() <= {"python"}  # where the tests run outside a virtual environment
    assert {"engine", "home", "cache", "compiler", "disk", "repositories"} <= {symptom["subject"] for symptom in lines}
    text = home.done("doctor", "script").stdout
    assert "ok     cache" in text
    assert "1 entry, " in text


def test_broken_and_unfinished_entries_are_named_with_a_remedy(home):
    home.script("one", {"cache": True}, customize=KEPT)
    home.run("one")
    (entry,) = home.entries()
    (entry / "made").unlink()
    code, bad, _ = symptoms(home)
    assert code == 0
    assert "made is missing or was changed" in bad["cache"]["text"]
    assert bad["cache"]["remedy"] == f"cm rm cache {entry.name} -f"
    assert home.done(*bad["cache"]["remedy"].split()[1:]).returncode == 0
    assert home.entries() == []
    (entry.parent / "0123456789abcdef").mkdir(parents=True)
    assert "0123456789abcdef is unfinished" in symptoms(home)[1]["cache"]["text"]


def test_an_entry_whose_meta_is_not_json_is_wrong_until_it_is_removed(home):
    home.script("one", {"cache": True}, customize=KEPT)
    home.run("one")
    (entry,) = home.entries()
    (entry / "_cm.json").write_text('{"a": ')
    code, bad, _ = symptoms(home)
    assert (code, bad["cache"]["level"], bad["cache"]["remedy"]) == (1, "WRONG", f"rm -r {entry}")
    shutil.rmtree(entry)
    assert symptoms(home)[0] == 0


def test_another_engine_first_is_wrong(home):
    other = home.repo.with_name("other")
    shutil.copytree(home.engine, other)
    (other / "cmr.yaml").write_text('alias: other\nuid: "00000000000000f3"\n')
    home.register(other, home.engine, home.repo)
    home.act("find", "script")
    done = home.done("doctor", "cm4vllm:script")
    assert done.returncode == 1
    assert f"the script engine of {other} is registered before this one" in done.stdout
    assert "cm run cm4vllm:script" in done.stdout


def test_what_is_wrong_with_files_of_the_home(home):
    home.script("one")
    home.script("two")
    second = home.repo / "script" / "two" / "_cm.yaml"
    second.write_text(second.read_text().replace("2a", "1a"))
    _, bad, _ = symptoms(home)
    assert "hides this script" in bad["scripts"]["text"]
    shutil.rmtree(home.repo / "script" / "one")
    assert bad["scripts"]["remedy"] == "run: cm lint script"
    assert "indexed folders no longer exist" in symptoms(home)[1]["index"]["text"]


@pytest.mark.parametrize(("tool", "level"), [("compiler", "note"), ("bash", "WRONG"), ("git", "note")])
def test_a_missing_tool_is_named(home, tmp_path, tool, level):
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "cc", "git"):
        if not tool.startswith(name[0]):
            (folder / name).symlink_to(shutil.which(name))
    code, bad, _ = symptoms(home, PATH=str(folder))
    assert bad[tool]["level"] == level
    assert code == (1 if level == "WRONG" else 0)
