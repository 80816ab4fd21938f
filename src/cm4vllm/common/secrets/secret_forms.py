"""Secrets that are known by the name of a variable, a flag or a key, or by their form.

The forms are keys of well-known services, passwords and signatures in URLs, headers.
"""

import re
from collections.abc import Callable, Iterator
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


#: The text in the place of a secret.
HIDDEN = "(secret)"

# Each is compiled when it is first needed: all of them would take as long as many a `cm` command with a cache hit.


# Each takes a time that grows as the text does: where a key may begin many times in one word, the whole word is read
# once, and its group `key` says whether it is one.

#: Keys of well-known services, each kind with what its matches begin with, which nothing else has.
_KINDS = (
    (("sk-",), r"\bsk-(?=[\w-]{20})[A-Za-z_-]*+(?P<key>\d)?[\w-]*+"),
    (("eyJ",), r"\beyJ[\w-]{10,}+(?P<key>\.eyJ[\w-]{10,}+\.[\w-]{5,}+)?"),
    (
        (
            "hf_",
            "ghp_",
            "gho_",
            "ghu_",
            "ghs_",
            "ghr_",
            "github_pat_",
            "glpat-",
            "nvapi-",
            "AKIA",
            "ASIA",
            "xox",
            "AIza",
        ),
        r"(?P<key>\bhf_[A-Za-z0-9]{24,}|\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_\w{30,}|\bglpat-[\w-]{20,}"
        r"|\bnvapi-[\w-]{20,}|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bxox[abprs]-[\w-]{10,}|\bAIza[\w-]{30,})",
    ),
)
_PEM_BEGIN, _PEM_END = (rf"-----{word} [A-Z ]{{0,64}}PRIVATE KEY-----" for word in ("BEGIN", "END"))


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII | re.DOTALL)


def _key_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield where keys of well-known services and private keys in PEM stand, in the order of their kinds."""
    for beginnings, pattern in _KINDS:
        if any(beginning in text for beginning in beginnings):
            yield from (match.span() for match in _compile(pattern).finditer(text) if match["key"] is not None)
    if "-----BEGIN " in text:
        # Of a key whose end is missing, the first line; the end is searched for only where there is one.
        ended = max((match.end() for match in _compile(_PEM_END).finditer(text)), default=0)
        yield from (match.span() for match in _compile(f"{_PEM_BEGIN}.*?{_PEM_END}").finditer(text, 0, ended))
        yield from (match.span() for match in _compile(_PEM_BEGIN).finditer(text, ended))


@cache
def _in_url() -> re.Pattern[str]:
    """Match the user and password, or the lone token, before the host of a URL; group 1 or 2 is the secret of it.

    Of http, what stands alone is a token: a name asks for a password. A password may hold `@`, and `/` where it cannot
    be a port with a path: up to 1,024 characters, as the next URL is read too.
    """
    return re.compile(
        r"(?<=://)(?!(?:\$\{[A-Z0-9_]+:\?\}:?)+@|\(secret\)@)(?:"
        r"[^/\s:@\"']*:(?!\$\{[A-Z0-9_]+:\?\}@)([^/\s\"']+|(?!\d*[/,])[^\s@\"']{1,1024}+)"
        r"|([^/\s:@\"']{16,}|(?:(?<=http://)|(?<=https://))[^/\s:@\"']+))(?=@)",
        re.IGNORECASE,
    )


@cache
def _in_query() -> re.Pattern[str]:
    """Match a signature or key in the query of a URL; group 1 is its name, group 2 its value."""
    return re.compile(
        r"(?<=[?&])((?:access_token|token|sig|signature|api_?key|key|x-amz-[a-z-]+)=)(?!\$\{)"
        r"([^&\s\"'#]+)",
        re.IGNORECASE,
    )


def secrets_of_urls(text: str) -> list[str]:
    """Return the secrets in the URLs of a text, each as it stands there and as the server gets it.

    A word of letters that stands alone may be a user's name: it is hidden where it stands, and searched for nowhere.
    """
    from urllib.parse import unquote

    secrets = [match[1] or ("" if match[2].isalpha() else match[2]) for match in _in_url().finditer(text)]
    secrets = [secret for secret in secrets + [match[2] for match in _in_query().finditer(text)] if secret]
    return list(dict.fromkeys(spelled for secret in secrets for spelled in (secret, unquote(secret))))


@cache
def _in_header() -> re.Pattern[str]:
    """Match a header that proves who asks: its name, what is between, the scheme, the secret."""
    return re.compile(
        r"\b((?:proxy-)?authorization|x-api-key|api-key|cookie)([\"']?\s*[:=]\s*[\"']?)"
        r"((?:bearer|basic|token)\s+)?(?!\$\{|(?:bearer|basic|token)\s)([^\s\"',;]{6,})",
        re.IGNORECASE,
    )


@cache
def _bearer() -> re.Pattern[str]:
    return re.compile(r"\b(bearer\s+)[\w.~+/-]{16,}=*", re.IGNORECASE)


def holds_form(text: str) -> bool:
    """Return True if a text holds a key of a well-known service, or a URL with a password."""
    return next(_key_spans(text), None) is not None or ("://" in text and bool(_in_url().search(text)))


def without_keys(text: str, hidden: str = HIDDEN) -> str:
    """Return a text without keys of well-known services and private keys, which nothing else looks like."""
    parts, place = [], 0
    for start, end in sorted(_key_spans(text)):
        if end > place:
            parts += [text[place:start], hidden] if start >= place else []
            place = end
    return "".join([*parts, text[place:]]) if place else text


def keys_in(text: str) -> Iterator[str]:
    """Return keys of well-known services and private keys in a text."""
    return (text[start:end] for start, end in _key_spans(text))


def headers_changed(text: str, change: Callable[[str, str], str]) -> str:
    """Return a text in which `change` gives, for the name and the secret of a header, what stands for the secret."""
    return _in_header().sub(lambda match: f"{match[1]}{match[2]}{match[3] or ''}{change(match[1], match[4])}", text)


def without_forms(text: str, hidden: str = HIDDEN) -> str:
    """Return a text without what has the form of a secret."""
    text = without_keys(text, hidden)
    if "://" in text and "@" in text:
        text = _in_url().sub(lambda _: hidden, text)
    if "?" in text and "=" in text:
        text = _in_query().sub(lambda match: match[1] + hidden, text)
    lower = text.lower()
    if "authorization" in lower or "api-key" in lower or "cookie" in lower:
        text = headers_changed(text, lambda name, secret: hidden)
    if "bearer " in lower:
        text = _bearer().sub(lambda match: match[1] + hidden, text)
    return text
