"""The public format's behaviours, each by a script of its own, with what must come out.

With CM4MLOPS=<checkout of cm4mlops> the same scripts run under its engine too: it must give the same, or, where its
answer is a fault that this engine does not copy, what `theirs` says.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.engine.conformance.conftest import Engine, ours_alone

EXPORT = {"new_env_keys": ["CM_*"]}
SEEN = "def preprocess(i):\n    i['env']['CM_SEEN'] = {0}\n    return {{'return': 0}}\n"


@dataclass
class Case:
    """Scripts by alias (meta, files), what is asked for, and what must come of the last request."""

    scripts: dict[str, dict[str, Any]]
    asked: list[dict[str, Any]] | dict[str, Any]
    gives: dict[str, Any] = field(default_factory=dict)
    code: int = 0
    entries: int | None = None
    output: str = ""
    theirs: dict[str, Any] | None = None


def script(meta=None, **files):
    return {"meta": {**EXPORT, **(meta or {})}, "files": files}


def variations(**table):
    return {"variations": table}


CASES = {
    # selection and variations
    "group default": Case(
        {
            "a": script(
                variations(
                    x={"group": "g", "default": True, "env": {"CM_X": "x"}}, y={"group": "g", "env": {"CM_X": "y"}}
                )
            )
        },
        {"tags": "a"},
        {"CM_X": "x"},
    ),
    "group choice": Case(
        {
            "a": script(
                variations(
                    x={"group": "g", "default": True, "env": {"CM_X": "x"}}, y={"group": "g", "env": {"CM_X": "y"}}
                )
            )
        },
        {"tags": "a,_y"},
        {"CM_X": "y"},
    ),
    "two of a group": Case(
        {"a": script(variations(x={"group": "g"}, y={"group": "g"}))}, {"tags": "a,_x,_y"}, code=20, theirs={"code": 1}
    ),
    "excluded default": Case(
        {"a": script(variations(x={"group": "g", "default": True, "env": {"CM_X": "x"}}))}, {"tags": "a,-_x"}, {}
    ),
    "dynamic variation with dots": Case(
        {"a": script(variations(**{"v.#": {"env": {"CM_X": "#"}}}))}, {"tags": "a,_v.1.2.3"}, {"CM_X": "1.2.3"}
    ),
    "alias": Case(
        {"a": script(variations(x={"alias": "y"}, y={"env": {"CM_Y": "1"}}))}, {"tags": "a,_x"}, {"CM_Y": "1"}
    ),
    "combination": Case(
        {"a": script(variations(x={"env": {"CM_X": "x"}}, y={}, **{"x,y": {"env": {"CM_X": "xy"}}}))},
        {"tags": "a,_x,_y"},
        {"CM_X": "xy"},
    ),
    "default_variations of a variation": Case(
        {
            "a": script(
                variations(
                    x={"group": "g", "default": True, "env": {"CM_G": "x"}},
                    y={"group": "g", "env": {"CM_G": "y"}},
                    top={"default_variations": {"g": "y"}},
                )
            )
        },
        {"tags": "a,_top"},
        {"CM_G": "y"},
    ),
    "base beneath what builds on it": Case(
        {
            "a": script(
                variations(low={"env": {"CM_X": "low", "CM_L": "1"}}, top={"base": ["low"], "env": {"CM_X": "top"}})
            )
        },
        {"tags": "a,_top"},
        {"CM_X": "top", "CM_L": "1"},
        theirs={"gives": {"CM_X": "low", "CM_L": "1"}},
    ),
    "base of itself": Case(
        {
            "a": script(
                variations(x={"base": ["x", "y"], "env": {"CM_X": "x"}}, y={"base": ["x"], "env": {"CM_Y": "y"}})
            )
        },
        {"tags": "a,_x"},
        {"CM_X": "x", "CM_Y": "y"},
    ),
    "nothing found": Case({"a": script()}, {"tags": "nonexistent,script"}, code=16, theirs={"code": 1}),
    "unknown variation": Case({"a": script()}, {"tags": "a,_nope"}, code=20, theirs={"code": 16}),
    "lowest sort wins": Case(
        {
            "a": script({"tags": ["t", "a"], "sort": 100, "env": {"CM_X": "a"}}),
            "b": script({"tags": ["t", "b"], "env": {"CM_X": "b"}}),
        },
        {"tags": "t"},
        {"CM_X": "b"},
    ),
    # environment
    "default_env gives way to --env": Case(
        {"a": script({"default_env": {"CM_X": "d"}})}, {"tags": "a", "env": {"CM_X": "c"}}, {"CM_X": "c"}
    ),
    "input_mapping beats variation": Case(
        {"a": script({"input_mapping": {"x": "CM_X"}, **variations(v={"env": {"CM_X": "v"}})})},
        {"tags": "a,_v", "x": "flag"},
        {"CM_X": "flag"},
    ),
    "variation beats --env": Case(
        {"a": script(variations(v={"env": {"CM_X": "v"}}))}, {"tags": "a,_v", "env": {"CM_X": "c"}}, {"CM_X": "v"}
    ),
    "version beats variation": Case(
        {"a": script({"versions": {"2": {"env": {"CM_X": "version"}}}, **variations(v={"env": {"CM_X": "v"}})})},
        {"tags": "a,_v", "version": "2"},
        {"CM_X": "version", "CM_VERSION": "2"},
    ),
    "default version": Case(
        {"a": script({"default_version": "2", "versions": {"2": {"env": {"CM_X": "2"}}}})},
        {"tags": "a"},
        {"CM_X": "2", "CM_VERSION": "2"},
    ),
    "default version moved into limits": Case(
        {"a": script({"default_version": "2"})},
        {"tags": "a", "version_min": "3"},
        {"CM_VERSION": "3", "CM_VERSION_MIN": "3"},
    ),
    "placeholders": Case(
        {"a": script({"env": {"CM_A": "<<<CM_B>>>!", "CM_N": "<<<CM_NONE>>>"}, "default_env": {"CM_B": "b"}})},
        {"tags": "a"},
        {"CM_A": "b!", "CM_B": "b", "CM_N": "<<<CM_NONE>>>"},
    ),
    "only exported keys come back": Case(
        {
            "a": script({"deps": [{"tags": "b"}]}),
            "b": script({"env": {"CM_OUT": "1", "CM_HID": "2"}, "new_env_keys": ["CM_OUT"]}),
        },
        {"tags": "a"},
        {"CM_OUT": "1"},
    ),
    "export of a key named by a key": Case(
        {"a": script({"env": {"NAME": "KEY", "KEY": "v"}, "new_env_keys": ["<<<NAME>>>"]})}, {"tags": "a"}, {"KEY": "v"}
    ),
    "flags are constant below": Case(
        {
            "a": script({"input_mapping": {"x": "CM_X"}, "deps": [{"tags": "b"}]}),
            "b": script({"env": {"CM_X": "b"}}, **{"customize.py": SEEN.format("i['env']['CM_X']")}),
        },
        {"tags": "a", "x": "flag"},
        {"CM_X": "flag", "CM_SEEN": "flag"},
    ),
    "a dependency's export against a flag": Case(
        {
            "a": script({"input_mapping": {"x": "CM_X"}, "deps": [{"tags": "b"}]}),
            "b": script(
                **{"customize.py": "def preprocess(i):\n    i['env']['CM_X'] = 'b'\n    return {'return': 0}\n"}
            ),
        },
        {"tags": "a", "x": "flag"},
        {"CM_X": "flag"},
    ),
    "a hook against a flag": Case(
        {
            "a": script(
                {"input_mapping": {"x": "CM_X"}},
                **{
                    "customize.py": "def preprocess(i):\n    i['env']['CM_X'] = 'hook'\n    return {'return': 0}\n",
                    "run.sh": 'echo "CM_SEEN=$CM_X" > tmp-run-env.out\n',
                },
            )
        },
        {"tags": "a", "x": "flag"},
        {"CM_X": "flag", "CM_SEEN": "flag"},
    ),
    "a dependency's export against the meta": Case(
        {"a": script({"env": {"CM_X": "a"}, "deps": [{"tags": "b"}]}), "b": script({"env": {"CM_X": "b"}})},
        {"tags": "a"},
        {"CM_X": "b"},
    ),
    # dependencies
    "condition with yes": Case(
        {
            "a": script({"deps": [{"tags": "b", "enable_if_env": {"CM_Y": ["yes"]}}]}),
            "b": script({"env": {"CM_B": "1"}}),
        },
        {"tags": "a", "env": {"CM_Y": "foo"}},
        {"CM_B": "1", "CM_Y": "foo"},
    ),
    "condition with no and a missing key": Case(
        {
            "a": script({"deps": [{"tags": "b", "enable_if_env": {"CM_Y": ["no"]}}]}),
            "b": script({"env": {"CM_B": "1"}}),
        },
        {"tags": "a"},
        {"CM_B": "1"},
    ),
    "skip_if_any_env": Case(
        {
            "a": script({"deps": [{"tags": "b", "skip_if_any_env": {"CM_Y": ["on"], "CM_Z": ["on"]}}]}),
            "b": script({"env": {"CM_B": "1"}}),
        },
        {"tags": "a", "env": {"CM_Z": "on"}},
        {"CM_Z": "on"},
    ),
    "tags from env with prefix": Case(
        {
            "a": script({"deps": [{"tags": "b", "update_tags_from_env_with_prefix": {"_v.": ["CM_V"]}}]}),
            "b": script(variations(**{"v.#": {"env": {"CM_B": "#"}}})),
        },
        {"tags": "a", "env": {"CM_V": "7"}},
        {"CM_B": "7", "CM_V": "7"},
    ),
    "inherited variations": Case(
        {
            "a": script(
                {
                    "deps": [{"tags": "b", "inherit_variation_tags": True, "skip_inherit_variation_groups": ["g"]}],
                    **variations(x={}, y={"group": "g"}),
                }
            ),
            "b": script(variations(x={"env": {"CM_B": "x"}})),
        },
        {"tags": "a,_x,_y"},
        {"CM_B": "x"},
    ),
    "local keys stay": Case(
        {
            "a": script(
                {
                    "local_env_keys": ["CM_OWN"],
                    "deps": [{"tags": "b"}],
                    "env": {"CM_OWN": "1", "CM_TMP_Z": "1"},
                    "new_env_keys": ["CM_SEEN"],
                }
            ),
            "b": script(**{"customize.py": SEEN.format("str([k in i['env'] for k in ('CM_OWN', 'CM_TMP_Z')])")}),
        },
        {"tags": "a"},
        {"CM_SEEN": "[False, False]"},
    ),
    "forced keys": Case(
        {
            "a": script(
                {
                    "deps": [{"tags": "b", "force_env_keys": ["CM_GIT_*"]}],
                    "env": {"CM_GIT_U": "1"},
                    "new_env_keys": ["CM_SEEN"],
                }
            ),
            "b": script(**{"customize.py": SEEN.format("i['env'].get('CM_GIT_U', 'none')")}),
        },
        {"tags": "a"},
        {"CM_SEEN": "1"},
    ),
    "reused version": Case(
        {
            "a": script({"deps": [{"tags": "b", "reuse_version": True}], "new_env_keys": ["CM_SEEN"]}),
            "b": script(**{"customize.py": SEEN.format("i['env'].get('CM_VERSION', 'none')")}),
        },
        {"tags": "a", "version": "5"},
        {"CM_SEEN": "5"},
    ),
    "adr reaches below": Case(
        {
            "a": script({"deps": [{"tags": "b"}]}),
            "b": script({"deps": [{"tags": "c", "names": ["deep"]}]}),
            "c": script(variations(x={"env": {"CM_C": "x"}})),
        },
        {"tags": "a", "adr": {"deep": {"tags": "_x"}}},
        {"CM_C": "x"},
    ),
    "ad of an unknown name": Case(
        {"a": script({"deps": [{"tags": "b", "names": ["b"]}]}), "b": script()},
        {"tags": "a", "ad": {"nope": {"tags": "_x"}}},
        code=20,
        theirs={"code": 1},
    ),
    "prehook and posthook": Case(
        {
            "a": script(
                {"prehook_deps": [{"tags": "b,_1"}], "posthook_deps": [{"tags": "b,_2"}]},
                **{
                    "run.sh": 'echo "CM_RUN=$CM_1$CM_2" > tmp-run-env.out\n',
                    "customize.py": "def postprocess(i):\n"
                    "    i['env']['CM_POST'] = i['env']['CM_1'] + i['env']['CM_2']\n"
                    "    return {'return': 0}\n",
                },
            ),
            "b": script(variations(**{"1": {"env": {"CM_1": "p"}}, "2": {"env": {"CM_2": "q"}}})),
        },
        {"tags": "a"},
        {"CM_1": "p", "CM_2": "q", "CM_RUN": "p", "CM_POST": "pq"},
    ),
    "post_deps see what the script made": Case(
        {
            "a": script({"post_deps": [{"tags": "b"}]}, **{"run.sh": "echo CM_R=1 > tmp-run-env.out\n"}),
            "b": script(**{"customize.py": SEEN.format("i['env']['CM_R']")}),
        },
        {"tags": "a"},
        {"CM_R": "1", "CM_SEEN": "1"},
    ),
    "bogus dependency": Case(
        {"a": script({"deps": [{"tags": "bogus,dep"}]})}, {"tags": "a"}, code=16, theirs={"code": 1}
    ),
    "bogus post dependency": Case(
        {"a": script({"post_deps": [{"tags": "bogus,dep"}]})}, {"tags": "a"}, code=16, theirs={"code": 1}
    ),
    "bogus prehook dependency": Case(
        {"a": script({"prehook_deps": [{"tags": "bogus,dep"}]})}, {"tags": "a"}, code=16, theirs={"code": 1}
    ),
    "bogus posthook dependency": Case(
        {"a": script({"posthook_deps": [{"tags": "bogus,dep"}]})}, {"tags": "a"}, code=16, theirs={"code": 1}
    ),
    # customize.py and its helpers
    "state": Case(
        {
            "a": script({"deps": [{"tags": "b"}]}, **{"customize.py": SEEN.format("i['state']['k']['v']")}),
            "b": script({"new_state_keys": ["k"], "state": {"k": {"v": "s"}}}),
        },
        {"tags": "a"},
        {"CM_SEEN": "s"},
    ),
    "skip": Case(
        {
            "a": script(
                {"post_deps": [{"tags": "b"}]},
                **{
                    "customize.py": "def preprocess(i):\n    return {'return': 0, 'skip': True}\n",
                    "run.sh": "exit 1\n",
                },
            ),
            "b": script({"env": {"CM_B": "1"}}),
        },
        {"tags": "a"},
        {},
    ),
    "error of a hook": Case(
        {"a": script(**{"customize.py": "def preprocess(i):\n    return {'return': 7, 'error': 'no'}\n"})},
        {"tags": "a"},
        code=7,
    ),
    "find_artifact not found": Case(
        {
            "a": script(
                **{
                    "customize.py": SEEN.format(
                        "str(i['automation'].find_artifact({'file_name': 'no-such-tool', 'env': i['env'], "
                        "'os_info': i['os_info'], 'default_path_env_key': 'PATH', "
                        "'run_script_input': i['run_script_input']})['return'])"
                    )
                }
            )
        },
        {"tags": "a"},
        {"CM_SEEN": "16"},
    ),
    "find_artifact with version": Case(
        {
            "a": script(
                **{
                    "customize.py": """
import os
def preprocess(i):
    for number in ("1.0", "2.0"):
        os.makedirs(number, exist_ok=True)
        with open(os.path.join(number, "tool"), "w") as file:
            file.write("tool " + number)
    i["env"]["CM_TMP_PATH"] = os.path.abspath("1.0") + ":" + os.path.abspath("2.0")
    r = i["automation"].find_artifact({
        "file_name": "tool", "env": i["env"], "os_info": i["os_info"], "default_path_env_key": "PATH",
        "detect_version": True, "env_path_key": "CM_TOOL", "run_script_input": i["run_script_input"],
        "recursion_spaces": ""})
    if r["return"]: return r
    i["env"]["CM_FOUND"] = os.path.relpath(r["found_file_path"])
    del i["env"]["CM_TOOL"]
    return {"return": 0}
def detect_version(i):
    r = i["automation"].parse_version({"match_text": r"tool (\\S+)", "group_number": 1, "env_key": "CM_TOOL_VERSION",
                                       "which_env": i["env"]})
    return r if r["return"] else {"return": 0, "version": r["version"]}
""",
                    "run.sh": 'test -z "$CM_TOOL" || cat "$CM_TOOL" > tmp-ver.out\n',
                }
            )
        },
        {"tags": "a", "version_min": "1.5"},
        {"CM_FOUND": "2.0/tool", "CM_VERSION_MIN": "1.5"},
    ),
    "run_native_script": Case(
        {
            "a": script(
                **{
                    "customize.py": """
def preprocess(i):
    r = i["automation"].run_native_script({"run_script_input": i["run_script_input"], "env": i["env"],
                                           "script_name": "extra"})
    if r["return"]: return r
    i["env"]["CM_SEEN"] = r["env_tmp"]["CM_EXTRA"]
    return {"return": 0}
""",
                    "extra.sh": "echo CM_EXTRA=e > tmp-run-env.out\n",
                }
            )
        },
        {"tags": "a"},
        {"CM_SEEN": "e", "CM_EXTRA": "e"},
    ),
    "update_deps": Case(
        {
            "a": script(
                {"prehook_deps": [{"tags": "b", "names": ["n"]}]},
                **{
                    "customize.py": """
def preprocess(i):
    return i["automation"].update_deps({"deps": i["meta"]["prehook_deps"],
                                        "update_deps": {"n": {"env": {"CM_D": "1"}}}})
"""
                },
            ),
            "b": script(**{"customize.py": SEEN.format("i['env'].get('CM_D', 'none')")}),
        },
        {"tags": "a", "env": {"CM_Q": "1"}},
        {"CM_SEEN": "1", "CM_D": "1", "CM_Q": "1"},
    ),
    # run.sh
    "named shell file": Case(
        {"a": script({"script_name": "other"}, **{"other.sh": "echo CM_O=1 > tmp-run-env.out\n"})},
        {"tags": "a"},
        {"CM_O": "1"},
    ),
    "failing run.sh": Case({"a": script(**{"run.sh": "exit 7\n"})}, {"tags": "a"}, code=2),
    "failing run.sh ignored": Case({"a": script(**{"run.sh": "exit 7\n"})}, {"tags": "a", "ignore_script_error": True}),
    "list exported": Case(
        {
            "a": script(
                {"env": {"+PATH": ["/x", "/y"]}, "new_env_keys": ["CM_SEEN"]},
                **{"run.sh": 'case "$PATH" in /x:/y:/*) echo CM_SEEN=yes > tmp-run-env.out;; esac\n'},
            )
        },
        {"tags": "a"},
        {"CM_SEEN": "yes"},
    ),
    "env_key_mappings": Case(
        {
            "a": script(
                {"env_key_mappings": {"CM_OLD_": "CM_NEW_"}, "env": {"CM_OLD_A": "1"}},
                **{"run.sh": 'echo "CM_SEEN=$CM_NEW_A" > tmp-run-env.out\n'},
            )
        },
        {"tags": "a"},
        {"CM_OLD_A": "1", "CM_NEW_A": "1", "CM_SEEN": "1"},
    ),
    # cache
    "second run is a hit": Case(
        {
            "a": script(
                {"cache": True},
                **{"run.sh": 'echo x >> "$CM_TMP_LOG"; echo "CM_N=$(wc -l < $CM_TMP_LOG)" > tmp-run-env.out\n'},
            )
        },
        [{"tags": "a", "env": {"CM_TMP_LOG": "(tmp)/hit"}}] * 2,
        {"CM_N": "1"},
        entries=1,
    ),
    "new makes a further entry": Case(
        {"a": script({"cache": True})}, [{"tags": "a"}, {"tags": "a", "new": True}], entries=2
    ),
    "renew keeps one entry": Case(
        {"a": script({"cache": True})},
        [{"tags": "a"}, {"tags": "a", "renew": True}],
        {"CM_RENEW_CACHE_ENTRY": "yes"},
        entries=1,
    ),
    "skip_cache": Case({"a": script({"cache": True})}, {"tags": "a", "skip_cache": True}, entries=0),
    "force_cache": Case({"a": script({"can_force_cache": True})}, {"tags": "a", "force_cache": True}, entries=1),
    "dynamic dependency of a hit": Case(
        {
            "a": script({"cache": True, "deps": [{"tags": "b", "dynamic": True}]}),
            "b": script(**{"run.sh": 'echo x >> "$CM_LOG"; echo "CM_N=$(wc -l < $CM_LOG)" > tmp-run-env.out\n'}),
        },
        [{"tags": "a", "env": {"CM_LOG": "(tmp)/dynamic"}}] * 2,
        None,
    ),
    "version in the tags": Case(
        {
            "a": script(
                {"cache": True}, **{"customize.py": "def postprocess(i):\n    return {'return': 0, 'version': '3.1'}\n"}
            )
        },
        {"tags": "a"},
        entries=1,
    ),
}


def written(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Write the scripts of all cases, each case under tags of its own, and return the requests."""
    asked = {}
    number = 0
    for place, (name, case) in enumerate(CASES.items()):
        for alias, parts in case.scripts.items():
            number += 1
            meta = {
                "alias": f"c{place}-{alias}",
                "uid": f"{number:015x}b",
                "automation_alias": "script",
                "automation_uid": "5b4e0237da074764",
                "tags": [alias],
                **parts["meta"],
            }
            meta["tags"] = [f"c{place}", *meta["tags"]]
            path = folder / "script" / meta["alias"]
            path.mkdir(parents=True)
            for phase in ("deps", "prehook_deps", "posthook_deps", "post_deps"):
                if phase in meta:
                    meta[phase] = [{**entry, "tags": f"c{place},{entry['tags']}"} for entry in meta[phase]]
            (path / "_cm.yaml").write_text(yaml.safe_dump(meta, sort_keys=False))
            for file, text in parts["files"].items():
                (path / file).write_text(text)
        requests = case.asked if isinstance(case.asked, list) else [case.asked]
        asked[name] = [{**request, "tags": f"c{place},{request['tags']}"} for request in requests]
    (folder / "cmr.yaml").write_text('alias: cases\nuid: "00000000000000f3"\n')
    return asked


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Give the answers to all cases by engine, the incumbent's where there is one."""
    folder = tmp_path_factory.mktemp("behaviours")
    sides = {"ours": ours_alone(folder / "engine")}
    if named := os.environ.get("CM4MLOPS"):
        sides["theirs"] = Path(named).resolve()
    asked = written(folder / "cases")
    return {
        side: Engine(folder / side, repository, folder / "cases").answers(with_folder(asked, folder / f"{side}.d"))
        for side, repository in sides.items()
    }


def with_folder(asked, folder):
    """Replace (tmp) in environments by a folder."""
    folder.mkdir()
    return {
        name: [
            {
                **request,
                "env": {key: value.replace("(tmp)", str(folder)) for key, value in request.get("env", {}).items()},
            }
            for request in requests
        ]
        for name, requests in asked.items()
    }


def check(case: Case, answer: dict[str, Any], expected: dict[str, Any]) -> None:
    assert answer["return"] == expected["code"], answer["error"]
    if expected["gives"] is not None and not expected["code"]:
        env = {
            key: str(value)
            for key, value in (answer["new_env"] or {}).items()
            if key not in ("CM_QUIET", "CM_TMP_PIP_VERSION_STRING") and not key.startswith("CM_TMP_")
        }
        assert env == expected["gives"]
    if expected["entries"] is not None:
        assert len([entry for entry in answer["entries"] if "tmp" not in entry["tags"]]) == expected["entries"]
    if "nonexistent" in str(case.asked):
        assert "no scripts were found" in answer["error"]


@pytest.mark.parametrize("name", CASES)
def test_behaviour(answers, name):
    case = CASES[name]
    expected = {"code": case.code, "gives": case.gives, "entries": case.entries}
    check(case, answers["ours"][name][-1], expected)
    if "theirs" in answers:
        check(case, answers["theirs"][name][-1], {**expected, **(case.theirs or {})})
