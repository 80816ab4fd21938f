"""Plans of scripts that a test writes, and the nodes of a plan."""

HOOK = "def preprocess(i):\n    i['env'].update({0})\n    return {{'return': 0}}\n"


def planned(home, tags, **given):
    """Return the plan as data, having checked that it neither ran nor wrote anything."""
    home.act("find", "script")
    before = files(home)
    result = home.run(tags, plan=True, **given)
    assert files(home) == before
    return result


def files(home):
    """Return when each file was written, but for the store of metas: any command writes it when they have settled."""
    return {
        path: path.stat().st_mtime_ns
        for path in [*home.path.rglob("*"), *home.work.rglob("*")]
        if path.name != "cm4vllm-scripts.json"
    }


def nodes(node):
    yield node
    for child in node["children"]:
        yield from nodes(child)


def told(node):
    return [
        (node["script"]["alias"], tuple(node["variations"]), node["status"] in ("cached", "made above"))
        for node in nodes(node)
    ]


def find(result, alias):
    return next(node for node in nodes(result["plan"]) if node["script"] and node["script"]["alias"] == alias)


def chain(home):
    """Write scripts with every kind of dependency: cached, dynamic, conditional, inherited, amended, versioned."""
    home.script("os", {"new_env_keys": ["CM_OS_*"]}, customize=HOOK.format({"CM_OS_NAME": "linux"}))
    home.script(
        "tool",
        {
            "cache": True,
            "new_env_keys": ["CM_TOOL"],
            "deps": [{"tags": "os"}],
            "default_version": "2.0",
            "versions": {"2.0": {"deps": [{"tags": "two"}]}},
            "variations": {"a": {"group": "g", "default": True}, "b": {"group": "g"}},
        },
        customize=HOOK.format({"CM_TOOL": "/bin/true"}),
    )
    home.script("two")
    home.script("flag", {"env": {"CM_FLAG": "yes"}, "new_env_keys": ["CM_FLAG"]})
    home.script("live", {"cache": True, "deps": [{"tags": "os", "dynamic": True}, {"tags": "two"}]})
    home.script("late")
    home.script(
        "top",
        {
            "deps": [
                {"tags": "flag"},
                {"tags": "tool", "names": ["tool"]},
                {"tags": "two", "skip_if_env": {"CM_FLAG": ["on"]}},
                {"tags": "live", "enable_if_env": {"CM_FLAG": ["on"]}},
                {"tags": "tool", "names": ["tool"]},
                {"tags": "tool,_b"},
            ],
            "post_deps": [{"tags": "late"}, {"tags": "two", "enable_if_env": {"CM_MODE": ["fast"]}}],
            "input_mapping": {"mode": "CM_MODE"},
            "variations": {"x": {"adr": {"tool": {"tags": "_b"}}}},
        },
    )
