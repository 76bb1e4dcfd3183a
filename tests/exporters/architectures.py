"""Every model that is exported."""

from __future__ import annotations

from dataclasses import replace

import detection_models
import generative_models
import image_models
import other_models
import rare_models
import sequence_models
import text_models

_SINGLE = (
    *text_models.ARCHITECTURES,
    *sequence_models.ARCHITECTURES,
    *image_models.ARCHITECTURES,
    *generative_models.ARCHITECTURES,
    *detection_models.ARCHITECTURES,
    *other_models.ARCHITECTURES,
    *rare_models.ARCHITECTURES,
)
_HALF = (
    "text-encoder",
    "causal-decoder-cached",
    "rotary-decoder-cached",
    "spectrogram-encoder",
    "residual-network",
    "mobile-network",
    "convnext",
    "dilated-segmenter",
    "grid-detector",
)

ARCHITECTURES = (
    *_SINGLE,
    *(replace(each, name=f"{each.name}-half", half=True) for each in _SINGLE if each.name in _HALF),
)
