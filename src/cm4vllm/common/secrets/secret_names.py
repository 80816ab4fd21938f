"""Names of environment variables, flags and keys whose value is a secret."""

import re
from functools import cache

# Singular and last: CM_HF_TOKEN is a secret, CM_MAX_TOKENS and CM_TOKENIZER_PATH are not.
_SECRET_ENDS = (
    "TOKEN",
    "SECRET",
    "SECRETS",
    "PASSWORD",
    "PASSWORDS",
    "PASSWD",
    "PASSPHRASE",
    "SSHPASS",
    "CREDENTIAL",
    "CREDENTIALS",
    "COOKIE",
    "AUTHORIZATION",
    "CONNECTION_STRING",
    "WEBHOOK",
    "WEBHOOK_URL",
    "APIKEY",
    "API_KEYS",
    *(
        f"{kind}_KEY_ID"
        for kind in ("ACCESS", "PRIVATE", "SECRET", "ACCOUNT", "STORAGE", "SIGNING", "ENCRYPTION", "LICENSE")
    ),
    "_KEY",
    "_PASS",
    "_PWD",
    "_PAT",
    "_AUTH",
    "_AUTH_CONFIG",
    "_BEARER",
    "_JWT",
    "_SAS",
    "_OTP",
    "COOKIES",
    *(f"_{kind}_TOKENS" for kind in ("AUTH", "ACCESS", "API", "HF")),
)
#: Words that mark a secret anywhere in a name (DB_PASSWORD_PROD, MYSECRETKEY), unless the end of the name stands for a
#: place where a secret is kept, or for a fact about it (API_KEY_ENV, PASSWORD_FILE). Digits at the end are left out.
_SECRET_WORDS = re.compile(
    r"SECRET|PASSW(?:OR)?D|PASSPHRASE|CREDENTIAL|PRIVATE_?KEY|API_?KEY|ACCESS_?KEY"
    r"|_TOKEN_(?:PROD|DEV|TEST|STAGING|OLD|NEW|READ|WRITE|ADMIN|B|BASE|V)$"
)
_OF_A_SECRET = (
    "_FILE",
    "_PATH",
    "_DIR",
    "_FOLDER",
    "_ENV",
    "_NAME",
    "_VARIABLE",
    "_KEYS",
    "_NAMES",
    "_COUNT",
    "_LENGTH",
    "_HELPER",
    "_STORE",
    "_ID",
    "_TYPE",
    "_FLAGS",
)
#: Names that end so and are none: the shell's present folder, and keys that sort, select or are public.
_NO_SECRETS = (
    "KEY",
    "PWD",
    *(
        f"_{kind}_KEY"
        for kind in (
            "CACHE",
            "SORT",
            "PUBLIC",
            "PRIMARY",
            "FOREIGN",
            "GROUP",
            "HOT",
            "DICT",
            "JSON",
            "INDEX",
            "MAP",
            "RECORD",
        )
    ),
)
#: Tokens of a vocabulary, and times per token.
_TOKENS_OF_TEXT = tuple(
    f"{kind}_TOKEN"
    for kind in ("EOS", "BOS", "PAD", "UNK", "SEP", "CLS", "MASK", "STOP", "IMAGE", "FIRST", "OUTPUT", "PER", "NEXT")
)


@cache
def is_secret_name(name: str) -> bool:
    """Return True if the name of an environment variable, a flag or a key says that its value is a secret."""
    # The second of two, and what is only called the value of it: HF_TOKEN_2, CLIENT_SECRET_VALUE.
    plain = re.sub(r"(?:_?(?<!\d)\d+|_VALUE)$", "", variable_name(name).strip("_"))
    if plain in _NO_SECRETS or f"_{plain}".endswith(_NO_SECRETS[2:]) or plain.endswith(_TOKENS_OF_TEXT):
        return False
    if f"_{plain}".endswith(_SECRET_ENDS):
        return True
    return bool(_SECRET_WORDS.search(f"_{plain}")) and not plain.endswith(_OF_A_SECRET)


def variable_name(name: str) -> str:
    """Return a name as a variable is written: HF_TOKEN of --hf-token, --env.HF_TOKEN, +HF_TOKEN and hfToken."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip("-+,").rpartition(".")[2].lstrip("+"))
    return re.sub(r"[^A-Z0-9_]", "_", words.upper())
