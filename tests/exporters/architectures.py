"""Every model that is exported."""

from __future__ import annotations

import detection_models
import image_models
import other_models
import sequence_models
import text_models

ARCHITECTURES = (
    *text_models.ARCHITECTURES,
    *sequence_models.ARCHITECTURES,
    *image_models.ARCHITECTURES,
    *detection_models.ARCHITECTURES,
    *other_models.ARCHITECTURES,
)
