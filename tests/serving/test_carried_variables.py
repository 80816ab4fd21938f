"""Variables that servers on other nodes and in containers get, and those that a Service's name makes by accident."""

import pytest

from cm4vllm.common.host_addresses import PROXY_VARIABLES
from cm4vllm.serving.carried_variables import carried_variables, without_service_links

#: The variables that Kubernetes sets in each pod for a Service named vllm (kubernetes.io, Accessing the Service).
SERVICE = {
    "VLLM_PORT": "tcp://10.0.0.7:8000",
    "VLLM_SERVICE_HOST": "10.0.0.7",
    "VLLM_SERVICE_PORT": "8000",
    "VLLM_SERVICE_PORT_HTTP": "8000",
    "VLLM_PORT_8000_TCP": "tcp://10.0.0.7:8000",
    "VLLM_PORT_8000_TCP_PROTO": "tcp",
    "VLLM_PORT_8000_TCP_PORT": "8000",
    "VLLM_PORT_8000_TCP_ADDR": "10.0.0.7",
}


@pytest.mark.parametrize(
    "links",
    [
        SERVICE,
        {key.replace("VLLM", "HF_CACHE"): value for key, value in SERVICE.items()},
        {"VLLM_PORT": "udp://[fd00::7]:9", "NCCL_PORT": "tcp://a:1", "VLLM_ROUTER_PORT": "tcp://10.1.0.3:80"},
    ],
)
def test_what_a_services_name_makes_is_left_out(links):
    kept = {
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "VLLM_HOST_IP": "10.0.0.1",
        "HOME": "/root",
        "REDIS_PORT": "tcp://10.0.0.9:1",
    }
    assert without_service_links({**kept, **links}) == kept
    assert carried_variables({**kept, **links}) == {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_HOST_IP": "10.0.0.1"}


@pytest.mark.parametrize("port", ["8000", "29500", "0"])
def test_a_port_that_is_a_number_is_carried(port):
    assert carried_variables({"VLLM_PORT": port}) == {"VLLM_PORT": port}


@pytest.mark.parametrize("name", PROXY_VARIABLES)
def test_a_proxy_is_carried_in_either_spelling(name):
    assert carried_variables({name: "http://proxy:3128", "PROXY": "x", "CUDA_VISIBLE_DEVICES": "0"}) == {
        name: "http://proxy:3128"
    }
