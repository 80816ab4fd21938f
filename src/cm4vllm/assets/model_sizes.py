"""The size of a model's download before it is made, and what the download needs of the user; for plans."""

import os
from collections.abc import Mapping

from cm4vllm.assets.downloads import hub
from cm4vllm.common.errors import CmError, DownloadError
from cm4vllm.records.weights.model_size import read_architecture
from cm4vllm.rules import CatalogueModel, catalogue, published_bytes

#: The kinds of sources whose files come from the hub.
_OF_HUB = ("hf", "catalogue", "served")


def catalogue_name(source: str, location: str) -> str:
    """Return the catalogue's name of the model that a variation of get,ml-model gives, `_hf.ORG/NAME` among them.

    Empty for a model that the catalogue does not have, and for a folder.
    """
    if source in ("catalogue", "mlcommons"):
        return location if location in catalogue().models else ""
    if source not in _OF_HUB:
        return ""
    return next((name for name, model in catalogue().models.items() if model.hub == location), "")


def weight_bytes(name: str, precision: str = "") -> int:
    """Return the bytes of the weights of a model of the catalogue, computed from its configuration.

    `precision` stands for another one than that of its checkpoint. 0 where the configuration is not known.
    """
    config = catalogue().config(name)
    if not config:
        return 0
    return round(read_architecture(config).weight_bytes(precision or catalogue().model(name).precision))


def planned_downloads(source: str, location: str, revision: str = "") -> list[Mapping[str, object]]:
    """Return the downloads of a variation of get,ml-model in the form of a meta's `brings`, with their sizes.

    The hub is asked for the size of a model that the catalogue does not have.
    """
    name = catalogue_name(source, location)
    model = catalogue().models.get(name)
    if source == "mlcommons":
        size = published_bytes(model.mlcommons_size) if model else 0
        return [_download(f"the model {location} from MLCommons", size, "all files, as published" if size else "")]
    if source not in ("hf", "catalogue"):  # of a given server it is known when it was asked whether there is one
        return []
    title = f"the model {model.hub if model else location} from its hub"
    if model is not None and (size := weight_bytes(name)):
        return [_download(title, size, f"its weights, computed for {model.precision}")]
    try:
        return [_download(title, hub.download_bytes(location, revision), "by the hub's list of its files")]
    except CmError as error:
        return [_download(title, 0, f"the hub did not say: {error.cause or error.what}")]


def _download(title: str, size: int, source: str) -> Mapping[str, object]:
    return {"how": "download", "what": title, "disk_bytes": size, "measured": source}


def gate_words(source: str, location: str) -> str:
    """Return what a gated download needs of the user, empty for one that is open."""
    model = catalogue().models.get(catalogue_name(source, location))
    if model is None or not model.gate:
        return ""
    if source == "mlcommons":
        return (
            f"gated: {model.gate}. MLCommons' members: CF_ACCESS_TOKEN in the environment holds the token of "
            "`cloudflared access token`"
        )
    return f"gated: {model.gate}, at {hub.page_of(model.hub)}; HF_TOKEN in the environment holds the account's token"


def require_token(source: str, location: str, revision: str = "") -> None:
    """Raise DownloadError for a gated model of the hub itself that is not on this machine, without an account's token.

    Whether a mirror (HF_ENDPOINT) asks for one is for the mirror to say.
    """
    model: CatalogueModel | None = catalogue().models.get(catalogue_name(source, location))
    if model is None or not model.gate or source not in ("hf", "catalogue"):
        return
    if os.environ.get("HF_TOKEN") or os.environ.get("HF_ENDPOINT") or hub.is_cached(model.hub, revision):
        return
    raise DownloadError(
        f"the model {model.hub} is gated, and HF_TOKEN is not set",
        cause=model.gate,
        remedy=f"accept its licence at {hub.page_of(model.hub)} with your account, make a read token in the account's "
        "settings,\nand set HF_TOKEN to it in the environment",
    )
