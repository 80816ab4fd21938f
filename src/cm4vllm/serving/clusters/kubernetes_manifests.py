"""vLLM on Kubernetes: one typed description, as a Deployment, a LeaderWorkerSet, a KServe service, or for llm-d."""

import math
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

import yaml
from msgspec.structs import replace

from cm4vllm.common import input_types
from cm4vllm.common.errors import UsageError
from cm4vllm.common.files import writable_folder
from cm4vllm.common.folders.owned_folders import write_noted
from cm4vllm.common.progress import say
from cm4vllm.common.settings import Bounds, Key, Settings
from cm4vllm.common.terminal_text import whole_number
from cm4vllm.records.vllm.options import split_options
from cm4vllm.serving.clusters.kubernetes_schemas import check_objects
from cm4vllm.serving.clusters.placement import NodeLayout, node_layout
from cm4vllm.serving.options.arguments import ServerSettings, secret_env, server_argv, with_extra_options

MANIFEST_FILE = "manifests.yaml"

PORT = 8000
#: The ports of the leader of several pods: of the groups of their workers, and of data parallelism.
_GROUP_PORTS = ("29500", "29550")
#: Where KServe mounts a model; the other kinds mount a claim there as well.
MODEL_MOUNT = "/mnt/models"

#: RFC 1123 label, the form of the names of Kubernetes' objects.
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

#: Said by an LLMInferenceService's own fields, or by the start command of KServe's template: not among its arguments.
_SAID_BY_LLM_D = ("--served-model-name", "--host", "--port", "--tensor-parallel-size", "--pipeline-parallel-size")

#: The labels of pods of a LeaderWorkerSet, and of its leader (kubernetes-sigs/lws, leaderworkerset_types.go).
_LWS, _LWS_GROUP = "leaderworkerset.sigs.k8s.io", "leaderworkerset.x-k8s.io"

#: How long a pod may load, in seconds, where the inputs do not set it.
_START_TIMEOUT_S = 1800


#: Without it a Service named vllm gives each pod of its namespace VLLM_PORT=tcp://..., with which vLLM does not start.
_NO_SERVICE_LINKS = {"enableServiceLinks": False}
_Kind = Literal["deployment", "leader-worker-set", "kserve", "llm-d"]


class PodSettings(Settings, frozen=True, kw_only=True):
    """Settings for a cluster, and the server's own arguments.

    `model` is a hub id, or `pvc://CLAIM/PATH` for a model that lies on a volume. `gpu_resource` is the name under which
    the cluster's device plugin offers GPUs. `start_timeout_s` is how long a pod may load before it is started again.
    The manifests are written to `folder`, and checked against the schemas in the sources `kserve` and `lws` and of
    Kubernetes `version`.
    """

    kind: Annotated[_Kind, Key("CM_KUBERNETES_KIND")] = "deployment"
    model: input_types.VllmModelName
    name: Annotated[str, Key("CM_KUBERNETES_NAME")] = ""
    namespace: Annotated[str, Key("CM_KUBERNETES_NAMESPACE")] = ""
    image: Annotated[str, Key("CM_KUBERNETES_IMAGE")] = ""
    replicas: Annotated[int, Key("CM_KUBERNETES_REPLICAS"), Bounds()] = 1
    nodes: input_types.Nodes = ""
    pp_size: input_types.PpSize = None
    gpu_resource: Annotated[str, Key("CM_KUBERNETES_GPU_RESOURCE")] = "nvidia.com/gpu"
    cpu: Annotated[str, Key("CM_KUBERNETES_CPU")] = ""
    memory: Annotated[str, Key("CM_KUBERNETES_MEMORY")] = ""
    hf_token_secret_name: Annotated[str, Key("CM_KUBERNETES_HF_TOKEN_SECRET_NAME")] = ""
    start_timeout_s: input_types.ReadyTimeout = None
    server: ServerSettings = ServerSettings()
    folder: Annotated[str, Key("CM_KUBERNETES_DIR")] = ""
    kserve: Annotated[str, Key("CM_KSERVE_SOURCE")] = ""
    lws: Annotated[str, Key("CM_LWS_SOURCE")] = ""
    version: Annotated[str, Key("CM_KUBERNETES_VERSION")] = ""

    @property
    def pods(self) -> int:
        """The number of pods that one server is spread over; 0 where it is not a number."""
        return whole_number(self.nodes or 1) or 0

    @property
    def claim(self) -> tuple[str, str]:
        """The claim and the path on it, empty for a model of a hub."""
        claim, _, path = self.model.removeprefix("pvc://").partition("/")
        return (claim, path) if self.model.startswith("pvc://") else ("", "")

    @property
    def object_name(self) -> str:
        return self.name or re.sub(r"[^a-z0-9]+", "-", PurePath(self.model).name.lower())[:63].strip("-")


class ManifestExports(Settings, frozen=True, kw_only=True):
    """The export of generate,kubernetes-manifests."""

    path: Annotated[str, Key("CM_KUBERNETES_MANIFESTS")]


def manifests(pod: PodSettings) -> list[dict[str, Any]]:
    """Return the objects of the description, in the order in which they are applied.

    Raises UsageError for a description that Kubernetes would refuse or that would not be what was measured.
    """
    _check(pod)
    server = _server_settings(pod)
    if secret_env(server):
        raise UsageError(
            "a token in --extra_args",
            cause="it would be readable in the manifest",
            remedy="put it into a Secret under the key HF_TOKEN, and name that: --hf_token_secret_name=NAME",
        )
    words = server_argv(Path("python"), server, PORT)
    arguments = words[words.index("serve") + 1 :]
    of_leader = {f"{_LWS}/worker-index": "0", f"{_LWS}/name": pod.object_name}
    services = {"deployment": [_service(pod, _labels(pod))], "leader-worker-set": [_service(pod, of_leader)]}
    return [_OBJECTS[pod.kind](pod, server, arguments), *services.get(pod.kind, [])]


def write_manifests(pod: PodSettings) -> ManifestExports:
    """Write the objects of the description to its folder, as one YAML file; print what their schemas say of them."""
    documents = manifests(pod)
    path = writable_folder(Path(pod.folder).absolute()) / MANIFEST_FILE
    write_noted(path, yaml.safe_dump_all(documents, sort_keys=False, explicit_start=True))
    kserve, lws = (Path(source) if source else None for source in (pod.kserve, pod.lws))
    for sentence in check_objects(documents, kserve, pod.version, lws=lws):
        say(sentence)
    say(f"kubectl apply -f {path}")
    return ManifestExports(path=str(path))


def _check(pod: PodSettings) -> None:
    for title, value in (
        ("name", pod.object_name),
        ("namespace", pod.namespace),
        ("hf_token_secret_name", pod.hf_token_secret_name),
        ("claim of --vllm_model_name", pod.claim[0]),
    ):
        if value and not _LABEL.fullmatch(value):
            raise UsageError(
                f"{value!r} cannot be the {title} of a Kubernetes object",
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
    if pod.kind == "llm-d" and pod.hf_token_secret_name:
        raise UsageError(
            "--hf_token_secret_name has no effect with _llm-d",
            cause="KServe fetches the model itself, with the token of its own service account",
            remedy="attach the Secret to that service account and leave the input out",
        )
    if pod.pods < 1 or (pod.pods > 1) is not (pod.kind == "leader-worker-set"):
        raise UsageError(
            f"--nodes={pod.nodes or 1} does not fit the variation _{pod.kind}",
            cause="_leader-worker-set spreads one server over 2 or more pods, the other variations over none",
            remedy="give _leader-worker-set with --nodes=2 or more, or leave --nodes out",
        )


def _server_settings(pod: PodSettings) -> ServerSettings:
    # A pod listens on every address of its own, at one port; its model is compiled unless the user says otherwise.
    claim, path = pod.claim
    return with_extra_options(
        replace(
            pod.server,
            name=pod.server.name or pod.model.removeprefix("pvc://").rstrip("/").rpartition("/")[2],
            model=f"{MODEL_MOUNT}/{path}".rstrip("/") if claim else pod.model,
            host="0.0.0.0",  # noqa: S104 - a pod's own network namespace
            enforce_eager=bool(pod.server.enforce_eager),
        )
    )


def _object(pod: PodSettings, version: str, kind: str, spec: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    space = {"namespace": pod.namespace} if pod.namespace else {}
    metadata = {"name": pod.object_name, **space, "labels": _labels(pod), **more}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _labels(pod: PodSettings) -> dict[str, str]:
    return {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": pod.object_name}


def _resources(pod: PodSettings, server: ServerSettings) -> dict[str, Any]:
    asked = {"cpu": pod.cpu, "memory": pod.memory, pod.gpu_resource: str(server.workers // pod.pods)}
    given = {key: value for key, value in asked.items() if value}
    return {"limits": given, "requests": dict(given)}


def _environment(pod: PodSettings) -> list[dict[str, Any]]:
    secret = {"secretKeyRef": {"name": pod.hf_token_secret_name, "key": "HF_TOKEN"}}
    return [
        {"name": "VLLM_NO_USAGE_STATS", "value": "1"},
        {"name": "DO_NOT_TRACK", "value": "1"},
        # The client keeps its connections open between the runs of a campaign.
        {"name": "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "value": "600"},
        *([{"name": "HF_HUB_OFFLINE", "value": "1"}] if pod.claim[0] else []),
        *([{"name": "HF_TOKEN", "valueFrom": secret}] if pod.hf_token_secret_name and not pod.claim[0] else []),
    ]


def _pod_spec(pod: PodSettings, server: ServerSettings, container: str, arguments: list[str]) -> dict[str, Any]:
    # Workers of one server share memory there; Kubernetes gives 64 MB unless a volume is mounted.
    mounts: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if pod.claim[0]:
        mounts.append({"name": "model", "mountPath": MODEL_MOUNT, "readOnly": True})
        volumes.append({"name": "model", "persistentVolumeClaim": {"claimName": pod.claim[0], "readOnly": True}})
    health, period = {"httpGet": {"path": "/health", "port": PORT}}, 10
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
                    "failureThreshold": math.ceil((pod.start_timeout_s or _START_TIMEOUT_S) / period),
                },
                "readinessProbe": {**health, "periodSeconds": period},
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
        **_NO_SERVICE_LINKS,
    }


def _deployment(pod: PodSettings, server: ServerSettings, arguments: list[str]) -> dict[str, Any]:
    spec = {
        "replicas": pod.replicas,
        "selector": {"matchLabels": _labels(pod)},
        # The GPUs of the old pod are free before the new one asks for them.
        "strategy": {"type": "Recreate"},
        "template": {"metadata": {"labels": _labels(pod)}, "spec": _pod_spec(pod, server, "vllm", arguments)},
    }
    return _object(pod, "apps/v1", "Deployment", spec)


def _service(pod: PodSettings, selector: Mapping[str, str]) -> dict[str, Any]:
    ports = [{"name": "http", "port": PORT, "targetPort": PORT}]
    return _object(pod, "v1", "Service", {"selector": dict(selector), "ports": ports})


def _leader_worker_set(pod: PodSettings, server: ServerSettings, arguments: list[str]) -> dict[str, Any]:
    """Return pods that start and end together: the leader, which serves, and the others, with `--headless`.

    The controller gives each pod the variables LWS_LEADER_ADDRESS and LWS_WORKER_INDEX, which Kubernetes puts into
    the arguments.
    """
    layout = node_layout(pod.pods, tp_size=server.tp_size or 1, pp_size=pod.pp_size or 1, dp_size=server.dp_size or 1)
    own = {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    leader = _pod_spec(pod, server, "vllm", [*arguments, *layout.options(0, "$(VLLM_HOST_IP)", _GROUP_PORTS)])
    worker = _pod_spec(pod, server, "vllm", arguments)
    (container,) = worker["containers"]
    container |= _worker_command(arguments, layout)
    for name in ("ports", "startupProbe", "readinessProbe"):  # it answers no requests
        del container[name]
    for spec in (leader, worker):
        spec["containers"][0]["env"].append(own)
    template = {
        "size": pod.pods,
        # vLLM's processes cannot go on when one of them has ended.
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": {"metadata": {"labels": _labels(pod)}, "spec": leader},
        "workerTemplate": {"metadata": {"labels": _labels(pod)}, "spec": worker},
    }
    spec = {"replicas": pod.replicas, "leaderWorkerTemplate": template}
    return _object(pod, f"{_LWS_GROUP}/v1", "LeaderWorkerSet", spec)


def _worker_command(arguments: list[str], layout: NodeLayout) -> dict[str, list[str]]:
    """Return command and arguments of the pods beside the leader: their rank is computed from their index."""
    words = layout.options(1, "$(LWS_LEADER_ADDRESS)", _GROUP_PORTS)
    option = "--node-rank" if layout.crosses else "--data-parallel-start-rank"
    place, step = words.index(option) + 1, 1 if layout.crosses else layout.engines // layout.nodes
    if step == 1:
        words[place] = "$(LWS_WORKER_INDEX)"
        return {"command": ["vllm", "serve"], "args": [*arguments, *words]}
    del words[place - 1 : place + 1]
    # $$ is a dollar sign for the shell, which Kubernetes does not read as a variable of its own.
    line = f'exec vllm serve "$@" {option} $$((LWS_WORKER_INDEX * {step}))'
    return {"command": ["sh", "-c"], "args": [line, "vllm", *arguments, *words]}


def _inference_service(pod: PodSettings, server: ServerSettings, arguments: list[str]) -> dict[str, Any]:
    # Plain pods, as many all the time: a benchmark's system does not change its size while it is measured.
    sizes = {"minReplicas": pod.replicas, "maxReplicas": pod.replicas}
    spec = {"predictor": {**sizes, **_pod_spec(pod, server, "kserve-container", arguments)}}
    plain = {"serving.kserve.io/deploymentMode": "Standard"}
    return _object(pod, "serving.kserve.io/v1beta1", "InferenceService", spec, annotations=plain)


def _llm_inference_service(pod: PodSettings, server: ServerSettings, arguments: list[str]) -> dict[str, Any]:
    """Return llm-d's server, router and scheduler as KServe's LLMInferenceService declares them.

    Its template starts `vllm serve` itself and takes further words, as a shell reads them, from VLLM_ADDITIONAL_ARGS.
    """
    options = (option for option in split_options(arguments[1:])[1] if option.name not in _SAID_BY_LLM_D)
    words = shlex.join(word for option in options for word in option.words)
    container = {
        "name": "main",
        "env": [*_environment(pod), {"name": "VLLM_ADDITIONAL_ARGS", "value": words}],
        "resources": _resources(pod, server),
        **({"image": pod.image} if pod.image else {}),
    }
    parallelism = {"tensor": server.tp_size or 1, "pipeline": pod.pp_size or 1}
    spec = {
        "model": {"uri": pod.model if pod.claim[0] else f"hf://{pod.model}", "name": server.name},
        "replicas": pod.replicas,
        "parallelism": {key: value for key, value in parallelism.items() if value > 1},
        "router": {"gateway": {}, "route": {}, "scheduler": {}},
        "template": {"containers": [container], **_NO_SERVICE_LINKS},
    }
    return _object(pod, "serving.kserve.io/v1alpha2", "LLMInferenceService", spec)


#: The objects that serve, of each kind of description.
_OBJECTS: Mapping[_Kind, Callable[[PodSettings, ServerSettings, list[str]], dict[str, Any]]] = {
    "deployment": _deployment,
    "leader-worker-set": _leader_worker_set,
    "kserve": _inference_service,
    "llm-d": _llm_inference_service,
}
