"""Writes Kubernetes manifests of a vLLM server, checked against their published schemas."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from pathlib import Path

    import yaml

    from cm4vllm.common.progress import say
    from cm4vllm.serving.clusters.kubernetes_manifests import PodSettings, write_manifests
    from cm4vllm.serving.clusters.kubernetes_schemas import check_objects

    env = i["env"]
    path = write_manifests(PodSettings.of(env), env, Path(env["CM_KUBERNETES_DIR"]).absolute())
    kserve, lws = (Path(env[key]) if env.get(key) else None for key in ("CM_KSERVE_SOURCE", "CM_LWS_SOURCE"))
    documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    for sentence in check_objects(documents, kserve, env.get("CM_KUBERNETES_VERSION", ""), lws=lws):
        say(sentence)
    say(f"kubectl apply -f {path}")
    env["CM_KUBERNETES_MANIFESTS"] = str(path)
    return {"return": 0}
