"""docs/models.md says what the tests prove."""

import re

from tests.engine.models_page import PAGE, proven, section
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, __version__

TEXT = PAGE.read_text()


def test_what_is_proven_is_what_the_tests_run() -> None:
    assert section(TEXT, "proven") == proven()


def test_the_sweep_was_of_this_transformers_and_left_no_type_out() -> None:
    swept = section(TEXT, "swept")
    assert f"transformers {__version__}" in swept
    types = {kind.model_type for kind in MODEL_FOR_CAUSAL_LM_MAPPING}
    assert types <= set(re.findall(r"`([^`]+)`", swept))
