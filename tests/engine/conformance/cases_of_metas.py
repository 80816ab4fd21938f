"""Cases of a meta: selection, variations, the environment, and dependencies."""

from tests.engine.conformance.cases import SEEN, Case, script, variations

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
}
