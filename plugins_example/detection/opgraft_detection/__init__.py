"""An op pack for object detectors: `ai.opgraft.detection::SelectDetections` turns what a head predicts into detections.

It is an operator that ONNX Runtime has never heard of: this pack brings its schema along.
"""

from .operators import select_detections

__all__ = ["select_detections"]
