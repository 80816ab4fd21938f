"""Cases of a run: customize.py and its helpers, run.sh, and the cache."""

from tests.engine.conformance.cases import SEEN, Case, script

CASES = {
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
