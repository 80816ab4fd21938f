import pytest

from cm4vllm.engine.secrets import secret_key


@pytest.mark.parametrize(("key", "secret"), [("CM_GH_TOKEN", True), ("HF_TOKEN", True), ("CM_API_KEY", True),
                                             ("CM_TOKENIZER", False), ("CM_MAX_TOKENS", False), ("CM_KEYS", False)])
def test_secret_keys(key, secret):
    assert secret_key(key) is secret
