"""vLLM on Kubernetes: one typed description, written as a Deployment, as a KServe InferenceService, or for llm-d."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from cm4vllm.common import input_types
from cm4vllm.common.errors import UsageError
from cm4vllm.common.files import writable_folder, write_text
from cm4vllm.common.records import Record
from cm4vllm.common.settings import Key, env_keys
from cm4vllm.serving.arguments import ServerSettings, read_server_settings, secret_env, server_argv

__all__ = ["MANIFEST_FILE", "PodSettings", "manifests", "write_manifests"]

MANIFEST_FILE = "manifests.yaml"

PORT = 8000
#: Where KServe mounts a model; the other kinds mount a claim there as well.
MODEL_MOUNT = "/mnt/models"

#: RFC 1123 label, the form of the names of Kubernetes' objects.
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

#: Said by an LLMInferenceService's own fields, or by the start command of KServe's template: not among its arguments.
_SAID_BY_LLM_D = ("--served-model-name", "--host", "--port", "--tensor-parallel-size", "--pipeline-parallel-size")

#: How long a pod may load, in seconds, where the inputs do not set it.
_START_TIMEOUT_S = 1800


class PodSettings(Record, frozen=True, kw_only=True):
    """Settings for a cluster, beside the server's own arguments.

    `model` is a hub id, or `pvc://CLAIM/PATH` for a model that lies on a volume. `gpu_resource` is the name under which
    the cluster's device plugin offers GPUs. `start_timeout_s` is how long a pod may load before it is started again.
    """

    kind: Annotated[Literal["deployment", "kserve", "llm-d"], Key("CM_KUBERNETES_KIND")] = "deployment"
    model: input_types.VllmModelName
    name: Annotated[str, Key("CM_KUBERNETES_NAME")] = ""
    namespace: Annotated[str, Key("CM_KUBERNETES_NAMESPACE")] = ""
    image: Annotated[str, Key("CM_KUBERNETES_IMAGE")] = ""
    replicas: Annotated[int, Key("CM_KUBERNETES_REPLICAS")] = 1
    pp_size: input_types.PpSize = None
    gpu_resource: Annotated[str, Key("CM_KUBERNETES_GPU_RESOURCE")] = "nvidia.com/gpu"
    cpu: Annotated[str, Key("CM_KUBERNETES_CPU")] = ""
    memory: Annotated[str, Key("CM_KUBERNETES_MEMORY")] = ""
    hf_token_secret: Annotated[str, Key("CM_KUBERNETES_HF_TOKEN_SECRET")] = ""
    start_timeout_s: input_types.ReadyTimeout = None

    @property
    def stages(self) -> int:
        """The number of pipeline stages."""
        return 1 if self.pp_size is None else self.pp_size

    @property
    def most_start_s(self) -> float:
        """The seconds after which a pod that still loads is started again."""
        return _START_TIMEOUT_S if self.start_timeout_s is None else self.start_timeout_s

    @property
    def claim(self) -> tuple[str, str]:
        """The claim and the path on it, empty for a model of a hub."""
        if not self.model.startswith("pvc://"):
            return "", ""
        claim, _, path = self.model.removeprefix("pvc://").partition("/")
        return claim, path

    @property
    def object_name(self) -> str:
        last = self.model.rstrip("/").rpartition("/")[2].lower()
        return self.name or re.sub(r"[^a-z0-9]+", "-", last)[:63].strip("-")


def manifests(pod: PodSettings, env: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the objects of the description, in the order in which they are applied.

    `env` holds the server's arguments under the keys of `arguments.ServerSettings`, as for `run,vllm-server`.
    Raises UsageError for a description that Kubernetes would refuse or that would not be what was measured.
    """
    _check(pod)
    server = _server_settings(pod, env)
    if secret_env(server):
        raise UsageError(
            "a token in --extra_args",
            cause="it would be readable in the manifest",
            remedy="put it into a Secret under the key HF_TOKEN, and name that: --hf_token_secret=NAME",
        )
    words = server_argv(Path("python"), server, PORT)
    arguments = words[words.index("serve") + 1 :]
    if pod.kind == "llm-d":
        return [_llm_inference_service(pod, server, arguments)]
    if pod.kind == "kserve":
        return [_inference_service(pod, server, arguments)]
    return [_deployment(pod, server, arguments), _service(pod)]


def write_manifests(pod: PodSettings, env: Mapping[str, str], folder: Path) -> Path:
    """Write the objects of the description to `folder`, as one YAML file, and return its path."""
    documents = manifests(pod, env)
    path = writable_folder(folder) / MANIFEST_FILE
    write_text(path, yaml.safe_dump_all(documents, sort_keys=False, explicit_start=True))
    return path


def _check(pod: PodSettings) -> None:
    for what, value in (
        ("name", pod.object_name),
        ("namespace", pod.namespace),
        ("hf_token_secret", pod.hf_token_secret),
        ("claim of --vllm_model_name", pod.claim[0]),
    ):
        if value and not _LABEL.fullmatch(value):
            raise UsageError(
                f"{value!r} cannot be the {what} of a Kubernetes object",
                cause="it has to be 1 to 63 lower-case letters, digits and dashes",
            )
    if pod.model.startswith("pvc://") and not pod.claim[0]:
        raise UsageError(f"--vllm_model_name={pod.model} names no claim", remedy="write it as pvc://CLAIM/PATH")
    if pod.model.startswith(("/", ".")):
        raise UsageError(
            f"a pod cannot access the folder {pod.model}",
            remedy="give a hub id, or put the model on a volume and give --vllm_model_name=pvc://CLAIM/PATH",
        )
    if pod.kind != "llm-d" and not pod.image:
        raise UsageError(
            "no container image is given",
            cause="the result has to state which vLLM was measured",
            remedy="--image=REGISTRY/NAME:TAG, for example vLLM's own image of a release",
        )
    if pod.kind == "llm-d" and pod.hf_token_secret:
        raise UsageError(
            "--hf_token_secret has no effect with _llm-d",
            cause="KServe fetches the model itself, with the token of its own service account",
            remedy="attach the Secret to that service account and leave the input out",
        )
    if pod.replicas < 1 or pod.stages < 1:
        raise UsageError("--replicas and --pp_size have to be 1 or more")


def _server_settings(pod: PodSettings, env: Mapping[str, str]) -> ServerSettings:
    # A pod listens on every address of its own, at one port; its model is compiled unless the user says otherwise.
    keys = env_keys(ServerSettings)
    claim, path = pod.claim
    given = {key: str(env[key]) for key in keys.values() if env.get(key) not in (None, "")}
    given[keys["name"]] = given.get(keys["name"]) or pod.model.removeprefix("pvc://").rstrip("/").rpartition("/")[2]
    given[keys["model"]] = f"{MODEL_MOUNT}/{path}".rstrip("/") if claim else pod.model
    given[keys["host"]] = "0.0.0.0"  # noqa: S104 - a pod's own network namespace
    given.setdefault(keys["enforce_eager"], "no")
    return read_server_settings(given)


def _metadata(pod: PodSettings, **more: Any) -> dict[str, Any]:
    space = {"namespace": pod.namespace} if pod.namespace else {}
    return {"name": pod.object_name, **space, "labels": _labels(pod), **more}


def _labels(pod: PodSettings) -> dict[str, str]:
    return {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": pod.object_name}


def _resources(pod: PodSettings, server: ServerSettings) -> dict[str, Any]:
    asked = {key: value for key, value in (("cpu", pod.cpu), ("memory", pod.memory)) if value}
    gpus = {pod.gpu_resource: str((server.tp_size or 1) * pod.stages)}
    return {"limits": {**asked, **gpus}, "requests": {**asked, **gpus}}


def _environment(pod: PodSettings) -> list[dict[str, Any]]:
    settings = [
        {"name": "VLLM_NO_USAGE_STATS", "value": "1"},
        {"name": "DO_NOT_TRACK", "value": "1"},
        # The client keeps its connections open between the runs of a campaign.
        {"name": "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "value": "600"},
    ]
    if pod.claim[0]:
        return [*settings, {"name": "HF_HUB_OFFLINE", "value": "1"}]
    if pod.hf_token_secret:
        secret = {"secretKeyRef": {"name": pod.hf_token_secret, "key": "HF_TOKEN"}}
        return [*settings, {"name": "HF_TOKEN", "valueFrom": secret}]
    return settings


def _pod_spec(pod: PodSettings, server: ServerSettings, container: str, arguments: list[str]) -> dict[str, Any]:
    # Workers of one server share memory there; Kubernetes gives 64 MB unless a volume is mounted.
    mounts: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if pod.claim[0]:
        mounts.append({"name": "model", "mountPath": MODEL_MOUNT, "readOnly": True})
        volumes.append({"name": "model", "persistentVolumeClaim": {"claimName": pod.claim[0], "readOnly": True}})
    health = {"httpGet": {"path": "/health", "port": PORT}}
    period = 10
    return {
        "containers": [
            {
                "name": container,
                "image": pod.image,
                "command": ["vllm", "serve"],
                "args": arguments,
                "env": _environment(pod),
                "ports": [{"containerPort": PORT, "protocol": "TCP"}],
                "resources": _resources(pod, server),
                "startupProbe": {
                    **health,
                    "periodSeconds": period,
                    "failureThreshold": math.ceil(pod.most_start_s / period),
                },
                "readinessProbe": {**health, "periodSeconds": period},
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }


def _deployment(pod: PodSettings, server: ServerSettings, arguments: list[str]) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(pod),
        "spec": {
            "replicas": pod.replicas,
            "selector": {"matchLabels": _labels(pod)},
            # The GPUs of the old pod are free before the new one asks for them.
            "strategy": {"type": "Recreate"},
            "template": {"metadata": {"labels": _labels(pod)}, "spec": _pod_spec(pod, server, "vllm", arguments)},
        },
    }


def _service(pod: PodSettings) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(pod),
        "spec": {"selector": _labels(pod), "ports": [{"name": "http", "port": PORT, "targetPort": PORT}]},
    }


def _inference_service(pod: PodSettings, server: ServerSettings, arguments: list[str]) -> dict[str, Any]:
    # Plain pods, as many all the time: a benchmark's system does not change its size while it is measured.
    mode = {"serving.kserve.io/deploymentMode": "Standard"}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": _metadata(pod, annotations=mode),
        "spec": {
            "predictor": {
                "minReplicas": pod.replicas,
                "maxReplicas": pod.replicas,
                **_pod_spec(pod, server, "kserve-container", arguments),
            }
        },
    }


def _llm_inference_service(pod: PodSettings, server: ServerSettings, arguments: list[str]) -> dict[str, Any]:
    """Return llm-d's server, router and scheduler as KServe's LLMInferenceService declares them.

    Its template starts `vllm serve` itself and takes further words, as a shell reads them, from VLLM_ADDITIONAL_ARGS.
    """
    words = shlex.join(_without(arguments[1:], _SAID_BY_LLM_D))
    container: dict[str, Any] = {
        "name": "main",
        "env": [*_environment(pod), {"name": "VLLM_ADDITIONAL_ARGS", "value": words}],
        "resources": _resources(pod, server),
    }
    if pod.image:
        container["image"] = pod.image
    parallelism = {"tensor": server.tp_size or 1, "pipeline": pod.stages}
    return {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": _metadata(pod),
        "spec": {
            "model": {"uri": pod.model if pod.claim[0] else f"hf://{pod.model}", "name": server.name},
            "replicas": pod.replicas,
            "parallelism": {key: value for key, value in parallelism.items() if value > 1},
            "router": {"gateway": {}, "route": {}, "scheduler": {}},
            "template": {"containers": [container]},
        },
    }


def _without(words: list[str], options: tuple[str, ...]) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in words:
        if not skip and word in options:
            skip = True
            continue
        if not skip:
            kept.append(word)
        skip = False
    return kept
